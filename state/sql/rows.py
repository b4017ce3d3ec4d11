"""The rows of a SQL state: each write is one database transaction that begins by moving the version on."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

from sqlalchemy import Connection

from state.fence import WriteRefused
from state.row_table import Change, Changes, RowStore, RowWrite
from state.rows.expiring import ExpiryHorizons
from state.rows.opaque_rule import Rows
from state.sql.notes import REWINDS
from state.sql.registry import Registration
from transactional.core.store.databases.database import Database, DatabaseFailed
from transactional.model.attempt import AttemptId, TxId
from transactional.model.errors import ConfigError, OperatingError, SchemaMismatch
from transactional.model.user_code.tuples import Key

_log = logging.getLogger(__name__)


@contextmanager
def raising_ours(state: str) -> Iterator[None]:
    """Turn a failure of the database into `ConfigError` or `OperatingError`. `state` is its name in messages."""
    try:
        yield
    except DatabaseFailed as error:
        if error.is_refusal:
            raise ConfigError(f"state {state} can't be used: {error}") from error
        raise OperatingError(f"state {state}: the database does not respond: {error}. {error.advice}") from error


class SqlRows(RowStore):
    """A table of a database with its row in the registry. `name` is what messages call the state.

    A write is one database transaction, which begins by moving the version on: from then on nobody else can write.
    """

    drops_with_rows = False

    def __init__(self, database: Database, registration: Registration, name: str) -> None:
        self._database, self._table, self._registration, self._name = database, registration.rows, registration, name
        self._inside: Connection | None = None
        """The connection of the write that is going on. None between writes."""
        self._is_complete = True
        """False if the state has gained value columns, which the next write adds."""

    def open(self, store_id: str | None = None) -> None:
        """Create the table, or check the existing one. Raises `SchemaMismatch`, `StoreMismatch`."""
        with raising_ours(self._name), self._database.writing() as connection:
            self._is_complete = self._registration.create_or_check(connection, store_id)

    def created_for(self) -> str | None:
        with self._reading() as connection:
            return self._registration.created_for(connection)

    def version(self) -> tuple[AttemptId | None, ExpiryHorizons]:
        with self._reading() as connection:
            return self._registration.version(connection)

    def rows(self, keys: Collection[Key] | None = None) -> Rows:
        with self._reading() as connection:
            return self._table.all_stored(connection) if keys is None else self._table.read_rows(connection, list(keys))

    def rows_between(self, column: str, after: int | None, until: int) -> Rows:
        with self._reading() as connection:
            return self._table.stored_between(connection, column, after, until)

    def tombstones_and_rows_since(self, since: TxId | None) -> Rows:
        """Return tombstones, by an index, and the rows of a dead attempt, by a look at all rows."""
        with self._reading() as connection:
            return self._table.tombstones_and_rows_since(connection, since)

    def rows_to_change(
        self, keys: Collection[Key], *, since: TxId | None, deletes: bool, expired: tuple[str, int] | None
    ) -> Rows:
        with self._reading() as connection:
            return self._table.rows_to_change(connection, list(keys), since)

    def rewound_to(self) -> TxId:
        """Return the transaction that is noted beside the table."""
        with self._reading() as connection:
            return TxId(REWINDS.read(connection, str(self._table.table.name)) or 0)

    def write(self, write: RowWrite, change: Change | None = None) -> None:
        """Compare and set the version, compute the changes, and write them, in one database transaction."""
        added: Sequence[str] = ()
        try:
            with self._database.writing() as connection:
                if not self._registration.move(connection, write.expected_version, write.version):
                    raise WriteRefused("another writer came between", is_conflict=True)
                added = () if self._is_complete else self._registration.add_columns(connection)
                if write.horizons is not None:
                    self._registration.record(connection, write.horizons)
                if change is not None:
                    changes = self._compute(connection, change)
                    self._table.write(connection, changes.changed_rows, changes.deleted_keys)
                if write.rewound_to is not None:
                    REWINDS.write(connection, str(self._table.table.name), write.rewound_to)
        except DatabaseFailed as error:
            if error.is_about_data:
                raise SchemaMismatch(f"state {self._name} can't store the given values: {error}") from error
            raise WriteRefused(str(error), is_conflict=False) from error
        self._is_complete = True
        if added:
            text = "state %s: columns %s added; the existing rows have NULL in them"
            _log.warning(text, self._name, ", ".join(added))

    def drop_expired(self, expected_version: AttemptId | None, column: str, horizon: int, txid: TxId) -> None:
        """Remove expired rows by one statement, which reads no row."""
        with raising_ours(self._name), self._database.writing() as connection:
            if expected_version is not None and self._registration.move(connection, expected_version, expected_version):
                self._table.remove_expired(connection, horizon, txid)

    def _compute(self, connection: Connection, change: Change) -> Changes:
        self._inside = connection
        try:
            return change()
        finally:
            self._inside = None

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        if self._inside is not None:
            yield self._inside
            return
        with raising_ours(self._name), self._database.reading() as connection:
            yield connection
