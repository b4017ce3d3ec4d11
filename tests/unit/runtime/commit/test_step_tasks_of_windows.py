"""Windows that close as the work of tasks: the same tables and the same windows as in the driver."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from spouts import OpaqueMemoryTransactionalSpout
from state import DeltaMapState, MemoryMapState
from state.delta.segments.log_layout import LogLayout
from state.delta.tables.staging import STAGED_FOLDER
from transactional.core.machine.report import CommitReport
from transactional.core.ports import Processed
from transactional.errors import AttemptLost, RetriesExhausted
from transactional.model.attempt import TransactionAttempt
from transactional.model.config import TopologyConfig
from transactional.runtime.commit.committing import CommitPhase
from transactional.runtime.engine.driver import TopologyDriver
from transactional.runtime.executors.local import LocalExecutor
from transactional.runtime.processing.staging import find_stagers
from transactional.runtime.tasks.step_work import StepAnswer, StepWork
from transactional.testing import MemoryCoordinatorStore
from transactional.topology.steps import plan_steps
from transactional.topology.topology import CLOSED, Topology
from transactional.trident import Count, Last, Max, TridentTopology, sliding, tumbling

START = datetime(2026, 5, 1, tzinfo=UTC)
FIELDS = "page string, at timestamp, user long"
WINDOWS = {"tumbling": tumbling("10 seconds"), "sliding": sliding("12 seconds", every="4 seconds")}
STAGED = LogLayout(staged_bytes=0, compact_after=2)


def clicks(seed: int) -> list[tuple[Any, ...]]:
    """Pages, some without a name, at times that grow, more or less."""
    rng = random.Random(seed)
    pages = [None, *(f"page {number}" for number in range(12))]
    return [
        (rng.choice(pages), START + timedelta(seconds=n / 3 - rng.random() * 2), rng.choice((None, 1, 2, 3)))
        for n in range(300)
    ]


def topology_of(
    make: Callable[[str, Any], Any], window: Any, rows: list[tuple[Any, ...]], *, tasks: int = 3, last: bool = False
) -> Topology:
    """Windows that close are put, and counted, in a state each; maybe the `last` of a page is kept, too."""
    topology = TridentTopology("windows", parallelism=tasks)
    spout = OpaqueMemoryTransactionalSpout([rows[::2], rows[1::2]], FIELDS, take=15)
    stream = topology.new_stream("clicks", spout, event_time="at", max_delay="1 second")
    counts = (
        stream.group_by("page")
        .window(window)
        .persistent_aggregate(make("open", None), n=Count(), most=Max("user"), name="open")
    )
    counts.closed().persist(make("closed", ("page", "window_start")), name="closed")
    counts.closed().group_by("page").persistent_aggregate(make("windows", None), Count(), name="windows")
    if last:
        counts.closed().group_by("page").persistent_aggregate(make("last", None), Last("n"), name="last")
    return topology.build(strict=True)


class Executor(LocalExecutor):
    """Counts steps that run as jobs, and may change what tasks answer."""

    def __init__(self, topology: Topology, record: Any, change: Change | None = None) -> None:
        super().__init__(topology, record=record)
        self.steps, self._change = 0, change

    def run_step(self, work: StepWork) -> list[StepAnswer]:
        self.steps += 1
        return super().run_step(work) if self._change is None else self._change(self, work)

    def as_it_is(self, work: StepWork) -> list[StepAnswer]:
        return super().run_step(work)


Change = Callable[[Executor, StepWork], list[StepAnswer]]


class Repeating(CommitPhase):
    """Each transaction fails once, when all its states are written."""

    last = 0

    def run(self, attempt: TransactionAttempt, processed: Processed) -> CommitReport:
        report = super().run(attempt, processed)
        if self.last < attempt.txid:
            self.last = attempt.txid
            raise AttemptLost("it died before its transaction commit")
        return report


def found(
    topology: Topology,
    choice: str,
    change: Change | None = None,
    *,
    is_sorted: bool = True,
    kind: type[CommitPhase] = CommitPhase,
) -> dict[str, list[Any]]:
    """The tables, and what has closed, sorted, as nobody depends on the order, or as it was emitted."""
    closed = list[Any]()

    def record(attempt: TransactionAttempt, component: str, stream: str, batch: pa.RecordBatch) -> None:
        if stream == CLOSED:
            closed.extend(row.values() for row in batch.to_pylist())

    executor = Executor(topology, record, change)
    phase = kind(topology, record=record, jobs=executor, choice=choice)
    config = TopologyConfig(stop_when_drained=True, attempts_max=1, retry_pause_ms=1, tick_ms=10)
    TopologyDriver(topology, MemoryCoordinatorStore(), executor, config, commit_phase=phase).run()
    assert bool(executor.steps) == (choice == "jobs")
    states: dict[str, Any] = {component.id: component.state for component in topology.committers}
    tables = {name: in_order(map(dict.values, state.read().to_pylist())) for name, state in states.items()}
    return {**tables, "emitted": in_order(closed) if is_sorted else list(map(list, closed))}


def in_order(rows: Any) -> list[Any]:
    return sorted(map(list, rows), key=repr)


def in_memory(name: str, key: Any) -> MemoryMapState:
    return MemoryMapState(key)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("shape", WINDOWS)
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("layout", [None, "merge", STAGED], ids=["memory", "merge", "staged"])
def test_tasks_close_what_the_driver_closes(shape: str, seed: int, layout: Any, tmp_path: Path) -> None:
    rows, window = clicks(seed), WINDOWS[shape]
    by_driver = found(topology_of(in_memory, window, rows), "driver")
    assert len(by_driver["closed"]) > 50
    assert len(by_driver["emitted"]) == len(by_driver["closed"])
    make = in_memory if layout is None else lambda name, key: DeltaMapState(tmp_path / name, key, layout=layout)
    assert found(topology_of(make, window, rows), "jobs") == by_driver


@pytest.mark.parametrize("choice", ["driver", "jobs"])
def test_a_transaction_that_is_repeated_closes_the_same_windows(choice: str) -> None:
    rows, window = clicks(5), WINDOWS["sliding"]
    once = found(topology_of(in_memory, window, rows), choice)
    twice = found(topology_of(in_memory, window, rows), choice, kind=Repeating)
    assert len(twice.pop("emitted")) == 2 * len(once.pop("emitted")) > 50
    assert twice == once


def staged(folder: Path) -> Callable[[str, Any], Any]:
    return lambda name, key: DeltaMapState(folder / name, key, layout=LogLayout(staged_bytes=0, compact_after=None))


def test_where_the_order_matters_it_is_that_of_their_starts_wherever_they_close() -> None:
    rows = [*clicks(3), ("page 1", START + timedelta(minutes=5), 1)]
    by_driver, by_tasks = (
        found(topology_of(in_memory, WINDOWS["sliding"], rows, last=True), choice, is_sorted=False)
        for choice in ("driver", "jobs")
    )
    assert by_driver == by_tasks
    starts: dict[Any, list[Any]] = {}
    for page, start, *_ in by_tasks["emitted"]:
        starts.setdefault(page, []).append(start)
    assert starts
    assert all(each == sorted(each) for each in starts.values())


def test_nothing_of_what_closes_passes_the_driver(tmp_path: Path) -> None:
    topology = topology_of(staged(tmp_path), WINDOWS["tumbling"], clicks(3)[:120])
    found(topology, "jobs")
    for name in ("open", "closed", "windows"):
        files = pa.table(DeltaTable(str(tmp_path / name)).get_add_actions())["path"].to_pylist()
        assert files, name
        assert all(STAGED_FOLDER in path for path in files), name


def test_what_is_staged_has_to_be_one_row_per_key(tmp_path: Path) -> None:
    topology = TridentTopology("windows", parallelism=2)
    stream = topology.new_stream("clicks", OpaqueMemoryTransactionalSpout([[]], FIELDS, take=1), event_time="at")
    counts = (
        stream.group_by("page")
        .window(WINDOWS["tumbling"])
        .persistent_aggregate(staged(tmp_path)("open", None), Count(), name="open")
    )
    counts.closed().persist(staged(tmp_path)("last", ("page",)), name="last")
    counts.closed().persist(staged(tmp_path)("each", ("window_start", "page")), name="each")
    assert set(find_stagers(topology.build())) == {"open", "each"}


def one_lost(executor: Executor, work: StepWork) -> list[StepAnswer]:
    return executor.as_it_is(work)[1:]


def one_twice(executor: Executor, work: StepWork) -> list[StepAnswer]:
    done = executor.as_it_is(work)
    return [*done, done[0]]


def of_another_split(executor: Executor, work: StepWork) -> list[StepAnswer]:
    """One task splits the keys among fewer tasks than the others, and so takes some of theirs."""
    fewer = replace(work, step=replace(work.step, tasks=2))
    return [fewer.run(executor.program, work.inputs[0]), *executor.as_it_is(work)[1:]]


def fewer_rows(executor: Executor, work: StepWork) -> list[StepAnswer]:
    """One has read another version, which lacks something."""
    done = executor.as_it_is(work)
    most = max(done, key=lambda each: each.received)
    return [replace(each, received=0, items=()) if each is most else each for each in done]


@pytest.mark.parametrize("change", [one_lost, one_twice, of_another_split, fewer_rows])
def test_what_was_lost_or_closed_twice_fails_the_attempt(change: Change, tmp_path: Path) -> None:
    topology = topology_of(staged(tmp_path), WINDOWS["tumbling"], clicks(4))
    with pytest.raises(RetriesExhausted, match=r"TX309 .*step 'open', which writes the state \S+open"):
        found(topology, "jobs", change)


@pytest.mark.parametrize(
    ("driver_reason", "wire"),
    [
        ("it emits what it changes", lambda counts: counts.new_values()),
        ("", lambda counts: None),
    ],
)
def test_where_windows_close_is_known_before(driver_reason: str, wire: Any) -> None:
    topology = TridentTopology("windows", parallelism=2)
    stream = topology.new_stream("clicks", OpaqueMemoryTransactionalSpout([[]], FIELDS, take=1), event_time="at")
    counts = (
        stream.group_by("page").window(WINDOWS["sliding"]).persistent_aggregate(MemoryMapState(), Count(), name="open")
    )
    counts.closed().persist(MemoryMapState(("page", "window_start")), name="closed")
    more = wire(counts)
    if more is not None:
        more.group_by("page").persistent_aggregate(MemoryMapState(), Count(), name="changes")
    step = next(step for step in plan_steps(topology.build()) if step.component == "open")
    assert (step.driver_reason, step.split_by) == (driver_reason, () if driver_reason else ("page",))


def test_windows_without_a_key_and_of_one_task_stay_in_the_driver() -> None:
    for tasks, key, driver_reason in ((1, ("page",), "it has one task"), (2, (), "its windows have no key")):
        topology = TridentTopology("windows", parallelism=tasks)
        stream = topology.new_stream("clicks", OpaqueMemoryTransactionalSpout([[]], FIELDS, take=1), event_time="at")
        counts = stream.group_by(*key).window(WINDOWS["tumbling"]) if key else stream.window(WINDOWS["tumbling"])
        state = counts.persistent_aggregate(MemoryMapState(), Count(), name="open")
        state.closed().persist(MemoryMapState((*key, "window_start")), name="closed")
        assert (
            next(step for step in plan_steps(topology.build()) if step.component == "open").driver_reason
            == driver_reason
        )


def test_transactions_that_close_no_window_run_no_job() -> None:
    rows = [click for click in clicks(5) if START <= click[1] < START + timedelta(seconds=10)]
    topology, store = topology_of(in_memory, WINDOWS["tumbling"], rows), MemoryCoordinatorStore()
    executor = Executor(topology, None)
    config = TopologyConfig(stop_when_drained=True, attempts_max=1, retry_pause_ms=1, tick_ms=10)
    phase = CommitPhase(topology, jobs=executor, choice="jobs")
    assert TopologyDriver(topology, store, executor, config, commit_phase=phase).run().transactions > 1
    states: dict[str, Any] = {component.id: component.state for component in topology.committers}
    assert [states[name].read().num_rows > 0 for name in ("open", "closed")] == [True, False]
    assert executor.steps == 0, "all windows are open, also behind the last record"
