"""Routes tuples: chooses, by the grouping of an edge, which task of the target gets which rows of a record batch.

The kinds of grouping and their checks are in `model/groupings.py`; this module applies them. The choice depends only on
the record batches and their order, so a replay of the same batches gives every task the same tuples. Fields grouping
chooses by a hash of the fields' values, which is the same in every process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import cloudpickle
import pyarrow as pa

from transactional.model.arrow import rows_by_task, task_of_rows
from transactional.model.errors import SchemaMismatch
from transactional.model.groupings import GroupingKind
from transactional.topology.stages import StageEdge

RoutedPart = tuple[int, pa.RecordBatch]
"""The number of a task, and the rows that it gets."""


class TupleRouter:
    """Routes the output of one task over one edge. Equal batches in the same order are always routed alike."""

    def __init__(self, edge: StageEdge, task: int) -> None:
        self.edge = edge
        self.task_count = edge.task_count
        self._next_task = task
        self._loads = [0] * edge.task_count
        self._custom = None
        if edge.grouping.custom is not None:
            self._custom = cloudpickle.loads(cloudpickle.dumps(edge.grouping.custom))
            self._custom.prepare(task, edge.task_count)

    def route(self, batch: pa.RecordBatch) -> Iterator[RoutedPart]:
        """Yield the rows of a batch for each task that gets any."""
        match self.edge.grouping.kind:
            case GroupingKind.GLOBAL:
                yield 0, batch
            case GroupingKind.ALL:
                yield from ((task, batch) for task in range(self.task_count))
            case GroupingKind.FIELDS:
                tasks = task_of_rows(batch, self.edge.grouping.fields, self.task_count)
                yield from ((task, batch.take(rows)) for task, rows in rows_by_task(tasks, self.task_count))
            case GroupingKind.PARTIAL_KEY:
                tasks = pa.array(self._less_loaded_tasks(batch), pa.int64())
                yield from ((task, batch.take(rows)) for task, rows in rows_by_task(tasks, self.task_count))
            case GroupingKind.CUSTOM:
                yield from self._route_by_user(batch)
            case _:
                yield from self._route_evenly(batch)

    def expected_tuples(self, rows: int, parts: Sequence[RoutedPart]) -> int:
        """Return how many tuples must arrive if this many rows were emitted, by the rule of the grouping."""
        match self.edge.grouping.kind:
            case GroupingKind.CUSTOM:
                return sum(part.num_rows for _, part in parts)
            case GroupingKind.ALL:
                return rows * self.task_count
            case _:
                return rows

    def _route_evenly(self, batch: pa.RecordBatch) -> Iterator[RoutedPart]:
        """Slice a batch evenly. The extra rows rotate among the tasks, so that small batches are distributed as
        well."""
        size, larger = divmod(batch.num_rows, self.task_count)
        first = self._next_task
        self._next_task = first + larger
        for number in range(self.task_count if size else larger):
            start, end = (size * n + min(n, larger) for n in (number, number + 1))
            yield (first + number) % self.task_count, batch.slice(start, end - start)

    def _less_loaded_tasks(self, batch: pa.RecordBatch) -> Iterator[int]:
        """Yield for each row the one of its key's two possible tasks to which this task has sent fewer tuples so
        far."""
        first_tasks, second_tasks = (
            task_of_rows(batch, self.edge.grouping.fields, self.task_count, seed=seed).to_pylist() for seed in (0, 1)
        )
        for task in map(self._less_loaded, first_tasks, second_tasks):
            self._loads[task] += 1
            yield task

    def _less_loaded(self, first: int, second: int) -> int:
        return first if self._loads[first] <= self._loads[second] else second

    def _route_by_user(self, batch: pa.RecordBatch) -> Iterator[RoutedPart]:
        assert self._custom is not None
        choose: Callable[[tuple[object, ...]], Sequence[int]] = self._custom.choose_tasks
        rows: dict[int, list[int]] = {}
        columns = [column.to_pylist() for column in batch.columns]
        for number, values in enumerate(zip(*columns, strict=True)):
            for task in choose(values):
                self.check_task(task)
                rows.setdefault(task, []).append(number)
        yield from ((task, batch.take(pa.array(rows[task], pa.int64()))) for task in sorted(rows))

    def check_task(self, task: object) -> None:
        """Raise `SchemaMismatch` for a task that the edge's target does not have."""
        if type(task) is not int or not 0 <= task < self.task_count:
            raise SchemaMismatch(
                f"a tuple of {self.edge.source!r} was addressed to task {task!r} of {self.edge.target!r}, which has "
                f"the tasks 0 to {self.task_count - 1}"
            )
