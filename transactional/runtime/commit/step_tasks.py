"""What tasks of a step do where they run side by side in a Spark job: one class for each kind of step."""

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
from transactional.runtime.commit.commit_task import CommitTask, emit_tables, with_state
from transactional.runtime.commit.fault_finding import find_faults
from transactional.runtime.commit.passing import Addressed
from transactional.runtime.processing.split_rows import in_order
from transactional.runtime.processing.staging import staged
from transactional.runtime.tasks.emitting import Emitter
from transactional.runtime.tasks.items import Item, PartialAggregates, SetAside, TaskFailure, TuplesToCommit
from transactional.runtime.tasks.operator_factory import TaskInfo
from transactional.runtime.tasks.part_of_state import PartOfState
from transactional.runtime.tasks.program import TaskProgram
from transactional.runtime.tasks.step_work import StepFailure, StepWork, TaskDone, TaskInput, batches_of, bytes_of
from transactional.runtime.tasks.task_loop import run_through
from transactional.topology.topology import CLOSED


@dataclass(frozen=True, slots=True)
class BoltWork(StepWork):
    """Run a bolt over the tuples of the task, and keep what it has put. `replaces`: an earlier attempt at the
    transaction has written the state."""

    replaces: bool
    excluded: tuple[Exclusion, ...]

    def _run(self, program: TaskProgram, given: TaskInput) -> TaskDone:
        component, tasks = self.step.component, self.step.tasks
        received = [(batch, *each[1:]) for each in given.waiting for batch in batches_of(each, program.scratch)]
        count = sum(batch.num_rows for batch, _, _ in received)
        info = TaskInfo(program, self.attempt, given.task, tasks, excluded=self.excluded, facts=self.facts)
        part, view = None, None
        if self.state is not None:
            part = PartOfState(self.step, self.state, given.task)
            tuples = (batch for batch, _, _ in received)
            info, view = with_state(info, component, part, tuples, replaces=self.replaces)
        instances = {} if given.instance is None else {component: bytes_of(given.instance, program.scratch)}
        done, failed = run_through(partial(CommitTask, info, component, instances), lambda: iter(received))
        if failed is not None:
            return TaskDone(given.task, count, failure=_failure(info, failed))
        sent = _items(given.task, done.emitters[component], done.addressed, done.partials, done.letters)
        counted = TaskDone(given.task, count, late_counts=done.late_counts, counted=done.counted)
        answer = _answer(program, self, counted, sent)
        if answer.failure is not None or part is None or view is None:
            return answer
        try:
            return replace(answer, written=part.keep(view.written))
        except SchemaMismatch:
            if not program.sets_aside or given.instance is not None:
                raise  # the driver looks for the tuples that a bolt has had in the processing phase
            failures = find_faults(component, part, info, {given.task: lambda: iter(received)})
            if not failures:
                raise
            return TaskDone(given.task, count, failure=_failure(*failures[0]))


@dataclass(frozen=True, slots=True)
class ClosingWork(StepWork):
    """Read the rows `between`, and make windows of those of the task, in an order that matters to somebody or, where
    that is (), in any."""

    counted: ClassVar[str] = "rows whose windows they close"
    between: tuple[str, int | None, int]
    closer: Closer
    order: tuple[str, ...]

    def _run(self, program: TaskProgram, given: TaskInput) -> TaskDone:
        assert self.state is not None
        step, rows = self.step, self.state.rows_between(*self.between).combine_chunks()
        parts = [
            batch.filter(pc.equal(task_of_rows(batch, step.split_by, step.tasks), given.task))
            for batch in rows.to_batches()
        ]
        own = pa.Table.from_batches(parts, rows.schema)
        done = TaskDone(given.task, own.num_rows, of=rows.num_rows)
        return _emitted(program, self, done, {CLOSED: in_order(self.closer.close_windows(own, self.facts), self.order)})

    def rows_of(self, answers: Sequence[TaskDone]) -> int:
        """All have read the same rows, and each has kept some."""
        return max(answer.of for answer in answers)


@dataclass(frozen=True, slots=True)
class ChangingWork(StepWork):
    """Combine the partial aggregates of the task's keys, pass on what they change, and keep it."""

    def _run(self, program: TaskProgram, given: TaskInput) -> TaskDone:
        assert self.state is not None
        step = self.step
        waiting = [batches_of(each, program.scratch) for each in given.waiting]
        tables = [pa.Table.from_batches(batches) for batches in waiting if batches]
        aggregator = program.aggregators[step.component]
        part = aggregator.combine(tables)
        state = PartOfState(self.step, self.state, given.task)
        changed = changed_rows(state, self.attempt, part, aggregator)
        changed = in_order(changed, step.split_by if step.in_order else ())
        written = state.keep_rows(part if can_combine_all(aggregator.combine_kinds) else changed)
        streams = [stream for stream, fields in program.outputs_of(step.component).items() if fields]
        done = TaskDone(given.task, sum(table.num_rows for table in tables), written=written)
        return _emitted(program, self, done, dict.fromkeys(streams, changed))


def _emitted(program: TaskProgram, work: StepWork, done: TaskDone, tables: Mapping[str, pa.Table]) -> TaskDone:
    """With what an update emits, by stream."""
    try:
        emitter = emit_tables(program, work.attempt, work.step.component, done.task, tables)
        sent = _items(done.task, emitter, emitter.addressed(), emitter.partials())
    except TaskFailed as failed:
        info = TaskInfo(program, work.attempt, done.task, work.step.tasks, facts=work.facts)
        return replace(done, failure=_failure(info, failed))
    return _answer(program, work, done, sent)


def _answer(program: TaskProgram, work: StepWork, done: TaskDone, sent: list[Item]) -> TaskDone:
    """With what it sends on, in files where that is worth it."""
    items = list(staged(program, work.attempt, sent, work.step.tasks))
    for item in items:
        if isinstance(item, TaskFailure):
            return replace(done, failure=StepFailure(item.code, item.text, is_own=False))
    return replace(done, items=tuple(items))


def _items(
    task: int,
    emitter: Emitter,
    addressed: Addressed,
    partials: Iterable[tuple[str, pa.Table]],
    letters: Iterable[DeadLetter] = (),
) -> list[Item]:
    """What a task sends on, in the order in which the driver takes it."""
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
    """An error raised by a state inside a bolt is passed on unchanged, as it is in the driver."""
    cause = failed.__cause__
    if isinstance(cause, OperatingError) and not failed.at_fault:
        return StepFailure.of_state(cause)
    driver_reason = cause.reason if isinstance(cause, NeedsDriver) else ""
    return StepFailure(
        failed.code, f"{info}, in the commit phase: {failed}", failed.at_fault, driver_reason=driver_reason
    )
