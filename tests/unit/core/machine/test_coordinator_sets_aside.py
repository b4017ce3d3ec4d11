"""Which tuples the coordinator sets aside, when, and when it stops instead; and what is written down of them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from transactional.core.machine.coordinator import Coordinator
from transactional.core.machine.protocol import AttemptFailed, Halt, RecordAttempt, RecordFailure, StartProcessing, Tick
from transactional.core.store.progress import Phase, Progress
from transactional.model.attempt import AttemptId, TransactionAttempt, TxId
from transactional.model.batch import BatchMetadata
from transactional.model.config import TopologyConfig as Config
from transactional.model.letters import Exclusion, Letter
from transactional.runtime.engine.history.journal import decode, encode

EXCLUSION = Exclusion("picky", "0123", "component 'picky' raised ValueError: no")
LETTER = Letter(1, 0, "picky", "words", "default", "{}", "no")


def test_the_recorded_attempt_names_what_is_set_aside() -> None:
    coordinator = Coordinator(
        Progress(recorded={TxId(1): BatchMetadata({})}), Config(attempts_max=1), replays_exactly=True, sets_aside=True
    )
    coordinator.handle(Tick(0))
    failed = TransactionAttempt(TxId(1), AttemptId(1))
    again = TransactionAttempt(TxId(1), AttemptId(2))
    without = BatchMetadata({}, excluded=(EXCLUSION,))
    assert coordinator.handle(AttemptFailed(failed, "no", (EXCLUSION,))) == [
        RecordFailure(failed, Phase.PROCESSING, "no", retry_in_ms=0),
        RecordAttempt(again, without, forget_later=False),
        StartProcessing(again, without),
    ]
    assert BatchMetadata.from_json(without.to_json()) == without


def test_a_batch_without_some_of_its_tuples_is_another_one_and_waits_for_no_pause() -> None:
    config = Config(attempts_max=2, retry_pause_ms=100)
    progress = Progress(recorded={TxId(1): BatchMetadata({})})
    coordinator = Coordinator(progress, config, replays_exactly=True, sets_aside=True)
    coordinator.handle(Tick(0))

    def fail(attempt_id: int, *at_fault: Exclusion) -> list[int | str]:
        attempt = TransactionAttempt(TxId(1), AttemptId(attempt_id))
        actions = coordinator.handle(AttemptFailed(attempt, "no", at_fault))
        return [each.retry_in_ms if isinstance(each, RecordFailure) else type(each).__name__ for each in actions]

    assert fail(1, EXCLUSION) == [100], "the same batch once more"
    assert coordinator.handle(Tick(99)) == []
    assert [type(action).__name__ for action in coordinator.handle(Tick(100))] == ["RecordAttempt", "StartProcessing"]
    assert fail(2, EXCLUSION) == [0, "RecordAttempt", "StartProcessing"], "without the tuple"
    assert fail(3) == [100], "its pauses begin anew"


def test_a_batch_that_gives_its_letters_back_waits_for_no_pause() -> None:
    progress = Progress(recorded={TxId(1): BatchMetadata({}, letters=(LETTER,))})
    coordinator = Coordinator(progress, Config(attempts_max=1), replays_exactly=True, sets_aside=True)
    coordinator.handle(Tick(0))
    attempt, again = (TransactionAttempt(TxId(1), AttemptId(number)) for number in (1, 2))
    assert coordinator.handle(AttemptFailed(attempt, "no")) == [
        RecordFailure(attempt, Phase.PROCESSING, "no", retry_in_ms=0),
        RecordAttempt(again, BatchMetadata({}), forget_later=False),
        StartProcessing(again, BatchMetadata({})),
    ]


def test_a_failure_of_nobody_halts_the_coordinator() -> None:
    coordinator = Coordinator(
        Progress(recorded={TxId(1): BatchMetadata({})}), Config(attempts_max=1), replays_exactly=True, sets_aside=True
    )
    coordinator.handle(Tick(0))
    assert isinstance(coordinator.handle(AttemptFailed(TransactionAttempt(TxId(1), AttemptId(1)), "no"))[-1], Halt)


class Talk:
    """A coordinator of one recorded transaction that is told of failed attempts."""

    def __init__(self, *, attempts_max: int, **config: Any) -> None:
        options = Config(attempts_max=attempts_max, retry_pause_ms=1, **config)
        progress = Progress(recorded={TxId(1): BatchMetadata({})})
        self.coordinator = Coordinator(progress, options, replays_exactly=True, sets_aside=True)
        self.now_ms = 0
        self.coordinator.handle(Tick(0))

    def fail(self, *at_fault: Exclusion) -> str | None:
        """The reason why the process stops, if it does."""
        actions = self.coordinator.handle(AttemptFailed(self.coordinator.active[TxId(1)].attempt, "no", at_fault))
        self.now_ms += 10
        self.coordinator.handle(Tick(self.now_ms))
        return next((action.reason for action in actions if isinstance(action, Halt)), None)

    @property
    def excluded(self) -> set[str]:
        return {exclusion.fingerprint for exclusion in self.coordinator.recorded[TxId(1)].excluded}


def poison(name: str, error: str = "no") -> Exclusion:
    return Exclusion("picky", name, error)


def test_what_is_left_out_already_and_fails_again_stops() -> None:
    talk = Talk(attempts_max=2)
    assert [talk.fail(poison("a")), talk.fail(poison("a")), talk.excluded] == [None, None, {"a"}]
    reason = talk.fail(poison("a", "no, at another time"))
    assert reason == (
        "transaction 1 failed 1 times (attempts_max = 2) on a tuple that it already skips ('picky'); the last error: no"
    )


def test_each_tuple_has_its_own_tries() -> None:
    talk = Talk(attempts_max=2)
    assert [talk.fail(poison("a")), talk.fail(poison("b")), talk.excluded] == [None, None, set()]
    assert [talk.fail(poison("b"), poison("c")), talk.excluded] == [None, {"b"}]
    assert [talk.fail(poison("a"), poison("c")), talk.excluded] == [None, {"a", "b", "c"}]


def test_a_tuple_counts_once_however_its_error_reads() -> None:
    talk = Talk(attempts_max=2, dead_letters_max=1)
    assert talk.fail(poison("a", "first"), poison("a", "in another task")) is None
    assert talk.excluded == set(), "it was one attempt"
    assert [talk.fail(poison("a", "second")), talk.excluded] == [None, {"a"}]


def test_more_tuples_than_are_allowed_stop_and_say_so() -> None:
    reason = Talk(attempts_max=1, dead_letters_max=2).fail(poison("a"), poison("b"), poison("c"))
    assert (
        reason
        == "transaction 1 failed 1 times (attempts_max = 1) on 3 tuples (dead_letters_max = 2); the last error: no"
    )


def test_the_journal_keeps_who_was_at_fault() -> None:
    event = AttemptFailed(TransactionAttempt(TxId(1), AttemptId(1)), "no", (EXCLUSION,))
    assert decode(json.loads(json.dumps(encode(event)))) == event


# --- what is found out once -------------------------------------------------------------------------------------------

FACT = Exclusion("records", "schema id 7 of values of topic 't'", "unknown")


def test_a_fact_is_recorded_by_the_attempt_that_finds_it_whatever_is_configured() -> None:
    progress = Progress(recorded={TxId(1): BatchMetadata({})})
    coordinator = Coordinator(progress, Config(retry_pause_ms=100), replays_exactly=True)
    coordinator.handle(Tick(0))
    attempt, again = (TransactionAttempt(TxId(1), AttemptId(number)) for number in (1, 2))
    known = BatchMetadata({}, excluded=(FACT,))
    assert coordinator.handle(AttemptFailed(attempt, "TX310 unknown", (FACT,), tries_max=1)) == [
        RecordFailure(attempt, Phase.PROCESSING, "TX310 unknown", retry_in_ms=0),
        RecordAttempt(again, known, forget_later=False),
        StartProcessing(again, known),
    ]
    other = replace(FACT, fingerprint="schema id 8 of values of topic 't'")
    coordinator.handle(AttemptFailed(again, "TX310 unknown", (other,), tries_max=1))
    assert coordinator.recorded[TxId(1)].excluded == (FACT, other)


def test_without_a_fact_that_could_be_recorded_it_would_be_found_again() -> None:
    progress = Progress(recorded={TxId(1): BatchMetadata({})})
    coordinator = Coordinator(progress, Config(), replays_exactly=True)
    coordinator.handle(Tick(0))
    attempt = TransactionAttempt(TxId(1), AttemptId(1))
    *_, halt = coordinator.handle(AttemptFailed(attempt, "TX310 11 of 11", tries_max=1))
    assert isinstance(halt, Halt)
    assert halt.reason.endswith("in the same way, and will do so again; the last error: TX310 11 of 11")
