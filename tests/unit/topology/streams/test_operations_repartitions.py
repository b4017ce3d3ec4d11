"""Repartitions change where tuples are, and nothing else: against plain Python (Storm row R13)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spouts.memory import MemoryTransactionalSpout, OpaqueMemoryTransactionalSpout
from state.memory import MemoryMapState, MemoryTable
from tests.examples import examples
from tests.unit.topology.streams.shapes import PAIRS, emitted
from transactional.bolts import TopologyContext
from transactional.model.config import TopologyConfig
from transactional.model.groupings import CustomStreamGrouping
from transactional.runtime.engine.driver import TopologyDriver
from transactional.runtime.executors.local import LocalExecutor
from transactional.testing import MemoryCoordinatorStore
from transactional.trident import Count, Stream, Sum, TridentTopology

Rows = list[tuple[Any, ...]]
Seen = list[tuple[Any, Any, int]]
TASKS = 3
pairs = st.lists(st.tuples(st.none() | st.text("abc", max_size=1), st.none() | st.integers(-4, 4)), max_size=12)


class Where:
    """Appends the number of the task."""

    def prepare(self, context: TopologyContext) -> None:
        self.task, self.tasks = context.task_index, context.task_count

    def __call__(self, row: Any) -> Any:
        assert self.tasks == TASKS
        return row.word, row.n, self.task


class InTwo(CustomStreamGrouping):
    """Every tuple goes to the tasks 0 and 2, tuples without a word nowhere."""

    def choose_tasks(self, values: tuple[Any, ...]) -> Sequence[int]:
        return [] if values[0] is None else [0, 2]


def apart(seen: Seen, key: Callable[[Any], Any]) -> bool:
    """Whether equal keys are in one task."""
    tasks: dict[Any, set[int]] = {}
    for word, n, task in seen:
        tasks.setdefault(key((word, n)), set()).add(task)
    return all(len(found) == 1 for found in tasks.values())


def once(rows: Rows) -> Rows:
    """Each tuple is somewhere."""
    return rows


REPARTITIONS: dict[str, tuple[Callable[[Stream], Stream], Callable[[Rows], Rows], Callable[[Seen], bool]]] = {
    "shuffle": (lambda s: s.shuffle(), once, lambda seen: True),
    "partition_by one": (lambda s: s.partition_by("word"), once, lambda seen: apart(seen, lambda row: row[0])),
    "partition_by two": (lambda s: s.partition_by("n", "word"), once, lambda seen: apart(seen, lambda row: row)),
    "broadcast": (
        lambda s: s.broadcast(),
        lambda rows: rows * TASKS,
        lambda seen: len(seen) < 1 or {task for *_, task in seen} == set(range(TASKS)),
    ),
    "partition": (
        lambda s: s.partition(InTwo()),
        lambda rows: [row for row in rows if row[0] is not None] * 2,
        lambda seen: {task for *_, task in seen} <= {0, 2},
    ),
    "identity_partition": (lambda s: s.shuffle().identity_partition(), once, lambda seen: True),
    "local_or_shuffle": (lambda s: s.shuffle().local_or_shuffle(), once, lambda seen: True),
}


@settings(max_examples=examples(25))
@pytest.mark.parametrize("name", REPARTITIONS)
@given(rows=pairs)
def test_a_repartition_moves_tuples_and_changes_none(name: str, rows: Rows) -> None:
    """Where they may be is what its name says."""
    repartition, expected, is_right = REPARTITIONS[name]
    seen = emitted(
        lambda s: repartition(s).parallelism_hint(TASKS).map(Where(), "word string, n long, task int"), rows, PAIRS
    )
    assert Counter((word, n) for word, n, _ in seen) == Counter(expected(rows))
    assert is_right([(word, n, task) for word, n, task in seen])


@settings(max_examples=examples(25))
@pytest.mark.parametrize("name", ["global_", "batch_global"])
@given(rows=pairs)
def test_in_one_task_is_everything(name: str, rows: Rows) -> None:
    """So the aggregates of the task are those of the batch; with several tasks each has its own."""
    counted = emitted(
        lambda s: getattr(s.shuffle(), name)().partition_aggregate(n=Count()), rows, PAIRS, parallelism=TASKS
    )
    assert counted == ([(len(rows),)] if rows else [])


@settings(max_examples=examples(25))
@given(rows=pairs)
def test_each_task_has_the_aggregates_of_its_tuples(rows: Rows) -> None:
    """Where all tuples of a key are in one task, those of the key; of everything, those of the task."""
    found = emitted(
        lambda s: s.partition_by("word").group_by("word").partition_aggregate(n=Count()), rows, PAIRS, parallelism=TASKS
    )
    assert Counter(found) == Counter(Counter(word for word, _ in rows).items())
    counts = emitted(lambda s: s.shuffle().partition_aggregate(n=Count()), rows, PAIRS, parallelism=TASKS)
    assert sum(n for (n,) in counts) == len(rows)
    assert len(counts) == (TASKS if rows else 0)


@settings(max_examples=examples(25))
@given(rows=pairs)
def test_parts_and_merges_lose_nothing(rows: Rows) -> None:
    """A stream that is divided and merged again, in tasks and by keys."""

    def work(stream: Stream) -> Stream:
        with_word, without = stream.filter(lambda t: t.word is not None), stream.filter(lambda t: t.word is None)
        return with_word.partition_by("word").merge(without.shuffle(), stream.project("word", "n"))

    assert Counter(emitted(work, rows, PAIRS, parallelism=TASKS)) == Counter(rows * 2)


@pytest.mark.parametrize("kind", [MemoryTransactionalSpout, OpaqueMemoryTransactionalSpout])
@pytest.mark.parametrize("tasks", [(1, 3), (3, 1), (2, 3, 1)])
def test_a_table_is_continued_with_another_number_of_tasks(kind: Any, tasks: Sequence[int]) -> None:
    """There is one table for all tasks, so nothing has to be divided anew (Storm row R32)."""
    rows = [(f"w{n % 5}", n) for n in range(8 * len(tasks))]
    store, table = MemoryCoordinatorStore(), MemoryTable("sums")
    for runs, number in enumerate(tasks, start=1):
        topology = TridentTopology("tasks", parallelism=number)
        stream = topology.new_stream("rows", kind([rows[: 8 * runs]], PAIRS, 3))
        stream.group_by("word").persistent_aggregate(MemoryMapState(table=table), Count(), total=Sum("n"))
        made = topology.build(strict=True)
        TopologyDriver(made, store, LocalExecutor(made), TopologyConfig(stop_when_drained=True)).run()
    expected = Counter(word for word, _ in rows)
    state = MemoryMapState("word string", "count long, total long", table=table)
    found = {row["word"]: (row["count"], row["total"]) for row in state.read().to_pylist()}
    assert found == {word: (n, sum(m for w, m in rows if w == word)) for word, n in expected.items()}
