"""`MemoryMapState`: a state in a dict, fenced like the ones in Delta, for users' tests."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
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
    """The stored data. Outlives the states that use it, as a table outlives processes."""

    name: str = UNNAMED
    version: AttemptId | None = None
    rows: dict[Key, StoredValue] = field(default_factory=dict)
    """Each value is the tuple of the value columns."""
    horizons: ExpiryHorizons = NO_HORIZONS
    columns: tuple[Schema, Schema] | None = None
    """Key and values of the rows; None: those of the state that uses it."""
    store_id: str | None = None
    """The one that it was created with, which the first that opens it does."""

    def rows_as(self, key: Schema, values: Schema) -> dict[Key, StoredValue]:
        """The rows with these columns, by their names: None for values that they do not have."""
        if self.columns is None or self.columns == (key, values):
            return self.rows
        old_key, old_values = (columns.names for columns in self.columns)

        def moved(row: StoredValue) -> StoredValue:
            value, before = (each and _by_name(each, old_values, values) for each in (row.value, row.prev_value))
            return replace(row, value=value, prev_value=before)

        return {_by_name(at, old_key, key): moved(row) for at, row in self.rows.items()}


def _by_name(given: Any, names: Sequence[str], wanted: Schema) -> Any:
    if given is ABSENT:
        return given
    of = dict(zip(names, given, strict=True))
    return tuple(of.get(name) for name in wanted.names)


@dataclass(frozen=True, slots=True)
class MemoryTaskState(TaskRows):
    """What was in the table before a transaction, for the tasks of a step."""

    before: Mapping[Key, tuple[Any, ...]]
    unexpired: pa.Table
    """What `rows_between` is a part of: it had not expired in the transaction before."""

    def rows_before(self, keys: pa.Table) -> pa.Table:
        """As `get`, in Arrow."""
        asked = dict.fromkeys(rows_of(keys) if self.key else [()])
        rows = [(*key, *self.before[key]) for key in asked if key in self.before]
        return table_of_rows(rows, self.rows.columns.shown)

    def rows_between(self, column: str, after: int | None, until: int) -> pa.Table:
        """The rows whose column lies in a range."""
        return select_range(self.unexpired, column, after, until)

    def keep(self, table: pa.Table, tasks: int) -> WrittenPart:
        """Keep them as Arrow."""
        return WrittenPart(table)


class MemoryReader:
    """Reads a table. Every write makes another dict of rows, so one that is kept stays as it is."""

    has_history = False

    def __init__(self, table: MemoryTable, columns: StateColumns) -> None:
        self._table, self._columns = table, columns
        self._rows: Rows = {}
        self._horizons = NO_HORIZONS

    def pin(self, txid: TxId | None = None) -> None:
        """Keep the rows that there are now."""
        self._rows, self._horizons = self._table.rows_as(self._columns.key, self._columns.values), self._table.horizons

    def rows(self, txid: TxId) -> pa.Table:
        """Key and value columns of all rows as they were after a transaction."""
        return self._seen(txid, self._rows)

    def lookup(self, txid: TxId, keys: pa.Table) -> pa.Table:
        """As `rows`, of the rows with these keys."""
        asked = dict.fromkeys(rows_of(keys) if self._columns.key else [()])
        return self._seen(txid, {key: self._rows[key] for key in asked if key in self._rows})

    def _seen(self, txid: TxId, rows: Rows) -> pa.Table:
        found = to_table(((key, row.value_before(TxId(txid + 1))) for key, row in rows.items()), self._columns)
        expires = self._columns.expires
        return found if expires is None else select_unexpired(found, expires, self._horizons.for_reader(txid))

    def release(self) -> None:
        """Let go of the rows."""
        self._rows = {}

    def close(self) -> None:
        """Nothing to close."""


class MemoryRows(RowStore):
    """The rows of a `MemoryTable`, with the columns of the state that uses it, by their names."""

    def __init__(self, table: MemoryTable, key: Schema, values: Schema) -> None:
        self._table, self._columns = table, (key, values)

    def open(self, store_id: str | None = None) -> None:
        """There is a table already; it is created as long as nobody has written it."""
        if self._table.version is None and store_id is not None:
            with _CREATING:
                self._table.store_id = self._table.store_id or store_id

    def created_for(self) -> str | None:
        """As the table has it."""
        return self._table.store_id

    def version(self) -> tuple[AttemptId | None, ExpiryHorizons]:
        """What the table has."""
        return self._table.version, self._table.horizons

    def rows(self, keys: Collection[Key] | None = None) -> Rows:
        """Rows by key."""
        rows = self._table.rows_as(*self._columns)
        return rows if keys is None else {key: rows[key] for key in keys if key in rows}

    def write(self, write: RowWrite, change: Change | None = None) -> None:
        """Write the rows into another dict, so that a reader of this one sees nothing of it."""
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


class MemoryMapState(TableState[RowTable]):
    """Key → values in memory. Give two states the same `table` to see how one fences the other.

    `key` is a name, several names, or a DDL string (`carrier string`); () is a state of one row; it is omitted if an
    update names it with `group_by`. `values` is a DDL string; it is omitted if the state is updated by `.count()` or
    similar. With `deletes` keys can be deleted; with `expires` and `after` they go by themselves (see `SqlMapState`).
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
        super().__init__(name, key, values, kind=kind, columns=None, deletes=deletes, expires=expires, after=after)

    @property
    def value_limits(self) -> ValueLimits:
        """Its values are Python's."""
        return ValueLimits(self.table)

    @property
    def storage_path(self) -> str | None:
        """For a table without a name, the object itself: two such tables are different ones."""
        return f"memory:{id(self.stored)}" if self.stored.name == UNNAMED else None

    def identity(self) -> Mapping[str, str]:
        """Name, key, values, kind."""
        return {"memory": self.stored.name, "key": str(self.key), "values": str(self.values), "kind": self.kind.value}

    def open(self, owner: str, txid_of: Callable[[AttemptId], TxId]) -> None:
        """Check the columns; the table needs no creation. Raises `SchemaMismatch` for those of other rows."""
        self._own(owner, txid_of)
        self._opened = self._table()
        self._opened.store.open(self._store_id)
        if self.stored.columns is None or not self.stored.rows:
            return
        key, values = self.stored.columns
        if {*key} != {*self.key} or not {*values} <= {*self.values}:
            raise SchemaMismatch(
                f"state {self.table} has rows with the key '{key}' and the values '{values}'; the state needs the key "
                f"'{self.key}' and the values '{self.values}': use another table, or declare the existing columns "
                "(value columns can be added, but nothing else can change)"
            )

    def for_tasks(self, attempt: TransactionAttempt) -> MemoryTaskState:
        """What tasks of a step read (see the port). Raises `Fenced`."""
        self._check_version_to_read(attempt)
        rows, horizons = self._open_table.rows(attempt.txid), self._horizons(attempt) or NO_HORIZONS
        if self._expiry is None:
            return MemoryTaskState(self._rows, self._by_key(rows), rows)
        living, unexpired = (
            select_unexpired(rows, self._expiring_column, each) for each in (horizons.current, horizons.previous)
        )
        return MemoryTaskState(self._rows, self._by_key(living), unexpired)

    def _by_key(self, rows: pa.Table) -> dict[Key, tuple[Any, ...]]:
        width = len(self.key)
        return {row[:width]: row[width:] for row in rows_of(rows)}

    def _all_rows(self, committed_txid: TxId | None) -> pa.Table:
        return self._open_table.visible_rows(committed_txid)

    def reader(self, owner: str) -> MemoryReader:
        """A reader of the table, in this process (see the port)."""
        return MemoryReader(self.stored, self.columns)

    @property
    def _open_table(self) -> RowTable:
        """There is nothing to open."""
        if self._opened is None:
            self._opened = self._table()
        return self._opened

    def _table(self) -> RowTable:
        rows = MemoryRows(self.stored, self.key, self.values)
        return RowTable(rows, self.columns, self.table, self.value_limits, self.rule)
