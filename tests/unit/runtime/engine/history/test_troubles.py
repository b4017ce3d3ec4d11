"""What observers and the store are told of a topology that fails and recovers."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.drivers import DRAINED, Recorder, World
from transactional.core.machine.protocol import BatchPlanned, RecordCommit, RecordFailure
from transactional.core.store.history import EndedHow, RunEnd
from transactional.core.store.progress import Phase
from transactional.errors import BatchLost, SourceUnavailable, StoreMismatch
from transactional.model.attempt import AttemptId, TransactionAttempt, TxId
from transactional.model.batch import EMPTY_BATCH
from transactional.runtime.engine.history.observing import Notice, Recovered
from transactional.runtime.engine.history.troubles import Troubles


def tried(txid: int, attempt_id: int) -> TransactionAttempt:
    return TransactionAttempt(TxId(txid), AttemptId(attempt_id))


def failed(attempt: TransactionAttempt) -> RecordFailure:
    return RecordFailure(attempt, Phase.PLANNING, "TX301 no broker answers\nTraceback …", 50)


class Noting(Recorder):
    """An observer that keeps its notices."""

    def __init__(self) -> None:
        super().__init__()
        self.notices: list[Notice] = []

    def notice(self, at_ms: int, notice: Notice) -> None:
        self.notices.append(notice)


def test_the_end_of_a_problem_is_told_once_with_the_failures_before_it() -> None:
    told: list[Recovered] = []
    teller = Troubles(told.append)
    teller.note_action(failed(tried(3, 7)), 1_000)
    teller.note_action(failed(tried(3, 8)), 1_500)
    teller.note_action(RecordCommit(tried(2, 6), EMPTY_BATCH), 1_600)
    teller.note_action(RecordCommit(tried(3, 9), EMPTY_BATCH), 2_000)
    teller.note_action(RecordCommit(tried(4, 10), EMPTY_BATCH), 2_100)
    assert told == [Recovered(TxId(3), 2, 1_000, "transaction 3:9 is committed")]


def test_a_source_that_answers_with_nothing_ends_its_own_trouble_only() -> None:
    told: list[Recovered] = []
    teller = Troubles(told.append)
    teller.note_action(failed(tried(3, 7)), 1_000)
    assert not teller.resolves(BatchPlanned(tried(4, 8), None), 1_100)  # 3 is still tried again
    assert not teller.resolves(BatchPlanned(tried(3, 9), EMPTY_BATCH), 1_200)
    assert teller.resolves(BatchPlanned(tried(3, 9), None), 1_300)
    assert told == [Recovered(TxId(3), 1, 300, "the source responds, and has nothing new")]


def test_a_trouble_of_an_earlier_run_is_over_when_there_is_nothing_to_commit() -> None:
    """What the store knows of it this process has not seen."""
    teller = Troubles(lambda notice: None)
    assert teller.resolves(BatchPlanned(tried(3, 9), None), 1_300)
    assert not teller.resolves(BatchPlanned(tried(3, 9), None), 1_400)


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


def test_an_outage_is_in_the_store_from_its_beginning_until_it_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
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
    noting = Noting()
    world.run(topology, observers=[noting])
    assert seen[:3] == [None, (1, "planning: TX301 no broker answers"), (1, "planning: TX301 no broker answers")]
    assert seen[-1] is None
    assert world.store.status(topology.id)[0].trouble is None
    assert [(each.txid, each.failures) for each in noting.notices if isinstance(each, Recovered)] == [(1, 2)]


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
