"""States that are wrong in one thing each, all in memory, and the case of `check_state` that finds it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, ClassVar

import pyarrow as pa

from state.fence import Fence
from state.memory import MemoryMapState, MemoryRows, MemoryTable
from state.row_table import Change, Changes, RowTable, RowWrite
from state.rows.opaque_rule import OpaqueRule, Rows
from state.rows.stored_value import StoredValue
from transactional.core.ports import Partials, State, StateKind
from transactional.core.ports.state_parts import Rewind, RewindTarget, StateParts
from transactional.model.absent import ABSENT, Absent
from transactional.model.attempt import AttemptId, TransactionAttempt, TxId
from transactional.model.user_code.tuples import Key


class InMemory(MemoryMapState):
    """A state in memory whose store can be another one."""

    rows_of: ClassVar[type[MemoryRows]] = MemoryRows

    def _table(self) -> RowTable:
        rows = self.rows_of(self.stored, self.key, self.values)
        return RowTable(rows, self.declared, self.rule)


def over(rows: type[MemoryRows]) -> type[InMemory]:
    """The state over a store."""
    return type(rows.__name__, (InMemory,), {"rows_of": rows})


def by(rule: type[OpaqueRule]) -> type[InMemory]:
    """The state by a rule."""
    return type(rule.__name__, (InMemory,), {"rule": rule})


# --- stores -----------------------------------------------------------------------------------------------------------


class NotCompared(MemoryRows):
    def write(self, write: RowWrite, change: Change | None = None) -> None:
        super().write(replace(write, expected_version=self._table.version), change)


class NoVersion(MemoryRows):
    def write(self, write: RowWrite, change: Change | None = None) -> None:
        version = self._table.version
        super().write(write, change)
        self._table.version = version


class NoRows(MemoryRows):
    def write(self, write: RowWrite, change: Change | None = None) -> None:
        super().write(write)


class InTwoSteps(MemoryRows):
    """It moves the version on first, and may end before its rows."""

    breaks = False

    def write(self, write: RowWrite, change: Change | None = None) -> None:
        super().write(write)
        if self.breaks:
            raise OSError("the disk is full")
        super().write(replace(write, expected_version=write.version), change)


class WithoutNull(MemoryRows):
    def rows(self, keys: Collection[Key] | None = None) -> Rows:
        return super().rows(None if keys is None else [key for key in keys if None not in key])


class FirstKeyOnly(MemoryRows):
    def rows(self, keys: Collection[Key] | None = None) -> Rows:
        return super().rows(None if keys is None else [*islice(keys, 1)])


class FirstThousand(MemoryRows):
    def write(self, write: RowWrite, change: Change | None = None) -> None:
        def some() -> Changes:
            changes = (change or _nothing)()
            return replace(changes, new_rows=dict(islice(changes.new_rows.items(), 1_000)))

        super().write(write, some)


def _nothing() -> Changes:
    return Changes({}, {})


class HorizonsForgotten(MemoryRows):
    def write(self, write: RowWrite, change: Change | None = None) -> None:
        super().write(replace(write, horizons=None), change)


class DeadRowsStay(MemoryRows):
    def tombstones_and_rows_since(self, since: TxId | None) -> Rows:
        return {}


class AnotherOrder(MemoryRows):
    def rows(self, keys: Collection[Key] | None = None) -> Rows:
        return {key: replace(row, value=_reversed(row.value)) for key, row in super().rows(keys).items()}


def _reversed(values: Any) -> Any:
    return values if values is ABSENT else values[::-1]


class AsFloats(MemoryRows):
    def rows(self, keys: Collection[Key] | None = None) -> Rows:
        return {key: replace(row, value=_float(row.value)) for key, row in super().rows(keys).items()}


def _float(values: Any) -> Any:
    return values if values is ABSENT else tuple(int(float(v)) if isinstance(v, int) else v for v in values)


class NewOwner(MemoryRows):
    def open(self, store_id: str | None = None) -> None:
        self._table.store_id = store_id


# --- rules ------------------------------------------------------------------------------------------------------------


class NothingBefore(OpaqueRule):
    def update(self, key: Key, rolled_back: StoredValue | None, partial: Sequence[Any] | Absent) -> StoredValue | None:
        applied = super().update(key, rolled_back, partial)
        return None if applied is None else StoredValue.first(applied.txid, applied.value)


class AddedTwice(OpaqueRule):
    def roll_back(self, key: Key, row: StoredValue) -> StoredValue | None:
        return replace(row, txid=TxId(row.txid - 1)) if row.txid == self.txid else super().roll_back(key, row)


class DeletesAreNull(OpaqueRule):
    def update(self, key: Key, rolled_back: StoredValue | None, partial: Sequence[Any] | Absent) -> StoredValue | None:
        return super().update(key, rolled_back, (None,) * len(self.columns.values) if partial is ABSENT else partial)


class DeletesForgotten(OpaqueRule):
    """A replay does not bring back what a dead attempt has deleted."""

    def roll_back(self, key: Key, row: StoredValue) -> StoredValue | None:
        return None if row.value is ABSENT else super().roll_back(key, row)


class GoneTooEarly(OpaqueRule):
    """By the horizon of the transaction, which may be repeated with another one."""

    def roll_back(self, key: Key, row: StoredValue) -> StoredValue | None:
        earlier = super().roll_back(key, row)
        return None if earlier is None or self.has_expired(key, earlier.value, self.horizons.current) else earlier


# --- states -----------------------------------------------------------------------------------------------------------


class ExpiredAreRead(InMemory):
    def _select_unexpired(self, attempt: TransactionAttempt, rows: pa.Table) -> pa.Table:
        return rows


class OpenFence(Fence):
    def check(self, version: AttemptId | None, attempt_id: AttemptId) -> None:
        """Everybody may write."""


class NoFence(InMemory):
    def open(self, owner: str, txid_of: Callable[[AttemptId], TxId]) -> None:
        super().open(owner, txid_of)
        self._fence = OpenFence(self.declared.table, owner, self.declared.kind, txid_of)


class BlindFence(Fence):
    def check_unchanged(self, attempt: TransactionAttempt, version: AttemptId | None) -> None:
        """Accept whatever has been written since."""


class NotLooking(InMemory):
    def open(self, owner: str, txid_of: Callable[[AttemptId], TxId]) -> None:
        super().open(owner, txid_of)
        self._fence = BlindFence(self.declared.table, owner, self.declared.kind, txid_of)


class TooMuchRead(InMemory):
    def all_rows(self, committed_txid: TxId | None) -> pa.Table:
        return super().all_rows(None)


class CountsTwice(InMemory):
    def open(self, owner: str, txid_of: Callable[[AttemptId], TxId]) -> None:
        super().open(owner, txid_of)
        self._fence = Fence(self.declared.table, owner, StateKind.OPAQUE, txid_of)


class NoEmptyBatch(InMemory):
    def merge(self, attempt: TransactionAttempt, partials: Partials) -> None:
        if partials.table.num_rows:
            super().merge(attempt, partials)


class SameIdentity(InMemory):
    def identity(self) -> Mapping[str, str]:
        return {"memory": self.stored.name}


class NotBack(InMemory, Rewind):
    """It says that it has gone back, and has only written the fence."""

    rewind_obstacle = ""

    @property
    def parts(self) -> StateParts:
        return replace(super().parts, rewind=self)

    def preview_rewind(self, topology_id: str, component_id: str, target: RewindTarget) -> str:
        return "what the newest transaction did is undone"

    def rewind(self, target: RewindTarget, fence_id: AttemptId) -> None:
        self.rewind_by(fence_id, lambda table: table.write_version(fence_id, None))


class TasksReadTooMuch(InMemory):
    def for_tasks(self, attempt: TransactionAttempt) -> Any:
        return super().for_tasks(TransactionAttempt(TxId(attempt.txid + 1), attempt.attempt_id))


@dataclass(frozen=True, slots=True)
class Wrong:
    """A state that is wrong, and the case that finds it."""

    state: type[InMemory]
    case: str


WRONG = {
    "the version is not compared": Wrong(over(NotCompared), "a_fence_over_what_was_not_read"),
    "rows are written without the version": Wrong(over(NoVersion), "adds_up(opaque)"),
    "the version is written without rows": Wrong(over(NoRows), "adds_up(opaque)"),
    "version and rows are two steps": Wrong(over(InTwoSteps), "a_write_that_breaks_off(the same attempt)"),
    "keys with NULL are not found": Wrong(over(WithoutNull), "keys_of_a_type(string)"),
    "one key is looked up": Wrong(over(FirstKeyOnly), "reads_and_puts"),
    "a statement ends after a thousand rows": Wrong(over(FirstThousand), "many_keys(True)"),
    "horizons are not stored": Wrong(over(HorizonsForgotten), "a_horizon_never_goes_back"),
    "a replay leaves what only the dead attempt has touched": Wrong(over(DeadRowsStay), "replayed_as_another_batch"),
    "columns come in another order": Wrong(over(AnotherOrder), "columns_are_combined_in_their_own_ways"),
    "whole numbers go through floating point": Wrong(over(AsFloats), "extreme_values(long)"),
    "whoever opens it is recorded": Wrong(over(NewOwner), "whose_store_it_is_for"),
    "what was before is not kept": Wrong(by(NothingBefore), "the_opaque_rule(('sum', 3))"),
    "a replay is added to the dead attempt": Wrong(by(AddedTwice), "replayed_as_another_batch"),
    "a deleted key is NULL": Wrong(by(DeletesAreNull), "deleted_keys"),
    "what a dead attempt has deleted stays so": Wrong(by(DeletesForgotten), "deletes_of_a_dead_attempt"),
    "rows go that a replay may need": Wrong(by(GoneTooEarly), "an_expired_key_begins_anew"),
    "expired rows are read": Wrong(ExpiredAreRead, "an_expired_key_begins_anew"),
    "the fence is ignored": Wrong(NoFence, "an_older_attempt_is_fenced"),
    "another writer's write is overwritten": Wrong(NotLooking, "written_between_reading_and_writing"),
    "readers see what is not committed": Wrong(TooMuchRead, "up_to_a_transaction"),
    "a transactional state counts a replay": Wrong(CountsTwice, "a_transactional_state_skips_the_transaction"),
    "an empty batch writes nothing": Wrong(NoEmptyBatch, "empty_batches"),
    "other columns are the same state": Wrong(SameIdentity, "identities"),
    "it does not go back": Wrong(NotBack, "going_back"),
    "tasks read what their own transaction has written": Wrong(TasksReadTooMuch, "tasks_of_a_step"),
}


def made(kind_of_state: type[MemoryMapState]) -> Callable[[str, Any, str, StateKind], State]:
    """A factory of such states, as `check_state` takes it."""
    tables = dict[str, MemoryTable]()

    def make(table: str, key: Any, values: str, kind: StateKind) -> State:
        return kind_of_state(key, values, kind=kind, table=tables.setdefault(table, MemoryTable(table)))

    return make


def break_write(state: Any) -> None:
    """Let the next write end in its middle, where it has one."""
    state.open_table.store.breaks = True
