"""Offset planning against a model of ten lines, by hypothesis: partitions come, grow, vanish, return and lose records.

Batches are planned ahead, fail, are replayed and committed, as the coordinator does it. Whatever happens, each offset
is committed once and in order, or was lost by the source before it was planned.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import ClassVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from spouts.planning import Limits, Logs, PartitionLog, check_ranges, compute_lag, plan_batch
from transactional.errors import BatchLost, SourceUnavailable
from transactional.model.batch import EMPTY_BATCH, BatchMetadata, Digest, Offset, PartitionId

PARTITIONS = [PartitionId("flights", index) for index in range(4)]
AHEAD_MAX = 3


@dataclass
class Model:
    """What must be: the next offset of each partition, and nothing left out but what the source had lost."""

    next: dict[PartitionId, int] = field(default_factory=dict)

    def commit(self, batch: BatchMetadata, first: dict[PartitionId, int], earliest: dict[PartitionId, int]) -> None:
        for partition, offsets in batch.ranges.items():
            expected = self.next.get(partition, first[partition])
            assert offsets.start >= expected, f"{partition}: {offsets} would be committed twice, {expected} was next"
            left_out = range(expected, offsets.start)
            assert all(offset < earliest[partition] for offset in left_out), f"{partition}: {left_out} is left out"
            self.next[partition] = offsets.until
        assert set(self.next) <= set(batch.ranges), "a position is no longer carried forward"


class Planning(RuleBasedStateMachine):
    """A source, and what the coordinator does with the batches that are planned of it."""

    replays_exactly: ClassVar[bool]

    def __init__(self) -> None:
        super().__init__()
        self.model = Model()
        self.there: dict[PartitionId, PartitionLog] = {}
        self.away: dict[PartitionId, bool] = {}
        self.first: dict[PartitionId, int] = {}
        self.limits = Limits()
        self.committed = EMPTY_BATCH
        self.planned: list[BatchMetadata] = []
        self.recorded: list[BatchMetadata] = []
        """Batches from the first not committed one on, up to the last that was ever planned."""

    # --- the source -----------------------------------------------------------------------------------------------

    @initialize(sizes=st.lists(st.integers(0, 9), min_size=1, max_size=3))
    def begin(self, sizes: list[int]) -> None:
        for partition, size in zip(PARTITIONS, sizes, strict=False):
            self.come(partition, 0, size, pinned=False)

    @rule(
        partition=st.sampled_from(PARTITIONS), earliest=st.integers(0, 5), size=st.integers(0, 9), pinned=st.booleans()
    )
    def come(self, partition: PartitionId, earliest: int, size: int, *, pinned: bool) -> None:
        """A partition that is new; `pinned`: it is to be read from its end on."""
        if partition not in self.there:
            end = Offset(earliest + size)
            self.there[partition] = PartitionLog(Offset(earliest), end, end if pinned else None)
            self.first[partition] = end if pinned else earliest

    @rule(partition=st.sampled_from(PARTITIONS), more=st.integers(1, 20))
    def grow(self, partition: PartitionId, more: int) -> None:
        if partition in self.there:
            log = self.there[partition]
            self.there[partition] = replace(log, end=Offset(log.end + more))

    @rule(partition=st.sampled_from(PARTITIONS), count=st.integers(1, 20))
    def lose(self, partition: PartitionId, count: int) -> None:
        """Retention takes the oldest; of an exact source only what is committed, else nothing could go on."""
        if partition in self.there:
            log = self.there[partition]
            allowed = self.model.next.get(partition, log.earliest) if self.replays_exactly else log.end
            self.there[partition] = replace(log, earliest=Offset(max(log.earliest, min(log.earliest + count, allowed))))

    @rule(partition=st.sampled_from(PARTITIONS), is_silent=st.booleans())
    def vanish(self, partition: PartitionId, *, is_silent: bool) -> None:
        """It is gone, or does not answer."""
        self.away[partition] = is_silent

    @rule(partition=st.sampled_from(PARTITIONS))
    def come_back(self, partition: PartitionId) -> None:
        self.away.pop(partition, None)

    @rule(batch=st.none() | st.integers(1, 15), each=st.none() | st.integers(1, 9), size=st.none() | st.integers(1, 99))
    def limit(self, batch: int | None, each: int | None, size: int | None) -> None:
        self.limits = Limits(batch, each, size)

    def logs(self) -> Logs:
        visible = {partition: log for partition, log in self.there.items() if partition not in self.away}
        return visible | {p: None for p, is_silent in self.away.items() if is_silent and p in self.there}

    # --- the coordinator ------------------------------------------------------------------------------------------

    @precondition(lambda self: len(self.planned) < AHEAD_MAX)
    @rule()
    def plan(self) -> None:
        """The next batch. One that was planned before is replayed: as recorded, or asked for again."""
        number = len(self.planned)
        is_replay = number < len(self.recorded)
        if is_replay and self.replays_exactly:
            self.planned.append(self.recorded[number])
            return
        after = self.planned[-1] if self.planned else self.committed
        plan = plan_batch(after, self.logs(), self.limits, replays_exactly=self.replays_exactly, replay=is_replay)
        assert plan is not None or not is_replay
        if plan is not None:
            self.within_limits(plan.batch)
            self.planned.append(plan.batch)
            self.recorded[number:] = [plan.batch]

    @precondition(lambda self: self.planned)
    @rule(record_bytes=st.integers(0, 30))
    def finish(self, record_bytes: int) -> None:
        """The oldest is read and committed, if what it needs is there."""
        batch = self.planned[0]
        if not self.is_readable(batch):
            self.fail()
            return
        self.model.commit(batch, self.first, {p: log.earliest for p, log in self.there.items()})
        digests = {p: Digest(len(offsets), 0, len(offsets) * record_bytes) for p, offsets in batch.non_empty()}
        self.committed = batch.with_digests(digests)
        del self.planned[0], self.recorded[0]

    def is_readable(self, batch: BatchMetadata) -> bool:
        try:
            check_ranges(batch, self.logs())
        except (BatchLost, SourceUnavailable):
            return False
        return True

    @rule()
    def fail(self) -> None:
        """A failure fails every later transaction too."""
        self.planned.clear()

    def within_limits(self, batch: BatchMetadata) -> None:
        sizes = [len(offsets) for offsets in batch.ranges.values()]
        assert sum(sizes) <= (self.limits.batch_records_max or sum(sizes))
        assert max(sizes, default=0) <= (self.limits.partition_records_max or max(sizes, default=0))

    @invariant()
    def planned_ones_follow_each_other(self) -> None:
        before = self.committed
        for batch in self.planned:
            for partition, position in before.positions().items():
                assert batch.ranges[partition].start >= position
            before = batch

    def teardown(self) -> None:
        """Faults end; then everything that is there gets committed, in a bounded number of batches."""
        self.away.clear()
        self.fail()
        for _ in self.until_drained():
            self.plan()
            if self.planned:
                self.finish(1)
        for partition, log in self.there.items():
            missing = range(self.model.next.get(partition, self.first[partition]), log.end)
            assert all(offset < log.earliest for offset in missing), f"{partition}: {missing} was never committed"

    def until_drained(self) -> Iterator[None]:
        for _ in range(2 + sum(log.end for log in self.there.values())):
            if not self.recorded and compute_lag(self.committed, self.logs()) == 0:
                return
            yield
        raise AssertionError("batches go on without end")


class TransactionalPlanning(Planning):
    """Replays as recorded."""

    replays_exactly = True


class OpaquePlanning(Planning):
    """Replays that are planned again."""

    replays_exactly = False


TestTransactionalPlanning = TransactionalPlanning.TestCase
TestOpaquePlanning = OpaquePlanning.TestCase
_SETTINGS = settings(stateful_step_count=40)
TestTransactionalPlanning.settings = TestOpaquePlanning.settings = _SETTINGS
