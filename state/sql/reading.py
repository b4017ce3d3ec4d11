"""Reads a state's table from outside a run: one database transaction sees one moment, whoever writes meanwhile.

`SqlReader` keeps such a transaction open from `pin` to `release`. `RowsToRead` is used by the state's own `read`, too.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

import pyarrow as pa
from sqlalchemy import Connection

from state.rows.columns import StateColumns
from state.rows.expiring import NO_HORIZONS, select_unexpired
from state.rows.python_rows import rows_of, table_of_rows
from state.sql.registry import Registration
from state.sql.rows import raising_ours
from state.sql.table import StateTable, Values
from transactional.core.store.databases.database import Database, raising_failures
from transactional.model.attempt import TxId
from transactional.model.errors import ConfigError, OperatingError
from transactional.model.user_code.tuples import Key


@dataclass(frozen=True, slots=True)
class RowsToRead:
    """The rows of a state. Value columns that the state has gained, and the table lacks, are read as NULL."""

    rows: StateTable
    existing_columns: StateColumns
    columns: StateColumns

    def without_columns(self, names: Collection[str]) -> RowsToRead:
        """Return the same rows of a table that lacks these columns."""
        if not names:
            return self
        return replace(
            self, rows=self.rows.without_columns(names), existing_columns=self.columns.without_columns(names)
        )

    def read_unexpired(self, connection: Connection, committed_txid: TxId | None, horizon: int | None) -> pa.Table:
        """Return key and value columns of all rows that have not expired."""
        parts = [self._to_table(part) for part in self.rows.unexpired_rows(connection, committed_txid, horizon)]
        return pa.concat_tables([self.columns.row_schema.empty_table(), *parts])

    def read_before(self, connection: Connection, txid: TxId, keys: Sequence[Key]) -> pa.Table:
        """Return key and value columns of the rows with these keys before transaction `txid`, also of expired rows."""
        return self._to_table(self.rows.rows_before(connection, txid, keys))

    def _to_table(self, rows: list[Values]) -> pa.Table:
        table, schema = table_of_rows(rows, self.existing_columns.visible), self.columns.row_schema
        for column in schema if self.existing_columns is not self.columns else ():
            if column.name not in table.column_names:
                table = table.append_column(column, pa.nulls(len(rows), column.type))
        return table.select(schema.names)


class SqlReader:
    """Reads the table of one owner. `name` is what messages call the state."""

    has_history = False

    def __init__(self, database: Database, registration: Registration, name: str, columns: StateColumns) -> None:
        if database.is_in_memory:
            raise ConfigError(
                f"state {name} is in a database in memory, where a reader would stop the writer; use MemoryMapState, "
                "or a file"
            )
        self._database, self._registration = database, registration
        self._rows = self._complete = RowsToRead(registration.rows, columns, columns)
        self._name, self._key = name, columns.key
        self._expires = columns.expires
        self._is_checked, self._horizons = False, NO_HORIZONS
        self._stack = ExitStack()
        self._connection: Connection | None = None

    def pin(self, txid: TxId | None = None) -> None:
        """Begin a database transaction that sees the table as it is now. Older transactions can't be read."""
        self.release()
        if not self._database.exists():
            raise self._missing_table_error()
        with raising_ours(self._name):
            self._connection = self._stack.enter_context(self._database.reading(is_snapshot=True))
        try:
            with raising_ours(self._name), raising_failures():
                if not self._is_checked:
                    self._check(self._connection)
                # The database's snapshot begins with the first row that is read, which is this one.
                _, self._horizons = self._registration.version(self._connection, is_reader=True)
        except BaseException:
            self.release()
            raise

    def _check(self, connection: Connection) -> None:
        if self._registration.check(connection) is None:
            raise self._missing_table_error()
        missing = self._registration.missing_columns(connection)
        self._rows, self._is_checked = self._complete.without_columns(missing), not missing

    def _missing_table_error(self) -> OperatingError:
        return OperatingError(f"state {self._name} has no table yet: no transaction has written it")

    def rows(self, txid: TxId) -> pa.Table:
        """Return key and value columns of all rows as of transaction `txid`. Raises `OperatingError`."""
        with raising_ours(self._name), raising_failures():
            return self._rows.read_unexpired(self._pinned_connection, txid, self._horizons.for_reader(txid))

    def lookup(self, txid: TxId, keys: pa.Table) -> pa.Table:
        """Return, as `rows` does, the rows with these keys. Raises `OperatingError`."""
        key_rows = rows_of(keys) if self._key else [()]
        with raising_ours(self._name), raising_failures():
            table = self._rows.read_before(self._pinned_connection, TxId(txid + 1), key_rows)
        if self._expires is None:
            return table
        return select_unexpired(table, self._expires, self._horizons.for_reader(txid))

    @property
    def _pinned_connection(self) -> Connection:
        assert self._connection is not None, "pin() comes first"
        return self._connection

    def release(self) -> None:
        """End the database transaction that `pin` began."""
        stack, self._stack, self._connection = self._stack, ExitStack(), None
        with raising_ours(self._name):
            stack.close()

    def close(self) -> None:
        self.release()
        self._database.close()
