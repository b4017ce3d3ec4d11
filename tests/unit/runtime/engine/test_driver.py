"""Whole runs in this process: exact results, overlapping processing with ordered commits, replays, stopping."""

from __future__ import annotations

import re
import threading
from asyncio import CancelledError
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import pytest

from tests.unit.drivers import DRAINED, WAIT_S, Gate, Recorder, World, in_background
from tests.unit.fakes import WORD_COUNTS, WORDS, opaque_words, stored, words
from transactional.core.machine.protocol import (
    AbortAttempt,
    Action,
    AttemptFailed,
    Event,
    Halt,
    ProgressMade,
    RecordAttempt,
    RecordCommit,
    RecordFailure,
    StartCommit,
    StartProcessing,
    Tick,
)
from transactional.core.ports import StateKind
from transactional.core.store.progress import Phase
from transactional.errors import FailedException, OperatingError, SourceUnavailable
from transactional.model.attempt import TransactionAttempt
from transactional.model.config import TopologyConfig
from transactional.model.user_code.tuples import Tuple
from transactional.runtime.engine.history.run_history import RunSummary
from transactional.runtime.executors.local import LocalExecutor
from transactional.testing import ManualClock


class Trip:
    """Where the bolts of this module meet the test: they are copied for every task, what is here is not."""

    on_tuple: ClassVar[Callable[[Tuple], None]] = staticmethod(lambda row: None)


def trip(row: Tuple) -> Tuple:
    Trip.on_tuple(row)
    return row


@pytest.fixture(autouse=True)
def no_trip() -> Iterator[None]:
    yield
    Trip.on_tuple = staticmethod(lambda row: None)


def is_exact(world: World) -> bool:
    return stored(world.counts) == WORD_COUNTS and stored(world.total) == {(): sum(WORD_COUNTS.values())}


# --- without failures ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spout", "writes"),
    [
        (words, ["record_attempt", "record_processed", "record_commit"]),
        (opaque_words, ["record_attempt", "record_commit"]),
    ],
)
def test_a_transaction_takes_two_writes_to_the_store_or_three_where_replays_are_compared(
    spout: Callable[[], Any], writes: list[str]
) -> None:
    world = World()
    made: list[str] = []
    world.store.before = made.append
    driver = world.driver(world.topology(spout()))
    assert driver.run().transactions == 3
    assert sorted(call for call in made if call.startswith("record_")) == sorted(3 * writes)
    assert {flight.attempt.txid for flight in driver.timeline} <= {4}, "nothing but of the one that waited at the end"
    for record in world.store.attempts("words", limit=9):
        assert (record.phase, record.rows) == ("committed", record.batch.record_count)
        times: list[Any] = [record.issued_at_ms, record.planned_at_ms, record.processed_at_ms]
        times += [record.commit_started_at_ms, record.committed_at_ms]
        assert record.rows
        assert times == sorted(times)
        assert times[0] > 0


@pytest.mark.parametrize(
    ("spout", "kind"),
    [(words, StateKind.TRANSACTIONAL), (words, StateKind.OPAQUE), (opaque_words, StateKind.OPAQUE)],
)
@pytest.mark.parametrize("pending", [1, 3])
def test_a_run_counts_every_tuple_once(spout: Any, kind: StateKind, pending: int) -> None:
    world = World(kind)
    config = TopologyConfig(max_spout_pending=pending, stop_when_drained=True, tick_ms=1, idle_pause_ms=1)
    assert world.run(world.topology(spout(), trip), config) == RunSummary(1, 3, 0)  # type: ignore[arg-type]
    assert is_exact(world)
    [status] = world.store.status()
    assert (status.committed_txid, status.is_leased) == (3, False)
    [first, second, third] = world.store.attempts("words", limit=9)[::-1]
    assert [record.rows for record in (first, second, third)] == [9, 7, 3]
    assert {record.phase for record in (first, second, third)} == {"committed"}


def test_a_second_run_goes_on_where_the_first_has_ended() -> None:
    world, rows = World(), [list(part) for part in WORDS]
    world.run(world.topology(words(rows)))
    assert world.run(world.topology(words(rows))).transactions == 0
    rows[1].append(("cat",))
    assert world.run(world.topology(words(rows))) == RunSummary(4, 4, 0)  # type: ignore[arg-type]
    assert stored(world.counts) == {**WORD_COUNTS, "cat": 9}


def test_processing_phases_overlap_and_commits_keep_their_order() -> None:
    """Three batches have to be in their processing phases at once, and they end in reverse order."""
    world, recorder = World(), Recorder()
    meet, ended = threading.Barrier(3), [threading.Event() for _ in range(3)]

    def meet_and_end_in_reverse_order(row: Tuple) -> None:
        number = int(row["word"])
        meet.wait(WAIT_S)
        assert number == 2 or ended[number + 1].wait(WAIT_S)
        ended[number].set()

    Trip.on_tuple = staticmethod(meet_and_end_in_reverse_order)
    world.run(world.topology(words([[("0",), ("1",), ("2",)]], take=1), trip), observers=[recorder])
    assert [action.attempt.txid for action in recorder.of(RecordCommit)] == [1, 2, 3]
    names = [(type(action).__name__, getattr(action, "attempt", None)) for action in recorder.actions]
    for txid in (2, 3):
        commit = next(action for action in recorder.of(StartCommit) if action.attempt.txid == txid)
        before = next(action for action in recorder.of(RecordCommit) if action.attempt.txid == txid - 1)
        assert names.index(("RecordCommit", before.attempt)) < names.index(("StartCommit", commit.attempt))


def test_the_spout_is_reported_of_every_commit_in_order() -> None:
    world, spout = World(), words()
    told: list[int] = []
    spout.committed = lambda batch: told.append(batch.record_count or 0)  # type: ignore[method-assign]
    world.run(world.topology(spout))
    assert told == [9, 7, 3]


# --- failures -----------------------------------------------------------------------------------------------------


class Failing:
    """Fails for some word, the first times that it comes."""

    def __init__(self, word: str, times: int, error: Exception) -> None:
        self.word, self.left, self.error = word, times, error

    def __call__(self, row: Tuple) -> None:
        if row["word"] == self.word and self.left:
            self.left -= 1
            raise self.error


@pytest.mark.parametrize("spout", [words, opaque_words])
@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ValueError("no banana"), "TX302 task 0 of 2: component 'bolt' raised ValueError: no banana"),
        (FailedException("try again"), "TX200 task 0 of 2: component 'bolt' raised FailedException: try again"),
    ],
)
def test_a_bolt_that_fails_is_replayed_until_it_succeeds(spout: Any, error: Exception, reason: str) -> None:
    """Storm row T7, for any exception."""
    world, recorder = World(), Recorder()
    Trip.on_tuple = staticmethod(Failing("banana", 2, error))
    rows = [[("cat",), ("cat",)], [("dog",), ("banana",), ("cat",)]]
    summary = world.run(world.topology(spout(rows, take=1), trip), observers=[recorder])
    assert summary.failures == 2
    assert stored(world.counts) == {"cat": 3, "dog": 1, "banana": 1}
    failures = recorder.of(RecordFailure)
    assert [(failure.attempt.txid, failure.phase) for failure in failures] == [(2, Phase.PROCESSING)] * 2
    told = [record.error or "" for record in world.store.attempts("words", limit=99) if record.phase == "failed"]
    assert len(told) == 2
    for text in told:
        first, *rest = re.sub(r" \(tests/\S+\.py:\d+\)", "", text.replace("task 1", "task 0")).splitlines()
        assert first == f"""processing: {reason}, on {{"word": "banana"}} from 'spout', in memory[1] [1, 2)"""
        assert bool(rest) == isinstance(error, ValueError)


def test_a_failure_aborts_every_later_transaction_and_they_come_back_as_new_attempts() -> None:
    world, recorder, gate = World(), Recorder(), Gate()
    failing = Failing("0", 1, ValueError("no"))

    def fail_when_all_are_in_flight(row: Tuple) -> None:
        if row["word"] == "0" and failing.left:
            gate.pass_through()
        failing(row)

    Trip.on_tuple = staticmethod(fail_when_all_are_in_flight)
    driver = world.driver(world.topology(words([[("0",), ("1",), ("2",)]], take=1), trip), observers=[recorder])
    with in_background(driver) as running:
        recorder.wait_for(lambda: len(recorder.of(StartProcessing)) == 3)
        gate.opened.set()
        assert running.result(WAIT_S).failures == 1
    first, second, third = [action.attempt for action in recorder.of(StartProcessing)][:3]
    assert [action.attempt for action in recorder.of(AbortAttempt)] == [second, third]
    issued = [action.attempt for action in recorder.of(RecordAttempt)]
    assert [attempt.txid for attempt in issued] == [1, 2, 3, 1, 2, 3]
    assert [attempt.attempt_id for attempt in issued] == sorted({attempt.attempt_id for attempt in issued})
    ended = [event.attempt for event, _ in recorder.lines if isinstance(event, AttemptFailed)]
    assert {first, second, third} <= set(ended)
    assert stored(world.total) == {(): 3}
    runner = driver.runner
    kept: list[Any] = [
        driver.timeline._flights,
        runner._running,
        runner._processed,
        runner._progress,
    ]
    assert {attempt.txid for each in kept for attempt in each} <= {4}, "nothing but of the one that waited at the end"
    assert runner._aborting == {}


def test_an_opaque_replay_may_be_another_batch() -> None:
    """Partition 1 goes away while its batch is replayed: the rest is committed, what it held comes later."""
    world, recorder = World(), Recorder()
    spout = opaque_words([[("cat",)], [("dog",)]], take=1)

    def fail_once_and_lose_partition_1(row: Tuple) -> None:
        has_failed = bool(recorder.of(RecordFailure))
        if row["word"] == "dog" and not has_failed:
            spout.set_disabled(1, disabled=True)
            raise SourceUnavailable("partition 1 is gone")
        if row["word"] == "cat" and has_failed:  # the replay is planned by then, without it
            spout.set_disabled(1, disabled=False)

    Trip.on_tuple = staticmethod(fail_once_and_lose_partition_1)
    config = TopologyConfig(stop_when_drained=True, retry_pause_ms=1, idle_pause_ms=1, tick_ms=1)
    world.run(world.topology(spout, trip), config, observers=[recorder])
    assert [action.batch.record_count for action in recorder.of(RecordCommit)] == [1, 1]
    assert stored(world.counts) == {"cat": 1, "dog": 1}


@pytest.mark.parametrize("kind", [StateKind.OPAQUE, StateKind.TRANSACTIONAL])
@pytest.mark.parametrize(
    ("failing", "error"),
    [
        ("counts", OperatingError("the object store does not answer")),
        ("total", OperatingError("the object store does not answer")),
        ("total", CancelledError("a client has timed out")),
        ("total", KeyboardInterrupt("raised by a library")),
    ],
)
def test_a_commit_phase_that_fails_half_way_is_made_whole_by_its_replay(
    kind: StateKind, failing: str, error: BaseException
) -> None:
    world, recorder = World(kind), Recorder()
    topology = world.topology()
    left = [2]

    def fail_twice(attempt: Any) -> None:
        if attempt.txid == 2 and left[0]:
            left[0] -= 1
            raise error

    world.states[failing].before = fail_twice
    assert world.run(topology, observers=[recorder]).failures == 2
    assert {failure.phase for failure in recorder.of(RecordFailure)} == {Phase.COMMITTING}
    assert is_exact(world)
    assert world.counts.version == world.total.version


# --- stopping -----------------------------------------------------------------------------------------------------


def test_stop_lets_the_commit_phase_end_and_gives_up_the_rest() -> None:
    world, recorder, gate = World(), Recorder(), Gate()
    topology = world.topology(words(take=1))
    world.states["total"].before = lambda attempt: gate.pass_through() if attempt.txid == 2 else None
    endless = TopologyConfig(max_spout_pending=3, tick_ms=1, idle_pause_ms=1)
    driver = world.driver(topology, endless, observers=[recorder])
    with in_background(driver) as running:
        gate.wait_until_entered()
        driver.stop()
        recorder.wait_for(lambda: len(recorder.of(AbortAttempt)) == 2)
        gate.opened.set()
        assert running.result(WAIT_S) == RunSummary(1, 2, 0)  # type: ignore[arg-type]
    assert [action.attempt.txid for action in recorder.of(RecordCommit)] == [1, 2]
    assert stored(world.total) == {(): 6}
    assert not world.is_leased
    assert world.run(world.topology(words(take=1))).first_txid == 3
    assert is_exact(world)


def test_stop_ends_an_idle_run() -> None:
    world, recorder = World(), Recorder()
    driver = world.driver(world.topology(words([[]])), TopologyConfig(tick_ms=1), observers=[recorder])
    with in_background(driver) as running:
        recorder.wait_for(lambda: len(recorder.lines) > 2)
        driver.stop()
        assert running.result(WAIT_S).transactions == 0


def test_a_run_that_was_stopped_before_it_began_ends_at_once() -> None:
    world = World()
    driver = world.driver()
    driver.stop()
    assert driver.run().transactions == 0
    assert not world.is_leased


# --- time ---------------------------------------------------------------------------------------------------------


def test_an_attempt_that_hangs_times_out_and_is_replayed_once_it_is_dead() -> None:
    world, recorder, gate, clock = World(), Recorder(), Gate(), ManualClock()
    hung: list[str] = []

    def hang_once(row: Tuple) -> None:
        if row["word"] == "chicken" and not hung:  # which is in the first batch
            hung.append(row["word"])
            gate.pass_through()

    Trip.on_tuple = staticmethod(hang_once)
    driver = world.driver(world.topology(bolt=trip), clock=clock, observers=[recorder])
    with in_background(driver) as running:
        gate.wait_until_entered()
        clock.advance(DRAINED.attempt_timeout_ms + 1)
        recorder.wait_for(lambda: bool(recorder.of(RecordFailure)))
        [first] = [action.attempt for action in recorder.of(RecordFailure)]
        assert first.txid == 1
        # Time goes on, but nothing of it is issued again as long as it may still run.
        clock.advance(DRAINED.retry_pause_after(9))
        recorder.wait_for_more(3)
        assert [action for action in recorder.of(RecordAttempt) if action.attempt.txid == 1][1:] == []
        gate.opened.set()
        running.result(WAIT_S)
    assert recorder.of(RecordFailure)[0].reason == "no progress for 30001 ms, over attempt_timeout_ms (30000)"
    assert is_exact(world)


class Progressing(LocalExecutor):
    """Goes forward whenever it is asked."""

    made = 0

    def count_progress(self, attempt: TransactionAttempt) -> int:
        self.made += 1
        return self.made


def test_an_attempt_that_goes_forward_does_not_time_out() -> None:
    world, recorder, gate, clock = World(), Recorder(), Gate(), ManualClock()
    Trip.on_tuple = staticmethod(lambda row: gate.pass_through())
    topology = world.topology(bolt=trip)
    one_at_a_time = replace(DRAINED, max_spout_pending=1)
    executor = Progressing(topology)
    driver = world.driver(topology, one_at_a_time, executor=executor, clock=clock, observers=[recorder])
    with in_background(driver) as running:
        gate.wait_until_entered()
        for number in range(1, 4):
            clock.advance(DRAINED.attempt_timeout_ms - 1_000)
            recorder.wait_for_events(ProgressMade, number)
        gate.opened.set()
        assert running.result(WAIT_S).failures == 0


def test_the_lease_is_renewed_while_nothing_happens() -> None:
    world, recorder, clock = World(), Recorder(), ManualClock()
    renewed = threading.Semaphore(0)
    world.store.before = lambda call: renewed.release() if call == "renew" else None
    config = TopologyConfig(tick_ms=1, lease_ms=9_000)
    driver = world.driver(world.topology(words([[]])), config, clock=clock, observers=[recorder])
    with in_background(driver) as running:
        assert renewed.acquire(timeout=WAIT_S), "once when all has been started"
        recorder.wait_for(lambda: len(recorder.lines) > 1)
        for _ in range(3):
            clock.advance(2_999)
            recorder.wait_for_more(3)
            assert not renewed.acquire(blocking=False)
            clock.advance(1)
            assert renewed.acquire(timeout=WAIT_S)
        driver.stop()
        running.result(WAIT_S)


def test_observers_are_reported_everything_once_it_was_done() -> None:
    world, recorder = World(), Recorder()
    seen: list[tuple[str, int]] = []

    def look(at_ms: int, event: Event, actions: Sequence[Action]) -> None:
        committed = world.store.status()[0].committed_txid
        seen.extend((type(action).__name__, committed) for action in actions if isinstance(action, RecordCommit))

    clock = ManualClock(wall_ms=1_000)
    times: list[int] = []

    def note_time(at_ms: int, event: Event, actions: Sequence[Action]) -> None:
        times.append(at_ms)

    world.run(observers=[recorder, look, note_time], clock=clock)
    assert seen == [("RecordCommit", 1), ("RecordCommit", 2), ("RecordCommit", 3)]
    assert isinstance(recorder.lines[0][0], Tick)
    assert not recorder.of(Halt)
    assert set(times) == {1_000}
