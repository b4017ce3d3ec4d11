"""Batch sizing: over simulated loads it settles at the target, stays there under noise, and keeps within its limits."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import mean

import pytest

from transactional.core.machine.protocol import (
    BatchPlanned,
    PlanBatch,
    ProcessingSucceeded,
    RecordAttempt,
    RecordCommit,
    StartCommit,
)
from transactional.model.attempt import AttemptId, TransactionAttempt, TxId
from transactional.model.batch import EMPTY_BATCH, BatchLimit, BatchMetadata, Digest, Offset, OffsetRange, PartitionId
from transactional.runtime.engine.history.timeline import Moment, Timeline
from transactional.runtime.engine.sizing import BatchSizer, size_of

TARGET_MS = 1_000
SETTLED_WITHIN = 10
WORDS = PartitionId("words", 0)


@dataclass(frozen=True, slots=True)
class Load:
    """What phases cost: a fixed part and one per record, in milliseconds."""

    processing_ms: float = 150
    processing_record_ms: float = 0.004
    commit_ms: float = 20
    commit_record_ms: float = 0.0005

    def processing(self, size: int) -> float:
        return self.processing_ms + self.processing_record_ms * size

    def commit(self, size: int) -> float:
        return self.commit_ms + self.commit_record_ms * size

    def latency(self, size: int, in_flight: int) -> float:
        """Of a batch among others of its size: alone, or standing in line for the commit phase."""
        return max(self.processing(size) + self.commit(size), in_flight * self.commit(size))


USUAL = Load()
DEAR_RECORDS = Load(processing_record_ms=0.04, commit_record_ms=0.005)
DEAR_COMMITS = Load(commit_record_ms=0.01)
HIGH_FIXED = Load(processing_ms=600)


@dataclass(frozen=True, slots=True)
class Batch:
    """What became of one transaction."""

    limit: int
    size: int
    expected_ms: float
    """Its latency if there were no noise, among others of its size."""
    reason: str = ""

    @property
    def is_at_target(self) -> bool:
        return abs(self.expected_ms - TARGET_MS) <= 0.25 * TARGET_MS


def batch_of(size: int, record_bytes: int = 0) -> BatchMetadata:
    """A batch that was read."""
    ranges = {WORDS: OffsetRange(Offset(0), Offset(size))}
    return BatchMetadata(ranges, {WORDS: Digest(size, 1, size * record_bytes)})


def attempt(number: int) -> TransactionAttempt:
    return TransactionAttempt(TxId(number + 1), AttemptId(number + 1))


class Pipeline:
    """A topology at work: so many transactions in flight, processed side by side, committed one at a time."""

    def __init__(self, in_flight: int = 1, *, records_max: int | None = None, noise: float = 0.0) -> None:
        self.in_flight = in_flight
        self.sizer = BatchSizer(TARGET_MS, in_flight=in_flight, records_max=records_max)
        self.told = Told(self.sizer)
        self.random, self.noise = random.Random(7), noise
        self.batches: list[Batch] = []
        self._committed_at_ms: list[float] = []
        self._commits: list[Callable[[], None]] = []

    def run(self, load: Load, count: int, backlog: int = 10**9, *, held_up: Sequence[int] = ()) -> list[Batch]:
        """Run so many transactions over a load; `held_up` are those that take four times as long. What they were."""
        first = len(self.batches)
        for number in range(first, first + count):
            self._run_one(number, load, backlog, 4.0 if number - first in held_up else 1.0)
        return self.batches[first:]

    def _run_one(self, number: int, load: Load, backlog: int, factor: float) -> None:
        planned_at_ms = self._committed_at_ms[number - self.in_flight] if number >= self.in_flight else 0.0
        if number >= self.in_flight:
            self._commits[number - self.in_flight]()
        limit = self.sizer.limit
        size = min(limit.records, backlog)
        processed_at_ms = planned_at_ms + factor * load.processing(size) * self._noise()
        started_at_ms = max(processed_at_ms, self._committed_at_ms[-1] if self._committed_at_ms else 0.0)
        ended_at_ms = started_at_ms + load.commit(size) * self._noise()
        self._committed_at_ms.append(ended_at_ms)
        self.batches.append(Batch(limit.records, size, load.latency(size, self.in_flight), limit.reason))
        self.told.plan(attempt(number), size, planned_at_ms)
        self._commits.append(
            lambda: self.told.commit(attempt(number), size, processed_at_ms, started_at_ms, ended_at_ms)
        )

    def _noise(self) -> float:
        return math.exp(self.random.gauss(0, self.noise))


def at(at_ms: float) -> Moment:
    return Moment(0, round(at_ms))


class Told:
    """Tells a sizer of transactions, as the driver does."""

    def __init__(self, sizer: BatchSizer) -> None:
        self.sizer, self.timeline = sizer, Timeline()

    def plan(self, attempt: TransactionAttempt, size: int, at_ms: float) -> None:
        """The batch is planned and recorded."""
        self.timeline.note_action(PlanBatch(attempt, EMPTY_BATCH, replay=False), at(at_ms))
        self.timeline.note_event(BatchPlanned(attempt, batch_of(size), self.sizer.limit), at(at_ms))
        self.timeline.note_action(RecordAttempt(attempt, batch_of(size), forget_later=False), at(at_ms))

    def commit(
        self,
        attempt: TransactionAttempt,
        size: int,
        processed_at_ms: float,
        started_at_ms: float,
        ended_at_ms: float,
        record_bytes: int = 0,
    ) -> None:
        """All that comes after."""
        self.timeline.note_event(ProcessingSucceeded(attempt), at(processed_at_ms))
        self.timeline.note_action(StartCommit(attempt, batch_of(size)), at(started_at_ms))
        batch = batch_of(size, record_bytes)
        self.timeline.note_action(RecordCommit(attempt, batch), at(ended_at_ms))
        self.sizer.learn(self.timeline[attempt], batch)

    def one(self, number: int, size: int, *, processing_ms: int = 100, record_bytes: int = 0) -> BatchLimit:
        """One transaction alone; the limit after it."""
        at_ms = number * 10_000
        self.plan(attempt(number), size, at_ms)
        ended_at_ms = at_ms + processing_ms
        self.commit(attempt(number), size, ended_at_ms, ended_at_ms, ended_at_ms + 10, record_bytes)
        return self.sizer.limit


# --- settling -----------------------------------------------------------------------------------------------------

STEPS = {
    "records ten times as dear": (USUAL, DEAR_RECORDS),
    "records ten times as cheap": (DEAR_RECORDS, USUAL),
    "commits dearer": (USUAL, DEAR_COMMITS),
    "commits cheaper": (DEAR_COMMITS, USUAL),
    "more whatever the size": (USUAL, HIGH_FIXED),
    "less whatever the size": (HIGH_FIXED, USUAL),
}
EVERY_STEP = pytest.mark.parametrize(("before", "after"), STEPS.values(), ids=STEPS)


@EVERY_STEP
@pytest.mark.parametrize("in_flight", [1, 2, 3, 4])
def test_it_settles_within_ten_transactions_after_a_step_in_load(before: Load, after: Load, in_flight: int) -> None:
    pipeline = Pipeline(in_flight)
    assert all(batch.is_at_target for batch in pipeline.run(before, 40)[20:])
    later = pipeline.run(after, 40)
    assert not later[0].is_at_target, "the step is one"
    assert all(batch.is_at_target for batch in later[SETTLED_WITHIN:])


@pytest.mark.sampled(4)
@EVERY_STEP
@pytest.mark.parametrize("in_flight", [1, 3])
@pytest.mark.parametrize("seed", range(5))
def test_it_settles_under_noise(before: Load, after: Load, in_flight: int, seed: int) -> None:
    """Of 10 %, in every phase. What is asserted is what it chose, not how the dice fell afterwards."""
    pipeline = Pipeline(in_flight, noise=0.1)
    pipeline.random.seed(seed)
    pipeline.run(before, 40)
    later = pipeline.run(after, 60)
    assert all(batch.is_at_target for batch in later[SETTLED_WITHIN:])
    assert abs(mean(batch.expected_ms for batch in later[SETTLED_WITHIN:]) - TARGET_MS) < 0.1 * TARGET_MS


@pytest.mark.parametrize("in_flight", [1, 3])
def test_it_grows_from_a_small_batch_to_the_target(in_flight: int) -> None:
    batches = Pipeline(in_flight).run(USUAL, 40)
    sizes = [batch.size for batch in batches]
    assert sizes[::in_flight][:3] == [1_000, 1_000, 8_000]
    assert sizes[3 * in_flight] > 50_000
    assert all(later <= 8 * earlier for earlier, later in pairwise(sizes))
    assert all(batch.is_at_target for batch in batches[6 * in_flight :])


# --- what must not move it ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("in_flight", [1, 3])
def test_one_that_is_held_up_changes_nothing(in_flight: int) -> None:
    pipeline = Pipeline(in_flight)
    before = pipeline.run(USUAL, 40)[-1].size
    sizes = [batch.size for batch in pipeline.run(USUAL, 30, held_up=[10])]
    assert sizes == pytest.approx([before] * 30, rel=0.01)


def test_waiting_for_others_is_not_taken_for_slowness() -> None:
    """After a step the small batches wait for the large ones before them, and stay as small as they have to be."""
    pipeline = Pipeline(4)
    pipeline.run(USUAL, 40)
    sizes = [batch.size for batch in pipeline.run(DEAR_COMMITS, 40)]
    assert min(sizes) > 0.5 * sizes[-1]


def test_a_first_transaction_that_starts_everything_is_not_counted() -> None:
    pipeline = Pipeline()
    pipeline.run(Load(processing_ms=9_000), 1)
    assert [batch.size for batch in pipeline.run(USUAL, 3)][:2] == [1_000, 8_000]


def test_a_source_that_has_little_does_not_move_the_limit_up_and_a_backlog_finds_it_where_it_was() -> None:
    pipeline = Pipeline(noise=0.1)
    settled = pipeline.run(USUAL, 40)[-1].limit
    idle = pipeline.run(USUAL, 2_000, backlog=10)
    assert all(0.5 * settled < batch.limit < 1.5 * settled for batch in idle)
    assert all(batch.limit <= max(settled, earlier.limit) for earlier, batch in pairwise(idle))
    assert all(batch.is_at_target for batch in pipeline.run(USUAL, 20)[3:])


@pytest.mark.parametrize("in_flight", [1, 3])
@pytest.mark.parametrize("noise", [0.0, 0.1])
@pytest.mark.parametrize("before", [0, 40])
def test_what_can_not_be_reached_does_not_end_at_the_least(in_flight: int, noise: float, before: int) -> None:
    """Less than 1,500 ms cannot be had for a batch of any size: the records may add to it, a quarter and more."""
    pipeline = Pipeline(in_flight, noise=noise)
    pipeline.run(USUAL, before)
    batches = pipeline.run(Load(processing_ms=1_480), 120)
    assert 1.1 * 1_500 < mean(batch.expected_ms for batch in batches[60:]) < 1.75 * 1_500
    assert max(batch.expected_ms for batch in batches[60:]) < 1.9 * 1_500
    assert "too much for 1000 ms" in batches[-1].reason


# --- limits -------------------------------------------------------------------------------------------------------


@EVERY_STEP
@pytest.mark.parametrize("most", [30_000, None, 7])
def test_it_never_leaves_its_limits(before: Load, after: Load, most: int | None) -> None:
    pipeline = Pipeline(2, records_max=most, noise=0.3)
    sizes = [batch.size for batch in [*pipeline.run(before, 40), *pipeline.run(after, 40, held_up=range(10))]]
    upper = most or 10**12
    assert all(min(100, upper) <= size <= upper for size in sizes)


def test_the_limit_says_why_it_is_what_it_is() -> None:
    sizer = BatchSizer(TARGET_MS, in_flight=1, records_max=50_000)
    told = Told(sizer)
    assert str(sizer.limit) == "limit 1000 (nothing is measured yet)"
    assert told.one(0, 1_000).reason == "nothing is measured yet", "what runs it starts with the first one"
    assert str(told.one(1, 1_000)) == "limit 8000 (96 ms + 13.8 µs a record, but at most 8 times the last batch)"
    assert told.one(2, 300).reason.endswith(", and the last batch had only 300")
    assert told.one(3, 8_000).reason.endswith(", and the spout takes no more")
    assert told.one(4, 50_000, processing_ms=300).records == 50_000


def test_the_reason_shows_when_commits_stand_in_line() -> None:
    reason = Pipeline(3).run(DEAR_COMMITS, 40)[-1].reason
    assert re.fullmatch(r"3 commits in turn take (5\d|6\d) ms \+ (29|30|31)(\.\d)? µs a record", reason)


def test_the_least_is_reported() -> None:
    pipeline = Pipeline()
    assert pipeline.run(Load(processing_record_ms=100), 20)[-1].reason.endswith(", but at least 100 records")
    assert pipeline.batches[-1].size == 100


# --- what is measured ---------------------------------------------------------------------------------------------


def test_bytes_are_bounded_by_what_records_had() -> None:
    sizer = BatchSizer(TARGET_MS, in_flight=1)
    told = Told(sizer)
    assert (sizer.limit.record_bytes, sizer.limit.bytes) == (None, None)
    told.one(0, 1_000, record_bytes=70)
    limit = told.one(1, 1_000, record_bytes=70)
    assert (limit.records, limit.record_bytes, limit.bytes) == (8_000, 70, 2 * 8_000 * 70)
    assert told.one(2, 0).record_bytes == 70, "an empty batch tells nothing of them"


def test_the_size_is_offsets_or_where_these_only_count_steps_records() -> None:
    assert size_of(BatchMetadata({WORDS: OffsetRange(Offset(0), Offset(90))}, {WORDS: Digest(30, 1)})) == 90
    assert size_of(BatchMetadata({WORDS: OffsetRange(Offset(4), Offset(5))}, {WORDS: Digest(30, 1)})) == 30
    assert size_of(EMPTY_BATCH) == 0


def test_replays_as_recorded_are_measured() -> None:
    """A transactional replay is not planned; it is measured from when it is recorded again."""
    sizer = BatchSizer(TARGET_MS, in_flight=3)
    told = Told(sizer)
    told.one(0, 1_000)
    again = TransactionAttempt(TxId(2), AttemptId(9))
    told.timeline.note_action(RecordAttempt(again, batch_of(1_000), forget_later=False), at(20_000))
    told.commit(again, 1_000, 20_100, 20_100, 20_110)
    assert sizer.limit.records == 8_000


def test_empty_batches_say_what_a_transaction_costs_in_any_case() -> None:
    sizer = BatchSizer(TARGET_MS, in_flight=1)
    told = Told(sizer)
    for number in range(20):
        told.one(number, 0, processing_ms=200)
    assert sizer.limit.records == 1_000
    assert sizer.processing.plus(sizer.commit).fixed_ms == pytest.approx(210, abs=2)
