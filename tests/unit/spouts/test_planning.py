"""Planning of batches: positions, limits, fairness, what is lost, vanishes or comes back; and seed 004's own story."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spouts.planning import (
    Gap,
    Limits,
    Logs,
    PartitionLog,
    Plan,
    check_ranges,
    compute_lag,
    list_partitions,
    plan_batch,
    share_records,
)
from transactional.core.machine.coordinator import Coordinator
from transactional.core.machine.protocol import (
    AbortAttempt,
    Action,
    AttemptFailed,
    BatchPlanned,
    CommitSucceeded,
    Event,
    PlanBatch,
    ProcessingSucceeded,
    RecordCommit,
    StartCommit,
    StartProcessing,
    Tick,
)
from transactional.core.store.progress import Progress
from transactional.errors import BatchLost, ConfigError, SourceUnavailable
from transactional.model.attempt import TransactionAttempt
from transactional.model.batch import EMPTY_BATCH, BatchMetadata, Offset, OffsetRange, PartitionId
from transactional.model.config import TopologyConfig
from transactional.model.facts import Listing

A, B, C = (PartitionId("flights", index) for index in range(3))
NO_LIMITS = Limits()


def log(earliest: int, end: int, start: int | None = None) -> PartitionLog:
    return PartitionLog(Offset(earliest), Offset(end), None if start is None else Offset(start))


def span(start: int, until: int) -> OffsetRange:
    return OffsetRange(Offset(start), Offset(until))


def exact(after: BatchMetadata, logs: Logs, limits: Limits = NO_LIMITS) -> BatchMetadata | None:
    """What a transactional spout plans."""
    plan = plan_batch(after, logs, limits, replays_exactly=True)
    return plan.batch if plan else None


def opaque(after: BatchMetadata, logs: Logs, limits: Limits = NO_LIMITS, *, replay: bool = False) -> Plan | None:
    return plan_batch(after, logs, limits, replays_exactly=False, replay=replay)


# --- where a batch starts and ends --------------------------------------------------------------------------------


def test_the_first_batch_starts_at_the_earliest_offset_of_each_partition() -> None:
    assert exact(EMPTY_BATCH, {A: log(0, 5), B: log(7, 9)}) == BatchMetadata({A: span(0, 5), B: span(7, 9)})


def test_a_batch_starts_where_the_last_one_ended() -> None:
    assert exact(BatchMetadata({A: span(0, 5)}), {A: log(0, 8)}) == BatchMetadata({A: span(5, 8)})


def test_nothing_new_is_no_batch() -> None:
    """Storm row K7g."""
    assert exact(EMPTY_BATCH, {}) is None
    assert exact(EMPTY_BATCH, {A: log(3, 3)}) is None
    assert exact(BatchMetadata({A: span(0, 5)}), {A: log(0, 5), B: log(0, 0)}) is None


def test_a_replay_always_has_a_batch_if_need_be_an_empty_one() -> None:
    assert opaque(BatchMetadata({A: span(0, 5)}), {A: log(0, 5)}, replay=True) == Plan(BatchMetadata({A: span(5, 5)}))


def test_a_partition_with_nothing_new_keeps_its_position() -> None:
    """Storm row T43. It is an empty range, not one of one record (row K7b)."""
    planned = exact(BatchMetadata({A: span(0, 5), B: span(0, 2)}), {A: log(0, 5), B: log(0, 3)})
    assert planned == BatchMetadata({A: span(5, 5), B: span(2, 3)})


def test_a_partition_that_vanished_keeps_its_position_and_goes_on_there_when_it_returns() -> None:
    """Storm row T46."""
    without = exact(BatchMetadata({A: span(0, 5), B: span(0, 2)}), {B: log(0, 3)})
    assert without == BatchMetadata({A: span(5, 5), B: span(2, 3)})
    assert exact(without, {A: log(0, 6), B: log(0, 3)}) == BatchMetadata({A: span(5, 6), B: span(3, 3)})


def test_a_partition_that_does_not_answer_keeps_its_position() -> None:
    assert exact(BatchMetadata({A: span(0, 5)}), {A: None, B: log(0, 1)}) == BatchMetadata(
        {A: span(5, 5), B: span(0, 1)}
    )


def test_a_partition_that_never_answered_joins_when_it_does() -> None:
    assert exact(EMPTY_BATCH, {A: None, B: log(0, 1)}) == BatchMetadata({B: span(0, 1)})
    assert exact(EMPTY_BATCH, {A: None}) is None


def test_a_new_partition_joins_with_a_new_transaction_and_with_an_opaque_replay() -> None:
    """Storm row T45. A transactional replay is not planned at all: it is what was recorded."""
    after, logs = BatchMetadata({A: span(0, 5)}), {A: log(0, 5), B: log(0, 2)}
    joined = BatchMetadata({A: span(5, 5), B: span(0, 2)})
    assert exact(after, logs) == joined
    assert opaque(after, logs, replay=True) == Plan(joined)


# --- start positions ----------------------------------------------------------------------------------------------


def test_a_given_start_is_where_a_partition_without_position_begins() -> None:
    assert exact(EMPTY_BATCH, {A: log(0, 9, start=6)}) == BatchMetadata({A: span(6, 9)})
    assert exact(BatchMetadata({A: span(6, 7)}), {A: log(0, 9, start=6)}) == BatchMetadata({A: span(7, 9)})


def test_a_given_start_is_recorded_even_when_there_is_nothing_to_read() -> None:
    """Else a topology that starts at the end, and is started again before anything comes, would skip what came."""
    pinned = exact(EMPTY_BATCH, {A: log(0, 9, start=9)})
    assert pinned == BatchMetadata({A: span(9, 9)})
    assert exact(pinned, {A: log(0, 9, start=9)}) is None
    assert exact(pinned, {A: log(0, 12, start=12)}) == BatchMetadata({A: span(9, 12)})


# --- what the source has lost -------------------------------------------------------------------------------------


def test_an_opaque_spout_skips_what_is_lost_and_shows_the_gap() -> None:
    """Storm row K7e."""
    plan = opaque(BatchMetadata({A: span(0, 5), B: span(0, 5)}), {A: log(8, 10), B: log(2, 6)})
    assert plan == Plan(BatchMetadata({A: span(8, 10), B: span(5, 6)}), (Gap(A, span(5, 8)),))


def test_a_gap_is_recorded_although_nothing_is_left_in_its_partition() -> None:
    plan = opaque(BatchMetadata({A: span(0, 5), B: span(0, 5)}), {A: log(8, 8), B: log(0, 6)})
    assert plan == Plan(BatchMetadata({A: span(8, 8), B: span(5, 6)}), (Gap(A, span(5, 8)),))


def test_a_transactional_spout_does_not_skip() -> None:
    with pytest.raises(BatchLost, match=r"partition 0 of 'flights': the offsets \[5, 8\).*are \[8, 10\).*opaque"):
        exact(BatchMetadata({A: span(0, 5)}), {A: log(8, 10)})


def test_what_was_lost_before_the_first_batch_is_no_gap() -> None:
    assert opaque(EMPTY_BATCH, {A: log(8, 10)}) == Plan(BatchMetadata({A: span(8, 10)}))


@pytest.mark.parametrize("replays_exactly", [True, False])
def test_a_position_beyond_the_end_is_an_error_that_is_tried_again(*, replays_exactly: bool) -> None:
    """Nobody can tell new records under old offsets from those that were read: no guess is made."""
    with pytest.raises(SourceUnavailable, match=r"partition 0 of 'flights': offset 5 is expected.* are \[0, 3\)"):
        plan_batch(BatchMetadata({A: span(0, 5)}), {A: log(0, 3)}, NO_LIMITS, replays_exactly=replays_exactly)


def test_a_partition_made_anew_joins_as_another_one() -> None:
    """The source tells so by another id: the old position stays, the new partition begins at its own start."""
    anew = PartitionId("flights#2", 0)
    plan = opaque(BatchMetadata({A: span(0, 5)}), {anew: log(0, 3)})
    assert plan == Plan(BatchMetadata({A: span(5, 5), anew: span(0, 3)}))


def test_a_recorded_batch_that_is_there_may_be_replayed() -> None:
    check_ranges(BatchMetadata({A: span(3, 5), B: span(4, 4)}), {A: log(3, 5)})


@pytest.mark.parametrize(
    ("logs", "error", "message"),
    [
        ({A: log(4, 9)}, BatchLost, r"\[3, 5\).*the available offsets are \[4, 9\)"),
        ({}, BatchLost, "the partition is gone"),
        ({A: None}, SourceUnavailable, "does not respond"),
        ({A: log(0, 4)}, SourceUnavailable, "offset 5 is expected"),
    ],
)
def test_a_recorded_batch_that_is_not_there_is_reported(logs: Logs, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        check_ranges(BatchMetadata({A: span(3, 5)}), logs)


def test_every_partition_of_the_source_is_listed_with_what_there_is_to_read() -> None:
    after = BatchMetadata({A: span(0, 5)})
    empty, unread, away = Listing.EMPTY, Listing.UNREAD, Listing.AWAY
    assert list_partitions(after, {A: log(0, 9), B: log(3, 3), C: None}) == {A: unread, B: empty, C: away}
    assert list_partitions(after, {A: log(0, 5), B: log(3, 4), C: log(0, 7, start=7)}) == {
        A: empty,
        B: unread,
        C: empty,
    }
    assert list_partitions(after, {A: log(5, 5), C: log(4, 7, start=2)}) == {A: empty, C: unread}
    assert list_partitions(after, {}) == {}


def test_lag_is_what_is_there_and_not_read() -> None:
    after = BatchMetadata({A: span(0, 5), B: span(0, 2), C: span(0, 9)})
    assert compute_lag(after, {A: log(0, 9), B: log(3, 4)}) == 4 + 1
    assert compute_lag(EMPTY_BATCH, {A: log(2, 9), B: log(0, 4, start=4)}) == 7
    assert compute_lag(after, {A: None, B: log(3, 4)}) is None


# --- limits and fairness ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [0, -1, True, 1.5, "10"])
def test_a_limit_is_a_whole_number(wrong: object) -> None:
    with pytest.raises(ConfigError, match="batch_records_max takes a whole number"):
        Limits(batch_records_max=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("backlog", "limits", "expected"),
    [
        ((5, 9, 0), Limits(), (5, 9, 0)),
        ((5, 9, 0), Limits(partition_records_max=6), (5, 6, 0)),
        ((5, 9, 0), Limits(batch_records_max=14), (5, 9, 0)),
        ((2, 90, 900), Limits(batch_records_max=30), (2, 14, 14)),
        ((90, 90, 90), Limits(batch_records_max=32), (11, 11, 10)),
        ((90, 90, 90), Limits(batch_records_max=30, partition_records_max=4), (4, 4, 4)),
        ((90, 2, 90), Limits(batch_records_max=20, partition_records_max=10), (9, 2, 9)),
        ((1, 1, 1), Limits(batch_records_max=2), (1, 1, 0)),
    ],
)
def test_shares_are_fair(backlog: tuple[int, ...], limits: Limits, expected: tuple[int, ...]) -> None:
    assert share_records(dict(zip((A, B, C), backlog, strict=True)), limits) == dict(
        zip((A, B, C), expected, strict=True)
    )


@given(
    backlog=st.dictionaries(st.builds(PartitionId, st.just("t"), st.integers(0, 20)), st.integers(0, 1000)),
    most=st.integers(1, 500),
    each=st.none() | st.integers(1, 100),
    turn=st.integers(0, 10_000),
)
def test_shares_use_the_limit_and_leave_nobody_behind(
    backlog: dict[PartitionId, int], most: int, each: int | None, turn: int
) -> None:
    wanted = {p: count if each is None else min(count, each) for p, count in backlog.items()}
    shares = share_records(backlog, Limits(most, each), turn=turn)
    assert sum(shares.values()) == min(most, sum(wanted.values()))
    assert all(0 <= shares[p] <= wanted[p] for p in wanted)
    largest = max(shares.values(), default=0)
    assert all(shares[p] >= largest - 1 for p in wanted if shares[p] < wanted[p])


def test_nobody_starves_when_there_are_more_partitions_than_records() -> None:
    logs, after = {A: log(0, 100), B: log(0, 100), C: log(0, 100)}, EMPTY_BATCH
    for _ in range(6):
        planned = exact(after, logs, Limits(batch_records_max=2))
        assert planned is not None
        after = planned
    assert after.positions() == {A: 4, B: 4, C: 4}


# --- planning under the real coordinator --------------------------------------------------------------------------


class Run:
    """The real coordinator and the real planning, with a source that the test holds in its hands."""

    def __init__(self, *, replays_exactly: bool, max_spout_pending: int = 3) -> None:
        config = TopologyConfig(max_spout_pending=max_spout_pending, retry_pause_ms=1)
        self.coordinator = Coordinator(Progress(), config, replays_exactly=replays_exactly)
        self.replays_exactly = replays_exactly
        self.logs: dict[PartitionId, PartitionLog | None] = {}
        self.limits = NO_LIMITS
        self.now_ms = 0
        self.running: dict[int, TransactionAttempt] = {}
        self.emitted: list[tuple[int, str]] = []
        self.committed: list[BatchMetadata] = []

    def tick(self) -> None:
        self.now_ms += 1_000
        self.tell(Tick(self.now_ms))

    def tell(self, event: Event) -> None:
        for action in self.coordinator.handle(event):
            self.perform(action)

    def perform(self, action: Action) -> None:
        match action:
            case PlanBatch(attempt, after, replay):
                self.tell(self.plan(attempt, after, replay=replay))
            case StartProcessing(attempt, batch):
                self.running[attempt.txid] = attempt
                self.emitted.append((attempt.txid, ", ".join(str(offsets) for offsets in batch.ranges.values())))
            case AbortAttempt(attempt, reason):
                self.running.pop(attempt.txid, None)
                self.tell(AttemptFailed(attempt, reason))
            case StartCommit(attempt, _):
                self.tell(CommitSucceeded(attempt))
            case RecordCommit(_, batch):
                self.committed.append(batch)

    def plan(self, attempt: TransactionAttempt, after: BatchMetadata, *, replay: bool) -> Event:
        plan = plan_batch(after, self.logs, self.limits, replays_exactly=self.replays_exactly, replay=replay)
        if plan:
            check_ranges(plan.batch, self.logs)  # what is planned is there to be read
        return BatchPlanned(attempt, plan.batch if plan else None)

    def finish(self, txid: int) -> None:
        self.tell(ProcessingSucceeded(self.running.pop(txid)))

    def fail(self, txid: int) -> None:
        self.tell(AttemptFailed(self.running.pop(txid), "the test wants it so"))


def test_the_story_of_seed_004() -> None:
    """A emits 1-50 and B 51-100. A fails, and comes back as 1-40: then B is 41-90 and C 91-140. Nothing is skipped."""
    run = Run(replays_exactly=False, max_spout_pending=2)
    run.logs, run.limits = {A: log(1, 151)}, Limits(partition_records_max=50)
    run.tick()
    assert run.emitted == [(1, "[1, 51)"), (2, "[51, 101)")]
    run.limits = Limits(partition_records_max=40)
    run.fail(1)
    assert 2 not in run.running
    run.emitted.clear()
    run.coordinator.config = TopologyConfig(max_spout_pending=1)
    run.tick()
    run.limits = Limits(partition_records_max=50)
    run.coordinator.config = TopologyConfig(max_spout_pending=2)
    run.tick()
    assert run.emitted == [(1, "[1, 41)"), (2, "[41, 91)")]
    run.finish(1)
    run.finish(2)
    assert run.emitted[2] == (3, "[91, 141)")
    assert [batch.ranges[A] for batch in run.committed] == [span(1, 41), span(41, 91)]


def test_a_transactional_story_repeats_itself() -> None:
    run = Run(replays_exactly=True, max_spout_pending=2)
    run.logs, run.limits = {A: log(1, 151)}, Limits(partition_records_max=50)
    run.tick()
    run.limits = Limits(partition_records_max=40)
    run.fail(1)
    run.tick()
    assert run.emitted == [(1, "[1, 51)"), (2, "[51, 101)")] * 2
