"""Wrong tables, wrong stores and wrong spouts, each with one bug: with `mutants` all that the simulation has to find.

The points of the fence: every transaction is written to every table; the store knows a fence before the table has it;
check and write go through one handle; after a conflict nothing is written; rows and version are one Delta commit.
Nothing is compacted here, so compactions have tests of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa

from state.fence import Verdict
from state.rows.opaque_rule import OpaqueRule, Rows
from state.rows.stored_value import StoredValue
from tests.simulation.source import SimulatedSpout, Source
from tests.simulation.store import Line
from tests.simulation.tables import Handle, SimulatedState, SimulatedTable
from transactional.core.ports import StateKind
from transactional.core.store import Lease
from transactional.errors import Fenced, StoreUnavailable, TableConflict
from transactional.model.absent import ABSENT
from transactional.model.attempt import AttemptId, TransactionAttempt, TxId
from transactional.model.batch import BatchMetadata, Offset, OffsetRange, PartitionId
from transactional.model.user_code.tuples import Key
from transactional.testing import MemoryCoordinatorStore

# --- tables -----------------------------------------------------------------------------------------------------------


class UnfencedState(SimulatedState):
    """The table compares txids alone, so a zombie of the same txid overwrites what the newer attempt wrote."""

    def _check_not_moved(self, loaded: AttemptId | None) -> None:
        """Writes through whatever is there."""

    def _decide(self, version: AttemptId | None, attempt: TransactionAttempt) -> Verdict:
        if version is not None and self._fence.txid_at(version) > attempt.txid:
            raise Fenced(f"table {self.stored.name} is at a later transaction")
        return Verdict.WRITE


class KeepsRowsOfDeadAttempts(SimulatedState):
    """Keys that only the dead attempt had touched keep what it wrote (row T60)."""

    def _written(self, txid: TxId, rows: Mapping[Key, Any], *combine: Any) -> dict[Key, StoredValue]:
        touched = {key: row for key, row in self.stored.rows.items() if row.txid == txid and key not in rows}
        return super()._written(txid, rows, *combine) | touched


class SkipsEveryReplay(SimulatedState):
    """A transactional state behind an opaque spout (row T39): the replay is skipped though it holds other records."""

    def __init__(self, table: SimulatedTable, kind: StateKind, *others: Any) -> None:
        super().__init__(table, StateKind.TRANSACTIONAL, *others)


class WritesNothingForNothing(SimulatedState):
    """An empty batch is not written, so the table does not move, and a zombie slips in (the fence; row T43)."""

    def _write_values(self, attempt: TransactionAttempt, rows: Mapping[Key, Any], combine: Mapping[str, str]) -> None:
        if rows:
            super()._write_values(attempt, rows, combine)


class FencesBlindly(SimulatedState):
    """A fence is written over whatever is there by now, not over what was read (the fence)."""

    def fence(self, attempt_id: AttemptId) -> None:
        self._before(f"fence {self.stored.name}")
        self.stored.commit(attempt_id)


class WritesByPath(SimulatedState):
    """Checked is what was read, and written over what is there by then: not one handle (the fence)."""

    def _check_not_moved(self, loaded: AttemptId | None) -> None:
        """Does not look."""

    def _decide(self, version: AttemptId | None, attempt: TransactionAttempt) -> Verdict:
        """Checks what was loaded, and nothing more."""
        if self.checked_for != attempt:
            self.checked_for, self.verdict = attempt, super()._decide(version, attempt)
        return self.verdict

    checked_for: TransactionAttempt | None = None


class TriesAgainAfterAConflict(SimulatedState):
    """A write that met a conflict is made again over what is there now (the fence)."""

    def _write_values(self, attempt: TransactionAttempt, rows: Mapping[Key, Any], combine: Mapping[str, str]) -> None:
        try:
            super()._write_values(attempt, rows, combine)
        except TableConflict:
            self.stored.commit(attempt.attempt_id, self._after(Verdict.WRITE, attempt, rows, combine))
            self._fence.record_write(attempt)


class RebasesOverAnOptimize(SimulatedState):
    """What a rewrite of the same rows refuses is left to the engine, which moves the Delta commit behind it."""

    def _is_rebased(self, loaded: Handle, *write: Any) -> bool:
        verdict, attempt, *given = write
        if verdict is Verdict.WRITE:
            self.stored.rebase(loaded.rows, attempt.attempt_id, self._after(verdict, attempt, *given))
        return verdict is Verdict.WRITE


class ReadsByTheWritersHandle(SimulatedState):
    """A reader in another thread moves the writer's handle, so what is written over was not checked (the fence)."""

    def _is_read(self) -> None:
        self._handle = self._load()


class MovesTheVersionFirst(SimulatedState):
    """Version and rows are written one after the other (the fence): dead in between, a transactional table skips."""

    def _write_values(self, attempt: TransactionAttempt, rows: Mapping[Key, Any], combine: Mapping[str, str]) -> None:
        self._before(f"load {self.stored.name} for {attempt}")
        verdict = self._decide(self.stored.version, attempt)
        self.stored.commit(attempt.attempt_id)
        self._before(f"write {self.stored.name} as {attempt}")
        self.stored.commit(self.stored.version, self._after(verdict, attempt, rows, combine))
        self._fence.record_write(attempt)


class AddsToWhatIsThere(SimulatedState):
    """A replay is added to what the dead attempt has written: at least once, and no more (row T60, R24)."""

    class rule(OpaqueRule):  # noqa: N801
        def apply(self, stored: Rows, incoming: Mapping[Key, Any]) -> dict[Key, StoredValue | None]:
            counted = {
                key: replace(row, prev_value=row.value, prev_txid=TxId(row.txid - 1))
                for key, row in stored.items()
                if key in incoming and row.txid == self.txid
            }
            return super().apply({**stored, **counted}, incoming)


class MovesTheRowsFirst(SimulatedState):
    """Rows and version are two Delta commits (the fence): whoever is late writes its rows before it is refused."""

    def _write_values(self, attempt: TransactionAttempt, rows: Mapping[Key, Any], combine: Mapping[str, str]) -> None:
        self._before(f"load {self.stored.name} for {attempt}")
        if self._decide(self.stored.version, attempt) is Verdict.WRITE:
            self._before(f"write {self.stored.name} as {attempt}")
            self.stored.commit(self.stored.version, self._after(Verdict.WRITE, attempt, rows, combine))
        self._before(f"write {self.stored.name} as {attempt}")
        self.stored.commit(attempt.attempt_id)
        self._fence.record_write(attempt)


class ReadsWhatADeadAttemptHasLeft(SimulatedState):
    """A stateful bolt is given what an earlier attempt at the transaction has put, as if that were before it."""

    def _read(self, attempt: TransactionAttempt, keys: pa.Table) -> pa.Table:
        super()._read(attempt, keys)
        return self.open_table.lookup(TxId(attempt.txid + 1), keys)


class ForgetsDeletesOnAReplay(SimulatedState):
    """A replay deletes nothing: what it should delete stays as it was."""

    def put(self, attempt: TransactionAttempt, rows: Mapping[Key, Any]) -> None:
        is_replay = self.is_replay(attempt)
        super().put(attempt, {k: values for k, values in rows.items() if not (is_replay and values is ABSENT)})


class KeepsWhatADeadAttemptDeletedAway(SimulatedState):
    """A key that only a dead attempt has deleted does not come back."""

    def _written(self, txid: TxId, rows: Mapping[Key, Any], *combine: Any) -> dict[Key, StoredValue]:
        gone = {key for key, row in self.stored.rows.items() if row.value is ABSENT and key not in rows}
        return {key: row for key, row in super()._written(txid, rows, *combine).items() if key not in gone}


class LeavesNothingToRollBack(SimulatedState):
    """A delete removes the row at once, and with it what was there before."""

    def _written(self, txid: TxId, rows: Mapping[Key, Any], *combine: Any) -> dict[Key, StoredValue]:
        after = super()._written(txid, rows, *combine)
        return {key: row for key, row in after.items() if row.value is not ABSENT}


STATES: tuple[type[SimulatedState], ...] = (
    ReadsWhatADeadAttemptHasLeft,
    ForgetsDeletesOnAReplay,
    KeepsWhatADeadAttemptDeletedAway,
    LeavesNothingToRollBack,
    UnfencedState,
    KeepsRowsOfDeadAttempts,
    SkipsEveryReplay,
    WritesNothingForNothing,
    FencesBlindly,
    WritesByPath,
    TriesAgainAfterAConflict,
    RebasesOverAnOptimize,
    ReadsByTheWritersHandle,
    MovesTheVersionFirst,
    AddsToWhatIsThere,
    MovesTheRowsFirst,
)

# --- the way to the store, and the store ------------------------------------------------------------------------------


class NotesNoFences(Line):
    """The store is not told of a fence before the table has it (the fence): nobody knows what wrote the table."""

    def record_fence(self, lease: Lease, component_id: str, txid: TxId) -> None:
        """Says it has."""


class NeverWritesTwice(Line):
    """A write whose outcome is not known is taken for done."""

    def _write(self, what: str, write: Any) -> Any:
        try:
            return super()._write(what, write)
        except StoreUnavailable:
            return None


class JoinsAtOnce(Line):
    """A committer has joined before its table has a fence: dead in between, it can't be started again."""

    def record_fence(self, lease: Lease, component_id: str, txid: TxId) -> None:
        super().record_fence(lease, component_id.removesuffix("/joining"), txid)


LINES: tuple[type[Line], ...] = (NotesNoFences, NeverWritesTwice, JoinsAtOnce)


class LetsEverybodyWrite(MemoryCoordinatorStore):
    """Writes are not compared with the lease: two coordinators of one topology id both go on (rows T2, T59)."""

    def _check_lease(self, lease: Lease) -> Any:
        topology = self._topologies[lease.topology_id]
        return super()._check_lease(replace(lease, epoch=topology.epoch, owner=topology.owner or ""))


class DrawsIdsPerLease(MemoryCoordinatorStore):
    """The lease is taken without drawing an id from the counter: its fence is as high as the last attempt (T47)."""

    def acquire(self, topology_id: str, *others: Any, **options: Any) -> Lease:
        lease = super().acquire(topology_id, *others, **options)
        topology = self._topologies[topology_id]
        topology.attempt_id = AttemptId(topology.attempt_id - 1)
        return replace(lease, fence_id=topology.attempt_id)


class ForgetsWhatIsInFlight(MemoryCoordinatorStore):
    """A new coordinator starts after what is committed, and does not know what was recorded (rows T20, T44)."""

    def acquire(self, topology_id: str, *others: Any, **options: Any) -> Lease:
        lease = super().acquire(topology_id, *others, **options)
        self._topologies[topology_id].transactions.clear()
        return replace(lease, progress=replace(lease.progress, recorded={}))


class TrimsTheCommittedBatch(MemoryCoordinatorStore):
    """Of the committed transaction nothing is kept, so the next one starts at the beginning (row T57)."""

    def acquire(self, topology_id: str, *others: Any, **options: Any) -> Lease:
        lease = super().acquire(topology_id, *others, **options)
        return replace(lease, progress=replace(lease.progress, committed_batch=BatchMetadata({})))


STORES: tuple[type[MemoryCoordinatorStore], ...] = (
    LetsEverybodyWrite,
    DrawsIdsPerLease,
    ForgetsWhatIsInFlight,
    TrimsTheCommittedBatch,
)

# --- sources and spouts -----------------------------------------------------------------------------------------------


class ReadsWhatComesFirst(Source):
    """A replay is read by one poll, and whatever that gives counts as all of it (row K7a)."""

    def read(self, partition: PartitionId, offsets: OffsetRange) -> list[tuple[str, int]]:
        records = super().read(partition, offsets)
        return records[: self.random.randint(1, 8)]


SOURCES: tuple[type[Source], ...] = (ReadsWhatComesFirst,)


class ForgetsIdlePartitions(SimulatedSpout):
    """A batch names only what it reads, so positions of other partitions are lost (rows T43, T46, T50)."""

    def plan(self, after: BatchMetadata, *, replay: bool) -> BatchMetadata | None:
        batch = super().plan(after, replay=replay)
        return batch and replace(batch, ranges=dict(batch.non_empty()))


class TakesEmptyForOne(SimulatedSpout):
    """An empty range is read as a range of one record (row K7b)."""

    def plan(self, after: BatchMetadata, *, replay: bool) -> BatchMetadata | None:
        batch = super().plan(after, replay=replay)
        return batch and replace(batch, ranges={p: self._inclusive(p, each) for p, each in batch.ranges.items()})

    def _inclusive(self, partition: PartitionId, offsets: OffsetRange) -> OffsetRange:
        if len(offsets) or not offsets.start or self._source.partitions[partition].is_gone:
            return offsets
        return OffsetRange(Offset(offsets.start - 1), offsets.until)


class StartsAtTheEnd(SimulatedSpout):
    """A lost offset is answered by jumping to the newest record, and nobody is told (`auto.offset.reset`)."""

    def plan(self, after: BatchMetadata, *, replay: bool) -> BatchMetadata | None:
        batch = super().plan(after, replay=replay)
        moved = {p: self._at_the_end(p, each, after) for p, each in (batch.ranges if batch else {}).items()}
        return batch and replace(batch, ranges=moved)

    def _at_the_end(self, partition: PartitionId, offsets: OffsetRange, after: BatchMetadata) -> OffsetRange:
        known = after.ranges.get(partition)
        is_lost = known is not None and offsets.start > known.until
        return OffsetRange(offsets.until, offsets.until) if is_lost else offsets


SPOUTS: tuple[type[SimulatedSpout], ...] = (ForgetsIdlePartitions, TakesEmptyForOne, StartsAtTheEnd)
