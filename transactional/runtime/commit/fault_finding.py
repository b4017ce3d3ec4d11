"""Finds the tuples at fault when a state refuses what a bolt has put: the bolt is run again, and nothing is written.

A stateful bolt gets all of its tuples again, and each value is checked when it is put. A committer puts when its batch
ends, so it gets halves of its tuples, and halves of those with which it is refused again (bisection).
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
"""The tuples of each task, as often as they are needed."""


def find_faults(component: str, state: ReadState, info: TaskInfo, inputs: Inputs) -> Failures:
    """The failures of the tasks whose tuples were found; none if no single tuple is the cause. `info` is that of the
    attempt in which the state has refused what was put: nothing is written yet."""
    check, failures = state.check_put, Failures()
    for task, received in inputs.items():
        of_task = replace(info, task=task)
        if info.key_values is not None:
            closer = replace(of_task, key_values=info.key_values.looking_closer(check))
            failed = CommitTask(closer, component, {}, looks_closer=True).run(received())
        else:
            failed = _Halves(of_task, component, state, check, _Rows.of(received())).failure()
        if failed is not None and failed.at_fault:
            failures.append((of_task, failed))
    return failures


@dataclass(frozen=True, slots=True)
class _Rows:
    """Tuples in order, of which a part can be taken."""

    batches: Sequence[tuple[pa.RecordBatch, str, str]]

    @classmethod
    def of(cls, received: Iterable[tuple[pa.RecordBatch, str, str]]) -> _Rows:
        """Those of a task."""
        return cls([each for each in received if each[0].num_rows])

    def __len__(self) -> int:
        return sum(batch.num_rows for batch, _, _ in self.batches)

    def part(self, start: int, until: int) -> list[tuple[pa.RecordBatch, str, str]]:
        """Those from one number to another."""
        found, at = list[tuple[pa.RecordBatch, str, str]](), 0
        for batch, source, stream in self.batches:
            first, last = max(start - at, 0), min(until - at, batch.num_rows)
            if first < last:
                found.append((batch.slice(first, last - first), source, stream))
            at += batch.num_rows
        return found


@dataclass(frozen=True, slots=True)
class _Halves:
    """Runs a committer over parts of one task's tuples."""

    info: TaskInfo
    component: str
    state: ReadState
    check: Check
    rows: _Rows

    def failure(self) -> TaskFailed | None:
        """How it fails, with every tuple that the state refuses by itself; None: there is none."""
        faults = Faults(self.info.program.spout.id)
        try:
            self._search(0, len(self.rows), faults)
            faults.fail()
        except TaskFailed as failed:
            return failed
        return None

    def _search(self, start: int, until: int, faults: Faults) -> None:
        refused = self._refused(start, until)
        if refused is None:
            return
        if until - start == 1:
            [(batch, source, stream)] = self.rows.part(start, until)
            faults.name(TaskFailed(refused.code, self.component, str(refused)), next(tuples(batch, source, stream)))
            return
        middle = (start + until) // 2
        self._search(start, middle, faults)
        self._search(middle, until, faults)

    def _refused(self, start: int, until: int) -> SchemaMismatch | None:
        """Why the state refuses what these tuples alone lead to."""
        if start == until:
            return None
        view = MapStateView(self.component, self.state, self.info.attempt)
        task = CommitTask(replace(self.info, state=view), self.component, {}, looks_closer=False)
        if task.run(self.rows.part(start, until)) is not None:
            return None  # of another cause, which these tuples did not have together with the others
        try:
            self.check(view.written)
        except SchemaMismatch as refused:
            return refused
        return None
