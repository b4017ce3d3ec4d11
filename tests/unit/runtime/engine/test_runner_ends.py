"""How what a `PhaseRunner` runs is given up, goes forward and ends: aborting waits until nothing runs any more."""

from __future__ import annotations

import threading

from tests.unit.runner_bench import WAIT_S, Bench, Held, attempt, committing
from transactional.core.machine.protocol import AttemptFailed, CommitSucceeded, ProcessingSucceeded, ProgressMade
from transactional.errors import (
    AttemptLost,
)

# --- aborting -----------------------------------------------------------------------------------------------------


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
    assert bench.answer() == AttemptFailed(attempt(1), "TX305 attempt 1:10 was cancelled", is_outage=True)
    assert bench.answer() == AttemptFailed(attempt(1), "transaction 0 failed")


def test_what_is_given_up_and_still_runs_is_cancelled_again(bench: Bench) -> None:
    """A cancel that comes before the job has begun finds nothing to cancel."""
    held = bench.executor.work = Held()
    bench.runner.process(attempt(1), bench.batch)
    assert held.entered.wait(WAIT_S)
    bench.runner.abort(attempt(1), "transaction 0 failed")
    for _ in range(2):
        assert bench.executor.cancelled.get(timeout=WAIT_S) == attempt(1)
        bench.runner.report_progress()
    held.let_go.set()
    assert bench.answer() == ProcessingSucceeded(attempt(1), bench.executor.result.digests)
    assert bench.answer() == AttemptFailed(attempt(1), "transaction 0 failed")
    bench.runner.forget(attempt(1))
    assert bench.executor.cancelled.get(timeout=WAIT_S) == attempt(1)
    bench.runner.report_progress()
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


def test_progress_is_reported_once_for_each_step_forward(bench: Bench) -> None:
    held = bench.executor.work = Held()
    bench.runner.process(attempt(1), bench.batch)
    assert held.entered.wait(WAIT_S)
    bench.runner.report_progress()
    assert bench.no_answer()
    for made in (1, 5):
        bench.executor.made[attempt(1)] = made
        bench.runner.report_progress()
        bench.runner.report_progress()
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
    bench.runner.close(wait_s=0)
    assert bench.no_answer()
    held.let_go.set()
    assert bench.answer() == CommitSucceeded(attempt(1))


def test_results_are_dropped_once_they_are_not_needed(bench: Bench) -> None:
    committing(bench)
    assert bench.answer() == CommitSucceeded(attempt(1))
    bench.runner.forget(attempt(1))
    kept = [bench.runner._running, bench.runner._aborting, bench.runner._processed, bench.runner._progress]
    assert kept == [{}, {}, {}, {}]
