"""The work of a step's tasks when they run side by side in a Spark job: one class for each kind of step.

Each task works on its part of the keys. Its answer has the tuples for later components, and the rows that it has
written as a part of the state's table, which the driver commits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from transactional.core.ports import DeadLetter, can_combine_all
from transactional.core.ports.split import Closer, NeedsDriver
from transactional.model.arrow import task_of_rows, to_ipc
from transactional.model.errors import OperatingError, SchemaMismatch
from transactional.model.letters import Exclusion
from transactional.model.user_code.failures import TaskFailed
from transactional.runtime.commit.changed_rows import changed_rows
from transactional.runtime.commit.commit_task import CommitTask, emit_tables, with_state_view
from transactional.runtime.commit.exchange import Addressed
from transactional.runtime.commit.fault_finding import find_faults
from transactional.runtime.processing.split_rows import in_order
from transactional.runtime.processing.staging import staged
from transactional.runtime.tasks.emitting import Emitter
from transactional.runtime.tasks.items import Item, PartialAggregates, SetAside, TaskFailure, TuplesToCommit
from transactional.runtime.tasks.operator_factory import TaskInfo
from transactional.runtime.tasks.part_of_state import PartOfState
from transactional.runtime.tasks.program import TaskProgram
from transactional.runtime.tasks.step_work import StepAnswer, StepFailure, StepWork, TaskInput, read_batches, read_bytes
from transactional.runtime.tasks.task_loop import run_task_loop
from transactional.topology.topology import CLOSED


@dataclass(frozen=True, slots=True)
class BoltWork(StepWork):
    """Runs a bolt over the tuples of the task, and keeps its new values. With `replaces` an earlier attempt at the
    transaction has written the state."""

    replaces: bool
    excluded: tuple[Exclusion, ...]

    def _run(self, program: TaskProgram, task_input: TaskInput) -> StepAnswer:
        component, tasks = self.step.component, self.step.tasks
        received = [
            (batch, *waiting[1:]) for waiting in task_input.waiting for batch in read_batches(waiting, program.scratch)
        ]
        count = sum(batch.num_rows for batch, _, _ in received)
        info = TaskInfo(program, self.attempt, task_input.task, tasks, excluded=self.excluded, facts=self.facts)
        part, view = None, None
        if self.state is not None:
            part = PartOfState(self.step, self.state, task_input.task)
            tuples = (batch for batch, _, _ in received)
            info, view = with_state_view(info, component, part, part.rows_before, tuples, replaces=self.replaces)
        instances = {} if task_input.instance is None else {component: read_bytes(task_input.instance, program.scratch)}
        loop, failed = run_task_loop(partial(CommitTask, info, component, instances), lambda: iter(received))
        if failed is not None:
            return StepAnswer(task_input.task, count, failure=_failure(info, failed))
        items = _items(task_input.task, loop.emitters[component], loop.addressed, loop.partials, loop.letters)
        counted = StepAnswer(task_input.task, count, late_counts=loop.late_counts, counted=loop.counted)
        answer = _with_items(program, self, counted, items)
        if answer.failure is not None or part is None or view is None:
            return answer
        try:
            return replace(answer, written=part.keep_changes(view.changes))
        except SchemaMismatch:
            if not program.sets_aside or task_input.instance is not None:
                raise  # the bolt had tuples in the processing phase, too, which only the driver can search
            failures = find_faults(component, part, part.check_rows, info, {task_input.task: lambda: iter(received)})
            if not failures:
                raise
            return StepAnswer(task_input.task, count, failure=_failure(*failures[0]))


@dataclass(frozen=True, slots=True)
class ClosingWork(StepWork):
    """Reads the rows in `between`, and makes the windows of the task's keys. They are in the order of the columns in
    `order`, or in any order if it is empty."""

    counted: ClassVar[str] = "rows whose windows they close"
    between: tuple[str, int | None, int]
    closer: Closer
    order: tuple[str, ...]

    def _run(self, program: TaskProgram, task_input: TaskInput) -> StepAnswer:
        assert self.state is not None
        step, rows = self.step, self.state.rows_between(*self.between).combine_chunks()
        parts = [
            batch.filter(pc.equal(task_of_rows(batch, step.split_by, step.tasks), task_input.task))
            for batch in rows.to_batches()
        ]
        own_rows = pa.Table.from_batches(parts, rows.schema)
        done = StepAnswer(task_input.task, own_rows.num_rows, rows_in_all=rows.num_rows)
        return _with_emissions(
            program, self, done, {CLOSED: in_order(self.closer.close_windows(own_rows, self.facts), self.order)}
        )

    def expected_rows(self, answers: Sequence[StepAnswer]) -> int:
        """Return the number of rows that every task has read. Each has kept the rows of its keys."""
        return max(answer.rows_in_all for answer in answers)


@dataclass(frozen=True, slots=True)
class ChangingWork(StepWork):
    """Combines the partial aggregates of the task's keys, keeps the changed rows, and passes them on."""

    def _run(self, program: TaskProgram, task_input: TaskInput) -> StepAnswer:
        assert self.state is not None
        step = self.step
        waiting = [read_batches(tuples, program.scratch) for tuples in task_input.waiting]
        tables = [pa.Table.from_batches(batches) for batches in waiting if batches]
        aggregator = program.aggregators[step.component]
        part = aggregator.combine(tables)
        state = PartOfState(self.step, self.state, task_input.task)
        changed = changed_rows(state, state.rows_before, part, aggregator)
        changed = in_order(changed, step.split_by if step.in_order else ())
        written = state.keep_rows(part if can_combine_all(aggregator.combine_kinds) else changed)
        streams = [stream for stream, fields in program.outputs_of(step.component).items() if fields]
        done = StepAnswer(task_input.task, sum(table.num_rows for table in tables), written=written)
        return _with_emissions(program, self, done, dict.fromkeys(streams, changed))


def _with_emissions(
    program: TaskProgram, work: StepWork, done: StepAnswer, tables: Mapping[str, pa.Table]
) -> StepAnswer:
    """Return the answer with the rows that an update emits, by stream."""
    try:
        emitter = emit_tables(program, work.attempt, work.step.component, done.task, tables)
        items = _items(done.task, emitter, emitter.addressed(), emitter.partials())
    except TaskFailed as failed:
        info = TaskInfo(program, work.attempt, done.task, work.step.tasks, facts=work.facts)
        return replace(done, failure=_failure(info, failed))
    return _with_items(program, work, done, items)


def _with_items(program: TaskProgram, work: StepWork, done: StepAnswer, items: list[Item]) -> StepAnswer:
    """Return the answer with the items for later components, in files if they are large."""
    sent_items = list(staged(program, work.attempt, items, work.step.tasks))
    for item in sent_items:
        if isinstance(item, TaskFailure):
            return replace(done, failure=StepFailure(item.code, item.text, is_own=False))
    return replace(done, items=tuple(sent_items))


def _items(
    task: int,
    emitter: Emitter,
    addressed: Addressed,
    partials: Iterable[tuple[str, pa.Table]],
    letters: Iterable[DeadLetter] = (),
) -> list[Item]:
    """Return the items of a task for later components, in the order in which the driver takes them."""
    order, source, items = (0, task, 0), emitter.component, list[Item]()
    items += [SetAside(order, letter) for letter in letters]
    for edge, target, batches in addressed:
        stream, rows = edge.grouping.stream, sum(batch.num_rows for batch in batches)
        data = to_ipc(batches, emitter.streams[stream].schema)
        items.append(TuplesToCommit(order, source, stream, edge.target, target, data, rows))
    items += [
        PartialAggregates(order, committer, to_ipc(part.to_batches(), part.schema)) for committer, part in partials
    ]
    return items


def _failure(info: TaskInfo, failed: TaskFailed) -> StepFailure:
    """Make the failure of a task. An error that a state has raised inside a bolt is passed on unchanged."""
    cause = failed.__cause__
    if isinstance(cause, OperatingError) and not failed.at_fault:
        return StepFailure.of_state(cause)
    driver_reason = cause.reason if isinstance(cause, NeedsDriver) else ""
    return StepFailure(
        failed.code, f"{info}, in the commit phase: {failed}", failed.at_fault, driver_reason=driver_reason
    )
