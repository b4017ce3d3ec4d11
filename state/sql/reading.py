"""A table of a database that is only read: one database transaction sees one moment, whoever writes meanwhile."""

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
    """The rows of a state in a table, which may lack value columns that the state has gained: NULL in all of them."""

    rows: StateTable
    there: StateColumns
    wanted: StateColumns

    def without(self, names: Collection[str]) -> RowsToRead:
        """The same for a table that does not have these columns."""
        return replace(self, rows=self.rows.without(names), there=self.wanted.without(names)) if names else self

    def read_unexpired(self, connection: Connection, committed_txid: TxId | None, horizon: int | None) -> pa.Table:
        """Key and value columns of all rows that have not expired."""
        parts = [self._table(part) for part in self.rows.alive_rows(connection, committed_txid, horizon)]
        return pa.concat_tables([self.wanted.row_schema.empty_table(), *parts])

    def before(self, connection: Connection, txid: TxId, keys: Sequence[Key]) -> pa.Table:
        """Key and value columns before a transaction of the rows with these keys, also of expired ones."""
        return self._table(self.rows.rows_before(connection, txid, keys))

    def _table(self, rows: list[Values]) -> pa.Table:
        found = table_of_rows(rows, self.there.shown)
        for each in self.wanted.row_schema if self.there is not self.wanted else ():
            if each.name not in found.column_names:
                found = found.append_column(each, pa.nulls(len(rows), each.type))
        return found.select(self.wanted.row_schema.names)


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
        """Begin a database transaction that sees the table as it is now; an older one than that is not there."""
        self.release()
        if not self._database.exists():
            raise self._absent()
        with raising_ours(self._name):
            self._connection = self._stack.enter_context(self._database.reading(is_snapshot=True))
        try:
            with raising_ours(self._name), raising_failures():
                if not self._is_checked:
                    self._check(self._connection)
                # It reads a row, with which the database's view begins.
                _, self._horizons = self._registration.version(self._connection, is_reader=True)
        except BaseException:
            self.release()
            raise

    def _check(self, connection: Connection) -> None:
        if self._registration.check(connection) is None:
            raise self._absent()
        lacking = self._registration.lacking(connection)
        self._rows, self._is_checked = self._complete.without(lacking), not lacking

    def _absent(self) -> OperatingError:
        return OperatingError(f"state {self._name} has no table yet: no transaction has written it")

    def rows(self, txid: TxId) -> pa.Table:
        """Key and value columns of all rows as they were after a transaction. Raises `OperatingError`."""
        with raising_ours(self._name), raising_failures():
            return self._rows.read_unexpired(self._open, txid, self._horizons.for_reader(txid))

    def lookup(self, txid: TxId, keys: pa.Table) -> pa.Table:
        """As `rows`, of the rows with these keys. Raises `OperatingError`."""
        wanted = rows_of(keys) if self._key else [()]
        with raising_ours(self._name), raising_failures():
            found = self._rows.before(self._open, TxId(txid + 1), wanted)
        return (
            found if self._expires is None else select_unexpired(found, self._expires, self._horizons.for_reader(txid))
        )

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
