"""`PhaseRunner`: every request gets its one answer, whatever happens; aborting waits until nothing runs any more."""

from __future__ import annotations

import logging
import threading
from dataclasses import replace

import pytest

from tests.unit.fakes import Total, builder, stored, total
from tests.unit.runner_bench import ODD, WAIT_S, Bench, BenchSpout, attempt, committing, raising
from transactional.core.machine.protocol import AttemptFailed, BatchPlanned, CommitSucceeded, ProcessingSucceeded
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
from transactional.model.attempt import TransactionAttempt
from transactional.model.batch import EMPTY_BATCH, BatchMetadata, Offset, OffsetRange, PartitionId
from transactional.model.facts import BatchFacts
from transactional.runtime.engine.runner import Fatal, PhaseRunner

# --- planning -----------------------------------------------------------------------------------------------------


def test_a_plan_is_answered_with_the_batch_or_with_nothing_there(bench: Bench) -> None:
    bench.runner.plan(attempt(1), EMPTY_BATCH, replay=False)
    assert bench.answer() == BatchPlanned(attempt(1), replace(bench.batch, facts=BatchFacts(7)))
    bench.runner.plan(attempt(2), bench.batch, replay=False)
    assert bench.answer() == BatchPlanned(attempt(2), None)


def test_a_replay_always_has_a_batch(bench: Bench) -> None:
    bench.spout.has_something = False
    bench.runner.plan(attempt(1), bench.batch, replay=True)
    end = OffsetRange(Offset(2), Offset(2))
    assert bench.answer() == BatchPlanned(
        attempt(1), BatchMetadata({PartitionId("memory", 0): end}, facts=BatchFacts(7))
    )


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
    assert bench.answer() == AttemptFailed(attempt(1), "TX301 no broker answers", is_outage=True)
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
def test_an_error_of_the_framework_is_reported_by_its_code(bench: Bench, error: Exception, reason: str) -> None:
    bench.executor.work = raising(error)
    bench.runner.process(attempt(1), bench.batch)
    assert bench.answer() == AttemptFailed(attempt(1), reason, is_outage=isinstance(error, AttemptLost))


@pytest.mark.parametrize("error", [ZeroDivisionError("by zero"), *ODD], ids=lambda error: type(error).__name__)
def test_any_other_error_is_reported_with_its_traceback(bench: Bench, error: BaseException) -> None:
    bench.executor.work = raising(error)
    bench.runner.process(attempt(1), bench.batch)
    failed = bench.answer()
    assert isinstance(failed, AttemptFailed)
    first, *rest = failed.reason.splitlines()
    assert first.startswith(f"{type(error).__name__}: {error} (tests/unit/runner_bench.py:"), "where the user raised it"
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
    assert bench.answer() == AttemptFailed(attempt(1), "TX305 an executor is gone", is_outage=True)
    runner.close()


class Opaque(BenchSpout):
    on_check = staticmethod(raising(AssertionError("asked")))

    @property
    def replays_exactly(self) -> bool:
        return False


# --- commit phases ------------------------------------------------------------------------------------------------


def test_a_commit_phase_is_answered_once_every_table_is_written(bench: Bench) -> None:
    committing(bench)
    assert bench.answer() == CommitSucceeded(attempt(1))
    assert stored(bench.state.stored) == {(): 2}


def test_the_answer_reports_what_both_phases_of_its_own_attempt_did(bench: Bench) -> None:
    bench.state.on_put = raising(AttemptLost("parts are gone"))
    committing(bench)
    assert isinstance(bench.answer(), AttemptFailed)
    bench.state.on_put = staticmethod(lambda: None)
    committing(bench)
    succeeded = bench.answer()
    assert isinstance(succeeded, CommitSucceeded)
    assert succeeded.report.edges == {("spout", "default", "total"): 2}
    assert {name: facts["rows"] for name, facts in succeeded.report.states.items()} == {"total": 1}
    assert succeeded.report.letters == {}


def test_a_commit_phase_that_fails_fails_the_attempt_and_a_fenced_one_stops_the_run(bench: Bench) -> None:
    bench.state.on_put = raising(AttemptLost("parts are gone"))
    committing(bench)
    assert bench.answer() == AttemptFailed(attempt(1), "TX305 parts are gone", is_outage=True)
    fenced = Fenced("another one has taken over")
    bench.state.on_put = raising(fenced)
    committing(bench)
    assert bench.answer() == Fatal(fenced)


@pytest.mark.parametrize("error", ODD, ids=lambda error: type(error).__name__)
def test_whatever_is_raised_while_planning_or_committing_fails_the_attempt(bench: Bench, error: BaseException) -> None:
    bench.spout.on_plan = bench.state.on_put = raising(error)
    bench.runner.plan(attempt(1), EMPTY_BATCH, replay=False)
    planned = bench.answer()
    committing(bench)
    for failed in (planned, bench.answer()):
        assert isinstance(failed, AttemptFailed)
        assert failed.reason.startswith(f"{type(error).__name__}: {error} (tests/unit/runner_bench.py:")


def test_an_attempt_that_was_forgotten_has_nothing_to_commit(bench: Bench) -> None:
    """Storm row T34."""
    bench.runner.process(attempt(1), bench.batch)
    bench.answer()
    bench.runner.forget(attempt(1))
    bench.runner.commit(attempt(1))
    failed = bench.answer()
    assert isinstance(failed, AttemptFailed)
    assert failed.reason.startswith("KeyError")


def test_the_spout_is_reported_of_a_commit_and_close_waits_for_that(bench: Bench) -> None:
    told: list[BatchMetadata] = []
    entered, go_on = threading.Event(), threading.Event()

    def wait_and_note(batch: BatchMetadata) -> None:
        entered.set()
        assert go_on.wait(WAIT_S)
        told.append(batch)

    bench.spout.on_committed = wait_and_note
    bench.runner.notify_committed(attempt(1), bench.batch)
    bench.runner.notify_committed(attempt(2), EMPTY_BATCH)
    assert entered.wait(WAIT_S)
    assert told == []
    go_on.set()
    bench.runner.close()
    assert told == [bench.batch, EMPTY_BATCH]


@pytest.mark.parametrize("error", [ValueError("no"), *ODD], ids=lambda error: type(error).__name__)
def test_a_spout_that_does_not_like_to_be_reported_changes_nothing(
    bench: Bench, caplog: pytest.LogCaptureFixture, error: BaseException
) -> None:
    """Storm rows T53, T55."""
    bench.spout.on_committed = raising(error)
    bench.runner.notify_committed(attempt(1), bench.batch)
    bench.runner.plan(attempt(2), EMPTY_BATCH, replay=False)
    assert bench.answer() == BatchPlanned(attempt(2), replace(bench.batch, facts=BatchFacts(7)))
    assert [record.message for record in caplog.records if record.levelno >= logging.ERROR] == [
        "spout 'spout' could not be notified of the commit of 1:10"
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
