"""What is away is waited for: an outage uses up no attempt and no try of a tuple, and has a time of its own."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spouts.memory import MemoryTransactionalSpout
from tests.unit.conversation import Conversation, kinds
from tests.unit.drivers import DRAINED, World
from tests.unit.fakes import stored
from transactional.core.machine.protocol import AttemptFailed, Halt, RecordFailure
from transactional.core.ports import Processed
from transactional.errors import RetriesExhausted, SourceUnavailable, TuplesLost
from transactional.model.attempt import TransactionAttempt, TxId
from transactional.model.batch import BatchMetadata
from transactional.model.config import TopologyConfig
from transactional.model.letters import Exclusion
from transactional.runtime.executors.local import LocalExecutor

WAITS = TopologyConfig(attempts_max=2, outage_timeout_ms=10_000, retry_pause_ms=100)


def test_an_outage_uses_up_no_attempt_and_its_pauses_grow() -> None:
    talk = Conversation(config=TopologyConfig(attempts_max=1, retry_pause_ms=100))
    talk.start_processing(1)
    pauses = []
    for _ in range(6):
        [failure] = talk.away(1)
        assert isinstance(failure, RecordFailure)
        pauses.append(failure.retry_in_ms)
        talk.wait(failure.retry_in_ms)
    assert pauses == [100, 200, 400, 800, 1_600, 3_200]
    assert kinds(talk.fail(1)) == ["RecordFailure", "Halt"], "what fails by itself is counted as ever"


def test_an_outage_has_a_time_of_its_own() -> None:
    talk = Conversation(config=WAITS)
    talk.start_processing(1)
    talk.away(1)
    talk.wait(9_999)
    assert kinds(talk.away(1)) == ["RecordFailure"]
    talk.wait(400)
    *_, halt = talk.away(1)
    assert halt == Halt(
        RetriesExhausted.code,
        "what transaction 1 needs has been unavailable for 10399 ms (outage_timeout_ms = 10000); the last error: no "
        "broker answers",
    )


def test_what_fails_by_itself_says_that_the_outage_is_over() -> None:
    talk = Conversation(config=WAITS)
    talk.start_processing(1)
    talk.away(1)
    talk.wait(9_000)
    assert kinds(talk.fail(1)) == ["RecordFailure"]
    talk.wait(9_000)
    assert kinds(talk.away(1)) == ["RecordFailure"]


def test_each_transaction_has_its_own_outage() -> None:
    talk = Conversation(config=WAITS)
    talk.start_processing(1)
    talk.away(1)
    talk.wait(9_000)
    talk.process(1)
    talk.committed(1)
    talk.plan(2)
    talk.away(2)
    talk.wait(9_000)
    assert kinds(talk.away(2)) == ["RecordFailure"]


def test_no_tuple_is_set_aside_for_an_outage() -> None:
    talk = Conversation(config=TopologyConfig(attempts_max=1), sets_aside=True)
    talk.start_processing(1)
    at_fault = (Exclusion("bolt", "f00", "its service is away"),)
    assert kinds(talk.tell(AttemptFailed(talk.current(1), "away", at_fault, is_outage=True))) == ["RecordFailure"]
    talk.wait(1_000)
    assert talk.coordinator.recorded[TxId(1)].excluded == ()


def test_a_spout_that_does_not_answer_at_all_is_away() -> None:
    talk = Conversation(config=TopologyConfig(attempts_max=1, attempt_timeout_ms=1_000))
    talk.start()
    assert kinds(talk.wait(1_001)) == ["RecordFailure", "AbortAttempt"]


class ComesBack(MemoryTransactionalSpout):
    """A source that is away for the first questions."""

    left = 5

    def plan(self, after: BatchMetadata, *, replay: bool) -> BatchMetadata | None:
        if self.left:
            self.left -= 1
            raise SourceUnavailable("no broker answers")
        return super().plan(after, replay=replay)


def test_a_source_that_is_away_for_a_while_costs_no_attempt() -> None:
    world = World()
    spout = ComesBack([[("cat",)]], fields="word string", take=1)
    summary = world.run(world.topology(spout), replace(DRAINED, attempts_max=1))
    assert (summary.transactions, summary.failures) == (1, 5)
    assert stored(world.counts) == {"cat": 1}


# --- what is lost again and again -----------------------------------------------------------------------------------


def lost(talk: Conversation, txid: int = 1) -> list[str]:
    """An attempt in which tuples were lost, three of which are allowed; and the pause after it."""
    told = kinds(talk.tell(AttemptFailed(talk.current(txid), "TX309 2 of 3 tuples", tries_max=3)))
    talk.wait(1_000)
    return told


def test_tuples_that_are_lost_at_each_attempt_are_not_sent_for_ever() -> None:
    talk = Conversation(config=TopologyConfig(retry_pause_ms=1))
    talk.start_processing(1)
    assert lost(talk) == ["RecordFailure"]
    talk.away(1)
    talk.wait(1_000)
    assert lost(talk) == ["RecordFailure"]
    for _ in range(20):
        assert kinds(talk.fail(1)) == ["RecordFailure"], "what fails otherwise is tried for ever, as it is configured"
        talk.wait(1_000)
    *_, halt = talk.tell(AttemptFailed(talk.current(1), "TX309 2 of 3 tuples", tries_max=3))
    assert halt == Halt(
        RetriesExhausted.code,
        "transaction 1 failed 3 times in the same way, and will do so again; the last error: TX309 2 of 3 tuples",
    )


def test_each_transaction_may_lose_as_many() -> None:
    talk = Conversation(config=TopologyConfig(retry_pause_ms=1))
    talk.start_processing(1)
    for txid in (1, 2):
        lost(talk, txid)
        lost(talk, txid)
        talk.process(txid)
        talk.committed(txid)
        talk.plan(txid + 1)
    assert talk.coordinator.committed_txid == TxId(2)


class LosesTuples(LocalExecutor):
    """A processing phase that never gets all of its tuples."""

    def run(self, attempt: TransactionAttempt, batch: BatchMetadata) -> Processed:
        raise TuplesLost("bolt 'count' received 2 tuples of 3")


def test_a_run_that_loses_tuples_at_each_attempt_ends() -> None:
    world = World()
    topology = world.topology(MemoryTransactionalSpout([[("cat",)]], fields="word string", take=1))
    assert DRAINED.attempts_max is None
    with pytest.raises(RetriesExhausted, match=r"failed 10 times in the same way.*TX309 bolt 'count' received 2"):
        world.run(topology, executor=LosesTuples(topology))
