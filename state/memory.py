"""`MemoryMapState`: a state in a dict, fenced like the ones in Delta, for users' tests.

The data is in a `MemoryTable`, which outlives the states that use it. Every write makes another dict of rows, so a
reader keeps the one that it has pinned. Nothing survives the process.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

from state.fence import WriteRefused
from state.row_table import Change, RowStore, RowTable, RowWrite, to_table
from state.rows.columns import StateColumns
from state.rows.expiring import NO_HORIZONS, ExpiryHorizons, select_range, select_unexpired
from state.rows.opaque_rule import OpaqueRule, Rows
from state.rows.python_rows import TaskRows, rows_of, table_of_rows
from state.rows.stored_value import StoredValue
from state.rows.value_limits import ValueLimits
from state.table_state import TableState
from transactional.core.ports import StateKind
from transactional.core.ports.split import WrittenPart
from transactional.core.ports.state_parts import StateParts, TableExamination, TaskAccess
from transactional.model.absent import ABSENT
from transactional.model.attempt import AttemptId, TransactionAttempt, TxId
from transactional.model.durations import Duration
from transactional.model.errors import SchemaMismatch
from transactional.model.schema import Schema
from transactional.model.user_code.tuples import Key

if TYPE_CHECKING:
    import pyarrow as pa


_CREATING = threading.Lock()
UNNAMED = "memory"
"""The name of a table that was given none."""


@dataclass(slots=True)
class MemoryTable:
    """The stored data. It outlives the states that use it, as a table outlives processes."""

    name: str = UNNAMED
    version: AttemptId | None = None
    rows: dict[Key, StoredValue] = field(default_factory=dict)
    """Each value is the tuple of the value columns."""
    horizons: ExpiryHorizons = NO_HORIZONS
    columns: tuple[Schema, Schema] | None = None
    """Key and value columns of the rows, None for those of the state that uses the table."""
    store_id: str | None = None
    """The `store_id` of the first state that has opened the table."""

    def rows_as(self, key: Schema, values: Schema) -> dict[Key, StoredValue]:
        """Return the rows with these columns, matched by name. A value column that a row lacks is None."""
        if self.columns is None or self.columns == (key, values):
            return self.rows
        old_key, old_values = (columns.names for columns in self.columns)

        def rearrange_row(row: StoredValue) -> StoredValue:
            new, previous = (
                fields and _rearrange(fields, old_values, values) for fields in (row.value, row.prev_value)
            )
            return replace(row, value=new, prev_value=previous)

        return {_rearrange(fields, old_key, key): rearrange_row(row) for fields, row in self.rows.items()}


def _rearrange(fields: Any, names: Sequence[str], columns: Schema) -> Any:
    """Return the fields, which have these names, in the order of the columns; `ABSENT` stays so."""
    if fields is ABSENT:
        return fields
    by_name = dict(zip(names, fields, strict=True))
    return tuple(by_name.get(name) for name in columns.names)


@dataclass(frozen=True, slots=True)
class MemoryTaskState(TaskRows):
    """The rows of a table before a transaction, for the tasks of a step."""

    values_by_key: Mapping[Key, tuple[Any, ...]]
    unexpired: pa.Table
    """The rows that had not expired for the previous transaction, of which `rows_between` returns a part."""

    def rows_before(self, keys: pa.Table) -> pa.Table:
        """Return, as `get` does, the rows with these keys, in Arrow."""
        key_rows = dict.fromkeys(rows_of(keys) if self.key else [()])
        rows = [(*key, *self.values_by_key[key]) for key in key_rows if key in self.values_by_key]
        return table_of_rows(rows, self.rows.columns.visible)

    def rows_between(self, column: str, after: int | None, until: int) -> pa.Table:
        """Return the rows whose column is in a range."""
        return select_range(self.unexpired, column, after, until)

    def make_part(self, table: pa.Table, tasks: int) -> WrittenPart:
        """Return the rows as a part in memory. Stores nothing."""
        return WrittenPart(table)


class MemoryReader:
    """Reads a table. Every write makes another dict of rows, so the pinned one never changes."""

    has_history = False

    def __init__(self, table: MemoryTable, columns: StateColumns) -> None:
        self._table, self._columns = table, columns
        self._rows: Rows = {}
        self._horizons = NO_HORIZONS

    def pin(self, txid: TxId | None = None) -> None:
        """Pin the rows that exist now."""
        self._rows, self._horizons = self._table.rows_as(self._columns.key, self._columns.values), self._table.horizons

    def rows(self, txid: TxId) -> pa.Table:
        """Return key and value columns of all rows as of transaction `txid`."""
        return self._as_of(txid, self._rows)

    def lookup(self, txid: TxId, keys: pa.Table) -> pa.Table:
        """Return, as `rows` does, the rows with these keys."""
        key_rows = dict.fromkeys(rows_of(keys) if self._columns.key else [()])
        return self._as_of(txid, {key: self._rows[key] for key in key_rows if key in self._rows})

    def _as_of(self, txid: TxId, rows: Rows) -> pa.Table:
        table = to_table(((key, row.value_before(TxId(txid + 1))) for key, row in rows.items()), self._columns)
        expires = self._columns.expires
        return table if expires is None else select_unexpired(table, expires, self._horizons.for_reader(txid))

    def release(self) -> None:
        """Forget the rows that were pinned."""
        self._rows = {}

    def close(self) -> None:
        """Do nothing, as there is no connection."""


class MemoryRows(RowStore):
    """The rows of a `MemoryTable`, with the columns of the state that uses it, by their names."""

    def __init__(self, table: MemoryTable, key: Schema, values: Schema) -> None:
        self._table, self._columns = table, (key, values)

    def open(self, store_id: str | None = None) -> None:
        """Record the `store_id` if nobody has written the table yet. The table itself exists already."""
        if self._table.version is None and store_id is not None:
            with _CREATING:
                self._table.store_id = self._table.store_id or store_id

    def created_for(self) -> str | None:
        """Return the `store_id` that the table has recorded."""
        return self._table.store_id

    def version(self) -> tuple[AttemptId | None, ExpiryHorizons]:
        """Return the version and the expiry horizons of the table."""
        return self._table.version, self._table.horizons

    def rows(self, keys: Collection[Key] | None = None) -> Rows:
        """Return the rows with these keys; None: all rows."""
        rows = self._table.rows_as(*self._columns)
        return rows if keys is None else {key: rows[key] for key in keys if key in rows}

    def write(self, write: RowWrite, change: Change | None = None) -> None:
        """Write the rows into another dict, so that readers of the current one do not see them."""
        if self._table.version != write.expected_version:
            raise WriteRefused(f"attempt {self._table.version} came between", is_conflict=True)
        rows = self._table.rows_as(*self._columns)
        if change is not None:
            changes = change()
            rows = rows | changes.changed_rows
            for key in changes.deleted_keys:
                del rows[key]
        self._table.rows, self._table.columns, self._table.version = rows, self._columns, write.version
        if write.horizons is not None:
            self._table.horizons = write.horizons


class MemoryMapState(TableState[RowTable], TaskAccess, TableExamination):
    """Key → values in memory. Give two states the same `table` to see how one fences the other.

    `key` is a name, several names, or a DDL string (`carrier string`); () is a state of one row; it is omitted if an
    update names it with `group_by`. `values` is a DDL string; it is omitted if the state is updated by `.count()` or
    similar. With `deletes` keys can be deleted; with `expires` and `after` rows expire (see `SqlMapState`).
    """

    serves_tasks = True
    rule: ClassVar[type[OpaqueRule]] = OpaqueRule

    def __init__(
        self,
        key: str | Sequence[str] | None = None,
        values: str = "",
        *,
        kind: StateKind = StateKind.OPAQUE,
        table: MemoryTable | None = None,
        deletes: bool = False,
        expires: str | None = None,
        after: Duration | None = None,
    ) -> None:
        self.stored = table or MemoryTable()
        name = repr(self.stored.name)
        options: dict[str, Any] = {"deletes": deletes, "expires": expires, "after": after}
        super().__init__(name, key, values, kind=kind, value_limits=ValueLimits(name), **options)

    @property
    def parts(self) -> StateParts:
        """The parts of the state: tasks in this process use its table."""
        return replace(super().parts, tasks=self, examination=self)

    @property
    def storage_path(self) -> str | None:
        """The identity of the table's object, if it has no name: two such tables are different ones."""
        return f"memory:{id(self.stored)}" if self.stored.name == UNNAMED else None

    def identity(self) -> Mapping[str, str]:
        """Return name, key, values and kind, which the fingerprint of a topology has."""
        return self.declared.identity(memory=self.stored.name)

    def load_table(self) -> RowTable:
        """Return the table, which exists already. Raises `SchemaMismatch` if its rows have other columns."""
        table = self._table()
        table.store.open(self.store_id)
        if self.stored.columns is None or not self.stored.rows:
            return table
        key, values = self.stored.columns
        if {*key} != {*self.key} or not {*values} <= {*self.values}:
            raise SchemaMismatch(
                f"state {self.declared.table} has rows with the key '{key}' and the values '{values}'; the state needs "
                f"the key '{self.key}' and the values '{self.values}': use another table, or declare the existing "
                "columns (value columns can be added, but nothing else can change)"
            )
        return table

    def for_tasks(self, attempt: TransactionAttempt) -> MemoryTaskState:
        """Return what tasks of a step read (see the port). Raises `Fenced`."""
        self.check_version_to_read(attempt)
        rows, horizons = self.open_table.rows(attempt.txid), self.expiry_horizons(attempt) or NO_HORIZONS
        if self.declared.expiry is None:
            return MemoryTaskState(self.declared.rows(self.owner), self._by_key(rows), rows)
        current_rows, previous_rows = (
            select_unexpired(rows, self.declared.expiring_column, horizon)
            for horizon in (horizons.current, horizons.previous)
        )
        return MemoryTaskState(self.declared.rows(self.owner), self._by_key(current_rows), previous_rows)

    def _by_key(self, rows: pa.Table) -> dict[Key, tuple[Any, ...]]:
        width = len(self.key)
        return {row[:width]: row[width:] for row in rows_of(rows)}

    def all_rows(self, committed_txid: TxId | None) -> pa.Table:
        return self.open_table.visible_rows(committed_txid)

    def reader(self, owner: str) -> MemoryReader:
        """Return a reader of the table, for this process (see the port)."""
        return MemoryReader(self.stored, self.declared.columns)

    @property
    def open_table(self) -> RowTable:
        """The table, which can be used before `open`."""
        if self._opened is None:
            self._opened = self._table()
        return self._opened

    def _table(self) -> RowTable:
        rows = MemoryRows(self.stored, self.key, self.values)
        return RowTable(rows, self.declared, self.rule)
