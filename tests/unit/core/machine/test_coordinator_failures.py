"""How the coordinator takes failures: pauses and limits of attempts, time-outs, a stuck commit phase."""

from __future__ import annotations

from tests.unit.conversation import Conversation, attempt, batch, kinds
from transactional.core.machine.protocol import (
    AbortAttempt,
    AttemptFailed,
    CommitDelayed,
    CommitSucceeded,
    Event,
    Halt,
    ProcessingSucceeded,
    ProgressMade,
    RecordFailure,
    ResumeRequested,
    Tick,
)
from transactional.core.store.progress import Phase
from transactional.errors import CommitStuck, RetriesExhausted
from transactional.model.config import TopologyConfig

TIMED = TopologyConfig(max_spout_pending=3, attempt_timeout_ms=1_000, commit_timeout_ms=5_000, retry_pause_ms=100)


def limited(attempts_max: int) -> TopologyConfig:
    return TopologyConfig(max_spout_pending=2, attempts_max=attempts_max, retry_pause_ms=100)


def fail_after_pause(talk: Conversation, pause_ms: int) -> int:
    """Fail transaction 1, see it come back after exactly the pause; return the pause that was told."""
    failures = [action for action in talk.fail(1) if isinstance(action, RecordFailure)]
    assert talk.wait(pause_ms - 1) == []
    assert kinds(talk.wait(1)) == ["RecordAttempt", "StartProcessing"]
    return failures[0].retry_in_ms


# --- retries and pauses -------------------------------------------------------------------------------------------


def test_pauses_double_up_to_their_limit() -> None:
    talk = Conversation(config=TopologyConfig(retry_pause_ms=1))
    talk.start_processing(1)
    pauses = [1, 2, 4, 8, 16, 32, 64, 128, 256, 256]
    assert [fail_after_pause(talk, pause_ms) for pause_ms in pauses] == pauses


def test_a_transaction_commit_makes_the_next_pause_short_again() -> None:
    talk = Conversation(config=TopologyConfig(retry_pause_ms=100))
    talk.start_processing(1)
    fail_after_pause(talk, 100)
    fail_after_pause(talk, 200)
    talk.process(1)
    talk.committed(1)
    talk.plan(2)
    assert talk.fail(2) == [RecordFailure(attempt(2, 4), Phase.PROCESSING, "no luck", retry_in_ms=100)]


def test_being_given_up_for_an_earlier_failure_is_no_failure_of_ones_own() -> None:
    talk = Conversation()
    talk.start_processing(2)
    talk.fail(1)
    assert talk.fail(2, "cancelled") == []
    talk.fail(3)
    assert kinds(talk.wait(100)).count("StartProcessing") == 2, "2 has no pause of its own"
    assert talk.fail(2) == [
        RecordFailure(attempt(2, 5), Phase.PROCESSING, "no luck", retry_in_ms=100),
        AbortAttempt(attempt(3, 6), "transaction 2 failed"),
    ]


def test_a_pause_holds_back_what_is_later() -> None:
    talk = Conversation()
    talk.start_processing(2)
    talk.fail(1)
    talk.fail(2)
    talk.fail(3)
    assert talk.wait(99) == []
    assert kinds(talk.wait(1)) == [*["RecordAttempt", "StartProcessing"] * 2, "PlanBatch"]


def test_a_failure_while_planning_is_retried_as_a_new_transaction() -> None:
    talk = Conversation()
    talk.start()
    assert talk.fail(1, "no broker") == [RecordFailure(attempt(1, 1), Phase.PLANNING, "no broker", retry_in_ms=100)]
    talk.wait(100)
    assert talk.current(1) == attempt(1, 2)
    assert talk.nothing(1) == [], "it was never recorded, so there may be nothing"


def test_a_failure_of_what_was_processed_already_replays_it() -> None:
    """What a processing phase left behind can be lost while it waits for its turn."""
    talk = Conversation(config=TopologyConfig(max_spout_pending=2))
    talk.start_processing(2)
    talk.process(2)
    assert talk.fail(2, "executor lost") == [
        RecordFailure(attempt(2, 2), Phase.PROCESSED, "executor lost", retry_in_ms=100)
    ]
    assert kinds(talk.wait(100)) == ["RecordAttempt", "StartProcessing"]


# --- attempts_max -------------------------------------------------------------------------------------------------


def test_without_a_limit_it_is_retried_for_as_long_as_it_takes() -> None:
    talk = Conversation(config=TopologyConfig(retry_pause_ms=1))
    talk.start_processing(1)
    for _ in range(100):
        talk.fail(1)
        talk.wait(256)
    assert talk.phase(1) is Phase.PROCESSING


def test_the_last_allowed_failure_stops_the_process_with_its_reason() -> None:
    talk = Conversation(config=limited(2))
    talk.start_processing(2)
    talk.fail(1, "first")
    talk.fail(2)
    talk.wait(100)
    actions = talk.fail(1, "second")
    assert kinds(actions) == ["RecordFailure", "AbortAttempt", "Halt"]
    halt = actions[-1]
    assert isinstance(halt, Halt)
    assert halt.code == RetriesExhausted.code
    assert halt.reason == "transaction 1 failed 2 times (attempts_max = 2); the last error: second"
    assert talk.coordinator.is_done


def test_a_time_out_counts_as_a_failure() -> None:
    talk = Conversation(config=TopologyConfig(attempts_max=1, attempt_timeout_ms=1_000))
    talk.start_processing(1)
    assert kinds(talk.wait(1_001)) == ["RecordFailure", "AbortAttempt", "Halt"]


def test_failures_are_counted_per_transaction() -> None:
    talk = Conversation(config=limited(2))
    talk.start_processing(2)
    talk.fail(2)
    talk.wait(100)
    assert "Halt" not in kinds(talk.fail(1))


def test_after_a_halt_nothing_changes_any_more() -> None:
    talk = Conversation(config=limited(1))
    talk.start_processing(2)
    talk.fail(1)
    before = talk.state()
    late: list[Event] = [
        AttemptFailed(attempt(2, 2), "cancelled"),
        ProcessingSucceeded(attempt(2, 2)),
        Tick(9_999),
        ResumeRequested(),
    ]
    assert [talk.tell(event) for event in late] == [[], [], [], []]
    assert talk.state() == before


# --- time-outs ----------------------------------------------------------------------------------------------------


def test_processing_without_progress_times_out() -> None:
    """Storm row T13."""
    talk = Conversation(config=TIMED)
    talk.start_processing(2)
    assert talk.wait(1_000) == []
    reason = "no progress for 1001 ms, over attempt_timeout_ms (1000)"
    assert talk.wait(1) == [
        RecordFailure(attempt(1, 1), Phase.PROCESSING, reason, retry_in_ms=100),
        AbortAttempt(attempt(1, 1), reason),
        AbortAttempt(attempt(2, 2), "transaction 1 timed out"),
        AbortAttempt(attempt(3, 3), "transaction 1 timed out"),
    ]


def test_a_timed_out_attempt_counts_once_and_comes_back_when_it_is_dead() -> None:
    talk = Conversation(config=TopologyConfig(attempt_timeout_ms=1_000, retry_pause_ms=100))
    talk.start_processing(1)
    talk.wait(1_001)
    assert talk.wait(5_000) == [], "it may still run"
    assert kinds(talk.fail(1, "cancelled")) == ["RecordAttempt", "StartProcessing"], "its pause is over, it counts once"


def test_progress_starts_the_time_out_anew() -> None:
    talk = Conversation(config=TopologyConfig(attempt_timeout_ms=1_000))
    talk.start_processing(1)
    talk.wait(900)
    assert talk.tell(ProgressMade(attempt(1, 1))) == []
    assert talk.wait(1_000) == []
    assert kinds(talk.wait(1))[:2] == ["RecordFailure", "AbortAttempt"]


def test_the_second_of_two_times_out_alone() -> None:
    talk = Conversation(config=TopologyConfig(max_spout_pending=2, attempt_timeout_ms=1_000))
    talk.start_processing(2)
    talk.wait(900)
    talk.tell(ProgressMade(attempt(1, 1)))
    assert [action.attempt for action in talk.wait(101) if isinstance(action, AbortAttempt)] == [attempt(2, 2)]
    assert talk.phase(1) is Phase.PROCESSING


def test_what_is_processed_may_wait_for_its_turn() -> None:
    talk = Conversation(config=TopologyConfig(max_spout_pending=2, attempt_timeout_ms=1_000))
    talk.start_processing(2)
    talk.process(2)
    for _ in range(5):
        talk.tell(ProgressMade(attempt(1, 1)))
        assert talk.wait(900) == []
    assert talk.phases() == {1: Phase.PROCESSING, 2: Phase.PROCESSED}


def test_a_question_that_is_not_answered_times_out() -> None:
    talk = Conversation(config=TopologyConfig(attempt_timeout_ms=1_000))
    talk.start()
    assert talk.wait(1_000) == []
    assert kinds(talk.wait(1)) == ["RecordFailure", "AbortAttempt"]
    assert talk.phase(1) is Phase.ABORTING


def test_what_was_given_up_and_still_runs_stops_the_process() -> None:
    """Its txid can't be issued again; in silence that would be for ever."""
    talk = Conversation(config=TopologyConfig(attempt_timeout_ms=1_000, commit_timeout_ms=5_000))
    talk.start_processing(1)
    talk.wait(1_001)
    assert talk.wait(5_000) == []
    [halt] = talk.wait(1)
    assert isinstance(halt, Halt)
    assert halt.code == CommitStuck.code
    assert halt.reason.startswith("the rest of the given-up attempt 1:1 has run for 5001 ms")


def test_progress_does_not_prolong_a_commit_phase() -> None:
    talk = Conversation(config=TopologyConfig(commit_timeout_ms=5_000))
    talk.start_processing(1)
    talk.process(1)
    talk.wait(4_000)
    talk.tell(ProgressMade(attempt(1, 1)))
    assert kinds(talk.wait(1_001)) == ["Halt"]


def test_a_commit_phase_that_can_not_begin_yet_does_not_time_out() -> None:
    """A table is looked after: the time-out counts from when that is over."""
    talk = Conversation(config=TopologyConfig(commit_timeout_ms=5_000))
    talk.start_processing(1)
    assert talk.tell(CommitDelayed(attempt(1, 1))) == [], "it is not its turn yet"
    talk.process(1)
    for _ in range(3):
        talk.wait(4_000)
        assert talk.tell(CommitDelayed(attempt(1, 1))) == []
    assert talk.wait(5_000) == []
    assert kinds(talk.wait(1)) == ["Halt"]


def test_time_does_not_go_back() -> None:
    talk = Conversation(config=TIMED)
    talk.wait(10_000)
    talk.plan(1)
    assert talk.tell(Tick(3)) == []
    assert talk.tell(Tick(11_000)) == []
    assert kinds(talk.tell(Tick(11_001)))[:2] == ["RecordFailure", "AbortAttempt"]


# --- the commit phase ---------------------------------------------------------------------------------------------


def test_a_stuck_commit_phase_stops_the_process() -> None:
    talk = Conversation(config=TopologyConfig(commit_timeout_ms=5_000))
    talk.start_processing(1)
    talk.process(1)
    assert talk.wait(5_000) == []
    assert talk.wait(1) == [
        Halt(
            CommitStuck.code,
            "the commit phase of 1:1 has run for 5001 ms, over commit_timeout_ms (5000); "
            "start again: the transaction is replayed",
        )
    ]
    assert talk.coordinator.is_done
    assert talk.tell(CommitSucceeded(attempt(1, 1))) == []
    assert talk.coordinator.committed_txid == 0


def test_nothing_stands_after_a_halt() -> None:
    """The driver performs actions in order: what stands after a Halt would be lost, or done by a process that ends."""
    talk = Conversation(config=TopologyConfig(max_spout_pending=2, attempt_timeout_ms=1_000, commit_timeout_ms=5_000))
    talk.start_processing(2)
    talk.process(1)
    assert kinds(talk.wait(5_001)) == ["Halt"]


def test_a_failed_commit_phase_is_retried_from_the_recorded_batch() -> None:
    talk = Conversation(config=TopologyConfig(retry_pause_ms=100))
    talk.start_processing(1)
    talk.process(1)
    talk.fail(1, "conflict")
    talk.wait(100)
    assert talk.current(1) == attempt(1, 2)
    talk.process(1)
    talk.committed(1)
    assert talk.coordinator.committed_txid == 1
    assert talk.current(2) == attempt(2, 3)
    assert talk.coordinator.recorded == {}
    assert talk.plan(2)[:1] != []
    assert talk.coordinator.recorded == {2: batch(10, 20)}
