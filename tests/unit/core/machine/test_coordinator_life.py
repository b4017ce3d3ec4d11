"""The coordinator's life: an idle source, pause and resume, stop, drain, drained, and the start from a progress."""

from __future__ import annotations

import pytest

from tests.unit.conversation import Conversation, attempt, batch, digest, kinds
from transactional.core.machine.protocol import (
    AbortAttempt,
    AttemptFailed,
    BatchPlanned,
    DrainRequested,
    Event,
    PauseRequested,
    PlanBatch,
    RecordAttempt,
    ResumeRequested,
    StartProcessing,
    StopRequested,
)
from transactional.core.store.progress import Phase, Progress
from transactional.model.attempt import AttemptId, TxId
from transactional.model.batch import BatchMetadata, Offset, OffsetRange, PartitionId
from transactional.model.config import TopologyConfig

DRAIN = TopologyConfig(max_spout_pending=3, stop_when_drained=True, retry_pause_ms=100)
AFTER_SEVEN = Progress(
    committed_txid=TxId(7),
    committed_batch=batch(60, 70),
    recorded={TxId(8): batch(70, 80), TxId(9): batch(80, 90)},
    attempt_id=AttemptId(30),
)


# --- an idle source -----------------------------------------------------------------------------------------------


def test_a_source_with_nothing_is_read_again_after_a_pause_by_the_same_attempt() -> None:
    """Storm row T29: a pause while there is nothing, none while there is something."""
    talk = Conversation()
    talk.start_processing(1)
    assert talk.nothing(2) == []
    assert talk.wait(49) == []
    assert talk.wait(1) == [PlanBatch(attempt(2, 2), batch(0, 10), replay=False)]
    assert talk.wait(1_000) == [], "it is asked once at a time"


def test_an_idle_source_holds_nothing_back() -> None:
    """Storm's own transcript, second fact: what is stored is replayed although the source is not ready."""
    talk = Conversation()
    talk.start_processing(2)
    talk.nothing(3)
    talk.fail(1)
    talk.fail(2)
    assert kinds(talk.wait(100)) == [*["RecordAttempt", "StartProcessing"] * 2, "PlanBatch"]
    talk.nothing(3)
    assert kinds(talk.process(1)) == ["RecordProcessed", "StartCommit"]


def test_an_answer_that_comes_twice_asks_no_second_question() -> None:
    talk = Conversation()
    talk.start()
    answer = BatchPlanned(talk.current(1), None)
    talk.tell(answer)
    assert talk.tell(answer) == []
    assert kinds(talk.wait(50)) == ["PlanBatch"]


def test_a_copy_of_an_old_answer_does_not_hide_that_the_next_question_failed() -> None:
    talk = Conversation()
    talk.start()
    answer = BatchPlanned(talk.current(1), None)
    talk.tell(answer)
    talk.wait(50)
    talk.tell(answer)
    assert kinds(talk.fail(1, "no broker")) == ["RecordFailure"]
    assert kinds(talk.wait(100)) == ["PlanBatch"]


# --- pause and resume ---------------------------------------------------------------------------------------------


def test_a_paused_topology_finishes_what_is_in_flight_and_issues_nothing_new() -> None:
    talk = Conversation()
    talk.start_processing(1)
    assert talk.tell(PauseRequested()) == []
    assert kinds(talk.plan(2)) == ["RecordAttempt", "StartProcessing"], "2 had been asked for before"
    talk.process(1)
    assert kinds(talk.committed(1)) == ["RecordCommit"]
    assert talk.phases() == {2: Phase.PROCESSING}
    assert not talk.coordinator.is_done


def test_a_paused_topology_retries_what_was_recorded() -> None:
    talk = Conversation()
    talk.start_processing(2)
    talk.tell(PauseRequested())
    talk.fail(1)
    talk.fail(2)
    talk.fail(3)
    assert kinds(talk.wait(100)) == ["RecordAttempt", "StartProcessing"] * 2
    assert talk.phases() == {1: Phase.PROCESSING, 2: Phase.PROCESSING}


def test_a_paused_topology_asks_an_idle_source_no_more() -> None:
    talk = Conversation()
    talk.start()
    talk.nothing(1)
    assert talk.tell(PauseRequested()) == []
    assert talk.wait(1_000) == []
    assert talk.phases() == {}
    assert not talk.coordinator.is_done


def test_nothing_there_during_a_pause_ends_the_question() -> None:
    talk = Conversation()
    talk.start()
    talk.tell(PauseRequested())
    assert talk.nothing(1) == []
    assert talk.phases() == {}


def test_resumed_it_goes_on_at_once() -> None:
    talk = Conversation()
    talk.start_processing(1)
    talk.tell(PauseRequested())
    talk.nothing(2)
    assert talk.tell(ResumeRequested()) == [PlanBatch(attempt(2, 3), batch(0, 10), replay=False)]


# --- stop ---------------------------------------------------------------------------------------------------------


def test_a_stop_lets_the_commit_phase_end_and_gives_up_all_else() -> None:
    talk = Conversation()
    talk.start_processing(2)
    talk.process(1)
    reason = "the topology is being stopped"
    assert talk.tell(StopRequested()) == [
        AbortAttempt(attempt(2, 2), reason),
        AbortAttempt(attempt(3, 3), reason),
    ]
    talk.fail(2)
    talk.fail(3)
    assert not talk.coordinator.is_done
    assert kinds(talk.committed(1)) == ["RecordCommit"]
    assert talk.coordinator.is_done


def test_a_stop_waits_until_nothing_runs() -> None:
    talk = Conversation()
    talk.start_processing(1)
    talk.tell(StopRequested())
    assert not talk.coordinator.is_done
    talk.fail(2)
    talk.fail(1)
    assert talk.coordinator.is_done


def test_a_second_stop_and_time_change_nothing() -> None:
    talk = Conversation()
    talk.start_processing(1)
    talk.tell(StopRequested())
    assert talk.tell(StopRequested()) == talk.wait(100_000) == talk.tell(ResumeRequested()) == []


def test_a_stop_of_an_idle_topology_is_done_at_once() -> None:
    talk = Conversation()
    talk.start()
    talk.nothing(1)
    assert talk.tell(StopRequested()) == []
    assert talk.coordinator.is_done


def test_a_commit_phase_that_fails_during_a_stop_is_left_to_the_next_start() -> None:
    talk = Conversation()
    talk.start_processing(1)
    talk.process(1)
    talk.tell(StopRequested())
    talk.fail(2)
    assert kinds(talk.fail(1)) == ["RecordFailure"]
    assert talk.wait(100_000) == []
    assert talk.coordinator.is_done


# --- drain --------------------------------------------------------------------------------------------------------


def test_a_drain_issues_nothing_new_and_is_done_when_all_in_flight_is_committed() -> None:
    """Storm row T32: the graceful end that deactivating is for."""
    talk = Conversation()
    talk.start_processing(2)
    assert talk.tell(DrainRequested()) == []
    assert talk.nothing(3) == []
    for txid in (1, 2):
        talk.process(txid)
        assert not talk.coordinator.is_done
        talk.committed(txid)
    assert talk.coordinator.is_done
    assert talk.wait(1_000) == []


def test_a_batch_that_is_planned_when_the_drain_comes_is_still_committed() -> None:
    talk = Conversation(config=TopologyConfig(max_spout_pending=1))
    talk.start()
    talk.tell(DrainRequested())
    assert kinds(talk.plan(1)) == ["RecordAttempt", "StartProcessing"]
    talk.process(1)
    assert kinds(talk.committed(1)) == ["RecordCommit"]
    assert talk.coordinator.is_done


@pytest.mark.parametrize("replays_exactly", [True, False])
def test_a_drain_retries_what_fails_before_it_is_done(*, replays_exactly: bool) -> None:
    talk = Conversation(replays_exactly=replays_exactly)
    talk.start_processing(1)
    talk.tell(DrainRequested())
    talk.nothing(2)
    talk.fail(1)
    assert talk.phases() == {}
    assert not talk.coordinator.is_done, "it is recorded, and comes back after its pause"
    assert kinds(talk.wait(100)) == (["RecordAttempt", "StartProcessing"] if replays_exactly else ["PlanBatch"])
    if not replays_exactly:
        talk.plan(1)
    talk.process(1)
    talk.committed(1)
    assert talk.coordinator.is_done


def test_a_new_transaction_whose_planning_fails_during_a_drain_is_not_tried_again() -> None:
    talk = Conversation()
    talk.start()
    talk.tell(DrainRequested())
    assert kinds(talk.fail(1)) == ["RecordFailure"]
    assert talk.coordinator.is_done


def test_a_drain_can_be_called_off() -> None:
    talk = Conversation()
    talk.start_processing(1)
    talk.tell(DrainRequested())
    talk.nothing(2)
    assert kinds(talk.tell(ResumeRequested())) == ["PlanBatch"]
    assert not talk.coordinator.is_done


def test_a_drain_that_becomes_a_pause_is_not_done() -> None:
    talk = Conversation()
    talk.start()
    talk.tell(DrainRequested())
    talk.tell(PauseRequested())
    talk.nothing(1)
    assert not talk.coordinator.is_done
    assert talk.tell(DrainRequested()) == []
    assert talk.coordinator.is_done


def test_a_drain_of_an_idle_topology_is_done_at_once() -> None:
    talk = Conversation()
    talk.start()
    talk.nothing(1)
    talk.tell(DrainRequested())
    assert talk.coordinator.is_done


# --- what is told before the first tick ---------------------------------------------------------------------------


@pytest.mark.parametrize("request_", [PauseRequested(), DrainRequested(), StopRequested()])
def test_what_is_reported_before_the_first_tick_holds_from_the_beginning(request_: Event) -> None:
    talk = Conversation()
    assert talk.tell(request_) == []
    assert talk.start() == []
    assert talk.coordinator.is_done == (not isinstance(request_, PauseRequested))


def test_nothing_is_issued_before_the_first_tick_even_when_resumed() -> None:
    talk = Conversation()
    assert talk.tell(PauseRequested()) == talk.tell(ResumeRequested()) == []
    assert kinds(talk.start()) == ["PlanBatch"]


@pytest.mark.parametrize("request_", [PauseRequested(), DrainRequested()])
def test_a_restart_commits_what_was_recorded_although_nothing_new_is_issued(request_: Event) -> None:
    talk = Conversation(AFTER_SEVEN)
    talk.tell(request_)
    assert kinds(talk.start()) == ["RecordAttempt", "StartProcessing"] * 2
    for txid in (8, 9):
        assert not talk.coordinator.is_done
        talk.process(txid)
        talk.committed(txid)
    assert talk.phases() == {}
    assert talk.coordinator.is_done == isinstance(request_, DrainRequested)


# --- drained ------------------------------------------------------------------------------------------------------


def test_drained_it_is_done_when_all_is_committed() -> None:
    talk = Conversation(config=DRAIN)
    talk.start_processing(1)
    assert talk.nothing(2) == []
    assert talk.phases() == {1: Phase.PROCESSING}
    talk.process(1)
    assert not talk.coordinator.is_done
    assert kinds(talk.committed(1)) == ["RecordCommit"]
    assert talk.coordinator.is_done


def test_an_empty_source_is_drained_at_once() -> None:
    talk = Conversation(config=DRAIN)
    talk.start()
    talk.nothing(1)
    assert talk.coordinator.is_done


def test_a_source_that_is_not_ready_is_not_drained() -> None:
    """Storm's test has a spout that is not ready, until it is."""
    talk = Conversation(config=DRAIN)
    talk.start()
    assert talk.tell(BatchPlanned(talk.current(1), None, has_ended=False)) == []
    assert not talk.coordinator.is_done
    assert kinds(talk.wait(100)) == ["PlanBatch"]
    talk.nothing(1)
    assert talk.coordinator.is_done


@pytest.mark.parametrize("ran_for_ms", [0, 30_001], ids=["failed", "timed out"])
def test_drained_then_a_failure_plans_a_smaller_batch_and_the_rest_is_still_read(ran_for_ms: int) -> None:
    talk = Conversation(config=DRAIN, replays_exactly=False)
    talk.start_processing(1)
    talk.nothing(2)
    talk.wait(ran_for_ms)
    talk.fail(1)
    assert not talk.coordinator.is_done, "nothing is in flight, yet 1 comes back"
    assert kinds(talk.wait(100)) == ["PlanBatch"]
    assert talk.plan(1, 0, 6)[-1] == PlanBatch(talk.current(2), batch(0, 6), replay=False)
    talk.plan(2, 6, 10)
    assert talk.nothing(3) == []
    for txid in (1, 2):
        talk.process(txid)
    assert kinds([*talk.committed(1), *talk.committed(2)]) == ["RecordCommit", "StartCommit", "RecordCommit"]
    assert talk.coordinator.is_done


# --- the start from a progress (T20, T47, T57) --------------------------------------------------------------------


def test_a_restart_replays_what_was_recorded_as_new_attempts_then_goes_on() -> None:
    """Storm rows T20, T31."""
    talk = Conversation(AFTER_SEVEN)
    assert talk.start() == [
        RecordAttempt(attempt(8, 31), batch(70, 80), forget_later=False),
        StartProcessing(attempt(8, 31), batch(70, 80)),
        RecordAttempt(attempt(9, 32), batch(80, 90), forget_later=False),
        StartProcessing(attempt(9, 32), batch(80, 90)),
        PlanBatch(attempt(10, 33), batch(80, 90), replay=False),
    ]


def test_an_opaque_restart_plans_what_was_recorded_again() -> None:
    talk = Conversation(AFTER_SEVEN, replays_exactly=False)
    assert talk.start() == [PlanBatch(attempt(8, 31), batch(60, 70), replay=True)]
    assert talk.plan(8, 70, 75) == [
        RecordAttempt(attempt(8, 31), batch(70, 75), forget_later=True),
        StartProcessing(attempt(8, 31), batch(70, 75)),
        PlanBatch(attempt(9, 32), batch(70, 75), replay=False),
    ]


def test_a_restart_with_a_smaller_window_replays_one_by_one() -> None:
    talk = Conversation(AFTER_SEVEN, TopologyConfig(max_spout_pending=1))
    assert kinds(talk.start()) == ["RecordAttempt", "StartProcessing"]
    talk.process(8)
    assert kinds(talk.committed(8)) == ["RecordCommit", "RecordAttempt", "StartProcessing"]
    assert talk.current(9) == attempt(9, 32)


def test_a_restart_without_recorded_batches_goes_on_after_the_committed_one() -> None:
    """Storm row T57: exactly one committed predecessor is needed."""
    after_seven = Progress(TxId(7), batch(60, 70), {}, AttemptId(30))
    talk = Conversation(after_seven)
    assert talk.start() == [PlanBatch(attempt(8, 31), batch(60, 70), replay=False)]


def test_an_empty_batch_carries_positions_forward() -> None:
    """Storm row T43: what was read so far is not read again after a batch with nothing in it."""
    vanished = PartitionId("words", 1)
    carried = BatchMetadata({**batch(70, 70).ranges, vanished: OffsetRange(Offset(9), Offset(9))})
    talk = Conversation(AFTER_SEVEN, replays_exactly=False)
    talk.start()
    assert talk.tell(BatchPlanned(talk.current(8), carried))[-1] == PlanBatch(talk.current(9), carried, replay=False)


def test_the_old_coordinators_events_are_stale_after_a_restart() -> None:
    """Storm row T47: its attempts started again at 0, and were taken for older ones."""
    talk = Conversation(AFTER_SEVEN)
    talk.start()
    before = talk.state()
    assert talk.tell(AttemptFailed(attempt(8, 30), "late")) == []
    assert talk.state() == before


def test_the_snapshot_is_not_changed() -> None:
    recorded = {TxId(8): batch(70, 80)}
    talk = Conversation(Progress(TxId(7), batch(60, 70), recorded, AttemptId(30)))
    talk.start()
    talk.process(8)
    assert talk.coordinator.recorded[TxId(8)] == batch(70, 80).with_digests(digest(10))
    assert recorded == {TxId(8): batch(70, 80)}
