"""`MemoryMapState`: a state in a dict, fenced like the ones in Delta, for users' tests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from state.columns import check_combine
from state.fence import Verdict
from state.map_state import FencedTable, MapState
from state.sums import SumCheck
from state.updates import check_unique, rows_of, table_of_rows
from state.value_limits import ValueLimits
from state.values import OpaqueValue, StoredValue, TransactionalValue, combined_values
from transactional.absent import ABSENT, Absent
from transactional.attempt import AttemptId, TransactionAttempt, TxId
from transactional.bolts import Key
from transactional.errors import TableConflict
from transactional.ports import Partials, StateKind
from transactional.schema import Schema

if TYPE_CHECKING:
    import pyarrow as pa


UNNAMED = "memory"
"""The name of a table that was given none."""


@dataclass(slots=True)
class MemoryTable:
    """The stored data. Outlives the states that use it, as a table outlives processes."""

    name: str = UNNAMED
    version: AttemptId | None = None
    rows: dict[Key, StoredValue] = field(default_factory=dict)
    """Each value is the tuple of the value columns."""


class MemoryMapState(MapState[FencedTable]):
    """Key → values in memory. Give two states the same `table` to see how one fences the other.

    `key` is a name, several names, or a DDL string (`carrier string`); () is a state of one row; it is omitted if an
    update names it with `group_by`. `values` is a DDL string; it is omitted if the state is updated by `.count()` or
    similar. With `deletes` keys can be deleted.
    """

    def __init__(
        self,
        key: str | Sequence[str] | None = None,
        values: str = "",
        *,
        kind: StateKind = StateKind.OPAQUE,
        table: MemoryTable | None = None,
        deletes: bool = False,
    ) -> None:
        self.stored = table or MemoryTable()
        self._loaded: AttemptId | None = None
        super().__init__(repr(self.stored.name), key, values, kind=kind, columns=None, deletes=deletes)

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
        """Check the columns; the table needs no creation."""
        self._own(owner, txid_of)

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

    def get(self, attempt: TransactionAttempt, keys: Sequence[Key]) -> dict[Key, tuple[Any, ...]]:
        """The values before this transaction of those keys that exist. Raises `Fenced`."""
        self._fence.check(self.stored.version, attempt.attempt_id)
        # As in a table, a time without a zone is one of UTC.
        asked = rows_of(self._fitting(keys, self.key)) if self.key_names else [()] * len(keys)
        rows = self.stored.rows
        found = {key: rows[each].before(attempt.txid) for key, each in zip(keys, asked, strict=True) if each in rows}
        return {key: values for key, values in found.items() if values is not ABSENT}

    def items(self, attempt: TransactionAttempt) -> Iterable[tuple[Key, tuple[Any, ...]]]:
        """All keys with their values before this transaction. Raises `Fenced`."""
        self._fence.check(self.stored.version, attempt.attempt_id)
        before = {key: row.before(attempt.txid) for key, row in self.stored.rows.items()}
        return [(key, values) for key, values in before.items() if values is not ABSENT]

    def rows_before(self, attempt: TransactionAttempt, keys: pa.Table) -> pa.Table:
        """As `get`, in Arrow. Raises `Fenced`."""
        asked = rows_of(keys) if self.key_names else [()]
        rows = [(*key, *values) for key, values in self.get(attempt, asked).items()]
        return table_of_rows(rows, Schema((*self.key, *self.values)))

    def put(self, attempt: TransactionAttempt, rows: Mapping[Key, tuple[Any, ...] | Absent]) -> None:
        """Set the values of the given keys, or delete them. Raises `Fenced`, or `SchemaMismatch` for values of another
        type."""
        width, blank = len(self.key), (None,) * len(self.values)
        are_deleted = [values is ABSENT for values in rows.values()]
        self._check_deletes(are_deleted)
        columns = Schema((*self.key, *self.values))
        table = self._fitting([(*k, *(blank if v is ABSENT else v)) for k, v in rows.items()], columns)
        check_unique(table, self.key.names, self.table)
        new = {
            row[:width]: ABSENT if is_deleted else row[width:]
            for row, is_deleted in zip(rows_of(table), are_deleted, strict=True)
        }
        self._write_values(attempt, new, dict.fromkeys(self.values.names, "last"))

    def merge(self, attempt: TransactionAttempt, partials: Partials) -> None:
        """Combine partial aggregates with the values before this transaction. Raises `Fenced`."""
        check_combine(partials.combine, self.values.names, self.table)
        check_unique(partials.table, self.key.names, self.table)
        columns = [partials.table.column(name).to_pylist() for name in (*self.key.names, *self.values.names)]
        width = len(self.key)
        rows = {row[:width]: row[width:] for row in zip(*columns, strict=True)}
        self._write_values(attempt, rows, partials.combine)

    def read(self, committed_txid: TxId | None = None) -> pa.Table:
        """Key and value columns of all rows; with `committed_txid`, nothing from after that transaction."""
        seen = {
            key: row.value if committed_txid is None else row.visible_at(committed_txid)
            for key, row in self.stored.rows.items()
        }
        rows = [(*key, *values) for key, values in seen.items() if values is not ABSENT]
        return table_of_rows(rows, Schema((*self.key, *self.values)))

    def close(self) -> None:
        """Nothing to release."""

    def _write_values(
        self, attempt: TransactionAttempt, rows: Mapping[Key, tuple[Any, ...] | Absent], combine: Mapping[str, str]
    ) -> None:
        verdict = self._fence.judge(self.stored.version, attempt)
        if verdict is Verdict.WRITE:
            check = SumCheck(self.table, self.values, [combine[name] for name in self.values.names])
            self.stored.rows = self._written(attempt.txid, rows, check)
        self.stored.version = attempt.attempt_id
        self._fence.wrote(attempt)

    def _written(
        self, txid: TxId, rows: Mapping[Key, tuple[Any, ...] | Absent], check: SumCheck
    ) -> dict[Key, StoredValue]:
        old = self.stored.rows
        # Keys that only a dead attempt at this transaction has changed are rolled back.
        rolled_back = {key: row.roll_back(txid) for key, row in old.items() if key not in rows}
        new = {key: self._applied(old.get(key), txid, key, partial, check) for key, partial in rows.items()}
        return {key: row for key, row in {**rolled_back, **new}.items() if row is not None}

    def _applied(
        self, stored: StoredValue | None, txid: TxId, key: Key, partial: tuple[Any, ...] | Absent, check: SumCheck
    ) -> StoredValue | None:
        def update(before: Any) -> tuple[Any, ...] | Absent:
            if partial is ABSENT:
                return ABSENT
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
