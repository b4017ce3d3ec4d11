"""Back-pressure of sinks: what waits in the outbox holds back commits, and records in memory hold back new batches."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.unit.conversation import Conversation, kinds
from transactional.core.machine.invariants import check
from transactional.core.machine.protocol import SinksBehind, SinksSettled, StopRequested
from transactional.core.store.progress import Phase, Progress
from transactional.model.attempt import TxId
from transactional.model.config import TopologyConfig


def begin(progress: Progress | None = None, **options: Any) -> Conversation:
    return Conversation(progress, TopologyConfig(**options))


def test_no_commit_phase_begins_while_too_many_transactions_wait() -> None:
    talk = begin(max_spout_pending=3, sink_pending_max=2)
    talk.start_processing(3)
    for txid in (1, 2, 3):
        talk.process(txid, sink_bytes=1)
    talk.committed(1, sink_bytes=1)
    assert (talk.phase(2), talk.coordinator.waits_for_sinks) == (Phase.COMMITTING, False)
    assert "StartCommit" not in kinds(talk.committed(2, sink_bytes=1))
    assert (talk.phase(3), talk.coordinator.waits_for_sinks) == (Phase.PROCESSED, True)
    assert "StartCommit" in kinds(talk.tell(SinksSettled(TxId(1))))
    assert not talk.coordinator.waits_for_sinks


def test_no_commit_phase_begins_while_too_many_bytes_wait() -> None:
    talk = begin(max_spout_pending=2, sink_pending_bytes_max=100)
    talk.start_processing(2)
    talk.process(1)
    talk.process(2)
    assert "StartCommit" not in kinds(talk.committed(1, sink_bytes=100))
    assert "StartCommit" in kinds(talk.tell(SinksSettled(TxId(1))))


def test_transactions_without_records_do_not_wait() -> None:
    talk = begin(max_spout_pending=2, sink_pending_max=1)
    talk.start_processing(2)
    talk.process(1)
    talk.process(2)
    assert "StartCommit" in kinds(talk.committed(1))


def test_what_waits_at_the_start_counts_until_all_of_it_is_published() -> None:
    talk = begin(Progress(TxId(7)), sink_pending_max=5)
    talk.tell(SinksBehind(TxId(7), 5, 100))
    talk.start()
    talk.plan(8)
    assert "StartCommit" not in kinds(talk.process(8))
    assert talk.tell(SinksSettled(TxId(6))) == []
    assert "StartCommit" in kinds(talk.tell(SinksSettled(TxId(7))))


def test_nothing_new_is_issued_while_records_in_flight_fill_the_memory() -> None:
    talk = begin(max_spout_pending=3, sink_bytes_max=100)
    talk.start()
    talk.plan(1)
    assert talk.phase(2) is Phase.PLANNING
    talk.process(1, sink_bytes=100)
    talk.plan(2)
    assert talk.phase(3) is Phase.GONE
    talk.committed(1, sink_bytes=10)
    assert talk.phase(3) is Phase.PLANNING


def test_a_failed_transaction_is_issued_again_whatever_is_in_flight() -> None:
    talk = begin(max_spout_pending=2, sink_bytes_max=100)
    talk.start_processing(2)
    talk.process(1, sink_bytes=100)
    talk.fail(2)
    talk.wait(60_000)
    assert talk.phase(2) in (Phase.PROCESSING, Phase.PLANNING)


def test_a_stop_does_not_wait_for_sinks() -> None:
    talk = begin(max_spout_pending=2, sink_pending_max=1)
    talk.start_processing(2)
    talk.process(1)
    talk.process(2)
    talk.committed(1, sink_bytes=1)
    talk.tell(StopRequested())
    for txid in (2, 3):
        talk.fail(txid)
    assert talk.coordinator.is_done


@pytest.mark.parametrize("seed", range(20))
def test_the_outbox_stays_bounded_and_everything_is_committed(seed: int) -> None:
    """Phases end and sinks publish in any order, and what waits never exceeds its limits by more than a transaction."""
    chance = random.Random(seed)
    talk = begin(max_spout_pending=4, sink_pending_max=3, sink_pending_bytes_max=50, sink_bytes_max=60)
    coordinator, waiting, settled = talk.coordinator, dict[int, int](), 0
    talk.start()
    while coordinator.committed_txid < 60:
        moves = [(txid, phase) for txid, phase in talk.phases().items() if phase is not Phase.PROCESSED]
        held = coordinator.waits_for_sinks
        txid, phase = chance.choice([*moves, (0, None)]) if moves else (0, None)
        size_bytes = chance.choice([0, 5, 30])
        match phase:
            case Phase.PLANNING:
                actions = talk.plan(txid)
            case Phase.PROCESSING:
                actions = talk.process(txid, size_bytes)
                assert not held or "StartCommit" not in kinds(actions)
            case Phase.COMMITTING:
                waiting |= {txid: size_bytes} if size_bytes else {}
                actions = talk.committed(txid, size_bytes)
            case _:
                settled = chance.randint(settled, coordinator.committed_txid)
                waiting = {waits: size for waits, size in waiting.items() if waits > settled}
                actions = talk.tell(SinksSettled(TxId(settled)))
        in_flight_bytes = sum(current.sink_bytes for current in coordinator.active.values())
        assert in_flight_bytes < 60 or "PlanBatch" not in kinds(actions)
        check(coordinator)
        assert (coordinator.backlog.transactions, coordinator.backlog.size_bytes) == (
            len(waiting),
            sum(waiting.values()),
        )
        assert len(waiting) <= 3
        assert sum(waiting.values()) < 50 + 30
