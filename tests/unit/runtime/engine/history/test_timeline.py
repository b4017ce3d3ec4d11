"""When attempts in flight reached their steps; and that nothing is kept of what has ended."""

from __future__ import annotations

import pytest

from tests.unit.conversation import attempt, batch
from transactional.core.machine.protocol import (
    AbortAttempt,
    AttemptFailed,
    BatchPlanned,
    PlanBatch,
    ProcessingSucceeded,
    RecordAttempt,
    RecordCommit,
    StartCommit,
)
from transactional.core.store import AttemptRecord
from transactional.model.attempt import TransactionAttempt
from transactional.model.batch import BatchLimit
from transactional.runtime.engine.history.timeline import NEVER, Moment, Timeline

FIRST = attempt(1, 1)
LIMIT = BatchLimit(10, None, "nothing is measured yet")


def at(wall_ms: int) -> Moment:
    """The clocks differ, and the monotonic one has its own pace."""
    return Moment(wall_ms, 1_000 + 2 * wall_ms)


def plan(times: Timeline, which: TransactionAttempt, wall_ms: int) -> None:
    times.note_action(PlanBatch(which, batch(0, 0), replay=False), at(wall_ms))


def issued(*attempt_ids: int) -> Timeline:
    """Transactions 1, 2, 3, … are planned at 10, and their batches are there at 15."""
    times = Timeline()
    for txid, attempt_id in enumerate(attempt_ids, 1):
        plan(times, attempt(txid, attempt_id), 10)
        times.note_action(RecordAttempt(attempt(txid, attempt_id), batch(0, 10), forget_later=False), at(15))
    return times


def test_each_moment_is_that_of_its_event() -> None:
    times = issued(1)
    flight = times[FIRST]
    assert flight.record(batch(0, 10)) == AttemptRecord(
        FIRST, "processing", batch(0, 10), None, 10, 15, None, None, None, error=None
    )
    assert (flight.step, flight.since, flight.processed) == ("processing", at(15), NEVER)
    times.note_event(ProcessingSucceeded(FIRST, {}), at(20))
    assert (flight.step, flight.since, flight.processed) == ("processed", at(20), at(20))
    times.note_action(StartCommit(FIRST, batch(0, 10)), at(30))
    assert (flight.step, flight.commit_started) == ("committing", at(30))
    times.note_action(RecordCommit(FIRST, batch(0, 10)), at(37))
    assert (flight.step, flight.committed) == ("committed", at(37))
    assert (flight.processing_ms, flight.commit_ms) == (10, 14), "by the monotonic clock"


def test_a_replay_as_recorded_is_issued_with_its_record() -> None:
    times = Timeline()
    times.note_action(RecordAttempt(FIRST, batch(0, 10), forget_later=False), at(15))
    assert times[FIRST].issued == times[FIRST].planned == at(15)


def test_waiting_for_records_is_idle_and_counts_for_nothing() -> None:
    times = issued(1)
    times.note_event(BatchPlanned(FIRST, None, None), at(20))
    assert (times[FIRST].step, times[FIRST].since) == ("idle", at(20))
    plan(times, FIRST, 99)
    assert (times[FIRST].step, times[FIRST].issued, times[FIRST].since) == ("planning", at(99), at(99))


def test_the_limit_is_the_one_that_the_batch_was_planned_with() -> None:
    times = Timeline()
    plan(times, FIRST, 10)
    times.note_event(BatchPlanned(FIRST, batch(0, 10), LIMIT), at(12))
    times.note_event(BatchPlanned(attempt(4, 4), batch(0, 10), LIMIT), at(12))
    assert [flight.limit for flight in times] == [LIMIT]


def test_a_copy_of_an_event_changes_nothing() -> None:
    times = issued(1)
    times.note_event(ProcessingSucceeded(FIRST, {}), at(20))
    times.note_action(StartCommit(FIRST, batch(0, 10)), at(30))
    times.note_event(ProcessingSucceeded(FIRST, {}), at(40))
    assert (times[FIRST].processed, times[FIRST].step) == (at(20), "committing")


@pytest.mark.parametrize("late", [FIRST, attempt(1, 7)])
def test_nothing_is_kept_of_what_has_failed_or_was_given_up(late: TransactionAttempt) -> None:
    times = issued(1)
    times.note_action(AbortAttempt(FIRST, "no luck"), at(25))
    assert times[FIRST].step == "aborting"
    times.note_event(AttemptFailed(FIRST, "no luck"), at(30))
    times.note_event(ProcessingSucceeded(late, {}), at(40))
    times.note_action(AbortAttempt(late, "no luck"), at(40))
    assert (len(times), times.find(FIRST)) == (0, None)
    with pytest.raises(KeyError):
        times[FIRST]


def test_a_new_attempt_takes_the_place_of_one_that_had_no_batch_and_was_given_up() -> None:
    times = Timeline()
    plan(times, FIRST, 10)
    plan(times, attempt(1, 2), 20)
    assert [flight.attempt for flight in times] == [attempt(1, 2)]


def test_a_transaction_commit_ends_all_that_came_before_it() -> None:
    times = issued(3, 4, 5)
    for txid, attempt_id in ((1, 3), (2, 4)):
        times.note_action(RecordCommit(attempt(txid, attempt_id), batch(0, 10)), at(50))
        assert [flight.attempt.txid for flight in times] == list(range(txid + 1, 4))
        assert times[attempt(txid, attempt_id)].committed == at(50), "the last one can be asked for"
    assert times.find(attempt(1, 3)) is None


def test_it_is_known_how_many_were_committed_before() -> None:
    times = issued(3, 4)
    times.note_action(RecordCommit(attempt(1, 3), batch(0, 10)), at(50))
    plan(times, attempt(3, 5), 60)
    assert [flight.commits_before for flight in times] == [0, 1]
