"""The open table of a SQL state: each write is one database transaction that begins by moving the version on."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pyarrow as pa
from sqlalchemy import Connection

from state.fence import WriteRefused
from state.rows.columns import StateColumns
from state.rows.expiring import NO_FLOORS, Floors
from state.rows.sums import SumCheck
from state.rows.value_limits import ValueLimits
from state.sql.database import Database, DatabaseFailed
from state.sql.registry import Registration
from state.sql.rewinding import note, undone
from state.sql.table import StateTable
from state.updates import rows_of, table_of_rows
from transactional.arrow import arrow_schema
from transactional.attempt import AttemptId, TransactionAttempt, TxId
from transactional.errors import ConfigError, OperatingError, SchemaMismatch
from transactional.ports.rewinding import RewindTarget
from transactional.schema import Schema

_log = logging.getLogger(__name__)


@contextmanager
def raising_ours(state: str) -> Iterator[None]:
    """What a database that fails is to whoever uses a state."""
    try:
        yield
    except DatabaseFailed as error:
        if error.is_refusal:
            raise ConfigError(f"state {state} can't be used: {error}") from error
        raise OperatingError(
            f"state {state}: the database does not respond: {error}. Check that it is running and reachable"
        ) from error


class FencedSqlTable:
    """A table of a database with its row in the registry. `name` is what messages call the state."""

    def __init__(
        self, database: Database, rows: StateTable, registration: Registration, columns: StateColumns, name: str
    ) -> None:
        self._database, self._rows, self._registration = database, rows, registration
        self._columns, self._name = columns, name
        self._limits = ValueLimits(name, zero_bytes=database.is_sqlite)
        self._loaded: AttemptId | None = None
        self._floors = NO_FLOORS
        self.is_complete = True
        """False: the state has gained value columns, which the next write adds."""

    def judge(self) -> AttemptId | None:
        """Read the attempt id of the table's last writer. Raises `OperatingError`, `ConfigError`."""
        with raising_ours(self._name), self._database.reading() as connection:
            self._loaded, self._floors = self._registration.version(connection)
        return self._loaded

    def created_for(self) -> str | None:
        """The `store_id` that it was created with."""
        with raising_ours(self._name), self._database.reading() as connection:
            return self._registration.created_for(connection)

    def version(self) -> AttemptId | None:
        """The attempt id that was found last, or written since."""
        return self._loaded

    def floors(self) -> Floors:
        """What was found with the version, or written since."""
        return self._floors

    def lookup(self, before: TxId, wanted: pa.Table) -> pa.Table:
        """Key and value columns as they were before a transaction, of the rows with a wanted key."""
        keys = rows_of(wanted) if self._columns.key else [()]
        with raising_ours(self._name), self._database.reading() as connection:
            found = self._rows.rows_before(connection, before, keys)
        return table_of_rows(found, Schema((*self._columns.key, *self._columns.values)))

    def rows(self, before: TxId) -> pa.Table:
        """Key and value columns of all rows as they were before a transaction."""
        columns = Schema((*self._columns.key, *self._columns.values))
        with raising_ours(self._name), self._database.reading() as connection:
            parts = [table_of_rows(part, columns) for part in self._rows.visible_rows(connection, TxId(before - 1))]
        return pa.concat_tables([arrow_schema(columns).empty_table(), *parts])

    def rows_between(self, before: TxId, column: str, after: int | None, until: int) -> pa.Table:
        """As `rows`, of those whose column lies in a range."""
        columns = Schema((*self._columns.key, *self._columns.values))
        with raising_ours(self._name), self._database.reading() as connection:
            found = self._rows.rows_between(connection, before, column, after, until)
            parts = [table_of_rows(part, columns) for part in found]
        return pa.concat_tables([arrow_schema(columns).empty_table(), *parts])

    def apply(
        self,
        attempt: TransactionAttempt,
        rows: pa.Table,
        combine: Mapping[str, str],
        *,
        is_replay: bool,
        floors: Floors | None = None,
    ) -> None:
        """Write rows and version, and roll back what a dead attempt has left. Raises `WriteRefused`."""
        self._limits.check(rows, len(self._columns.key))
        values = self._columns.values
        new, check = rows_of(rows), SumCheck(self._name, values, [combine[name] for name in values.names])
        with self._moving(attempt.attempt_id, floors) as connection:
            if is_replay:
                self._rows.roll_back(connection, attempt.txid)
            self._rows.remove_deleted(connection, attempt.txid)
            self._rows.apply(connection, attempt.txid, new, check, None if floors is None else floors.floor)

    def write_version(
        self, attempt_id: AttemptId, attempt: TransactionAttempt | None, floors: Floors | None = None
    ) -> None:
        """Write the version and no row. Raises `WriteRefused`."""
        with self._moving(attempt_id, floors):
            pass

    def remove_expired(self, committed_txid: TxId) -> None:
        """Remove the rows that had expired for the transaction before the newest one, if that is committed; those that
        it has written itself stay, as a rewind may need what was before. Raises `OperatingError`, `ConfigError`.

        Nothing is removed if another writer has come: it removes them.
        """
        floors = self._floors
        if floors.txid != committed_txid or floors.before is None:
            return
        with raising_ours(self._name), self._database.writing() as connection:
            if self._loaded is not None and self._registration.move(connection, self._loaded, self._loaded):
                self._rows.remove_expired(connection, floors.before, committed_txid)

    def go_back(self, target: RewindTarget, fence_id: AttemptId) -> None:
        """Undo the transaction after the target's, and write the fence. Raises `WriteRefused`, `BeyondKept`."""
        loaded, name = self._loaded, str(self._rows.table.name)
        with self._moving(fence_id, None) as connection:
            at = undone(connection, name, loaded, target, self._name)
            if at is None:
                return
            self._rows.roll_back(connection, at)
            if self._floors != NO_FLOORS:
                before = self._floors.at(target.txid)
                self._registration.record(connection, Floors(target.txid, before, before))
            note(connection, name, target.txid)
        self.judge()

    @contextmanager
    def _moving(self, attempt_id: AttemptId, floors: Floors | None) -> Iterator[Connection]:
        """A database transaction that has moved the version on from the loaded one. Raises `WriteRefused`."""
        try:
            with self._database.writing() as connection:
                if not self._registration.move(connection, self._loaded, attempt_id):
                    raise WriteRefused("another writer came between", is_conflict=True)
                added = () if self.is_complete else self._registration.add_columns(connection)
                if floors is not None:
                    self._registration.record(connection, floors)
                yield connection
        except DatabaseFailed as error:
            if error.is_about_data:
                raise SchemaMismatch(f"state {self._name} can't store the given values: {error}") from error
            raise WriteRefused(str(error), is_conflict=False) from error
        self._loaded, self.is_complete, self._floors = attempt_id, True, floors or self._floors
        if added:
            text = "state %s: columns %s added; the existing rows have NULL in them"
            _log.warning(text, self._name, ", ".join(added))
