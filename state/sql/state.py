"""`SqlMapState`: a state in a table of SQLite or PostgreSQL, exactly once, fenced against dead coordinators.

The fence is the table's row in `transactional_states`: the attempt id that wrote the table last. Each transaction is
one database transaction, which begins with a compare-and-set of that row: whoever comes too late changes nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pyarrow as pa
from sqlalchemy import Connection

from state.base import WriteRefused
from state.combine import rows_of, table_of_rows
from state.fenced import FencedState, Source
from state.sql.database import Database, DatabaseFailed
from state.sql.registry import Registration
from state.sql.table import StateTable
from state.sql.types import check_columns, check_name
from state.sums import SumCheck
from state.value_limits import ValueLimits
from transactional.arrow import arrow_schema
from transactional.attempt import AttemptId, TransactionAttempt, TxId
from transactional.errors import ConfigError, OperatingError, ProtocolError, SchemaMismatch
from transactional.examining import TableAddress
from transactional.names import owner_of
from transactional.ports import StateKind
from transactional.schema import Schema

if TYPE_CHECKING:
    from state.sql.doctor import ExaminedSql

_log = logging.getLogger(__name__)


class SqlMapState(FencedState):
    """Key → values in a table of a database: one row per key, with the transaction that wrote it and what was before.

    `url` is `sqlite:///path` or `postgresql://user:password@host/database`. `key` is a name, several names, or a DDL
    string with types (`carrier string`); names alone take their types from the input. () is a state of one row.
    `values` is a DDL string; it is left out when the state is updated by `.count()`, `.sum(…)` and so on. `columns`
    renames `txid`, `prev_txid` and `prev_<value>`. The table is made when a topology first runs. No wait for the
    database takes longer than `timeout_ms`; what fails then is repeated as another attempt. A state that gains value
    columns (a start with `--accept-changes`) adds them to its table, with NULL in the rows that are there.

    Raises `ConfigError` for URLs, names and types that can't hold a state.
    """

    def __init__(
        self,
        url: str,
        table: str,
        key: str | Sequence[str],
        values: str = "",
        *,
        kind: StateKind = StateKind.OPAQUE,
        columns: Mapping[str, str] | None = None,
        timeout_ms: int = 30_000,
    ) -> None:
        self._database = Database(url, timeout_ms=timeout_ms)
        self._table_name = table
        super().__init__(f"{table!r} in {self._database}", key, values, kind=kind, columns=columns)
        check_name(table, self.table)
        self._opened: tuple[StateTable, Registration] | None = None
        self._loaded: AttemptId | None = None
        self._is_complete = True

    def __repr__(self) -> str:
        return f"SqlMapState({self.table})"

    @property
    def place(self) -> str | None:
        """The path of a SQLite file."""
        return self._database.file

    def address(self) -> TableAddress:
        """The database, with all that one needs to log in, and the table in it."""
        return TableAddress.of("sql", self._database.url, self.columns, self._table_name)

    def examine(self, topology_id: str, component_id: str) -> ExaminedSql:
        """The table as the doctor sees it. Raises `OperatingError`, `ConfigError` when the database refuses."""
        from state.sql.doctor import ExaminedSql  # nobody else needs it

        examined = ExaminedSql(self.table, component_id)
        if self._database.exists():
            owner = owner_of(topology_id, component_id)
            registration = Registration(self._state_table(), self.columns, name=self.table, owner=owner)
            with self._telling(), self._database.reading() as connection:
                examined.look(registration, connection)
            if self._opened is None:
                self._database.close()
        return examined

    @property
    def value_limits(self) -> ValueLimits:
        """Its values go through Python; PostgreSQL has no zero bytes in text."""
        return ValueLimits(self.table, zero_bytes=self._database.is_sqlite)

    def identity(self) -> Mapping[str, str]:
        """Database without user and password, table, key, values, kind."""
        place = {"sql": self._database.place, "table": self._table_name}
        return {**place, "key": str(self.key), "values": str(self.values), "kind": self.kind.value}

    def bind(self, key: Schema, values: Schema) -> None:
        """Fix the columns, once the schema of the input is known (see `KeyedState`)."""
        super().bind(key, values)
        self._check_declared()

    def open(self, owner: str, txid_of: Callable[[AttemptId], TxId]) -> None:
        """Create the table, or check the one that is there (see the port).

        Value columns that the state has gained are added with the first write, which is the fence's. Raises
        `SchemaMismatch` for a table of another shape, or that no state has made, `StoreMismatch` for one with rows of
        another owner, `ConfigError` when the database refuses.
        """
        self._own(owner, txid_of)
        rows = self._state_table()
        registration = Registration(rows, self.columns, name=self.table, owner=owner)
        with self._telling(), self._database.writing() as connection:
            self._is_complete = registration.create_or_check(connection)
        self._opened = (rows, registration)

    def version(self) -> AttemptId | None:
        """The attempt id that the table was last written by."""
        _, registration = self._open_table
        with self._telling(), self._database.reading() as connection:
            self._loaded = registration.version(connection)
        return self._loaded

    def read(self, committed_txid: TxId | None = None) -> pa.Table:
        """Key and value columns of all rows. The state need not be open.

        With `committed_txid` what a reader may see who must not see what comes after that transaction: a crash between
        the table and the coordinator's store leaves the table one transaction ahead.
        """
        columns = Schema((*self.key, *self.values))
        rows = self._state_table()
        with self._telling(), self._database.reading() as connection:
            parts = [table_of_rows(part, columns) for part in rows.visible_rows(connection, committed_txid)]
        return pa.concat_tables([arrow_schema(columns).empty_table(), *parts])

    def close(self) -> None:
        """Close all connections."""
        self._opened, self._loaded, self._read_by = None, None, None
        self._database.close()

    @property
    def _open_table(self) -> tuple[StateTable, Registration]:
        if self._opened is None:
            raise ProtocolError(f"state {self.table} was used before open()")
        return self._opened

    def _state_table(self) -> StateTable:
        return StateTable(self._table_name, self.columns, is_sqlite=self._database.is_sqlite)

    def _check_declared(self) -> None:
        super()._check_declared()
        is_known = self._key is not None and self._values is not None
        check_columns(self.columns.all if is_known else [*(self._key or ()), *(self._values or ())], self.table)

    def _loaded_version(self) -> AttemptId | None:
        return self._loaded

    def _rows_before(self, txid: TxId, wanted: pa.Table) -> pa.Table:
        rows, _ = self._open_table
        keys = rows_of(wanted) if self.key_names else [()]
        with self._telling(), self._database.reading() as connection:
            found = rows.rows_before(connection, txid, keys)
        return table_of_rows(found, Schema((*self.key, *self.values)))

    def _merge_rows(self, attempt: TransactionAttempt, source: Source, combine: Mapping[str, str]) -> None:
        if isinstance(source, tuple):
            raise ConfigError(
                f"state {self.table} gets more rows in one transaction than the driver may hold; use smaller batches, "
                "or a state in Delta"
            )
        rows, _ = self._open_table
        self.value_limits.check(source, len(self.key))
        new, check = rows_of(source), SumCheck(self.table, self.values, [combine[name] for name in self.values.names])
        is_replay = self._is_replay(self._loaded, attempt)
        with self._moving(attempt.attempt_id) as connection:
            if is_replay:
                rows.roll_back(connection, attempt.txid)
            rows.apply(connection, attempt.txid, new, check)

    def _write_version(self, attempt_id: AttemptId, attempt: TransactionAttempt | None) -> None:
        with self._moving(attempt_id):
            pass

    @contextmanager
    def _moving(self, attempt_id: AttemptId) -> Iterator[Connection]:
        """A database transaction that has moved the version on from the loaded one. Raises `WriteRefused`."""
        _, registration = self._open_table
        try:
            with self._database.writing() as connection:
                if not registration.move(connection, self._loaded, attempt_id):
                    raise WriteRefused("another writer came between", is_conflict=True)
                added = () if self._is_complete else registration.add_columns(connection)
                yield connection
        except DatabaseFailed as error:
            if error.is_about_data:
                raise SchemaMismatch(f"state {self.table} can't hold what was given: {error}") from error
            raise WriteRefused(str(error), is_conflict=False) from error
        self._loaded, self._is_complete = attempt_id, True
        if added:
            text = "state %s: columns %s added; the rows that were there have NULL in them"
            _log.warning(text, self.table, ", ".join(added))

    @contextmanager
    def _telling(self) -> Iterator[None]:
        try:
            yield
        except DatabaseFailed as error:
            if error.is_refusal:
                raise ConfigError(f"state {self.table} can't be used: {error}") from error
            raise OperatingError(
                f"state {self.table}: the database does not answer: {error}. Check that it runs and can be reached"
            ) from error
