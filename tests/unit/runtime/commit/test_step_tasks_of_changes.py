"""An update that emits what it changes, as the work of tasks: the same tables, the same emissions as in the driver."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spouts import OpaqueMemoryTransactionalSpout
from state import Count, DeltaMapState, Max, MemoryMapState, Sum
from state.delta.segments.log_layout import LogLayout
from state.delta.tables.staging import STAGED_FOLDER
from state.memory import MemoryTable
from tests.unit.fakes import builder
from tests.unit.runtime.commit.test_step_tasks import attempt, live_files, opened
from transactional.core.ports import Processed
from transactional.core.ports.staged import SplitRows
from transactional.errors import AttemptLost, BoltFailed, SumOverflow, TableConflict
from transactional.model.aggregates import StoredColumns
from transactional.model.batch import BatchMetadata, Offset, OffsetRange, PartitionId
from transactional.model.user_code.tuples import Tuple
from transactional.runtime.commit import executor_choice
from transactional.runtime.commit.committing import CommitPhase
from transactional.runtime.executors.local import LocalExecutor
from transactional.runtime.tasks.step_work import StepAnswer, StepWork
from transactional.topology.steps import Step, plan_steps
from transactional.topology.streams.aggregates.committing import OwnUpdate
from transactional.topology.topology import NEW_AND_OLD, Topology
from transactional.trident import Combiner, Last

FIELDS = "word string, day int, n long"
KEYS = [None, *(f"w{number}" for number in range(20))]
STAGED = LogLayout(staged_bytes=0, compact_after=2)


def rows(seed: int, count: int = 120) -> list[tuple[Any, ...]]:
    rng = random.Random(seed)
    return [(rng.choice(KEYS), rng.choice((1, 2)), rng.choice((None, 1, 5, -3))) for _ in range(count)]


ROWS = [rows(1), rows(2)]


class Longest(Combiner):
    """One of one's own: which numbers there were, in order."""

    output = "n string"

    def init(self, row: Tuple) -> Any:
        return str(row["n"])

    def combine(self, one: Any, other: Any) -> Any:
        return f"{one} {other}"


def known(state: Any) -> Any:
    """An update whose values the state combines."""
    return state.aggregate(n=Sum("n"), most=Max("n"), last=Last("n"), count=Count())


def own(state: Any) -> Any:
    """One whose values it can't combine."""
    return OwnUpdate(state, StoredColumns.from_aggregates({"n": Longest(), "count": Count()}), ("word", "day"))


UPDATES = {"known": known, "own": own}


def changing(make: Callable[[str], Any], update: Callable[[Any], Any] = known, partitions: Any = ROWS) -> Topology:
    """Counts, and behind them what their changes lead to: the last one of each day, and an update of that."""
    made = builder(OpaqueMemoryTransactionalSpout(partitions, FIELDS, take=40), parallelism=3)
    made.set_committer_bolt("counts", update(make("counts"))).fields_grouping("spout", "word", "day")
    days = make("days").aggregate(last=Last("word"), times=Count())
    made.set_committer_bolt("days", days).fields_grouping("counts", "day")
    made.set_bolt("behind", changed, 2, output="word string, more long").shuffle_grouping("counts", stream=NEW_AND_OLD)
    made.set_committer_bolt("sums", make("sums").sum("more")).fields_grouping("behind", "word")
    return opened(made.build(strict=True))


def changed(row: Tuple) -> tuple[Any, ...]:
    return row["word"], row["count"] - (row["old_count"] or 0)


def in_memory(name: str) -> MemoryMapState:
    return MemoryMapState(KEYED.get(name, "word"), table=MemoryTable(name))


KEYED: dict[str, Any] = {"counts": ("word", "day"), "days": "day"}


def in_delta(folder: Path, layout: Any) -> Callable[[str], DeltaMapState]:
    return lambda name: DeltaMapState(folder / name, KEYED.get(name, "word"), layout=layout)


Attempts = Sequence[tuple[int, int, tuple[int, int], str]]
"""Transaction, attempt, what it reads of each partition, and where its steps run."""
JOBS, DRIVER = "jobs", "driver"


def attempts(*choices: str) -> Attempts:
    """Three transactions. Of the second one two attempts die, which have read other data; the last one reads less."""
    ranges = [(1, 10, (0, 40)), (2, 20, (40, 80)), (2, 21, (40, 120)), (2, 22, (40, 60)), (3, 30, (60, 120))]
    return [(*each, choices[number % len(choices)]) for number, each in enumerate(ranges)]


class Executor(LocalExecutor):
    """May change what tasks answer."""

    def __init__(self, topology: Topology, change: Change | None = None, record: Any = None) -> None:
        super().__init__(topology, record=record)
        self._change = change
        self.open()

    def run_step(self, work: StepWork) -> list[StepAnswer]:
        is_it = self._change is not None and work.step.component == "counts"
        return self._change(self, work) if is_it and self._change is not None else self.as_it_is(work)

    def as_it_is(self, work: StepWork) -> list[StepAnswer]:
        return super().run_step(work)


Change = Callable[[Executor, StepWork], list[StepAnswer]]


def processed(executor: LocalExecutor, txid: int, attempt_id: int, of: tuple[int, int]) -> Processed:
    ranges = {PartitionId("memory", n): OffsetRange(Offset(of[0]), Offset(of[1])) for n in (0, 1)}
    return executor.run(attempt(txid, attempt_id), BatchMetadata(ranges))


def found(topology: Topology, tried: Attempts, change: Change | None = None) -> list[Any]:
    """What was emitted by the update, in order, and the tables, after each attempt."""
    seen = list[Any]()

    def record(told: Any, component: str, stream: str, batch: pa.RecordBatch) -> None:
        if component == "counts":
            emitted.setdefault(stream, []).extend(tuple(row.values()) for row in batch.to_pylist())

    executor = Executor(topology, change, record)
    for txid, attempt_id, of, choice in tried:
        emitted = dict[str, list[Any]]()
        phase = CommitPhase(topology, record=record, jobs=executor, choice=choice)
        report = phase.run(attempt(txid, attempt_id), processed(executor, txid, attempt_id, of))
        assert report.steps["counts"].startswith("job") == (choice == JOBS)
        tables = {each.id: sorted(map(repr, each.state.read().to_pylist())) for each in topology.committers}  # type: ignore[union-attr]
        assert len(emitted["default"]) == len(emitted[NEW_AND_OLD]) > 20
        seen.append((emitted, tables))
    return seen


@pytest.mark.sampled(2)
@pytest.mark.parametrize("update", UPDATES)
def test_tasks_change_what_the_driver_changes(update: str, tmp_path: Path) -> None:
    of = UPDATES[update]
    by_driver = found(changing(in_memory, of), attempts(DRIVER))
    assert found(changing(in_memory, of), attempts(JOBS)) == by_driver
    variants: list[Any] = (
        [(STAGED, JOBS, DRIVER), (STAGED, DRIVER, JOBS), ("merge", JOBS)] if update == "known" else [(STAGED, JOBS)]
    )
    for number, (layout, *choices) in enumerate(variants):
        topology = changing(in_delta(tmp_path / str(number), layout), of)
        assert found(topology, attempts(*choices)) == by_driver, (layout, choices)


def test_nothing_of_what_changes_passes_the_driver(tmp_path: Path) -> None:
    topology = changing(in_delta(tmp_path, LogLayout(staged_bytes=0, compact_after=None)))
    executor = Executor(topology)
    [given] = attempts(JOBS)[:1]
    done = processed(executor, *given[:3])
    assert all(isinstance(each, SplitRows) for each in done.split["counts"])
    assert done.parts["counts"].table.num_rows == 0  # type: ignore[union-attr]
    CommitPhase(topology, jobs=executor, choice=JOBS).run(attempt(*given[:2]), done)
    state = topology.component("counts").state
    assert isinstance(state, DeltaMapState)
    assert len(live_files(state)) == 3
    assert all(STAGED_FOLDER in path for path in live_files(state))
    left = {path.suffix for path in (tmp_path / "counts" / STAGED_FOLDER).iterdir()}
    assert left == {".parquet"}, "what was for one attempt only is gone"


def test_what_is_too_large_for_the_driver_is_a_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    topology = changing(in_delta(tmp_path, STAGED))
    executor = Executor(topology)
    phase, executors = CommitPhase(topology, jobs=executor), list[str]()
    for txid in (1, 2):
        of = (40 * (txid - 1), 40 * txid)
        report = phase.run(attempt(txid, 10 * txid), processed(executor, txid, 10 * txid, of))
        executors.append(report.steps["counts"])
        monkeypatch.setattr(executor_choice, "DRIVER_BYTES_MAX", 0)
    assert [executor.split(":")[0] for executor in executors] == ["driver", "job"]
    assert "too many for the driver" in executors[1]


# --- an executor that does what it must not -------------------------------------------------------------------------


def one_lost(executor: Executor, work: StepWork) -> list[StepAnswer]:
    return executor.as_it_is(work)[1:]


def one_twice(executor: Executor, work: StepWork) -> list[StepAnswer]:
    done = executor.as_it_is(work)
    return [*done, done[0]]


# The first of what waits has come through the driver: nothing, where all is staged.


def part_lost(executor: Executor, work: StepWork) -> list[StepAnswer]:
    less = replace(work.inputs[0], waiting=(work.inputs[0].waiting[0], *work.inputs[0].waiting[2:]))
    return executor.as_it_is(replace(work, inputs=(less, *work.inputs[1:])))


def part_twice(executor: Executor, work: StepWork) -> list[StepAnswer]:
    more = replace(work.inputs[0], waiting=(*work.inputs[0].waiting, work.inputs[0].waiting[1]))
    return executor.as_it_is(replace(work, inputs=(more, *work.inputs[1:])))


def of_another_split(executor: Executor, work: StepWork) -> list[StepAnswer]:
    """Two tasks have each other's keys."""
    one, two, *others = work.inputs
    swapped = replace(one, waiting=two.waiting), replace(two, waiting=one.waiting)
    return executor.as_it_is(replace(work, inputs=(*swapped, *others)))


WRONG = [one_lost, one_twice, part_lost, part_twice, of_another_split]


@pytest.mark.parametrize("change", WRONG)
def test_what_was_lost_or_came_twice_fails_the_attempt(change: Change, tmp_path: Path) -> None:
    topology = changing(in_delta(tmp_path, STAGED))
    with pytest.raises((AttemptLost, BoltFailed), match="counts"):
        found(topology, attempts(JOBS), change)
    assert topology.component("counts").state.read().num_rows == 0  # type: ignore[union-attr]


def before_of_now(executor: Executor, work: StepWork) -> list[StepAnswer]:
    """Reads what a dead attempt has written as what was before the transaction."""
    assert work.state is not None
    later = replace(work.state, attempt=attempt(work.attempt.txid + 1, work.attempt.attempt_id))  # type: ignore[type-var]
    return executor.as_it_is(replace(work, state=later))


def test_old_values_that_a_dead_attempt_has_written_would_be_found(tmp_path: Path) -> None:
    """Else the comparison with the driver would show nothing."""
    by_driver = found(changing(in_memory), attempts(DRIVER))
    wrong = found(changing(in_delta(tmp_path, "merge")), attempts(JOBS), before_of_now)
    assert [one[0] == two[0] for one, two in zip(by_driver, wrong, strict=True)] == [True, True, False, False, True]


def test_a_commit_is_refused_if_the_table_has_moved(tmp_path: Path) -> None:
    topology = changing(in_delta(tmp_path, STAGED))

    def overtaken(executor: Executor, work: StepWork) -> list[StepAnswer]:
        other: Any = changing(in_delta(tmp_path, STAGED)).component("counts").state
        other.put(attempt(1, 9), {("w7", 1): (1, 1, 1, 1)})
        return executor.as_it_is(work)

    with pytest.raises(TableConflict, match="was at version None"):
        found(topology, attempts(JOBS), overtaken)


@pytest.mark.parametrize("choice", [JOBS, DRIVER])
def test_a_sum_that_does_not_fit_is_told_as_in_the_driver(choice: str, tmp_path: Path) -> None:
    most = 2**62
    topology = changing(in_delta(tmp_path, STAGED), partitions=[[("a", 1, most)]] * 2)
    with pytest.raises(SumOverflow, match="'n'"):
        found(topology, [(1, 10, (0, 1), choice)])


# --- where it may be one ---------------------------------------------------------------------------------------------


def step(state: Any, parallelism: int = 3) -> Step:
    made = builder(OpaqueMemoryTransactionalSpout([[]], FIELDS, take=1), parallelism=parallelism)
    declared = made.set_committer_bolt("counts", state.aggregate(n=Sum("n")))
    declared.fields_grouping("spout", "word") if state.declared.known_key_names else declared.global_grouping("spout")
    made.set_bolt("behind", changed, output="word string, more long").shuffle_grouping("counts")
    return next(each for each in plan_steps(made.build()) if each.component == "counts")


def test_where_an_update_that_emits_may_run() -> None:
    assert step(MemoryMapState("word")) == Step("counts", 3, ("word",), splits_partials=True, in_order=True)
    assert step(MemoryMapState("word"), 1).driver_reason == "it has one task"
    assert step(MemoryMapState(())).driver_reason == "its state has no key"
