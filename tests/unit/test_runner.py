"""`PhaseRunner`: every request gets its one answer, whatever happens; aborting waits until nothing runs any more."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from spouts.memory import MemoryTransactionalSpout
from state.memory import MemoryMapState, MemoryTable
from tests.unit.attempts import everything, processed
from tests.unit.fakes import Total, builder, stored, total
from transactional.attempt import AttemptId, TransactionAttempt, TxId
from transactional.batch import EMPTY_BATCH, BatchMetadata, Offset, OffsetRange, PartitionId
from transactional.errors import (
    AttemptLost,
    BatchLost,
    BoltFailed,
    ConfigError,
    FailedException,
    Fenced,
    ReplayMismatch,
    SourceUnavailable,
)
from transactional.ports import Partials, Processed
from transactional.protocol import (
    AttemptFailed,
    BatchPlanned,
    CommitSucceeded,
    Event,
    ProcessingSucceeded,
    ProgressMade,
)
from transactional.runner import Fatal, PhaseRunner
from transactional.topology import Topology

WAIT_S = 10.0


def attempt(txid: int) -> TransactionAttempt:
    return TransactionAttempt(TxId(txid), AttemptId(10 * txid))


class Spout(MemoryTransactionalSpout):
    """Cats, and whatever a test makes the spout do."""

    on_plan: Callable[[], None] = staticmethod(lambda: None)
    on_check: Callable[[], None] = staticmethod(lambda: None)
    on_read: Callable[[], None] = staticmethod(lambda: None)
    on_committed: Callable[[BatchMetadata], None] = staticmethod(lambda batch: None)
    has_something = True

    def __init__(self) -> None:
        super().__init__([[("cat",), ("cat",)]], "word string", 2)

    def plan(self, after: BatchMetadata, *, replay: bool) -> BatchMetadata | None:
        self.on_plan()
        return super().plan(after, replay=replay) if self.has_something else None

    def check_replay(self, batch: BatchMetadata) -> None:
        self.on_check()
        super().check_replay(batch)

    def check_read(self, batch: BatchMetadata) -> None:
        self.on_read()
        super().check_read(batch)

    def committed(self, batch: BatchMetadata) -> None:
        self.on_committed(batch)


class State(MemoryMapState):
    """A count, and whatever a test makes the state do before it is written."""

    on_put: Callable[[], None] = staticmethod(lambda: None)

    def put(self, attempt: TransactionAttempt, rows: Mapping[Any, tuple[Any, ...]]) -> None:
        self.on_put()
        super().put(attempt, rows)

    def merge(self, attempt: TransactionAttempt, partials: Partials) -> None:
        raise NotImplementedError


@dataclass
class Executor:
    """A `JobExecutor` whose `run` does what a test wants; `cancel` is noted."""

    result: Processed
    work: Callable[[TransactionAttempt], None] = lambda attempt: None
    cancelled: queue.SimpleQueue[TransactionAttempt] = field(default_factory=queue.SimpleQueue)
    made: dict[TransactionAttempt, int] = field(default_factory=dict)

    def open(self) -> None: ...

    def run(self, attempt: TransactionAttempt, batch: BatchMetadata) -> Processed:
        self.work(attempt)
        return self.result

    def cancel(self, attempt: TransactionAttempt) -> None:
        self.cancelled.put(attempt)

    def progress(self, attempt: TransactionAttempt) -> int:
        return self.made.get(attempt, 0)

    def close(self) -> None: ...


class Bench:
    """A runner over the above. `answer` waits for the next thing that it posts."""

    def __init__(self) -> None:
        self.spout, self.state = Spout(), State((), "count long", table=MemoryTable("total"))
        self.topology = self._topology()
        self.batch = everything(self.topology)
        self.executor = Executor(processed(self.topology))
        self.posted: queue.SimpleQueue[Event | Fatal] = queue.SimpleQueue()
        self.runner = PhaseRunner(self.topology, self.executor, self.posted.put, max_pending=1)

    def _topology(self) -> Topology:
        made = builder(self.spout)
        made.set_committer_bolt("total", Total(), state=self.state).global_grouping("spout")
        self.state.open("words/total", lambda attempt_id: TxId(attempt_id // 10))
        return made.build()

    def answer(self) -> Event | Fatal:
        return self.posted.get(timeout=WAIT_S)

    def no_answer(self) -> bool:
        return self.posted.empty()


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.runner.close()


def raising(error: BaseException) -> Callable[..., None]:
    def raise_it(*_: object) -> None:
        raise error

    return raise_it


# --- planning -----------------------------------------------------------------------------------------------------


def test_a_plan_is_answered_with_the_batch_or_with_nothing_there(bench: Bench) -> None:
    bench.runner.plan(attempt(1), EMPTY_BATCH, replay=False)
    assert bench.answer() == BatchPlanned(attempt(1), bench.batch)
    bench.runner.plan(attempt(2), bench.batch, replay=False)
    assert bench.answer() == BatchPlanned(attempt(2), None)


def test_a_replay_always_has_a_batch(bench: Bench) -> None:
    bench.spout.has_something = False
    bench.runner.plan(attempt(1), bench.batch, replay=True)
    end = OffsetRange(Offset(2), Offset(2))
    assert bench.answer() == BatchPlanned(attempt(1), BatchMetadata({PartitionId("memory", 0): end}))


def test_an_empty_replay_keeps_what_the_spout_has_noted_of_its_partitions(bench: Bench) -> None:
    """Else a spout that keeps metadata instead of offsets would begin anew with the next transaction."""
    bench.spout.has_something = False
    partition = PartitionId("memory", 0)
    after = BatchMetadata(bench.batch.ranges, metadata={partition: {"file": "c.txt"}})
    bench.runner.plan(attempt(1), after, replay=True)
    planned = bench.answer()
    assert isinstance(planned, BatchPlanned)
    assert planned.batch is not None
    assert planned.batch.metadata == {partition: {"file": "c.txt"}}


def test_a_spout_that_fails_fails_the_attempt_and_one_that_has_lost_its_batch_stops_the_run(bench: Bench) -> None:
    bench.spout.on_plan = raising(SourceUnavailable("no broker answers"))
    bench.runner.plan(attempt(1), EMPTY_BATCH, replay=False)
    assert bench.answer() == AttemptFailed(attempt(1), "TX301 no broker answers")
    lost = BatchLost("the topic was created anew")
    bench.spout.on_plan = raising(lost)
    bench.runner.plan(attempt(1), EMPTY_BATCH, replay=False)
    assert bench.answer() == Fatal(lost)


def test_what_is_configured_wrongly_is_not_tried_again(bench: Bench) -> None:
    wrong = ConfigError("there is no partition 7")
    bench.spout.on_plan = raising(wrong)
    bench.runner.plan(attempt(1), EMPTY_BATCH, replay=False)
    assert bench.answer() == Fatal(wrong)


# --- processing ---------------------------------------------------------------------------------------------------


def test_a_processing_phase_is_answered_with_its_digests(bench: Bench) -> None:
    bench.runner.process(attempt(1), bench.batch)
    assert bench.answer() == ProcessingSucceeded(attempt(1), bench.executor.result.digests)
    assert bench.no_answer()


def test_a_batch_that_was_read_from_something_else_than_was_planned_fails_the_attempt(bench: Bench) -> None:
    bench.spout.on_read = raising(ReplayMismatch("the topic was created anew"))
    bench.runner.process(attempt(1), bench.batch)
    assert bench.answer() == AttemptFailed(attempt(1), "TX303 the topic was created anew")


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (BoltFailed("component 'upper' raised …"), "TX302 component 'upper' raised …"),
        (FailedException("replay this"), "TX200 replay this"),
        (AttemptLost("an executor is gone"), "TX305 an executor is gone"),
    ],
)
def test_an_error_of_the_framework_is_told_by_its_code(bench: Bench, error: Exception, reason: str) -> None:
    bench.executor.work = raising(error)
    bench.runner.process(attempt(1), bench.batch)
    assert bench.answer() == AttemptFailed(attempt(1), reason)


@pytest.mark.parametrize("error", [ZeroDivisionError("by zero"), SystemExit(3)])
def test_any_other_error_is_told_with_its_traceback(bench: Bench, error: BaseException) -> None:
    bench.executor.work = raising(error)
    bench.runner.process(attempt(1), bench.batch)
    failed = bench.answer()
    assert isinstance(failed, AttemptFailed)
    first, *rest = failed.reason.splitlines()
    assert first == f"{type(error).__name__}: {error}"
    assert "in raise_it" in "".join(rest)


def test_a_fatal_error_stops_the_run(bench: Bench) -> None:
    fenced = Fenced("another one has taken over")
    bench.executor.work = raising(fenced)
    bench.runner.process(attempt(1), bench.batch)
    assert bench.answer() == Fatal(fenced)


def test_a_replay_that_fails_because_the_source_has_lost_it_stops_the_run(bench: Bench) -> None:
    lost = BatchLost("memory[0] has lost [0, 2)")
    bench.executor.work, bench.spout.on_check = raising(ReplayMismatch("read too little")), raising(lost)
    bench.runner.process(attempt(1), bench.batch)
    assert bench.answer() == Fatal(lost)


def test_an_opaque_spout_is_not_asked_whether_it_can_replay(bench: Bench) -> None:
    made = builder(Opaque())
    made.set_committer_bolt("total", Total(), state=total()).global_grouping("spout")
    runner = PhaseRunner(made.build(), bench.executor, bench.posted.put, max_pending=1)
    bench.executor.work = raising(AttemptLost("an executor is gone"))
    runner.process(attempt(1), bench.batch)
    assert bench.answer() == AttemptFailed(attempt(1), "TX305 an executor is gone")
    runner.close()


class Opaque(Spout):
    on_check = staticmethod(raising(AssertionError("asked")))

    @property
    def replays_exactly(self) -> bool:
        return False


# --- commit phases ------------------------------------------------------------------------------------------------


def committing(bench: Bench, txid: int = 1) -> None:
    bench.runner.process(attempt(txid), bench.batch)
    assert isinstance(bench.answer(), ProcessingSucceeded)
    bench.runner.commit(attempt(txid))


def test_a_commit_phase_is_answered_once_every_table_is_written(bench: Bench) -> None:
    committing(bench)
    assert bench.answer() == CommitSucceeded(attempt(1))
    assert stored(bench.state.stored) == {(): 2}


def test_a_commit_phase_that_fails_fails_the_attempt_and_a_fenced_one_stops_the_run(bench: Bench) -> None:
    bench.state.on_put = raising(AttemptLost("parts are gone"))
    committing(bench)
    assert bench.answer() == AttemptFailed(attempt(1), "TX305 parts are gone")
    fenced = Fenced("another one has taken over")
    bench.state.on_put = raising(fenced)
    committing(bench)
    assert bench.answer() == Fatal(fenced)


def test_an_attempt_that_was_forgotten_has_nothing_to_commit(bench: Bench) -> None:
    """Storm row T34."""
    bench.runner.process(attempt(1), bench.batch)
    bench.answer()
    bench.runner.forget(attempt(1))
    bench.runner.commit(attempt(1))
    failed = bench.answer()
    assert isinstance(failed, AttemptFailed)
    assert failed.reason.startswith("KeyError")


def test_the_spout_is_told_of_a_commit_and_close_waits_for_that(bench: Bench) -> None:
    told: list[BatchMetadata] = []
    entered, go_on = threading.Event(), threading.Event()

    def wait_and_note(batch: BatchMetadata) -> None:
        entered.set()
        assert go_on.wait(WAIT_S)
        told.append(batch)

    bench.spout.on_committed = wait_and_note
    bench.runner.tell_committed(attempt(1), bench.batch)
    bench.runner.tell_committed(attempt(2), EMPTY_BATCH)
    assert entered.wait(WAIT_S)
    assert told == []
    go_on.set()
    bench.runner.close()
    assert told == [bench.batch, EMPTY_BATCH]


def test_a_spout_that_does_not_like_to_be_told_changes_nothing(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """Storm rows T53, T55."""
    bench.spout.on_committed = raising(ValueError("no"))
    bench.runner.tell_committed(attempt(1), bench.batch)
    bench.runner.plan(attempt(2), EMPTY_BATCH, replay=False)
    assert bench.answer() == BatchPlanned(attempt(2), bench.batch)
    assert [record.message for record in caplog.records if record.levelno >= logging.ERROR] == [
        "spout 'spout' could not be told of the commit of 1:10"
    ]


def test_the_spout_is_asked_one_thing_at_a_time(bench: Bench) -> None:
    at_once, most, entered = [0], [0], threading.Event()

    def enter(*_: object) -> None:
        at_once[0] += 1
        most[0] = max(most[0], at_once[0])
        if not entered.is_set():
            entered.set()
            assert failing.wait(WAIT_S)
        at_once[0] -= 1

    failing = threading.Event()

    def fail(_: TransactionAttempt) -> None:
        failing.set()
        raise ReplayMismatch("read too little")

    bench.spout.on_plan = bench.spout.on_check = enter
    bench.executor.work = fail
    bench.runner.plan(attempt(2), bench.batch, replay=False)
    assert entered.wait(WAIT_S)
    bench.runner.process(attempt(1), bench.batch)
    assert {type(bench.answer()), type(bench.answer())} == {BatchPlanned, AttemptFailed}
    assert most == [1]


# --- aborting -----------------------------------------------------------------------------------------------------


class Held:
    """Work that goes on until it is let go."""

    def __init__(self, error: Exception | None = None) -> None:
        self.entered, self.let_go, self.error = threading.Event(), threading.Event(), error

    def __call__(self, *_: object) -> None:
        self.entered.set()
        assert self.let_go.wait(WAIT_S)
        if self.error is not None:
            raise self.error


def test_aborting_what_does_not_run_is_answered_at_once(bench: Bench) -> None:
    bench.runner.abort(attempt(1), "transaction 0 failed")
    assert bench.answer() == AttemptFailed(attempt(1), "transaction 0 failed")


def test_aborting_is_answered_only_when_nothing_runs_any_more(bench: Bench) -> None:
    held = bench.executor.work = Held(AttemptLost("attempt 1:10 was cancelled"))
    bench.runner.process(attempt(1), bench.batch)
    assert held.entered.wait(WAIT_S)
    bench.runner.abort(attempt(1), "transaction 0 failed")
    assert bench.executor.cancelled.get(timeout=WAIT_S) == attempt(1)
    assert bench.no_answer()
    held.let_go.set()
    # The second answer comes late, when the attempt is gone already.
    assert bench.answer() == AttemptFailed(attempt(1), "TX305 attempt 1:10 was cancelled")
    assert bench.answer() == AttemptFailed(attempt(1), "transaction 0 failed")


def test_what_is_given_up_and_still_runs_is_cancelled_again(bench: Bench) -> None:
    """A cancel that comes before the job has begun finds nothing to cancel."""
    held = bench.executor.work = Held()
    bench.runner.process(attempt(1), bench.batch)
    assert held.entered.wait(WAIT_S)
    bench.runner.abort(attempt(1), "transaction 0 failed")
    for _ in range(2):
        assert bench.executor.cancelled.get(timeout=WAIT_S) == attempt(1)
        bench.runner.look_for_progress()
    held.let_go.set()
    assert bench.answer() == ProcessingSucceeded(attempt(1), bench.executor.result.digests)
    assert bench.answer() == AttemptFailed(attempt(1), "transaction 0 failed")
    bench.runner.forget(attempt(1))
    assert bench.executor.cancelled.get(timeout=WAIT_S) == attempt(1)
    bench.runner.look_for_progress()
    assert bench.executor.cancelled.empty()


def test_aborting_what_waits_for_a_thread_never_begins_it(bench: Bench) -> None:
    held = bench.executor.work = Held()
    for txid in (1, 2, 3):
        bench.runner.process(attempt(txid), bench.batch)
    bench.runner.abort(attempt(3), "transaction 1 failed")
    assert bench.answer() == AttemptFailed(attempt(3), "transaction 1 failed")
    held.let_go.set()
    ended = [bench.answer(), bench.answer()]
    assert all(isinstance(event, ProcessingSucceeded) and event.attempt.txid in (1, 2) for event in ended)
    assert bench.no_answer()


def test_what_was_processed_and_aborted_can_not_be_committed(bench: Bench) -> None:
    bench.runner.process(attempt(1), bench.batch)
    bench.answer()
    bench.runner.abort(attempt(1), "transaction 0 failed")
    assert bench.answer() == AttemptFailed(attempt(1), "transaction 0 failed")
    bench.runner.commit(attempt(1))
    assert isinstance(bench.answer(), AttemptFailed)
    assert bench.state.stored.version is None


# --- progress and end ---------------------------------------------------------------------------------------------


def test_progress_is_told_once_for_each_step_forward(bench: Bench) -> None:
    held = bench.executor.work = Held()
    bench.runner.process(attempt(1), bench.batch)
    assert held.entered.wait(WAIT_S)
    bench.runner.look_for_progress()
    assert bench.no_answer()
    for made in (1, 5):
        bench.executor.made[attempt(1)] = made
        bench.runner.look_for_progress()
        bench.runner.look_for_progress()
        assert bench.answer() == ProgressMade(attempt(1))
        assert bench.no_answer()
    held.let_go.set()


def test_close_cancels_what_runs_and_waits_for_it(bench: Bench) -> None:
    held = bench.executor.work = Held()
    bench.runner.process(attempt(1), bench.batch)
    assert held.entered.wait(WAIT_S)
    closing = threading.Thread(target=bench.runner.close)
    closing.start()
    assert bench.executor.cancelled.get(timeout=WAIT_S) == attempt(1)
    assert closing.is_alive()
    held.let_go.set()
    closing.join(WAIT_S)
    assert not closing.is_alive()


def test_close_does_not_wait_for_what_is_stuck(bench: Bench) -> None:
    held = bench.state.on_put = Held()
    committing(bench)
    assert held.entered.wait(WAIT_S)
    bench.runner.close(wait=False)
    assert bench.no_answer()
    held.let_go.set()
    assert bench.answer() == CommitSucceeded(attempt(1))


def test_results_are_dropped_once_they_are_not_needed(bench: Bench) -> None:
    committing(bench)
    assert bench.answer() == CommitSucceeded(attempt(1))
    bench.runner.forget(attempt(1))
    kept = [bench.runner._running, bench.runner._aborting, bench.runner._processed, bench.runner._progress]
    assert kept == [{}, {}, {}, {}]
