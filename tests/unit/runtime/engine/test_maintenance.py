"""Tables are looked after between two transactions: no transaction waits for its own compaction, and none for long."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.drivers import DRAINED, WAIT_S, Gate, Recorder, World, in_background
from tests.unit.fakes import stored, words
from tests.unit.runner_bench import Bench, Held, attempt, committing, raising
from transactional.core.machine.protocol import CommitDelayed, CommitSucceeded, RecordCommit, StartCommit
from transactional.errors import Fenced
from transactional.model.attempt import TxId
from transactional.runtime.engine.runner import Fatal

ALWAYS: Callable[[], bool] = lambda: True  # noqa: E731


class RecordedMaintenance:
    """Stands in for `TableMaintenance.maintain`: records its transactions, and stops at a gate."""

    def __init__(self, gate: Gate | None = None) -> None:
        self.told: list[TxId] = []
        self.threads: set[str] = set()
        self.gate = gate

    def __call__(self, committed_txid: TxId, may_go_on: Callable[[], bool]) -> None:
        self.told.append(committed_txid)
        self.threads.add(threading.current_thread().name)
        if self.gate is not None:
            self.gate.pass_through()


def record_maintenance(world: World, topology: Any, table: str, gate: Gate | None = None) -> RecordedMaintenance:
    maintain = world.states[table].maintain = RecordedMaintenance(gate)  # type: ignore[method-assign]
    return maintain


def test_every_table_is_reported_in_the_commit_thread_which_transaction_is_committed() -> None:
    world = World()
    topology = world.topology()
    maintained = [record_maintenance(world, topology, table) for table in ("counts", "total")]
    world.run(topology)
    for each in maintained:
        assert (each.told, each.threads) == ([1, 2, 3], {"commit_0"})


def test_a_transaction_is_committed_before_a_table_is_looked_after() -> None:
    world, gate, recorder = World(), Gate(), Recorder()
    topology = world.topology()
    record_maintenance(world, topology, "counts", gate)
    with in_background(world.driver(topology, observers=[recorder])) as running:
        gate.wait_until_entered()
        recorder.wait_for_events(CommitSucceeded, 1)
        assert [action.attempt.txid for action in recorder.of(RecordCommit)] == [1]
        assert world.store.status()[0].committed_txid == 1
        gate.opened.set()
        assert running.result(WAIT_S).transactions == 3


def test_who_is_asked_to_stop_does_not_wait_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transactional.runtime.engine.driver.LEAVING_S", 0.1)
    world, gate = World(), Gate()
    topology = world.topology()
    record_maintenance(world, topology, "counts", gate)
    total = record_maintenance(world, topology, "total")
    driver = world.driver(topology)
    with in_background(driver) as running:
        gate.wait_until_entered()
        driver.stop()
        running.result(WAIT_S / 2)
        assert not gate.opened.is_set()
    gate.opened.set()
    driver.runner._commits.shutdown()
    assert total.told == [], "no step is begun any more"


def test_a_drained_run_looks_after_its_last_transaction() -> None:
    """Else what runs one transaction at a time would never be looked after."""
    world = World()
    topology = world.topology(words([[("cat",)]]))
    maintained = record_maintenance(world, topology, "total")
    world.run(topology)
    assert (maintained.told, stored(world.counts)) == ([1], {"cat": 1})


@pytest.mark.parametrize("error", [None, OSError("the disk is full"), KeyboardInterrupt()])
def test_a_run_that_ends_finishes_what_was_begun_beside_it(error: BaseException | None) -> None:
    """After the last look at all tables, in the commit thread."""
    world = World()
    topology = world.topology()
    maintained = [record_maintenance(world, topology, table) for table in ("counts", "total")]
    finished: list[tuple[int, str, bool]] = []

    def finish(may_go_on: Callable[[], bool]) -> None:
        finished.append((min(len(each.told) for each in maintained), threading.current_thread().name, may_go_on()))
        if error is not None:
            raise error

    world.states["total"].finish = finish  # type: ignore[method-assign]
    assert world.run(topology).transactions == 3
    assert finished == [(3, "commit_0", True)]


def test_a_run_that_is_stopped_finishes_nothing_that_takes_long() -> None:
    world, gate, finished = World(), Gate(), list[bool]()
    topology = world.topology()
    record_maintenance(world, topology, "counts", gate)
    world.states["total"].finish = lambda may_go_on: finished.append(may_go_on())  # type: ignore[method-assign]
    driver = world.driver(topology)
    with in_background(driver) as running:
        gate.wait_until_entered()
        driver.stop()
        gate.opened.set()
        running.result(WAIT_S)
    assert finished == [False]


def test_who_is_stopped_at_its_end_waits_no_longer() -> None:
    world, entered = World(), threading.Event()
    topology = world.topology()

    def finish(may_go_on: Callable[[], bool]) -> None:
        entered.set()
        while may_go_on():
            threading.Event().wait(0.001)

    world.states["total"].finish = finish  # type: ignore[method-assign]
    driver = world.driver(topology)
    with in_background(driver) as running:
        assert entered.wait(WAIT_S)
        driver.stop()
        assert running.result(WAIT_S).transactions == 3


def test_a_commit_phase_that_waits_goes_before_the_next_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transactional.runtime.engine.maintenance.LONG_S", 0)
    world, gate = World(), Gate()
    topology = world.topology()
    counts, total = record_maintenance(world, topology, "counts", gate), record_maintenance(world, topology, "total")
    recorder = Recorder()
    with in_background(world.driver(topology, DRAINED, observers=[recorder])) as running:
        gate.wait_until_entered()
        recorder.wait_for(lambda: any(action.attempt.txid == 2 for action in recorder.of(StartCommit)))
        gate.opened.set()
        running.result(WAIT_S)
    assert counts.told[0] == 1
    assert total.told[0] == 2, "it comes first the next time"


# --- the runner ---------------------------------------------------------------------------------------------------


def test_a_commit_phase_that_waits_for_it_is_not_taken_for_stuck(bench: Bench) -> None:
    bench.state.maintain = held = Held()  # type: ignore[method-assign, assignment]
    bench.runner.maintain(attempt(1))
    assert held.entered.wait(WAIT_S)
    bench.runner.report_progress()
    assert bench.no_answer(), "nothing waits"
    committing(bench, 2)
    for _ in range(2):
        bench.runner.report_progress()
        assert bench.answer() == CommitDelayed(attempt(2))
    held.let_go.set()
    assert bench.answer() == CommitSucceeded(attempt(2))
    bench.runner.report_progress()
    assert bench.no_answer()


def test_what_hangs_is_not_waited_for_for_ever(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transactional.runtime.engine.maintenance.STUCK_S", 0)
    bench.state.maintain = held = Held()  # type: ignore[method-assign, assignment]
    bench.runner.maintain(attempt(1))
    assert held.entered.wait(WAIT_S)
    committing(bench, 2)
    bench.runner.report_progress()
    assert bench.no_answer()
    held.let_go.set()


@pytest.mark.parametrize("error", [OSError("the disk is full"), KeyboardInterrupt()])
def test_what_fails_is_logged_and_costs_nothing(
    bench: Bench, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    bench.state.maintain = raising(error)  # type: ignore[method-assign]
    bench.runner.maintain(attempt(1))
    committing(bench, 2)
    assert bench.answer() == CommitSucceeded(attempt(2))
    assert [(each.levelno, "could not be maintained" in each.message) for each in caplog.records] == [
        (logging.ERROR, True)
    ]


def test_who_is_fenced_meanwhile_stops(bench: Bench) -> None:
    fenced = Fenced("another one has taken over")
    bench.state.maintain = raising(fenced)  # type: ignore[method-assign]
    bench.runner.maintain(attempt(1))
    assert bench.answer() == Fatal(fenced)
