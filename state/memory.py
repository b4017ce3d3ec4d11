"""`MemoryMapState`: a state in a dict, fenced like the ones in Delta, for users' tests."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from state.fence import Verdict
from state.rows.columns import check_combine, check_time_column
from state.rows.expiring import NO_FLOORS, Floors, alive, in_range, is_expired
from state.rows.sums import SumCheck
from state.rows.value_limits import ValueLimits
from state.table_state import FencedTable, TableState
from state.task_rows import TaskRows
from state.updates import check_unique, rows_of, table_of_rows
from state.values import OpaqueValue, StoredValue, TransactionalValue, combined_values
from transactional.absent import ABSENT, Absent
from transactional.attempt import AttemptId, TransactionAttempt, TxId
from transactional.bolts import Key
from transactional.durations import Duration
from transactional.errors import SchemaMismatch, TableConflict
from transactional.ports import Partials, StateKind
from transactional.ports.split import WrittenPart
from transactional.ports.staged import StagedFile
from transactional.schema import Schema

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
    floors: Floors = NO_FLOORS
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
        return table_of_rows(rows, Schema((*self.key, *self.values)))

    def rows_between(self, column: str, after: int | None, until: int) -> pa.Table:
        """The rows whose column lies in a range."""
        return in_range(self.unexpired, column, after, until)

    def keep(self, table: pa.Table, tasks: int) -> WrittenPart:
        """Keep them as Arrow."""
        return WrittenPart(table)


class MemoryReader:
    """Reads a table. Every write makes another dict of rows, so one that is kept stays as it is."""

    has_history = False

    def __init__(self, table: MemoryTable, key: Schema, values: Schema, expires: str | None) -> None:
        self._table, self._key, self._values, self._expires = table, key, values, expires
        self._columns = Schema((*key, *values))
        self._rows: Mapping[Key, StoredValue] = {}
        self._floors = NO_FLOORS

    def pin(self, txid: TxId | None = None) -> None:
        """Keep the rows that there are now."""
        self._rows, self._floors = self._table.rows_as(self._key, self._values), self._table.floors

    def rows(self, txid: TxId) -> pa.Table:
        """Key and value columns of all rows as they were after a transaction."""
        return self._seen(txid, ((key, row.before(TxId(txid + 1))) for key, row in self._rows.items()))

    def lookup(self, txid: TxId, keys: pa.Table) -> pa.Table:
        """As `rows`, of the rows with these keys."""
        asked = dict.fromkeys(rows_of(keys) if self._key else [()])
        both = ((key, self._rows[key]) for key in asked if key in self._rows)
        return self._seen(txid, ((key, row.before(TxId(txid + 1))) for key, row in both))

    def _seen(self, txid: TxId, rows: Iterable[tuple[Key, Any]]) -> pa.Table:
        found = table_of_rows([(*key, *values) for key, values in rows if values is not ABSENT], self._columns)
        return found if self._expires is None else alive(found, self._expires, self._floors.at(txid))

    def release(self) -> None:
        """Let go of the rows."""
        self._rows = {}

    def close(self) -> None:
        """Nothing to close."""


class MemoryMapState(TableState[FencedTable]):
    """Key → values in memory. Give two states the same `table` to see how one fences the other.

    `key` is a name, several names, or a DDL string (`carrier string`); () is a state of one row; it is omitted if an
    update names it with `group_by`. `values` is a DDL string; it is omitted if the state is updated by `.count()` or
    similar. With `deletes` keys can be deleted; with `expires` and `after` they go by themselves (see `SqlMapState`).
    """

    serves_tasks = True

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
        self._loaded: AttemptId | None = None
        name = repr(self.stored.name)
        super().__init__(name, key, values, kind=kind, columns=None, deletes=deletes, expires=expires, after=after)

    @property
    def value_limits(self) -> ValueLimits:
        """Its values are Python's."""
        return ValueLimits(self.table)

    @property
    def place(self) -> str | None:
        """For a table without a name, the object itself: two such tables are different ones."""
        return f"memory:{id(self.stored)}" if self.stored.name == UNNAMED else None

    def identity(self) -> Mapping[str, str]:
        """Name, key, values, kind."""
        return {"memory": self.stored.name, "key": str(self.key), "values": str(self.values), "kind": self.kind.value}

    def open(self, owner: str, txid_of: Callable[[AttemptId], TxId]) -> None:
        """Check the columns; the table needs no creation. Raises `SchemaMismatch` for those of other rows."""
        self._own(owner, txid_of)
        if self.stored.version is None and self._store_id is not None:
            with _CREATING:
                self.stored.store_id = self.stored.store_id or self._store_id
        if self.stored.columns is None or not self.stored.rows:
            return
        key, values = self.stored.columns
        if {*key} != {*self.key} or not {*values} <= {*self.values}:
            raise SchemaMismatch(
                f"state {self.table} has rows with the key '{key}' and the values '{values}'; the state needs the key "
                f"'{self.key}' and the values '{self.values}': use another table, or declare the existing columns "
                "(value columns can be added, but nothing else can change)"
            )

    def created_for(self) -> str | None:
        """The `store_id` that the table was created with."""
        return self.stored.store_id

    def version(self) -> AttemptId | None:
        """The attempt id that was last written to the table."""
        self._loaded = self.stored.version
        return self._loaded

    def fence(self, attempt_id: AttemptId) -> None:
        """Raise the table's version. Raises `TableConflict` when it moved since `version()`, `Fenced` if higher."""
        self._fence.check(self.stored.version, attempt_id)
        if self.stored.version not in (self._loaded, attempt_id):
            raise TableConflict(
                f"state {self.table} was written by attempt {self.stored.version} since it was read; read it again"
            )
        self.stored.version = attempt_id
        self._adopt()

    def _adopt(self) -> None:
        """Let the rows have the columns of the state."""
        columns = self.key, self.values
        self.stored.rows, self.stored.columns = self.stored.rows_as(*columns), columns

    def get(self, attempt: TransactionAttempt, keys: Sequence[Key]) -> dict[Key, tuple[Any, ...]]:
        """The values before this transaction of those keys that exist. Raises `Fenced`."""
        self._fence.check(self.stored.version, attempt.attempt_id)
        # As in a table, a time without a zone is one of UTC.
        asked = rows_of(self._rows.wanted(keys)) if self.key_names else [()] * len(keys)
        rows, floor = self.stored.rows, self._memory_floors(attempt).floor
        both = [(key, each) for key, each in zip(keys, asked, strict=True) if each in rows]
        found = {key: self._unexpired(each, rows[each].before(attempt.txid), floor) for key, each in both}
        return {key: values for key, values in found.items() if values is not ABSENT}

    def items(self, attempt: TransactionAttempt) -> Iterable[tuple[Key, tuple[Any, ...]]]:
        """All keys with their values before this transaction. Raises `Fenced`."""
        self._fence.check(self.stored.version, attempt.attempt_id)
        return self._items(attempt, self._memory_floors(attempt).floor)

    def rows_between(self, attempt: TransactionAttempt, column: str, after: int | None, until: int) -> pa.Table:
        """The rows before this transaction whose column lies in a range (see the port). Raises `Fenced`."""
        columns = Schema((*self.key, *self.values))
        check_time_column(columns, column, self.table, "rows_between")
        self._fence.check(self.stored.version, attempt.attempt_id)
        return in_range(self._unexpired_before(attempt), column, after, until)

    def count_between(self, attempt: TransactionAttempt, column: str, after: int | None, until: int) -> int:
        """How many they are. Raises `Fenced`."""
        return int(self.rows_between(attempt, column, after, until).num_rows)

    def _unexpired_before(self, attempt: TransactionAttempt) -> pa.Table:
        rows = [(*key, *values) for key, values in self._items(attempt, self._memory_floors(attempt).before)]
        return table_of_rows(rows, Schema((*self.key, *self.values)))

    def _items(self, attempt: TransactionAttempt, floor: int | None) -> Iterable[tuple[Key, tuple[Any, ...]]]:
        rows = self.stored.rows.items()
        before = {key: self._unexpired(key, row.before(attempt.txid), floor) for key, row in rows}
        return [(key, values) for key, values in before.items() if values is not ABSENT]

    def rows_before(self, attempt: TransactionAttempt, keys: pa.Table) -> pa.Table:
        """As `get`, in Arrow. Raises `Fenced`."""
        asked = rows_of(keys) if self.key_names else [()]
        rows = [(*key, *values) for key, values in self.get(attempt, asked).items()]
        return table_of_rows(rows, Schema((*self.key, *self.values)))

    def rows_after(self, attempt: TransactionAttempt, keys: pa.Table) -> pa.Table:
        """As `rows_before`, of what this attempt has written (see the port). Raises `Fenced`."""
        self._fence.check(self.stored.version, attempt.attempt_id)
        reader = self.reader("")
        reader.pin()
        return reader.lookup(attempt.txid, keys)

    def for_tasks(self, attempt: TransactionAttempt) -> MemoryTaskState:
        """What tasks of a step read (see the port). Raises `Fenced`."""
        return MemoryTaskState(self._rows, dict(self.items(attempt)), self._unexpired_before(attempt))

    def _put_rows(self, attempt: TransactionAttempt, rows: pa.Table, staged: Sequence[StagedFile] = ()) -> None:
        assert not staged, f"state {self.table} stages no files"
        check_unique(rows, self.key.names, self.table)
        key, until = len(self.key), len(self.key) + len(self.values)
        new = {row[:key]: ABSENT if any(row[until:]) else row[key:until] for row in rows_of(rows)}
        self._write_values(attempt, new, dict.fromkeys(self.values.names, "last"))

    def merge(self, attempt: TransactionAttempt, partials: Partials) -> None:
        """Combine partial aggregates with the values before this transaction. Raises `Fenced`."""
        check_combine(partials.combine, self.values.names, self.table)
        check_unique(partials.table, self.key.names, self.table)
        columns = [partials.table.column(name).to_pylist() for name in (*self.key.names, *self.values.names)]
        width = len(self.key)
        rows = {row[:width]: row[width:] for row in zip(*columns, strict=True)}
        self._write_values(attempt, rows, partials.combine)

    def _all_rows(self, committed_txid: TxId | None) -> pa.Table:
        floor = self.stored.floors.at(committed_txid) if self._expiry is not None else None
        seen = {
            key: self._unexpired(key, row.value if committed_txid is None else row.visible_at(committed_txid), floor)
            for key, row in self.stored.rows_as(self.key, self.values).items()
        }
        rows = [(*key, *values) for key, values in seen.items() if values is not ABSENT]
        return table_of_rows(rows, Schema((*self.key, *self.values)))

    def reader(self, owner: str) -> MemoryReader:
        """A reader of the table, in this process (see the port)."""
        return MemoryReader(self.stored, self.key, self.values, self.columns.expires)

    def _write_values(
        self, attempt: TransactionAttempt, rows: Mapping[Key, tuple[Any, ...] | Absent], combine: Mapping[str, str]
    ) -> None:
        verdict = self._fence.judge(self.stored.version, attempt)
        if verdict is Verdict.WRITE:
            self._adopt()
            check = SumCheck(self.table, self.values, [combine[name] for name in self.values.names])
            floors = self._memory_floors(attempt)
            self.stored.rows = self._written(attempt.txid, rows, check, floors)
            self.stored.floors = floors
        self.stored.version = attempt.attempt_id
        self._fence.wrote(attempt)

    def _written(
        self, txid: TxId, rows: Mapping[Key, tuple[Any, ...] | Absent], check: SumCheck, floors: Floors
    ) -> dict[Key, StoredValue]:
        old = self.stored.rows
        # Keys that only a dead attempt at this transaction has changed are rolled back.
        rolled_back = {key: row.roll_back(txid) for key, row in old.items() if key not in rows}
        kept = {key: row for key, row in rolled_back.items() if row is not None and not self._is_past(key, row, floors)}
        new = {key: self._applied(old.get(key), txid, key, partial, check, floors) for key, partial in rows.items()}
        return kept | {key: row for key, row in new.items() if row is not None}

    def _is_past(self, key: Key, row: StoredValue, floors: Floors) -> bool:
        """Whether a row that this transaction does not change had expired for the one before it."""
        return self._unexpired(key, row.value, floors.before) is ABSENT

    def _applied(
        self,
        stored: StoredValue | None,
        txid: TxId,
        key: Key,
        partial: tuple[Any, ...] | Absent,
        check: SumCheck,
        floors: Floors,
    ) -> StoredValue | None:
        def update(stored: Any) -> tuple[Any, ...] | Absent:
            if partial is ABSENT:
                return ABSENT
            before = self._unexpired(key, stored, floors.floor)
            values = combined_values(check.combine, before, partial)
            check.check(key, before, partial, values)
            return values

        if stored is None:
            if partial is ABSENT:
                return None
            value = OpaqueValue if self.kind is StateKind.OPAQUE else TransactionalValue
            return value.first(txid, update(ABSENT))
        assert isinstance(stored, OpaqueValue | TransactionalValue)
        return stored.apply(txid, update)

    def _memory_floors(self, attempt: TransactionAttempt) -> Floors:
        if self._expiry is None:
            return NO_FLOORS
        return self.stored.floors.of(attempt.txid, self._floor_wanted(attempt))

    def _unexpired(self, key: Key, values: Any | Absent, floor: int | None) -> Any | Absent:
        """A row's values, `ABSENT` if it has expired."""
        if self._expiry is None or floor is None or values is ABSENT:
            return values
        names = (*self.key.names, *self.values.names)
        expiry = (*key, *values)[names.index(self._expiry.column)]
        return ABSENT if is_expired(expiry, floor) else values
