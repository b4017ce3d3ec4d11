"""A world of windows: one topology, step by step, with whatever may go wrong, and what must have come of it.

Real are the coordinator, the driver and its fencing, the runner's planning, the tasks, the commit phase and the states;
threads are not: what the runner submits waits until the world picks it, in any order. One seed is one run.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

from spouts.memory import MemoryTransactionalSpout, OpaqueMemoryTransactionalSpout
from state.memory import MemoryMapState, MemoryTable
from tests.windows.plain import SECOND, Committed, Plain, Read
from transactional.core.machine.coordinator import Coordinator
from transactional.core.ports import StateKind
from transactional.core.store import AttemptRecord
from transactional.errors import FailedException
from transactional.model.attempt import TransactionAttempt
from transactional.model.batch import BatchMetadata
from transactional.model.config import TopologyConfig
from transactional.runtime.engine.driver import TopologyDriver
from transactional.runtime.engine.runner import Fatal, PhaseRunner
from transactional.runtime.executors.local import LocalExecutor
from transactional.runtime.tasks.step_work import StepAnswer, StepWork
from transactional.testing import ManualClock, MemoryCoordinatorStore
from transactional.topology.topology import Topology
from transactional.trident import Count, Max, Sum, TridentTopology, session, sliding, tumbling

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
START = datetime(2026, 5, 1, tzinfo=UTC)
START_MS = (START - EPOCH) // timedelta(milliseconds=1)
FIELDS = "id long, page string, at timestamp, clicks long"
PAGES = ("home", "news", "about")
WINDOWS = ((10, 10), (10, 10), (7, 7), (12, 4), (10, 4))
"""Lengths and slides, in seconds."""
ABSURD = (None, datetime(2090, 1, 1, tzinfo=UTC), datetime(90, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, tzinfo=UTC))
SESSIONS: tuple[tuple[int | None, int], ...] = ((None, 0), (None, 0), (4, 3_600), (1, 3_600), (3, 6))
"""Gaps and greatest lengths, in seconds. None: other windows. The last ones are cut, where depends on the batches."""
PARTITIONS_MAX = 4
FAULTY_STEPS = 90
CALM_STEPS_MAX = 4_000


class Crash(BaseException):
    """The process dies here: no handler of the code under test catches it."""


class Pool:
    """What was submitted, until the world picks it."""

    def __init__(self, waiting: list[tuple[Future[Any], Callable[[], Any]]]) -> None:
        self.waiting = waiting

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.waiting.append((future, lambda: function(*arguments)))
        return future


class Fails:
    """A bolt that fails now and then, in the world that runs."""

    world: World

    def __call__(self, row: Any) -> bool:
        return type(self).world.may_fail()


class Flaky:
    """A state during whose writes the process may die, before it writes to the table, or after."""

    world: World

    def merge(self, attempt: TransactionAttempt, partials: Any) -> None:
        """Write, unless it crashes."""
        self.world.may_crash("before a write")
        super().merge(attempt, partials)  # type: ignore[misc]
        self.clean_up(attempt)
        self.world.may_crash("after a write")

    def put(self, attempt: TransactionAttempt, rows: Any) -> None:
        """The same."""
        self.world.may_crash("before a write")
        super().put(attempt, rows)  # type: ignore[misc]
        self.world.may_crash("after a write")

    def clean_up(self, attempt: TransactionAttempt) -> None:
        """What a state does with rows that nobody needs any more; this one leaves that to the write."""


class FlakyState(Flaky, MemoryMapState):
    """In memory."""


class NotingRunner(PhaseRunner):
    """Notes what was committed when a batch was to be planned, and when it was."""

    world: World

    def plan(self, attempt: TransactionAttempt, after: BatchMetadata, **how: Any) -> None:
        """Note, then plan some time."""
        coordinator = self.world.process.coordinator
        self.world.known[attempt.txid] = coordinator.committed_txid
        self.world.in_flight_then[attempt.txid] = tuple(
            (partition.index, batch.facts.time_ms * 1_000)
            for batch in coordinator.recorded.values()
            for partition, offsets in batch.ranges.items()
            if batch.facts is not None and offsets.start < offsets.until
        )
        super().plan(attempt, after, **how)

    def _plan(self, attempt: TransactionAttempt, after: BatchMetadata, *arguments: Any, **how: Any) -> Any:
        self.world.planned_at_ms[attempt.txid] = self.clock.wall_ms()
        read = {partition.index: offset for partition, offset in after.positions().items()}
        self.world.listed_then[attempt.txid] = tuple(
            (
                number,
                "unknown"
                if number in self.world.away
                else "something"
                if len(rows) > read.get(number, 0)
                else "nothing",
            )
            for number, rows in self.world.rows.items()
        )
        return super()._plan(attempt, after, *arguments, **how)


class NotingExecutor(LocalExecutor):
    """Notes that windows were closed by tasks, each for its part of the keys."""

    world: World

    def run_step(self, work: StepWork) -> list[StepAnswer]:
        """Note, then run."""
        done = super().run_step(work)
        self.world.reached["tasks close windows"] += sum(1 for each in done if each.received) > 1
        return done


@dataclass(frozen=True, slots=True)
class Parts:
    """What a world is made of; wrong parts show that a world finds them."""

    state: Callable[[World, str, StateKind], Any] = lambda world, name, kind: FlakyState(
        table=world.tables[name], kind=kind
    )
    runner: type[NotingRunner] = NotingRunner
    executor: type[NotingExecutor] = NotingExecutor


class World:
    """One run."""

    names: tuple[str, ...] = ("open", "closed", "late")
    """Of the tables."""
    has_sessions = True
    """Whether some of these worlds have sessions in place of windows."""

    def __init__(self, seed: int, parts: Parts | None = None) -> None:
        self.seed, self.parts, Fails.world = seed, parts or Parts(), self
        self.random = random = Random(seed)
        self.reached: Counter[str] = Counter()
        self.is_opaque = random.random() < 0.6
        self.by_transaction = random.random() < 0.15
        self.length_s, self.every_s = random.choice(WINDOWS)
        gap_s, self.longest_s = random.choice(SESSIONS)
        self.gap_s = gap_s if self.has_sessions else None
        self.max_delay_s = random.choice((0, 0, 3, 10))
        self.idle_after_s = random.choice((None, 5, 20))
        self.crash_rate = random.choice((0.0, 0.03, 0.08))
        self.failure_rate = random.choice((0.0, 0.05, 0.2))
        self.in_flight = random.choice((1, 2, 3, 5))
        self.step_ms = random.choice((100, 500, 2_000))
        self.behind_s = [random.choice((0, 0, 2, 15)) for _ in range(PARTITIONS_MAX)]
        self.rows: dict[int, list[tuple[Any, ...]]] = {number: [] for number in range(random.randint(1, 3))}
        self.tick_ms = random.choice((None, 300, 5_000))
        self.quiet: set[int] = set()
        self.is_calm = False
        self.clock = ManualClock(wall_ms=START_MS)
        self.store = MemoryCoordinatorStore()
        self.tables: dict[str, MemoryTable] = {name: MemoryTable(name) for name in self.names}
        self.known: dict[int, int] = {}
        self.planned_at_ms: dict[int, int] = {}
        self.in_flight_then: dict[int, tuple[tuple[int, int], ...]] = {}
        self.listed_then: dict[int, tuple[tuple[int, str], ...]] = {}
        self.away: set[int] = set()
        self.ids = 0
        self.commit_steps = Random(f"steps of {seed}").choice(("driver", "jobs"))
        self.start()

    # --- processes ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """A process takes over, after whatever the one before has left."""
        self.waiting: list[tuple[Future[Any], Callable[[], Any]]] = []
        self.events: list[Any] = []
        config = TopologyConfig(
            max_spout_pending=self.in_flight,
            attempt_timeout_ms=100_000_000,
            commit_timeout_ms=100_000_000,
            retry_pause_ms=1,
            idle_pause_ms=1,
            lease_ms=100_000_000,
            window_tick_ms=self.tick_ms,
            stop_when_drained=self.is_calm,
            commit_steps=self.commit_steps,
        )
        topology = self.topology()
        executor = self.parts.executor(topology)
        executor.world = self
        self.process = TopologyDriver(topology, self.store, executor, config, clock=self.clock, owner="world")
        topology.spout.open()
        self.process.leadership.take()
        self.process.leadership.fence_tables()
        self.process.leadership.record_start()
        runner = self.parts.runner(
            topology,
            self.process.executor,
            self.events.append,
            max_pending=self.in_flight,
            commit_phase=self.process.commit_phase,
            clock=self.clock,
            config=config,
        )
        runner.world = self
        pools: Any = runner
        pools._planning = pools._processing = pools._commits = Pool(self.waiting)
        exactly, progress = topology.spout.replays_exactly, self.process.leadership.lease.progress
        self.process.begin(Coordinator(progress, config, replays_exactly=exactly, has_windows=True), runner)

    def topology(self) -> Topology:
        """Counts by page and window, what has closed, how often, and what was late."""
        made = TridentTopology("windows", parallelism=self.random.choice((1, 2)))
        kind = OpaqueMemoryTransactionalSpout if self.is_opaque else MemoryTransactionalSpout
        self.spout: Any = kind(self.rows, FIELDS, 3)
        idle = None if self.idle_after_s is None else timedelta(seconds=self.idle_after_s)
        stream = made.new_stream(
            "clicks", self.spout, event_time="at", max_delay=timedelta(seconds=self.max_delay_s), idle_after=idle
        ).filter(Fails())
        length, every = timedelta(seconds=self.length_s), timedelta(seconds=self.every_s)
        time = "transaction" if self.by_transaction else "event"
        window: Any = tumbling(length, time=time) if length == every else sliding(length, every=every, time=time)
        if self.gap_s is not None:
            window = session(timedelta(seconds=self.gap_s), longest=timedelta(seconds=self.longest_s), time=time)
        windows = stream.group_by("page").window(window)
        state = windows.persistent_aggregate(self.state("open"), count=Count(), clicks=Sum("clicks"))
        closed = state.closed().group_by("page", "window_start")
        sums: dict[str, Any] = {name: Sum(name) for name in ("count", "clicks")}
        closed.persistent_aggregate(self.state("closed"), times=Count(), end=Max("window_end"), **sums)
        self.go_further(state)
        if not self.by_transaction:
            state.late().group_by("id").persistent_aggregate(self.state("late"), Count())
        return made.build(strict=True)

    def go_further(self, windows: Any) -> None:
        """What else is made of the windows."""

    def state(self, name: str) -> Any:
        """A state over one of the tables, which outlive processes."""
        kind = StateKind.OPAQUE if self.is_opaque or self.random.random() < 0.5 else StateKind.TRANSACTIONAL
        state = self.parts.state(self, name, self.kinds.setdefault(name, kind))
        state.world = self
        return state

    @property
    def kinds(self) -> dict[str, StateKind]:
        """Of each state, as it was made first."""
        if not hasattr(self, "_kinds"):
            self._kinds = dict[str, StateKind]()
        return self._kinds

    # --- faults ---------------------------------------------------------------------------------------------------

    def may_crash(self, where: str) -> None:
        """Die, perhaps."""
        if not self.is_calm and self.random.random() < self.crash_rate:
            self.reached[f"crash {where}"] += 1
            raise Crash

    def may_fail(self) -> bool:
        """Fail, perhaps."""
        if not self.is_calm and self.random.random() < self.failure_rate / 3:
            self.reached["failure"] += 1
            raise FailedException("some failure")
        return True

    # --- the source -----------------------------------------------------------------------------------------------

    def grow(self) -> None:
        """Partitions get records, appear, fall quiet, and come back; an opaque source cuts batches as it likes."""
        random = self.random
        if len(self.rows) < PARTITIONS_MAX and random.random() < 0.03:
            self.rows[len(self.rows)] = []
            self.reached["a partition appears"] += 1
        for number in self.rows:
            if random.random() < 0.05:
                self.quiet ^= {number}
            if number not in self.quiet and random.random() < 0.6:
                self.rows[number] += [self.record(number) for _ in range(random.choice((0, 1, 2, 5)))]
            if self.is_opaque:
                self.let(number, away=random.random() < 0.15)
        self.spout.take = random.choice((1, 2, 3, 8))

    def let(self, number: int, *, away: bool) -> None:
        """A partition answers, or it does not."""
        (self.away.add if away else self.away.discard)(number)
        if self.is_opaque:
            self.spout.set_disabled(number, disabled=away)

    def record(self, partition: int) -> tuple[Any, ...]:
        """Mostly a bit behind the clock, sometimes absurd."""
        random = self.random
        self.ids += 1
        behind = self.behind_s[partition] + random.choice((0, 1, 2, 5, 12)) + random.random()
        at = START + timedelta(milliseconds=self.clock.wall_ms() - START_MS) - timedelta(seconds=round(behind, 3))
        return (
            self.ids,
            random.choice(PAGES),
            random.choice(ABSURD) if random.random() < 0.04 else at,
            random.randint(1, 9),
        )

    # --- the run --------------------------------------------------------------------------------------------------

    def run(self) -> Counter[str]:
        """Faults first, then calm until everything is committed; then look."""
        for _ in range(FAULTY_STEPS):
            self.grow()
            self.clock.advance(self.random.randint(0, self.step_ms))
            self.go_on()
            if not self.is_calm and self.random.random() < self.crash_rate / 2:
                self.reached["crash between two steps"] += 1
                self.start()
        self.is_calm = True
        for number in self.rows:
            self.let(number, away=False)
        self.start()
        for _ in range(CALM_STEPS_MAX):
            if self.process.coordinator.is_done:
                break
            self.clock.advance(5)
            self.go_on()
        assert self.process.coordinator.is_done, "the world does not come to rest"
        self.check()
        return self.reached

    def go_on(self) -> None:
        """One tick, and some of what waits."""
        try:
            self.process.tick()
            for _ in range(self.random.randint(1, 4)):
                if self.waiting:
                    future, work = self.waiting.pop(self.random.randrange(len(self.waiting)))
                    if future.set_running_or_notify_cancel():
                        future.set_result(work())
                while self.events:
                    event = self.events.pop(0)
                    if isinstance(event, Fatal):
                        raise event.error
                    self.process.step(event)
        except Crash:
            self.start()

    # --- what must have come of it --------------------------------------------------------------------------------

    def check(self) -> None:
        """All tables are what plain Python makes of what was committed, and no tuple is missing or counted twice."""
        committed = self.committed()
        history = [self.told(record) for record in committed]
        us = SECOND
        idle = None if self.idle_after_s is None else self.idle_after_s * us
        plain = Plain(
            self.length_s * us, self.every_s * us, self.max_delay_s * us, idle, 3_600 * us, self.by_transaction
        )
        plain.gap = None if self.gap_s is None else self.gap_s * us
        plain.commit_all(history)
        self.plain = plain
        assert sorted(read.id for each in history for read in each.tuples) == list(range(1, self.ids + 1))
        for record, time, threshold in zip(committed, plain.times, plain.thresholds, strict=True):
            facts = record.batch.facts
            assert facts is not None
            assert facts.time_ms * 1_000 == time
            assert self.by_transaction or facts.watermark_us == threshold, f"watermark of {record.attempt}"
        reported = [(record.details or {})["late"] for record in committed if "late" in (record.details or {})]
        assert sum(each["open"] for each in reported) == self.reported_late(plain), "late tuples, as they are reported"
        if not self.by_transaction and history:
            assert plain.left_to_close(history[-1]) == [], "the run has ended before its windows have closed"
        self.check_tables(plain)
        if self.is_in_one:
            counted = sum(count for count, _ in (*plain.windows.values(), *plain.closed.values()))
            assert counted + len(plain.late) == self.ids
        self.reached["windows closed"] += len(plain.closed)
        self.reached["windows open"] += len(plain.windows)
        self.reached["sessions became one"] += plain.became_one
        self.reached["late tuples"] += len(plain.late)
        self.reached["waited for a partition without a record"] += plain.held
        self.reached["transactions"] += len(history)
        self.reached["transactions without a tuple"] += sum(not each.tuples for each in history)

    def reported_late(self, plain: Plain) -> int:
        """How many tuples are said to be late."""
        return len(plain.late)

    def check_tables(self, plain: Plain) -> None:
        """As they are now."""
        closed = {(row["page"], since_1970(row["window_start"])): row for row in self.rows_of("closed")}
        if self.are_cut:
            self.check_cut(plain, closed)
            return
        assert {key: (row["count"], row["clicks"]) for key, row in closed.items()} == plain.closed
        assert all(row["times"] == 1 for row in closed.values()), "a window has closed more than once"
        late = {row["id"]: row["count"] for row in self.rows_of("late")} if not self.by_transaction else {}
        assert late == Counter(plain.late)
        if self.is_in_one:
            found = {
                (r["page"], since_1970(r["window_start"])): (r["count"], r["clicks"]) for r in self.rows_of("open")
            }
            assert found == plain.windows

    @property
    def is_in_one(self) -> bool:
        """Whether each tuple is in one window."""
        return self.gap_s is not None or self.length_s == self.every_s

    @property
    def are_cut(self) -> bool:
        """Whether sessions would be longer than they may be."""
        return self.gap_s is not None and self.longest_s < 3_600

    def check_cut(self, plain: Plain, closed: dict[tuple[str, int], Any]) -> None:
        """Sessions that may not be longer: the same tuples are in them, each in one, and none is longer."""
        assert all(row["times"] == 1 for row in closed.values()), "a session has closed more than once"
        late = {row["id"]: row["count"] for row in self.rows_of("late")} if not self.by_transaction else {}
        assert late == Counter(plain.late)
        found, expected = Counter[str](), Counter[str]()
        for row in (*closed.values(), *self.rows_of("open")):
            found[row["page"]] += row["count"]
            end = row.get("window_end")
            assert end is None or end - row["window_start"] <= timedelta(seconds=self.longest_s)
        for (page, _), (count, _clicks) in (*plain.windows.items(), *plain.closed.items()):
            expected[page] += count
        assert found == expected

    def rows_of(self, name: str) -> list[dict[str, Any]]:
        """The rows of a table, as a reader sees them."""
        state = next(c.state for c in self.process.topology.committers if c.id == name)
        rows: list[dict[str, Any]] = state.read().to_pylist()  # type: ignore[union-attr]
        return rows

    def committed(self) -> list[AttemptRecord]:
        """In order."""
        records = [r for r in self.store.attempts("windows", limit=100_000) if r.phase == "committed"]
        return sorted(records, key=lambda record: record.attempt.txid)

    def told(self, record: AttemptRecord) -> Committed:
        """A committed transaction for plain Python."""
        tuples = []
        for partition, offsets in record.batch.ranges.items():
            for id_, page, at, clicks in self.rows[partition.index][offsets.start : offsets.until]:
                tuples.append(Read(id_, page, clicks, None if at is None else since_1970(at), partition.index))
        txid = record.attempt.txid
        return Committed(
            txid,
            self.known[txid],
            self.planned_at_ms[txid],
            tuple(tuples),
            self.in_flight_then[txid],
            self.listed_then[txid],
        )


def since_1970(time: datetime) -> int:
    """In microseconds."""
    return (time - EPOCH) // timedelta(microseconds=1)


def run_seeds(
    first: int, count: int, parts: Parts | None = None, world: Callable[[int, Parts | None], World] | None = None
) -> Counter[str]:
    """Many worlds; what they have reached together. An error names its seed."""
    reached: Counter[str] = Counter()
    # A crash in a world is no news.
    logging.disable(logging.ERROR)
    try:
        for seed in range(first, first + count):
            try:
                reached += (world or World)(seed, parts).run()
            except Exception as error:
                raise AssertionError(f"seed {seed}: {type(error).__name__}: {error}") from error
    finally:
        logging.disable(logging.NOTSET)
    return reached
