"""Watches bolts: each input is reported before its bolt works on it, so that the input which ends a process is known.

A task is watched once a process has died of its transaction. Then a bolt gets its tuples one by one, and a bolt on
Arrow data its record batches. The receiver of the reports tries parts of the last input in other processes.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

import pyarrow as pa

from transactional.model.arrow import from_ipc, to_ipc
from transactional.model.arrow.zones import naive_times_in
from transactional.model.user_code.failures import TaskFailed
from transactional.runtime.tasks.emitting import make_emitter
from transactional.runtime.tasks.operator_factory import TaskInfo, make_operator
from transactional.runtime.tasks.operators import Operator, TupleOperator
from transactional.runtime.tasks.program import AttemptInput, TaskProgram


@dataclass(frozen=True, slots=True)
class BoltInput:
    """The tuples that a task's bolt gets at once, as Arrow IPC. Picklable."""

    component: str
    task: int
    source: str
    stream: str
    data: bytes

    @property
    def rows(self) -> pa.RecordBatch:
        return from_ipc(self.data)[0]

    def part(self, start: int, count: int) -> BoltInput:
        """Return the input with `count` of its tuples, beginning with number `start`."""
        rows = self.rows.slice(start, count)
        return replace(self, data=to_ipc([rows], rows.schema))


Report = Callable[[BoltInput | None], None]
"""Receives each input before a bolt works on it, and None after that. Inputs of fused bolts are nested."""


def run_watched(report: Report, task: int, operator: Operator, batch: pa.RecordBatch, source: str, stream: str) -> None:
    """Run a bolt over a record batch, and report each input that the bolt gets."""
    size = 1 if isinstance(operator, TupleOperator) else max(1, batch.num_rows)
    for start in range(0, max(1, batch.num_rows), size):
        part = batch.slice(start, size)
        report(BoltInput(operator.component, task, source, stream, to_ipc([part], part.schema)))
        try:
            operator.run(part, source, stream)
        finally:
            report(None)


def run_alone(program: TaskProgram, inputs: AttemptInput, bolt_input: BoltInput) -> None:
    """Run a fresh instance of a bolt over an input. Its output and its failure are dropped."""
    spec = program.bolts[bolt_input.component]
    info = TaskInfo(program, inputs.attempt, bolt_input.task, spec.parallelism, facts=inputs.facts)
    operator = make_operator(info, spec, make_emitter(program, bolt_input.component, bolt_input.task).apart())
    with naive_times_in(program.naive_times), suppress(TaskFailed):
        operator.prepare()
        operator.run(bolt_input.rows, bolt_input.source, bolt_input.stream)
