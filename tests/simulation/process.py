"""One process that coordinates the topology: the real driver, runner and commit phase; what is around is simulated.

Real are `TopologyDriver.step`, its tick and its fencing, `PhaseRunner`, `CommitPhase`, the coordinator, the
memory store and the rules of the tables; threads, Spark and the source are not. A process can crash before any effect,
and can stand still there and go on much later, when others have taken over (a zombie).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from tests.simulation.changes import CHANGES, SimulatedUpdate, Summing
from tests.simulation.expiring import BEHIND_MS, GONE, Expiring, ExpiringState
from tests.simulation.faults import Wrong, demand
from tests.simulation.pools import SimulatedExecutor, SimulatedPool
from tests.simulation.reliable import Effects
from tests.simulation.segments import SegmentedTable
from tests.simulation.source import OUTPUT
from tests.simulation.stateful import Adding
from tests.simulation.tables import SimulatedTable
from transactional.core.machine.coordinator import ActiveAttempt, Coordinator
from transactional.core.machine.invariants import check
from transactional.core.machine.protocol import (
    Action,
    AttemptEvent,
    AttemptFailed,
    DrainRequested,
    Event,
    PauseRequested,
    PlanBatch,
    ProgressMade,
    ResumeRequested,
    StopRequested,
    Tick,
    Trigger,
)
from transactional.core.ports import UpdateKind
from transactional.core.store.progress import Phase
from transactional.errors import (
    CommitStuck,
    Fenced,
    RetriesExhausted,
    StoreUnavailable,
    TopologyChanged,
    TopologyInUse,
)
from transactional.model.groupings import Grouping, GroupingKind
from transactional.model.schema import Schema
from transactional.runtime.engine.driver import TopologyDriver
from transactional.runtime.engine.fencing import one_by_one
from transactional.runtime.engine.runner import Fatal, PhaseRunner
from transactional.topology.topology import CLOSED, Component, Topology

if TYPE_CHECKING:
    from tests.simulation.harness import Simulation

EXPECTED_ENDS = (Fenced, TopologyInUse, CommitStuck, StoreUnavailable, RetriesExhausted)
"""How a process may end without anything being wrong."""


class Update(SimulatedUpdate):
    """Stands where a state's update would: what it does is done by the simulated executor."""

    combine: Mapping[str, str] = MappingProxyType({})
    aggregates_shown: Mapping[str, str] = MappingProxyType({})
    update_kind = UpdateKind.COMBINED

    def aggregator(self) -> Any:
        """Never used: nothing is emitted in the commit phase."""


UPDATE: Any = Update()
SUMMING: Any = Summing()
NEW_WORDS = (Grouping(GroupingKind.GLOBAL, "words"),)
CLOSED_WORDS = (Grouping(GroupingKind.GLOBAL, "words", stream=CLOSED),)
INPUTS = (Grouping(GroupingKind.GLOBAL, "spout"),)


DELICATE = {"fence": "a process that fences stands still", "write": "a process that writes stands still"}
"""Effects, by their first word, before which standing still has a rate of its own."""
LEAVING_MS_MAX = 10_000
"""How long a process that ends waits for its pools; then somebody kills it."""


def never() -> bool:
    return False


class Crash(BaseException):
    """SIGKILL: no handler of the code under test catches it."""


class Pause:
    """What the driver waits on between two tries of a write: its thread stands still, everything else goes on."""

    def __init__(self, let_time_pass: Callable[[int], None]) -> None:
        self._let_time_pass = let_time_pass

    def wait(self, timeout: float) -> None:
        if timeout:
            self._let_time_pass(round(timeout * 1_000))


class WatchedCoordinator(Coordinator):
    """A coordinator that tells which moves it was asked for, also the late ones."""

    moved: Callable[[tuple[str, str]], None]

    def _move(self, current: ActiveAttempt, trigger: Trigger) -> bool:
        self.moved((current.phase.name, trigger.name))
        return super()._move(current, trigger)


class Process:
    """A process. It is its own clock and its own scheduler; `start` takes the lease."""

    def __init__(self, world: Simulation, number: int) -> None:
        self.world, self.number, self.faults = world, number, world.faults
        self.is_alive, self.is_standing_still = True, False
        self._driver_stands_still = self._is_in_pool = self._driver_has_ended = False
        self.jumped_ms = 0
        self.behind_ms = BEHIND_MS[number % len(BEHIND_MS)] if GONE in world.kinds else 0
        self.pools: list[SimulatedPool] = []
        self.backlog: list[Callable[[], None]] = []
        self.inbox: deque[Event | Fatal] = deque()
        self.store = world.line_class(
            world.store,
            world.faults,
            self.before,
            world.on_commit,
            world.store_is_down,
            world.on_fence,
            world.oracle.record,
        )
        self.driver = TopologyDriver(
            self._topology(),
            self.store,
            self._executor(),
            world.config,
            clock=self,
            observers=[self._observe],
            owner=f"process {number}",
        )
        patched: Any = self.driver.leadership
        patched._pause = Pause(self._let_driver_wait)
        patched._side_by_side = one_by_one

    def _topology(self) -> Topology:
        spout = self.world.spout_class(self.world.source, self.faults, replays_exactly=self.world.replays_exactly)
        letters = self.world.letters_state.of_process(self.before) if self.world.sets_aside else None
        committers = tuple(map(self._committer, self.world.tables))
        guarantee = self.world.shape.guarantee
        return Topology("simulated", "spout", spout, 1, committers, dead_letters=letters, guarantee=guarantee)

    def _committer(self, table: SimulatedTable) -> Component:
        state = self.world.state_of(table).of_process(self.before)
        if table.name in self.world.stateful:
            state.is_stateful = True
            return Component(table.name, Adding(), 1, INPUTS, Schema(()), state)
        if isinstance(state, ExpiringState):
            return Component(table.name, Expiring(state), 1, INPUTS, Schema(()), state, {CLOSED: OUTPUT})
        if table.name == GONE:
            return Component(GONE, SUMMING, 1, CLOSED_WORDS, Schema(()), state)
        if not self.world.in_arrow:
            return Component(table.name, UPDATE, 1, INPUTS, Schema(()), state)
        inputs = NEW_WORDS if table.name == CHANGES else INPUTS
        output = OUTPUT if table.name == "words" and CHANGES in self.world.kinds else Schema(())
        return Component(table.name, SUMMING, 1, inputs, output, state)

    def _executor(self) -> SimulatedExecutor:
        world = self.world
        around = world.source, list(world.kinds), self.faults, self, world.sets_aside, world.stateful
        if isinstance(world.oracle, Effects):
            return world.reliable_class(*around, effects=world.oracle)
        if isinstance(segmented := world.tables[0], SegmentedTable):
            return world.staging_class(*around, table=segmented)
        expiring = "words" if GONE in world.kinds else ""
        return SimulatedExecutor(*around, in_arrow=world.in_arrow, expiring=expiring)

    # --- clock and scheduler ------------------------------------------------------------------------------------

    def monotonic_ms(self) -> int:
        return self.world.now_ms + self.jumped_ms

    def wall_ms(self) -> int:
        return self.world.now_ms - self.behind_ms

    def now_ms(self) -> int:
        return self.world.now_ms

    @property
    def works(self) -> bool:
        stands_still = self.is_standing_still or self._driver_stands_still
        return self.is_alive and not self._driver_has_ended and not stands_still

    def later(self, delay_ms: int, work: Callable[[], None]) -> None:
        """Do something later in a pool, if the process still lives by then; while it stands still, once it goes on."""
        self.world.later(delay_ms, partial(self._wake, work, in_pool=True))

    def later_in_driver(self, delay_ms: int, work: Callable[[], None]) -> None:
        """The same in the driver's thread, which can stand still alone."""
        self.world.later(delay_ms, partial(self._wake, work, in_pool=False))

    def _wake(self, work: Callable[[], None], *, in_pool: bool) -> None:
        if self.is_standing_still or (self._driver_stands_still and not in_pool):
            self.backlog.append(partial(self._wake, work, in_pool=in_pool))
        elif self.is_alive and (in_pool or not self._driver_has_ended):
            before, self._is_in_pool = self._is_in_pool, in_pool
            self.guarded(work)
            self._is_in_pool = before

    def guarded(self, work: Callable[[], None]) -> None:
        """Do something of this process; it may end the process."""
        try:
            work()
        except Crash:
            self.is_alive = False
        except TopologyChanged as error:
            demand(self._is_outdated(), f"process {self.number} is refused: {error}")
            self._end("its topology lacks a committer that has joined")
        except EXPECTED_ENDS as error:
            self._end(f"{type(error).__name__}: {error}", at_once=isinstance(error, CommitStuck))
            self.faults.reached["a commit phase is stuck"] += isinstance(error, CommitStuck)
            if isinstance(error, RetriesExhausted):
                is_outage = "outage_timeout_ms" in str(error)
                why = "what is needed is away for too long" if is_outage else "a transaction fails too often"
                self.faults.reached[why] += 1
            self.faults.reached["the store is down until the lease ends"] += isinstance(error, StoreUnavailable)
        except Exception as error:
            raise Wrong(f"process {self.number} ends with {type(error).__name__}: {error}") from error

    def _is_outdated(self) -> bool:
        """Whether it was started before a committer has joined, and got to take the lease only after that."""
        return {component.id for component in self.driver.topology.components} < self.world.kinds.keys()

    def before(self, effect: str, until: Callable[[], bool] = never) -> None:
        """Called right before anything that others will see. The process may die here, or stand still for long.

        It may go on at the worst moment, which is when `until` holds.
        """
        if self.faults.strikes("the process crashes"):
            self.world.note(self, f"crashes before: {effect}")
            raise Crash
        if self.world.may_stand_still():
            self._stand_still(effect, until if self.faults.random.random() < 0.7 else never)
        self.world.note(self, effect)

    def _stand_still(self, effect: str, until: Callable[[], bool]) -> None:
        """Perhaps: the whole process, or all but its pools."""
        fault = DELICATE.get(effect.partition(" ")[0])
        duration_ms = self.faults.random.choice((100, 1_000, 2_400, 2_600, 2_800, 3_000, 8_000))
        if (fault and self.faults.strikes(fault)) or self.faults.strikes("the process stands still"):
            self.world.note(self, f"stands still before: {effect}")
            self.is_standing_still = True
            self.world.run_for(duration_ms, until)
            self.is_standing_still = False
            self._go_on()
        elif not self._is_in_pool and self.faults.strikes("the driver's thread stands still"):
            self.world.note(self, f"its driver's thread stands still before: {effect}")
            self._let_driver_wait(duration_ms)

    def _let_driver_wait(self, duration_ms: int) -> None:
        self._driver_stands_still = True
        self.world.run_for(duration_ms)
        self._driver_stands_still = False
        self._go_on()

    def _go_on(self) -> None:
        """Take up what has waited, unless the process was killed meanwhile."""
        if not self.is_alive:
            raise Crash
        backlog, self.backlog = self.backlog, []
        for wake in backlog:
            self.world.later(0, wake)

    # --- life ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        driver, config = self.driver, self.world.config
        driver.leadership.take()
        driver.leadership.fence_tables()
        driver.leadership.record_start()
        if self.faults.strikes("old attempts are trimmed"):
            self.store.forget_before(driver.leadership.lease, at_ms=max(0, self.world.now_ms - 5_000))
        coordinator = self.world.coordinator_class(
            driver.leadership.lease.progress,
            config,
            replays_exactly=self.world.replays_exactly,
            sets_aside=self.world.sets_aside,
            guarantee=self.world.shape.guarantee,
        )
        coordinator.moved = self.world.on_move
        driver.begin(coordinator, self._runner())
        self._end_if_done()
        self.later_in_driver(config.tick_ms, self._tick)

    def _runner(self) -> PhaseRunner:
        """The real runner; only its thread pools are others."""
        executor, pending = self.driver.executor, self.world.config.max_spout_pending
        clock = self.driver.clock
        runner = PhaseRunner(
            self.driver.topology, executor, self.post, max_pending=pending, clock=clock, config=self.world.config
        )
        processing = SimulatedPool(
            self, self.faults, 2 * pending, hangs="processing hangs", slow="processing is slow", slow_ms=6_000
        )
        commits = SimulatedPool(
            self, self.faults, 1, hangs="a commit phase hangs", slow="a commit phase is slow", slow_ms=3_000
        )
        self.pools = [SimulatedPool(self, self.faults, 1), processing, commits]
        its_pools: Any = runner
        its_pools._planning, its_pools._processing, its_pools._commits = self.pools
        assert isinstance(executor, SimulatedExecutor)
        executor.pool = processing
        return runner

    def _tick(self) -> None:
        self.driver.tick()
        self._end_if_done()
        self.later_in_driver(self.world.config.tick_ms, self._tick)

    def post(self, event: Event | Fatal) -> None:
        """What the runner's threads answer; taken in order."""
        self.inbox.append(event)
        self.later_in_driver(self.faults.random.randint(0, 5), self._take)

    def _take(self) -> None:
        event = self.inbox.popleft()
        if isinstance(event, Fatal):
            raise event.error
        self.step(event)
        self.faults.reached["progress keeps a slow attempt alive"] += isinstance(event, ProgressMade)
        if isinstance(event, AttemptEvent) and self.faults.strikes("an event comes twice"):
            self.later_in_driver(
                self.faults.random.randint(0, self.faults.random.choice((150, 300, 3_000))), partial(self.step, event)
            )

    def step(self, event: Event) -> None:
        self.world.note(self, event)
        self.driver.step(event)
        self._end_if_done()

    def lose_processed(self) -> None:
        """An executor is lost, and with it what a processing phase has left there; nothing of the attempt runs."""
        for current in list(self.driver.coordinator.active.values()):
            if current.phase is Phase.PROCESSED:
                self.step(AttemptFailed(current.attempt, "its executor is lost"))
                return

    def _observe(self, at_ms: int, event: Event, actions: Sequence[Action]) -> None:
        """Told by the driver after all actions of an event were performed."""
        del at_ms
        if isinstance(event, PauseRequested | ResumeRequested | DrainRequested | StopRequested):
            self.world.note(self, f"obeys: {event}")
        if self.world.verify and (actions or not isinstance(event, Tick)):
            demand(self._obeys(actions), f"process {self.number} issues something new, which it was told not to")
            check(self.driver.coordinator)
            self.world.compare_with_store(self)

    def _obeys(self, actions: Sequence[Action]) -> bool:
        coordinator = self.driver.coordinator
        may_issue = not (coordinator.paused or coordinator.finishing)
        return may_issue or not any(isinstance(action, PlanBatch) and not action.replay for action in actions)

    def _end_if_done(self) -> None:
        if self.driver.coordinator.is_done and not self._driver_has_ended:
            drained = self.driver.has_carried_out and self.driver.coordinator.finishing
            demand(not (drained and self.driver.coordinator.recorded), "what was in flight is left behind by a drain")
            is_asked = self.driver.coordinator.stopping or self.driver.coordinator.finishing
            self.faults.reached[
                "a process stops when asked to" if is_asked else "a process stops when the source is drained"
            ] += 1
            self._end("is done")

    def _end(self, reason: str, *, at_once: bool = False) -> None:
        self.world.note(self, f"ends: {reason}")
        self._driver_has_ended = True
        self._leave(0 if at_once else LEAVING_MS_MAX)

    def _leave(self, left_ms: int) -> None:
        """As the driver does: wait for what runs in the pools, then give the lease back."""
        if left_ms and any(pool.running for pool in self.pools):
            self.faults.reached["a commit phase goes on after its driver has ended"] += bool(self.pools[-1].running)
            self.later(100, partial(self._leave, left_ms - 100))
            return
        self.is_alive = False
        if hasattr(self.driver.leadership, "lease"):
            self.driver.release()
