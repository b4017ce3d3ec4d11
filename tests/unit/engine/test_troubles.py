"""What the log tells of a topology that fails and recovers, and what of it the store is told."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from tests.unit.drivers import DRAINED, World
from transactional.attempt import AttemptId, TransactionAttempt, TxId
from transactional.batch import EMPTY_BATCH
from transactional.core.protocol import BatchPlanned, RecordCommit, RecordFailure
from transactional.engine.troubles import LOGGER, TroubleLog
from transactional.errors import BatchLost, SourceUnavailable, StoreMismatch
from transactional.progress import Phase
from transactional.store_history import EndedHow, RunEnd


def tried(txid: int, attempt_id: int) -> TransactionAttempt:
    return TransactionAttempt(TxId(txid), AttemptId(attempt_id))


def failed(attempt: TransactionAttempt) -> RecordFailure:
    return RecordFailure(attempt, Phase.PLANNING, "TX301 no broker answers\nTraceback …", 50)


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == LOGGER]


def test_each_failure_is_a_warning_and_so_is_the_end(caplog: pytest.LogCaptureFixture) -> None:
    teller = TroubleLog("flights")
    teller.note_action(failed(tried(3, 7)), 1_000)
    teller.note_action(failed(tried(3, 8)), 1_500)
    teller.note_action(RecordCommit(tried(2, 6), EMPTY_BATCH), 1_600)
    teller.note_action(RecordCommit(tried(3, 9), EMPTY_BATCH), 2_000)
    teller.note_action(RecordCommit(tried(4, 10), EMPTY_BATCH), 2_100)
    assert told(caplog) == [
        "topology 'flights': attempt 3:7 failed in planning: TX301 no broker answers",
        "topology 'flights': attempt 3:8 failed in planning: TX301 no broker answers",
        "topology 'flights' has recovered after 2 failed attempts in 1000 ms: transaction 3:9 is committed",
    ]
    assert {record.levelno for record in caplog.records} == {logging.WARNING}


def test_a_source_that_answers_with_nothing_ends_its_own_trouble_only(caplog: pytest.LogCaptureFixture) -> None:
    teller = TroubleLog("flights")
    teller.note_action(failed(tried(3, 7)), 1_000)
    assert not teller.is_over(BatchPlanned(tried(4, 8), None), 1_100)  # 3 is still tried again
    assert not teller.is_over(BatchPlanned(tried(3, 9), EMPTY_BATCH), 1_200)
    assert teller.is_over(BatchPlanned(tried(3, 9), None), 1_300)
    assert told(caplog)[-1].endswith("in 300 ms: the source responds, and has nothing new")


def test_a_trouble_of_an_earlier_run_is_over_when_there_is_nothing_to_commit() -> None:
    """What the store knows of it this process has not seen."""
    teller = TroubleLog("flights")
    assert teller.is_over(BatchPlanned(tried(3, 9), None), 1_300)
    assert not teller.is_over(BatchPlanned(tried(3, 9), None), 1_400)


def failing(times: int, error: Exception, plan: Any) -> Any:
    """The spout's `plan`, which raises so many times first."""
    left = [times]

    def plan_or_fail(*given: Any, **named: Any) -> Any:
        if left[0]:
            left[0] -= 1
            raise error
        return plan(*given, **named)

    return plan_or_fail


def test_what_ends_a_run_is_in_the_store_with_what_was_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    topology = world.topology()
    lost = BatchLost("the topic is gone")
    monkeypatch.setattr(topology.spout, "plan", failing(1, lost, topology.spout.plan))
    with pytest.raises(BatchLost):
        world.run(topology)
    [status] = world.store.status(topology.id)
    assert status.run is not None
    assert status.run.end == RunEnd(EndedHow.FAILED, BatchLost.code, "the topic is gone")
    assert status.run.about.topology["topology"] == topology.id
    assert status.run.about.settings["stop_when_drained"] is True
    assert world.run(topology).transactions > 0
    [status] = world.store.status(topology.id)
    assert status.run is not None
    assert (status.run.end, status.run.began_at_txid) == (RunEnd(EndedHow.DRAINED), 0)
    assert (status.lag, status.trouble) == (0, None)


def test_an_outage_is_in_the_store_from_its_beginning_until_it_is_over(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    world = World()
    topology = world.topology()
    seen = []
    away = SourceUnavailable("no broker answers")
    plan = failing(2, away, topology.spout.plan)

    def looking(*given: Any, **named: Any) -> Any:
        [status] = world.store.status(topology.id)
        seen.append(status.trouble and (status.trouble.txid, status.trouble.error.splitlines()[0]))
        return plan(*given, **named)

    monkeypatch.setattr(topology.spout, "plan", looking)
    world.run(topology)
    assert seen[:3] == [None, (1, "planning: TX301 no broker answers"), (1, "planning: TX301 no broker answers")]
    assert seen[-1] is None
    assert world.store.status(topology.id)[0].trouble is None
    assert len(told(caplog)) == 3
    assert "has recovered after 2 failed attempts" in told(caplog)[-1]


def test_a_start_that_is_refused_leaves_the_fingerprint_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """With accepted changes too: the change is accepted once the tables are fenced."""
    world = World()
    topology = world.topology()
    world.run(topology)
    before = world.store.status(topology.id)[0].fingerprint
    changed = world.topology()
    monkeypatch.setattr(changed.spout, "identity", lambda: {"kind": "another"})
    state = changed.committers[0].state
    monkeypatch.setattr(state, "version", lambda: AttemptId(999))
    with pytest.raises(StoreMismatch):
        world.driver(changed, DRAINED, accept_changes=True).run()
    assert world.store.status(topology.id)[0].fingerprint == before
    world.run(world.topology())
