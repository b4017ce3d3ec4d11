"""`Simulation(seed).run()`: one topology for some simulated seconds, with faults, then without; checked from outside.

One seed is one run, to the byte: a single `random.Random`, no thread, no clock. In the first part faults strike; in the
second they have stopped and everything must get committed.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import count
from random import Random
from types import MappingProxyType

from state.memory import MemoryTable
from tests.simulation.changes import CHANGES
from tests.simulation.expiring import GONE, ExpiringState, ExpiringTable
from tests.simulation.faults import Faults, Wrong, demand
from tests.simulation.oracle import Oracle
from tests.simulation.process import Process, WatchedCoordinator, never
from tests.simulation.reliable import Effects, ReliableExecutor
from tests.simulation.segments import SegmentedState, SegmentedTable, StagingExecutor
from tests.simulation.shapes import Shape, shape_of
from tests.simulation.source import SimulatedSpout, Source, shown
from tests.simulation.store import Line
from tests.simulation.tables import LATE, TOTAL, SimulatedLetters, SimulatedState, SimulatedTable, nowhere
from transactional.core.machine.protocol import (
    AttemptFailed,
    BatchPlanned,
    CommitSucceeded,
    Event,
    ProcessingSucceeded,
    ProgressMade,
    StopRequested,
)
from transactional.core.ports import StateKind
from transactional.core.store import DesiredState
from transactional.core.store.progress import Phase, Progress
from transactional.model.attempt import TransactionAttempt, TxId
from transactional.model.batch import BatchMetadata
from transactional.model.config import TopologyConfig
from transactional.testing import MemoryCoordinatorStore
from transactional.testing.memory_topology import progress_of

FAULTY_MS = 15_000
CALM_MS = 60_000
TAIL = 40
NONE: Mapping[str, float] = MappingProxyType({})


def line_of(what: Event | str) -> str:
    """An event, or anything else that is noted, in few words."""
    match what:
        case str():
            return what
        case BatchPlanned(attempt, batch):
            return f"planned {attempt}: {shown(batch)}"
        case AttemptFailed(attempt, reason):
            return f"failed {attempt}: {reason}"
        case ProcessingSucceeded(attempt) | ProgressMade(attempt) | CommitSucceeded(attempt):
            return f"{type(what).__name__} {attempt}"
        case _:
            return str(what)


def without_results(batch: BatchMetadata) -> BatchMetadata:
    """A batch without what is found out by processing it: not exactly once it is stored with the commit."""
    return replace(batch, digests={}, pending=(), lost=0)


class SimulationFailed(AssertionError):
    """A seed has found something. The message names the seed and shows the end of its event log."""


@dataclass(frozen=True, slots=True)
class Result:
    """What one run did: what it reached, the moves asked of coordinators, and how many transactions were committed."""

    reached: Counter[str]
    moves: Counter[tuple[str, str]]
    transactions: int


class Simulation:
    """One run.

    Mutants come in as another coordinator or another state; they run without `verify`, which checks the coordinator's
    invariants and compares it with the store after each event, so that what is caught is caught by its effects.
    `always` are the rates of faults that the seed does not draw.
    """

    def __init__(
        self,
        seed: int,
        *,
        coordinator: type[WatchedCoordinator] = WatchedCoordinator,
        state: type[SimulatedState] = SimulatedState,
        line: type[Line] = Line,
        source: type[Source] = Source,
        spout: type[SimulatedSpout] = SimulatedSpout,
        store: type[MemoryCoordinatorStore] = MemoryCoordinatorStore,
        reliable: type[ReliableExecutor] = ReliableExecutor,
        segmented: type[SegmentedState] = SegmentedState,
        staging: type[StagingExecutor] = StagingExecutor,
        expiring: type[ExpiringState] = ExpiringState,
        verify: bool = True,
        always: Mapping[str, float] = NONE,
    ) -> None:
        self.seed, self.verify, self.always = seed, verify, always
        self.coordinator_class, self.state_class, self.line_class, self.spout_class = coordinator, state, line, spout
        self.segmented_class, self.staging_class, self.expiring_class = segmented, staging, expiring
        self.reliable_class, self.shape = reliable, shape_of(seed)
        self.random = Random(seed)
        self.reached: Counter[str] = Counter()
        self.moves: Counter[tuple[str, str]] = Counter()
        self.now_ms = 0
        self.log: list[tuple[int, int, Event | str]] = []
        self.faults = Faults(self.random, self.reached)
        self.source = source(self.random)
        self.stateful = ("words",) if self.shape is Shape.STATEFUL else ()
        self.oracle = self._oracle()
        self.store = store(self)
        self.replays_exactly = self.random.random() < 0.4
        names = [] if self.shape.is_reliable else ["words", TOTAL]
        names += [CHANGES] if self.shape is Shape.CHANGES else []
        names += [GONE] if self.shape is Shape.EXPIRING else []
        self.kinds = {name: self._table_kind() for name in names}
        self.tables = [SimulatedTable(name) for name in self.kinds]
        if self.shape is Shape.STAGED:
            self.tables[0] = SegmentedTable("words", now_ms=lambda: self.now_ms)
        if self.shape is Shape.EXPIRING:
            self.tables[0] = ExpiringTable("words")
        self.sets_aside = self.random.random() < 0.3 and not self.shape.is_reliable
        self.letters = MemoryTable("letters")
        self.letters_state = SimulatedLetters(self.letters, nowhere)
        self._states: dict[str, SimulatedState] = {}
        self.config = self._config()
        self.processes: list[Process] = []
        self._queue: list[tuple[int, int, Callable[[], None]]] = []
        self._numbers = count()
        self._standing_still = 0
        self._store_is_down_until_ms = 0
        self._is_finished = False

    def _oracle(self) -> Oracle:
        if self.shape.is_reliable:
            return Effects(self.source, self.faults, self.shape.guarantee)
        oracle = Oracle(self.source, self.stateful)
        oracle.expires = self.shape is Shape.EXPIRING
        return oracle

    def _table_kind(self) -> StateKind:
        """A transactional state is exactly once behind a transactional spout only (row T39)."""
        transactional = self.replays_exactly and self.random.random() < 0.5
        return StateKind.TRANSACTIONAL if transactional else StateKind.OPAQUE

    def _config(self) -> TopologyConfig:
        gives_up = self.sets_aside or self.random.random() < 0.2
        return TopologyConfig(
            attempts_max=self.random.randint(1, 3) if gives_up else None,
            stop_when_drained=self.random.random() < 0.2,
            max_spout_pending=self.random.randint(1, 4),
            outage_timeout_ms=self.random.choice((None, None, 1_500, 4_000)),
            attempt_timeout_ms=3_000,
            commit_timeout_ms=5_000,
            retry_pause_ms=4,
            lease_ms=2_000,
            tick_ms=100,
            keep_attempts_max=(3, 20, 1_000_000)[self.seed % 3],
            message_retries_max=(None, 3)[self.seed % 16 < 8],
        )

    def state_of(self, table: SimulatedTable) -> SimulatedState:
        """The state of a table, for processes to take handles of."""
        if table.name not in self._states:
            self._states[table.name] = self._class_of(table)(table, self.kinds[table.name], nowhere, self.faults)
        return self._states[table.name]

    def _class_of(self, table: SimulatedTable) -> type[SimulatedState]:
        if isinstance(table, ExpiringTable):
            return self.expiring_class
        return self.segmented_class if isinstance(table, SegmentedTable) else self.state_class

    @property
    def in_arrow(self) -> bool:
        """Whether one table gets what another one emits, by the real commit phase."""
        return self.shape in (Shape.CHANGES, Shape.EXPIRING)

    # --- time ---------------------------------------------------------------------------------------------------

    def monotonic_ms(self) -> int:
        """The store's clock."""
        return self.now_ms

    def wall_ms(self) -> int:
        return self.now_ms

    def later(self, delay_ms: int, work: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (self.now_ms + delay_ms, next(self._numbers), work))

    def run_for(self, duration_ms: int, until: Callable[[], bool] = never) -> None:
        """Let time pass, or less when `until` holds; for all but the process that stands still and calls this."""
        self._standing_still += 1
        until_ms = self.now_ms + duration_ms
        while self._queue[0][0] <= until_ms and not until():
            self._next()
        self.now_ms = self.now_ms if until() else max(self.now_ms, until_ms)
        self._standing_still -= 1

    def may_stand_still(self) -> bool:
        return self._standing_still < 2

    def _next(self) -> None:
        at_ms, _, work = heapq.heappop(self._queue)
        self.now_ms = max(self.now_ms, at_ms)
        work()

    # --- the run ------------------------------------------------------------------------------------------------

    def run(self) -> Result:
        """Run. Raises `SimulationFailed`."""
        try:
            self._run()
        except Wrong as wrong:
            raise SimulationFailed(self._report(wrong)) from wrong
        return Result(self.reached, self.moves, self.oracle.txid)

    def _run(self) -> None:
        self.faults.draw(loses=not (self.replays_exactly or self.shape.is_reliable))
        self.faults.drawn.update(self.always)
        self._possible = [(name, self.faults.drawn[name], strike) for name, strike in self._mischief()]
        self._possible = [each for each in self._possible if each[1]]
        for job in (self._supervise, self._grow, self._make_mischief):
            self.later(0, job)
        while self.now_ms < FAULTY_MS:
            self._next()
        self.faults.stop()
        self.source.answer_again()
        self._is_finished = self.oracle.is_everything_committed()
        while not self._is_finished:
            demand(self.now_ms < FAULTY_MS + CALM_MS, "faults have stopped, and yet not everything gets committed")
            self._next()
        self._check_tables()

    def _supervise(self) -> None:
        """Start another process when none is there that works."""
        self.later(300, self._supervise)
        if not any(process.works for process in self.processes):
            self._start()

    def _start(self) -> None:
        process = Process(self, len(self.processes))
        self.processes.append(process)
        process.guarded(process.start)

    def _grow(self) -> None:
        if self.now_ms < FAULTY_MS:
            self.source.grow()
            self.later(self.random.randint(20, self.random.choice((100, 200, 400, 1_500))), self._grow)

    def _make_mischief(self) -> None:
        """Faults that are not a matter of one call."""
        if self.faults.are_over:
            return
        self.later(100, self._make_mischief)
        draw = self.random.random
        for name, rate, strike in self._possible:
            # As `strikes` does; this is asked too often for a call.
            if draw() < rate:
                self.reached[name] += 1
                self.note(None, name)
                strike()

    def _mischief(self) -> list[tuple[str, Callable[[], None]]]:
        return [
            ("the process crashes", lambda: self._on_newest(self._kill)),
            ("what was processed is lost", lambda: self._on_newest(self._lose)),
            ("the clock jumps", lambda: self._on_newest(self._jump)),
            ("an operator deactivates", self._deactivate),
            ("an operator drains", lambda: self._desire(DesiredState.DRAINING)),
            ("an operator kills", lambda: self._desire(DesiredState.KILLED, self.random.choice((0, 500, 3_000)))),
            ("an operator stops", lambda: self._on_newest(lambda process: process.post(StopRequested()))),
            ("a second coordinator is started", self._start),
            ("a committer joins", self._join),
            ("tuples are poison", self.source.poison_some),
            ("the store is down", self._take_store_down),
            ("a partition is added", self.source.add_one_more),
            ("a partition does not answer", self._silence),
            ("retention eats a log", self.source.truncate),
            ("a partition is made anew", self.source.make_anew),
        ]

    def _on_newest(self, strike: Callable[[Process], None]) -> None:
        if self.processes and self.processes[-1].is_alive and hasattr(self.processes[-1].driver, "coordinator"):
            strike(self.processes[-1])

    @staticmethod
    def _kill(process: Process) -> None:
        process.is_alive = False

    @staticmethod
    def _lose(process: Process) -> None:
        process.later_in_driver(0, process.lose_processed)

    def _jump(self, process: Process) -> None:
        process.jumped_ms += self.random.choice((500, 3_500, 6_000))

    def _desire(self, state: DesiredState, wait_ms: int = 0) -> None:
        """Another process says what is to be done; no coordinator is asked."""
        self.note(None, f"desired: {state.value}")
        self.store.desire("simulated", state, wait_ms=wait_ms)

    def _deactivate(self) -> None:
        self._desire(DesiredState.INACTIVE)
        self.later(self.random.randint(0, 4_000), lambda: self._desire(DesiredState.ACTIVE))

    def _take_store_down(self) -> None:
        self._store_is_down_until_ms = self.now_ms + self.random.choice((50, 300, 1_000, 4_000))

    def store_is_down(self) -> bool:
        return self.now_ms < self._store_is_down_until_ms

    def _join(self) -> None:
        """Whoever starts from now on has one more committer; the newest process ends, so that one does start."""
        if LATE not in self.kinds and not self.shape.is_reliable:
            self.kinds[LATE] = self._table_kind()
            self.tables.append(SimulatedTable(LATE))
            self._on_newest(lambda process: process.post(StopRequested()))

    def _silence(self) -> None:
        self.source.fall_silent()
        self.later(self.random.randint(100, 2_000), self.source.answer_again)

    # --- what is checked ----------------------------------------------------------------------------------------

    def on_move(self, move: tuple[str, str]) -> None:
        self.moves[move] += 1

    def on_commit(self, attempt: TransactionAttempt) -> None:
        """A transaction commit is stored: it is the next one, and the tables hold what it should amount to."""
        if attempt.txid == self.oracle.txid:
            return
        records = self.store.attempts("simulated", limit=50)
        batch = next(record.batch for record in records if record.attempt == attempt)
        self.reached["a tuple is set aside"] += bool(batch.excluded)
        self.oracle.commit(attempt.txid, batch)
        self._check_tables()
        self._is_finished = self.faults.are_over and self.oracle.is_everything_committed()

    def on_fence(self, component_id: str, txid: TxId) -> None:
        """The store knows now that a committer has joined."""
        if component_id == LATE and component_id not in self.oracle.joined:
            demand(txid == self.oracle.txid, f"a committer joins at {txid}, while {self.oracle.txid} is committed")
            self.reached["a committer joins late"] += txid > 0
            self.oracle.join(component_id)

    def _check_tables(self) -> None:
        for table in self.tables:
            self.oracle.check(table)
        if self.sets_aside:
            self.oracle.check_letters(self.letters)

    def compare_with_store(self, process: Process) -> None:
        """A coordinator that has the lease, and one that would be started from the store now, know the same.

        What is to be set aside is stored with the next attempt; until then it may be found out anew. What was read of
        an opaque batch is stored once it is committed.
        """
        topology, coordinator = self.store._topologies["simulated"], process.driver.coordinator
        if topology.epoch == process.driver.leadership.lease.epoch:
            stored = progress_of(topology)
            known = (Phase.PROCESSING, Phase.PROCESSED, Phase.COMMITTING)
            stored_now = {txid for txid, current in coordinator.active.items() if current.phase in known}
            recorded = {
                txid: batch if txid in stored_now else replace(batch, excluded=stored.recorded[txid].excluded)
                for txid, batch in coordinator.recorded.items()
            }
            if self.shape.is_reliable:
                recorded = {txid: without_results(batch) for txid, batch in recorded.items()}
                known_there = {txid: without_results(batch) for txid, batch in stored.recorded.items()}
                stored = replace(stored, recorded=known_there)
            elif not coordinator.replays_exactly:
                recorded = {txid: batch.with_digests({}) for txid, batch in recorded.items()}
            live = Progress(coordinator.committed_txid, coordinator._committed_batch, recorded, stored.attempt_id)
            if live != stored:
                raise Wrong(f"the coordinator knows {live}, the store {stored}")

    def note(self, process: Process | None, what: Event | str) -> None:
        """A line of the event log."""
        self.log.append((self.now_ms, process.number if process else -1, what))

    def text(self, last: int = 0) -> str:
        """The event log, or its last lines."""
        return "\n".join(
            f"{at_ms:>6} {f'p{number}' if number >= 0 else '--'} {line_of(what)}"
            for at_ms, number, what in self.log[-last:]
        )

    def _report(self, wrong: Wrong) -> str:
        spout = "transactional" if self.replays_exactly else "opaque"
        rates = ", ".join(f"{name} {rate:.3f}" for name, rate in self.faults.drawn.items() if rate)
        return (
            f"seed {self.seed} ({spout} spout, max_spout_pending {self.config.max_spout_pending}; {rates}): "
            f"{wrong}\nthe last lines of its event log:\n{self.text(TAIL)}"
        )
