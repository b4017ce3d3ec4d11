"""Finds the tuples at fault when a state refuses the new values of a bolt. The bolt is run again, and nothing is
written.

A stateful bolt gets all of its tuples again, and each value is checked when it is put. A committer puts values when its
batch ends, so it gets halves of its tuples, and halves of those halves that the state refuses again (bisection).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from transactional.model.arrow.batch_tuples import tuples
from transactional.model.errors import SchemaMismatch
from transactional.model.user_code.failures import TaskFailed
from transactional.runtime.commit.commit_task import CommitTask
from transactional.runtime.tasks.failing.faults import Faults
from transactional.runtime.tasks.map_state import MapStateView, ReadState
from transactional.runtime.tasks.operator_factory import TaskInfo
from transactional.runtime.tasks.task_loop import Received

Check = Callable[[Mapping[Any, Any]], None]
Failures = list[tuple[TaskInfo, TaskFailed]]
Inputs = Mapping[int, Callable[[], Received]]
"""Functions that return the tuples of each task. They may be called several times."""


def find_faults(component: str, state: ReadState, check: Check, info: TaskInfo, inputs: Inputs) -> Failures:
    """Return the failures of the tasks with tuples at fault, or none if no single tuple is the cause.

    `check` raises the error of the state for rows that it refuses. `info` belongs to the attempt in which the state has
    refused the new values. Nothing is written yet.
    """
    failures = Failures()
    for task, received in inputs.items():
        task_info = replace(info, task=task)
        if info.key_values is not None:
            closer_info = replace(task_info, key_values=info.key_values.looking_closer(check))
            failed = CommitTask(closer_info, component, {}, looks_closer=True).run(received())
        else:
            failed = _Bisection(task_info, component, state, check, _Rows.of(received())).find_failure()
        if failed is not None and failed.at_fault:
            failures.append((task_info, failed))
    return failures


@dataclass(frozen=True, slots=True)
class _Rows:
    """Tuples in order, from which parts can be taken."""

    batches: Sequence[tuple[pa.RecordBatch, str, str]]

    @classmethod
    def of(cls, received: Iterable[tuple[pa.RecordBatch, str, str]]) -> _Rows:
        """Make them from the tuples of a task."""
        return cls([entry for entry in received if entry[0].num_rows])

    def __len__(self) -> int:
        return sum(batch.num_rows for batch, _, _ in self.batches)

    def part(self, start: int, end: int) -> list[tuple[pa.RecordBatch, str, str]]:
        """Return the tuples with the numbers `start` to `end`, excluding `end`."""
        parts, batch_start = list[tuple[pa.RecordBatch, str, str]](), 0
        for batch, source, stream in self.batches:
            first, last = max(start - batch_start, 0), min(end - batch_start, batch.num_rows)
            if first < last:
                parts.append((batch.slice(first, last - first), source, stream))
            batch_start += batch.num_rows
        return parts


@dataclass(frozen=True, slots=True)
class _Bisection:
    """Runs a committer over halves of one task's tuples."""

    info: TaskInfo
    component: str
    state: ReadState
    check: Check
    rows: _Rows

    def find_failure(self) -> TaskFailed | None:
        """Return a failure with every tuple that the state refuses by itself, or None if there is none."""
        faults = Faults(self.info.program.spout.id)
        try:
            self._search(0, len(self.rows), faults)
            faults.fail()
        except TaskFailed as failed:
            return failed
        return None

    def _search(self, start: int, end: int, faults: Faults) -> None:
        refusal = self._check_part(start, end)
        if refusal is None:
            return
        if end - start == 1:
            [(batch, source, stream)] = self.rows.part(start, end)
            faults.name(TaskFailed(refusal.code, self.component, str(refusal)), next(tuples(batch, source, stream)))
            return
        middle = (start + end) // 2
        self._search(start, middle, faults)
        self._search(middle, end, faults)

    def _check_part(self, start: int, end: int) -> SchemaMismatch | None:
        """Run the committer over these tuples alone. Returns the error with which the state refuses its new values."""
        if start == end:
            return None
        view = MapStateView(self.component, self.state, self.info.attempt)
        task = CommitTask(replace(self.info, state=view), self.component, {}, looks_closer=False)
        if task.run(self.rows.part(start, end)) is not None:
            return None  # another failure, which these tuples did not cause together with the others
        try:
            self.check(view.changes)
        except SchemaMismatch as refusal:
            return refusal
        return None
