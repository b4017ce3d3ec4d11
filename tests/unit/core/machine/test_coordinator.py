"""Rules 1 to 5 of the coordinator's docstring, each by name. The others: `test_coordinator_replays.py`."""

from __future__ import annotations

import pytest

from tests.unit.conversation import Conversation, attempt, batch, digest, kinds
from transactional.core.machine.protocol import (
    AbortAttempt,
    Action,
    AttemptFailed,
    PlanBatch,
    ProcessingSucceeded,
    RecordAttempt,
    RecordFailure,
    RecordProcessed,
    StartCommit,
    StartProcessing,
)
from transactional.core.store.progress import Phase, Progress
from transactional.model.config import TopologyConfig

TWO_AT_ONCE = TopologyConfig(max_spout_pending=2)


# --- 1: n+1 is planned only once n's batch is known (T49) ---------------------------------------------------------


def test_the_next_transaction_is_planned_once_the_batch_before_it_is_known() -> None:
    """Storm rows T49, T52."""
    talk = Conversation()
    assert talk.start() == [PlanBatch(attempt(1, 1), Progress().committed_batch, replay=False)]
    assert talk.wait(10_000) == []
    assert talk.plan(1) == [
        RecordAttempt(attempt(1, 1), batch(0, 10), forget_later=False),
        StartProcessing(attempt(1, 1), batch(0, 10)),
        PlanBatch(attempt(2, 2), batch(0, 10), replay=False),
    ]


def test_a_source_with_nothing_for_n_is_not_requested_the_next() -> None:
    talk = Conversation()
    talk.start()
    assert talk.nothing(1) == []
    assert talk.phases() == {1: Phase.WAITING}


def test_txids_are_issued_without_holes() -> None:
    """Storm row T49: its throttle made 1, 4, 8 of this."""
    talk = Conversation()
    planned = [action.attempt.txid for action in talk.start() if isinstance(action, PlanBatch)]
    for txid in range(1, 9):
        actions = [*talk.plan(txid), *talk.process(txid), *talk.committed(txid)]
        planned += [action.attempt.txid for action in actions if isinstance(action, PlanBatch)]
    assert planned == list(range(1, 10))


def test_no_more_than_max_spout_pending_are_in_flight() -> None:
    """Storm rows T15, T16."""
    talk = Conversation()
    talk.start_processing(3)
    assert talk.phases() == dict.fromkeys((1, 2, 3), Phase.PROCESSING)
    assert kinds(talk.process(2)) == ["RecordProcessed"]


def test_by_default_one_transaction_is_in_flight() -> None:
    """Storm row T15."""
    talk = Conversation(config=TopologyConfig())
    talk.start()
    assert kinds(talk.plan(1)) == ["RecordAttempt", "StartProcessing"]
    assert kinds(talk.process(1)) == ["RecordProcessed", "StartCommit"]
    assert kinds(talk.committed(1)) == ["RecordCommit", "PlanBatch"]


# --- 2: a failure gives up every later transaction in flight ------------------------------------------------------


def test_a_failure_gives_up_what_is_later_and_leaves_what_is_earlier() -> None:
    """Storm row T18."""
    talk = Conversation()
    talk.start_processing(3)
    assert talk.fail(2, "bolt broke") == [
        RecordFailure(attempt(2, 2), Phase.PROCESSING, "bolt broke", retry_in_ms=100),
        AbortAttempt(attempt(3, 3), "transaction 2 failed"),
    ]
    assert talk.phases() == {1: Phase.PROCESSING, 3: Phase.ABORTING}


def test_what_was_given_up_comes_back_as_new_attempts_in_order() -> None:
    talk = Conversation()
    talk.start_processing(3)
    talk.fail(1)
    assert talk.fail(3) == talk.fail(2) == []
    assert talk.wait(100) == [
        RecordAttempt(attempt(1, 4), batch(0, 10), forget_later=False),
        StartProcessing(attempt(1, 4), batch(0, 10)),
        RecordAttempt(attempt(2, 5), batch(10, 20), forget_later=False),
        StartProcessing(attempt(2, 5), batch(10, 20)),
        RecordAttempt(attempt(3, 6), batch(20, 30), forget_later=False),
        StartProcessing(attempt(3, 6), batch(20, 30)),
    ]


@pytest.mark.parametrize("phase", [Phase.PLANNING, Phase.WAITING, Phase.PROCESSING, Phase.PROCESSED])
def test_a_later_transaction_is_given_up_in_every_phase(phase: Phase) -> None:
    talk = Conversation(config=TWO_AT_ONCE)
    talk.start_processing(1 if phase in (Phase.PLANNING, Phase.WAITING) else 2)
    if phase is Phase.WAITING:
        talk.nothing(2)
    elif phase is Phase.PROCESSED:
        talk.process(2)
    assert talk.phase(2) is phase
    aborts = [action for action in talk.fail(1) if isinstance(action, AbortAttempt)]
    nothing_runs = phase is Phase.WAITING
    assert aborts == ([] if nothing_runs else [AbortAttempt(attempt(2, 2), "transaction 1 failed")])
    assert talk.phase(2) is (Phase.GONE if nothing_runs else Phase.ABORTING)


def test_a_failed_commit_phase_replays_the_whole_transaction_and_what_is_later() -> None:
    """Storm row T18."""
    talk = Conversation(config=TWO_AT_ONCE)
    talk.start_processing(2)
    talk.process(1)
    assert talk.fail(1, "conflict") == [
        RecordFailure(attempt(1, 1), Phase.COMMITTING, "conflict", retry_in_ms=100),
        AbortAttempt(attempt(2, 2), "transaction 1 failed"),
    ]
    assert kinds(talk.wait(100)) == ["RecordAttempt", "StartProcessing"]
    assert talk.current(1) == attempt(1, 3)


# --- 3: an event of another attempt is compared first and changes nothing (T48) -----------------------------------


def test_a_stale_failure_leaves_the_new_attempts_alone() -> None:
    """Storm row T48: 2 fails, 2, 3 and 4 come back; then the old 3 fails late. Storm dropped 3 and kept the new 4."""
    talk = Conversation(config=TopologyConfig(max_spout_pending=4))
    talk.start_processing(4)
    talk.fail(2)
    dead = [talk.current(3), talk.current(4)]
    for gone in dead:
        talk.tell(AttemptFailed(gone, "aborted"))
    talk.wait(100)
    before = talk.state()
    assert talk.phases() == dict.fromkeys((1, 2, 3, 4), Phase.PROCESSING)
    for gone in [attempt(2, 2), *dead]:
        assert talk.tell(AttemptFailed(gone, "timed out")) == []
        assert talk.tell(ProcessingSucceeded(gone)) == []
    assert talk.state() == before


# --- 4: a txid is issued again only once nothing of its old attempt runs ------------------------------------------


def test_a_txid_waits_until_its_aborted_attempt_is_dead() -> None:
    talk = Conversation()
    talk.start_processing(2)
    talk.fail(1)
    assert kinds(talk.wait(100)) == ["RecordAttempt", "StartProcessing"], "of 1 alone"
    assert talk.wait(20_000) == []
    assert talk.phases() == {1: Phase.PROCESSING, 2: Phase.ABORTING, 3: Phase.ABORTING}


def test_the_txid_comes_back_as_soon_as_its_old_attempt_is_dead() -> None:
    talk = Conversation()
    talk.start_processing(3)
    talk.fail(1)
    talk.wait(100)
    assert talk.fail(3) == [], "3 comes after 2, which is not dead yet"
    assert [action.attempt for action in talk.fail(2) if isinstance(action, StartProcessing)] == [
        attempt(2, 5),
        attempt(3, 6),
    ]


# --- 5: the batch is durable before anything is done with it ------------------------------------------------------


def assert_recorded_first(actions: list[Action]) -> None:
    for index, action in enumerate(actions):
        if isinstance(action, StartProcessing):
            assert actions[index - 1] == RecordAttempt(action.attempt, action.batch, forget_later=False)


def test_an_attempt_is_recorded_before_it_is_processed() -> None:
    talk = Conversation()
    talk.start()
    assert_recorded_first(talk.plan(1))
    talk.fail(1)
    actions = talk.wait(100)
    assert "StartProcessing" in kinds(actions)
    assert_recorded_first(actions)


def test_what_was_read_is_recorded_before_the_commit_phase() -> None:
    talk = Conversation()
    talk.start_processing(1)
    read = batch(0, 10).with_digests(digest(10))
    assert talk.process(1) == [RecordProcessed(attempt(1, 1), read), StartCommit(attempt(1, 1), read)]
