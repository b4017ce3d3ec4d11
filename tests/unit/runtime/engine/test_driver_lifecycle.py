"""What people wish of a running topology, said in the store by another process: activate, deactivate, drain, kill."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager

import pytest

from tests.unit.drivers import DRAINED, WAIT_S, Gate, Recorder, World, in_background, silent
from tests.unit.fakes import WORD_COUNTS, stored, words
from transactional.core.machine.protocol import (
    DrainRequested,
    Event,
    PauseRequested,
    PlanBatch,
    ProcessingSucceeded,
    RecordCommit,
    ResumeRequested,
    StartProcessing,
    StopRequested,
    Tick,
)
from transactional.core.ports import Processed
from transactional.core.store import DesiredState
from transactional.errors import ConfigError, Fenced
from transactional.model.attempt import TransactionAttempt
from transactional.model.batch import BatchMetadata
from transactional.model.config import TopologyConfig
from transactional.runtime.engine.driver import LOOK_EVERY_MS, TopologyDriver
from transactional.runtime.engine.history.run_history import RunSummary
from transactional.runtime.executors.local import LocalExecutor
from transactional.testing import ManualClock
from transactional.topology.topology import Topology

ENDLESS = TopologyConfig(max_spout_pending=3, retry_pause_ms=1, idle_pause_ms=1, tick_ms=1)
REQUESTS = PauseRequested | ResumeRequested | DrainRequested | StopRequested


class Operated(World):
    """A world with rows that are added while it runs, and somebody at another process."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = [[("cat",)]]
        self.recorder, self.clock, self.store_clock = Recorder(), ManualClock(), ManualClock()
        self.store._clock = self.store_clock

    def start(self) -> TopologyDriver:
        topology = self.topology(words(self.rows, take=1))
        return self.driver(topology, ENDLESS, clock=self.clock, observers=[self.recorder])

    def desire(self, state: DesiredState, *, wait_ms: int = 0) -> None:
        """Say it; a second later by the driver's clock it is seen."""
        assert self.store.desire("words", state, wait_ms=wait_ms)
        self.clock.advance(LOOK_EVERY_MS)

    def desired(self) -> DesiredState:
        state: DesiredState = self.store.status()[0].desired
        return state

    @property
    def committed(self) -> int:
        return len(self.recorder.of(RecordCommit))

    def requests(self) -> list[Event]:
        return [event for event, _ in self.recorder.lines if isinstance(event, REQUESTS)]

    def wait_for_request(self, event: Event) -> None:
        self.recorder.wait_for(lambda: event in self.requests())


class Held(LocalExecutor):
    """Stops at a gate before each processing phase."""

    def __init__(self, topology: Topology, gate: Gate) -> None:
        super().__init__(topology)
        self.gate = gate

    def run(self, attempt: TransactionAttempt, batch: BatchMetadata) -> Processed:
        self.gate.pass_through()
        return super().run(attempt, batch)


@contextmanager
def running(world: Operated, commits: int = 1) -> Iterator[Future[RunSummary]]:
    """A run that has committed so much."""
    with in_background(world.start()) as run:
        world.recorder.wait_for(lambda: world.committed == commits)
        yield run


def test_a_deactivated_topology_issues_nothing_new_until_it_is_activated() -> None:
    """Storm row T32."""
    world = Operated()
    with running(world):
        world.desire(DesiredState.INACTIVE)
        world.wait_for_request(PauseRequested())
        asked = len(world.recorder.of(PlanBatch))
        world.rows[0].append(("dog",))
        world.clock.advance(100 * LOOK_EVERY_MS)
        world.recorder.wait_for_more(5)
        assert len(world.recorder.of(PlanBatch)) == asked
        assert world.requests() == [PauseRequested()], "it is told once"
        world.desire(DesiredState.ACTIVE)
        world.recorder.wait_for(lambda: world.committed == 2)
    assert stored(world.counts) == {"cat": 1, "dog": 1}


def test_a_run_may_begin_inactive() -> None:
    """Storm's `--inactive`: submitted, and active only when somebody says so."""
    world = Operated()
    topology = world.topology(words(world.rows, take=1))
    driver = world.driver(topology, ENDLESS, clock=world.clock, observers=[world.recorder], inactive=True)
    with in_background(driver):
        world.wait_for_request(PauseRequested())
        world.clock.advance(100 * LOOK_EVERY_MS)
        world.recorder.wait_for_more(5)
        assert world.desired() is DesiredState.INACTIVE
        assert not world.recorder.of(PlanBatch)
        world.desire(DesiredState.ACTIVE)
        world.recorder.wait_for(lambda: world.committed == 1)
    assert stored(world.counts) == {"cat": 1}


def test_a_standby_can_not_begin_inactive() -> None:
    world = Operated()
    with pytest.raises(ConfigError, match="a run that begins inactive can't stand by"):
        world.driver(world.topology(words(world.rows, take=1)), ENDLESS, standby=True, inactive=True)


def test_a_deactivated_topology_that_is_started_again_stays_inactive() -> None:
    """What was in flight is finished all the same."""
    world = Operated()
    with running(world):
        pass
    world.store.desire("words", DesiredState.INACTIVE)
    world.rows[0].append(("dog",))
    world.recorder = Recorder()
    with in_background(world.start()) as run:
        world.recorder.wait_for_more(5)
        assert [type(event) for event, _ in world.recorder.lines[:2]] == [PauseRequested, Tick]
        assert not world.recorder.of(PlanBatch)
        world.desire(DesiredState.ACTIVE)
        world.recorder.wait_for(lambda: world.committed == 1)
        assert not run.done()


def test_a_drained_run_commits_what_is_in_flight_and_ends_and_the_next_one_is_active() -> None:
    world, gate = Operated(), Gate()
    world.rows[0] += [("dog",), ("owl",)]
    driver = world.start()
    world.states["counts"].before = lambda attempt: gate.pass_through() if attempt.txid == 1 else None
    with in_background(driver) as run:
        world.recorder.wait_for(lambda: len(world.recorder.of(StartProcessing)) == 3)
        gate.wait_until_entered()
        world.rows[0].append(("cow",))
        world.desire(DesiredState.DRAINING)
        world.wait_for_request(DrainRequested())
        assert (world.desired(), run.done()) == (DesiredState.DRAINING, False)
        gate.opened.set()
        assert run.result(WAIT_S) == RunSummary(1, 3, 0)  # type: ignore[arg-type]
    assert (world.desired(), world.is_leased) == (DesiredState.ACTIVE, False)
    world.recorder = Recorder()
    with running(world):
        assert world.requests() == []
    assert stored(world.counts) == {"cat": 1, "dog": 1, "owl": 1, "cow": 1}


def test_a_killed_run_has_time_to_finish_and_is_stopped_then() -> None:
    """Storm row O5: deactivate, wait, kill."""
    world = Operated()
    with running(world) as run:
        world.desire(DesiredState.KILLED, wait_ms=5_000)
        world.wait_for_request(PauseRequested())
        world.store_clock.advance(4_999)
        world.clock.advance(LOOK_EVERY_MS)
        world.recorder.wait_for_more(3)
        assert (world.requests(), world.desired()) == ([PauseRequested()], DesiredState.KILLED)
        world.store_clock.advance(1)
        world.clock.advance(LOOK_EVERY_MS)
        assert run.result(WAIT_S).transactions == 1
    assert world.requests()[:2] == [PauseRequested(), StopRequested()]
    assert (world.desired(), world.is_leased) == (DesiredState.ACTIVE, False)


def test_a_kill_without_a_wait_gives_up_what_is_in_its_processing_phase() -> None:
    world, gate = Operated(), Gate()
    driver = world.start()
    driver.executor = Held(driver.topology, gate)
    with in_background(driver) as run:
        gate.wait_until_entered()
        world.desire(DesiredState.KILLED)
        world.wait_for_request(StopRequested())
        gate.opened.set()
        assert run.result(WAIT_S).transactions == 0
    assert world.desired() is DesiredState.ACTIVE


def test_a_kill_can_be_called_off_while_it_waits() -> None:
    world = Operated()
    with running(world) as run:
        world.desire(DesiredState.KILLED, wait_ms=5_000)
        world.wait_for_request(PauseRequested())
        world.desire(DesiredState.ACTIVE)
        world.wait_for_request(ResumeRequested())
        world.store_clock.advance(10_000)
        world.rows[0].append(("dog",))
        world.clock.advance(LOOK_EVERY_MS)
        world.recorder.wait_for(lambda: world.committed == 2)
        assert not run.done()


def test_who_is_interrupted_during_a_drain_leaves_the_rest_of_it_to_the_next_run() -> None:
    world, gate = Operated(), Gate()
    driver = world.start()
    world.states["counts"].before = lambda attempt: gate.pass_through()
    with in_background(driver) as run:
        gate.wait_until_entered()
        world.desire(DesiredState.DRAINING)
        world.wait_for_request(DrainRequested())
        driver.stop()
        world.wait_for_request(StopRequested())
        gate.opened.set()
        run.result(WAIT_S)
    assert world.desired() is DesiredState.DRAINING
    world.rows[0].append(("dog",))
    world.recorder = Recorder()
    assert world.start().run().transactions == 0
    assert world.desired() is DesiredState.ACTIVE
    assert stored(world.counts) == {"cat": 1}


def test_a_drain_whose_last_write_fails_is_not_carried_out() -> None:
    world, gate = Operated(), Gate()
    driver = world.start()
    world.states["counts"].before = lambda attempt: gate.pass_through()

    def die(call: str) -> None:
        if call == "record_commit":
            raise Fenced("died")

    with in_background(driver) as run:
        gate.wait_until_entered()
        world.desire(DesiredState.DRAINING)
        world.wait_for_request(DrainRequested())
        world.store.before = die
        gate.opened.set()
        with pytest.raises(Fenced):
            run.result(WAIT_S)
    assert world.desired() is DesiredState.DRAINING
    world.store.before = lambda call: None
    world.recorder = Recorder()
    assert world.start().run().transactions == 1
    assert (world.desired(), stored(world.counts)) == (DesiredState.ACTIVE, {"cat": 1})


def test_the_store_is_asked_once_a_second_and_not_for_each_transaction() -> None:
    world = Operated()
    world.rows[0] += [("cat",)] * 50
    asked: list[str] = []
    world.store.before = lambda call: asked.append(call) if call == "desired" else None
    with running(world, commits=51):
        assert asked == []
        for number in (1, 2, 3):
            world.clock.advance(LOOK_EVERY_MS)
            world.recorder.wait_for(lambda number=number: len(asked) == number)  # type: ignore[misc]
            world.recorder.wait_for_more(3)
            assert len(asked) == number


def test_a_store_that_does_not_answer_is_read_again_later() -> None:
    world = Operated()
    world.store.before = silent("desired", 2)
    with running(world) as run:
        for _ in range(2):
            world.desire(DesiredState.DRAINING)
            world.recorder.wait_for_more(3)
            assert world.requests() == []
        world.clock.advance(LOOK_EVERY_MS)
        assert run.result(WAIT_S).transactions == 1


def test_a_run_has_a_name() -> None:
    world = World()
    world.run(name="deploy-7")
    assert world.store.status()[0].name == "deploy-7"
    world.run()
    assert world.store.status()[0].name is None
    assert stored(world.counts) == WORD_COUNTS


def test_drained_by_the_source_a_deactivated_run_goes_on_waiting() -> None:
    """`stop_when_drained` needs an answer of the source, and it is not asked."""
    world, recorder = World(), Recorder()
    world.run()
    world.store.desire("words", DesiredState.INACTIVE)
    driver = world.driver(config=DRAINED, observers=[recorder])
    ended = threading.Event()
    with in_background(driver) as run:
        run.add_done_callback(lambda _: ended.set())
        recorder.wait_for_more(5)
        assert not ended.is_set()
        assert not any(isinstance(event, ProcessingSucceeded) for event, _ in recorder.lines)
