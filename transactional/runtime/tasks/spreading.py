"""Applies groupings: which rows of an emitted record batch go to which task."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import cloudpickle
import pyarrow as pa

from transactional.model.arrow import rows_by_task, task_of_rows
from transactional.model.errors import SchemaMismatch
from transactional.model.groupings import GroupingKind
from transactional.topology.stages import StageEdge

Part = tuple[int, pa.RecordBatch]


class Spreader:
    """Distributes what one task emits over one edge. The same batches in the same order are always distributed
    alike."""

    def __init__(self, edge: StageEdge, task: int) -> None:
        self.edge = edge
        self.task_count = edge.task_count
        self._next_task = task
        self._loads = [0] * edge.task_count
        self._custom = None
        if edge.grouping.custom is not None:
            self._custom = cloudpickle.loads(cloudpickle.dumps(edge.grouping.custom))
            self._custom.prepare(task, edge.task_count)

    def spread(self, batch: pa.RecordBatch) -> Iterator[Part]:
        """The parts of the batch with the tasks that they are for."""
        match self.edge.grouping.kind:
            case GroupingKind.GLOBAL:
                yield 0, batch
            case GroupingKind.ALL:
                yield from ((task, batch) for task in range(self.task_count))
            case GroupingKind.FIELDS:
                tasks = task_of_rows(batch, self.edge.grouping.fields, self.task_count)
                yield from ((task, batch.take(rows)) for task, rows in rows_by_task(tasks, self.task_count))
            case GroupingKind.PARTIAL_KEY:
                tasks = pa.array(self._less_loaded(batch), pa.int64())
                yield from ((task, batch.take(rows)) for task, rows in rows_by_task(tasks, self.task_count))
            case GroupingKind.CUSTOM:
                yield from self._chosen(batch)
            case _:
                yield from self._evenly(batch)

    def copies(self, rows: int, parts: Sequence[Part]) -> int:
        """How many tuples must arrive if this many rows were emitted: by the rule, not by the actual distribution."""
        match self.edge.grouping.kind:
            case GroupingKind.CUSTOM:
                return sum(part.num_rows for _, part in parts)
            case GroupingKind.ALL:
                return rows * self.task_count
            case _:
                return rows

    def _evenly(self, batch: pa.RecordBatch) -> Iterator[Part]:
        """Slice evenly; the extra rows rotate among the tasks, so that small batches are distributed as well."""
        size, larger = divmod(batch.num_rows, self.task_count)
        first = self._next_task
        self._next_task = first + larger
        for number in range(self.task_count if size else larger):
            start, until = (size * n + min(n, larger) for n in (number, number + 1))
            yield (first + number) % self.task_count, batch.slice(start, until - start)

    def _less_loaded(self, batch: pa.RecordBatch) -> Iterator[int]:
        """The one of a key's two possible tasks to which this task has sent less so far."""
        one, other = (
            task_of_rows(batch, self.edge.grouping.fields, self.task_count, seed=seed).to_pylist() for seed in (0, 1)
        )
        for task in map(self._lighter, one, other):
            self._loads[task] += 1
            yield task

    def _lighter(self, one: int, other: int) -> int:
        return one if self._loads[one] <= self._loads[other] else other

    def _chosen(self, batch: pa.RecordBatch) -> Iterator[Part]:
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
