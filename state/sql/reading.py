"""A table of a database that is only read: one database transaction sees one moment, whoever writes meanwhile."""

from __future__ import annotations

from contextlib import ExitStack

import pyarrow as pa
from sqlalchemy import Connection

from state.columns import StateColumns
from state.expiring import NO_FLOORS, alive
from state.sql.database import Database
from state.sql.fenced_table import raising_ours
from state.sql.registry import Registration
from state.sql.table import StateTable
from state.updates import rows_of, table_of_rows
from transactional.arrow import arrow_schema
from transactional.attempt import TxId
from transactional.errors import ConfigError, OperatingError
from transactional.schema import Schema


class SqlReader:
    """Reads the table of one owner. `name` is what messages call the state."""

    has_history = False

    def __init__(
        self, database: Database, rows: StateTable, registration: Registration, name: str, columns: StateColumns
    ) -> None:
        if database.is_in_memory:
            raise ConfigError(
                f"state {name} is in a database in memory, where a reader would stop the writer; use MemoryMapState, "
                "or a file"
            )
        self._database, self._rows, self._registration = database, rows, registration
        self._name, self._key, self._columns = name, columns.key, Schema((*columns.key, *columns.values))
        self._expires = columns.expires
        self._is_checked, self._floors = False, NO_FLOORS
        self._stack = ExitStack()
        self._connection: Connection | None = None

    def pin(self, txid: TxId | None = None) -> None:
        """Begin a database transaction that sees the table as it is now; an older one than that is not there."""
        self.release()
        if not self._database.exists():
            raise self._absent()
        with raising_ours(self._name):
            self._connection = self._stack.enter_context(self._database.reading(is_snapshot=True))
        try:
            with raising_ours(self._name):
                if not self._is_checked and self._registration.check(self._connection) is None:
                    raise self._absent()
                # It reads a row, with which the database's view begins.
                _, self._floors = self._registration.version(self._connection, is_reader=True)
        except BaseException:
            self.release()
            raise
        self._is_checked = True

    def _absent(self) -> OperatingError:
        return OperatingError(f"state {self._name} has no table yet: no transaction has written it")

    def rows(self, txid: TxId) -> pa.Table:
        """Key and value columns of all rows as they were after a transaction. Raises `OperatingError`."""
        with raising_ours(self._name):
            found = self._rows.alive_rows(self._open, txid, self._floors.at(txid))
            parts = [table_of_rows(part, self._columns) for part in found]
        return pa.concat_tables([arrow_schema(self._columns).empty_table(), *parts])

    def lookup(self, txid: TxId, keys: pa.Table) -> pa.Table:
        """As `rows`, of the rows with these keys. Raises `OperatingError`."""
        wanted = rows_of(keys) if self._key else [()]
        with raising_ours(self._name):
            found = table_of_rows(self._rows.rows_before(self._open, TxId(txid + 1), wanted), self._columns)
        return found if self._expires is None else alive(found, self._expires, self._floors.at(txid))

    @property
    def _open(self) -> Connection:
        assert self._connection is not None, "pin() comes first"
        return self._connection

    def release(self) -> None:
        """End the database transaction."""
        stack, self._stack, self._connection = self._stack, ExitStack(), None
        with raising_ours(self._name):
            stack.close()

    def close(self) -> None:
        """Close all connections."""
        self.release()
        self._database.close()
