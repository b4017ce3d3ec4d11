"""Runs a task of one component in the commit phase, or emits the rows of an update, on the driver or in a job."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial

import pyarrow as pa

from transactional.core.ports import DeadLetter
from transactional.model.attempt import TransactionAttempt
from transactional.model.reading import Lookup
from transactional.runtime.tasks.emitting import Emitter, make_emitter
from transactional.runtime.tasks.map_state import MapStateView, ReadState
from transactional.runtime.tasks.operator_factory import TaskInfo
from transactional.runtime.tasks.operators import Operator
from transactional.runtime.tasks.program import TaskProgram
from transactional.runtime.tasks.stateful import KeyValues
from transactional.runtime.tasks.task_loop import TaskLoop
from transactional.topology.bolts.stateful import StatefulBolt
from transactional.topology.stages import StageEdge


class CommitTask(TaskLoop):
    """One task of one component in the commit phase. Its output is kept for later components."""

    def __init__(self, info: TaskInfo, bolt_id: str, instances: Mapping[str, bytes], *, looks_closer: bool) -> None:
        super().__init__(info, [bolt_id], instances=instances, looks_closer=looks_closer)
        self.letters: list[DeadLetter] = []
        self.partials: list[tuple[str, pa.Table]] = []
        self.addressed: list[tuple[StageEdge, int, list[pa.RecordBatch]]] = []

    def finish(self, operator: Operator) -> None:
        """Finish the bolt's batch, and take its letters and counts."""
        self.letters += operator.letters
        operator.finish()
        self.late_counts.update(operator.late_counts)
        self.add_counters(operator)

    def send_on(self, component_id: str, emitter: Emitter) -> None:
        """Keep the output for later components. Partial aggregates are only made if nothing has failed."""
        self.addressed += emitter.addressed()
        if self.has_no_failure:
            self.partials += emitter.partials()


def with_state_view(
    info: TaskInfo,
    component_id: str,
    state: ReadState,
    rows_before: Lookup,
    tuples: Iterable[pa.RecordBatch],
    *,
    replaces: bool,
) -> tuple[TaskInfo, MapStateView | KeyValues]:
    """Return the task with a view of its state. For a stateful bolt the keys of its tuples are read at once."""
    if isinstance(info.program.bolts[component_id].bolt, StatefulBolt):
        values = KeyValues.of(component_id, state, info.attempt)
        values.read_ahead(tuples, rows_before)
        return replace(info, key_values=values, replaces=replaces), values
    view = MapStateView(component_id, state, info.attempt)
    return replace(info, state=view), view


def emit_tables(
    program: TaskProgram, attempt: TransactionAttempt, component_id: str, task: int, tables: Mapping[str, pa.Table]
) -> Emitter:
    """Emit the rows of an update, by stream, with computed columns. Raises `TaskFailed` if a later component refuses
    them."""
    emitter, outputs = make_emitter(program, component_id, task), program.outputs_of(component_id)
    if program.record is not None:
        emitter.record_to(partial(program.record, attempt, component_id))
    for stream, table in tables.items():
        rows = program.aggregators[component_id].computed.append_to(table)
        emitter.emit_batch(rows.select(list(outputs[stream].names)), stream=stream)
    emitter.flush()
    return emitter
