"""When attempts were issued, processed and begun to be committed; and that nothing is kept of what has ended."""

from __future__ import annotations

import pytest

from tests.unit.conversation import attempt, batch
from transactional.core.protocol import (
    AttemptFailed,
    PlanBatch,
    ProcessingSucceeded,
    RecordAttempt,
    StartCommit,
)
from transactional.engine.timeline import AttemptTimes
from transactional.store import AttemptRecord

FIRST = attempt(1, 1)


def issued(*attempt_ids: int) -> AttemptTimes:
    """Transactions 1, 2, 3, … are planned at 10, and their batches are there at 15."""
    times = AttemptTimes()
    for txid, attempt_id in enumerate(attempt_ids, 1):
        times.tell_action(PlanBatch(attempt(txid, attempt_id), batch(0, 0), replay=False), 10)
        times.tell_action(RecordAttempt(attempt(txid, attempt_id), batch(0, 10), forget_later=False), 15)
    return times


def test_each_time_is_that_of_its_event() -> None:
    times = issued(1)
    assert times.record_of(FIRST, batch(0, 10), 15) == AttemptRecord(
        FIRST, "processing", batch(0, 10), None, 10, 15, None, None, None, error=None
    )
    times.tell_event(ProcessingSucceeded(FIRST, {}), 20)
    assert times.of_processed(FIRST) == 20
    times.tell_action(StartCommit(FIRST, batch(0, 10)), 30)
    assert times.of_commit(FIRST) == (20, 30)


def test_a_replay_as_recorded_is_issued_with_its_record() -> None:
    times = AttemptTimes()
    times.tell_action(RecordAttempt(FIRST, batch(0, 10), forget_later=False), 15)
    assert times.record_of(FIRST, batch(0, 10), 15).issued_at_ms == 15


def test_an_idle_source_that_is_asked_again_counts_from_the_first_time() -> None:
    times = issued(1)
    times.tell_action(PlanBatch(FIRST, batch(0, 0), replay=False), 99)
    assert times.record_of(FIRST, batch(0, 10), 100).issued_at_ms == 10


def test_a_copy_of_an_event_changes_nothing() -> None:
    times = issued(1)
    for at_ms in (20, 40):
        times.tell_event(ProcessingSucceeded(FIRST, {}), at_ms)
    assert times.of_processed(FIRST) == 20


@pytest.mark.parametrize("late", [FIRST, attempt(1, 7)])
def test_nothing_is_kept_of_what_has_failed_or_was_given_up(late: object) -> None:
    times = issued(1)
    times.tell_event(AttemptFailed(FIRST, "no luck"), 30)
    times.tell_event(ProcessingSucceeded(late, {}), 40)  # type: ignore[arg-type]
    assert len(times) == 0


def test_a_transaction_commit_ends_all_that_came_before_it() -> None:
    times = issued(3, 4, 5)
    times.tell_action(PlanBatch(attempt(1, 1), batch(0, 0), replay=False), 5)  # waited for a batch, and was given up
    for txid, attempt_id in ((1, 3), (2, 4)):
        times.of_commit(attempt(txid, attempt_id))
        assert len(times) == 3 - txid
