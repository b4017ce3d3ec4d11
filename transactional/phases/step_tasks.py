"""One task of a step: in the driver, or beside the others in a Spark job."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from time import perf_counter

import pyarrow as pa
import pyarrow.compute as pc

from transactional.arrow import task_of_rows, to_ipc
from transactional.errors import OperatingError, SchemaMismatch, TransactionalError
from transactional.execution.emitting import Emitter, make_emitter
from transactional.execution.failing.failures import TaskFailed
from transactional.execution.items import Item, PartialAggregates, SetAside, TaskFailure, TuplesToCommit
from transactional.execution.map_state import MapStateView
from transactional.execution.part_of_state import PartOfState
from transactional.execution.placing import TaskInfo
from transactional.execution.program import TaskProgram
from transactional.execution.stateful import KeyValues
from transactional.execution.step_work import (
    Closing,
    StepFailure,
    StepWork,
    TaskDone,
    TaskInput,
    Waiting,
    batches_of,
    bytes_of,
)
from transactional.execution.task_loop import Received, run_through
from transactional.phases.changes import changed_rows
from transactional.phases.commit_task import CommitTask
from transactional.phases.passing import Addressed
from transactional.phases.refused_puts import those_at_fault
from transactional.phases.split_rows import in_order
from transactional.phases.staging import staged
from transactional.ports import are_known
from transactional.ports.split import NeedsDriver
from transactional.stateful import StatefulBolt
from transactional.topology.topology import CLOSED


def run_step_task(program: TaskProgram, work: StepWork, given: TaskInput) -> TaskDone:
    """Run one task of a step that runs as a Spark job. What it answers is all that it leaves behind; what it has
    staged is nobody's as long as the driver does not commit it."""
    began = perf_counter()
    try:
        if work.closing is not None:
            done = _close(program, work, work.closing, given.task)
        elif work.changes:
            done = _change(program, work, given)
        else:
            done = _run(program, work, given, work.tasks)
    except TransactionalError as error:
        done = TaskDone(given.task, 0, failure=_failure(error, str(error), own=False))
    return replace(done, elapsed_ms=(perf_counter() - began) * 1e3)


def _run(program: TaskProgram, work: StepWork, given: TaskInput, tasks: int) -> TaskDone:
    received = [(batch, source, stream) for each in given.waiting for batch, source, stream in _tuples(program, each)]
    count = sum(batch.num_rows for batch, _, _ in received)
    info = TaskInfo(program, work.attempt, given.task, tasks, excluded=work.excluded, facts=work.facts)
    part, used = None, None
    if work.state is not None:
        part = PartOfState(work.component, work.state, work.split_by, given.task, tasks)
        used = _used_state(program, work, part)
        if isinstance(used, KeyValues):
            used.read_ahead(batch for batch, _, _ in received)
            info = replace(info, key_values=used, replaces=work.replaces)
        else:
            info = replace(info, state=used)
    instances = {} if given.instance is None else {work.component: bytes_of(given.instance, program.scratch)}
    done, failed = run_through(partial(CommitTask, info, work.component, instances), lambda: iter(received))
    if failed is not None:
        return TaskDone(given.task, count, failure=_failed_task(info, failed))
    answer = _answer(program, work, TaskDone(given.task, count), _items(work, given.task, done))
    if answer.failure is not None or part is None or used is None:
        return answer
    try:
        return replace(answer, written=part.keep(used.written))
    except SchemaMismatch:
        if not program.sets_aside or given.instance is not None:
            raise  # the driver looks for the tuples that a bolt has had in the processing phase
        failures = those_at_fault(work.component, part, info, {given.task: lambda: iter(received)})
        if not failures:
            raise
        return TaskDone(given.task, count, failure=_failed_task(*failures[0]))


def _close(program: TaskProgram, work: StepWork, closing: Closing, task: int) -> TaskDone:
    """Close the windows of the keys that are this task's."""
    assert work.state is not None
    rows = work.state.rows_between(closing.column, closing.after, closing.until).combine_chunks()
    parts = [_of_task_rows(batch, work.split_by, task, work.tasks) for batch in rows.to_batches()]
    own = pa.Table.from_batches(parts, rows.schema)
    done = TaskDone(task, own.num_rows, of=rows.num_rows)
    return _emitted(program, work, done, {CLOSED: in_order(closing.closer.closed(own, work.facts), closing.order)})


def _of_task_rows(batch: pa.RecordBatch, split_by: Sequence[str], task: int, tasks: int) -> pa.RecordBatch:
    return batch.filter(pc.equal(task_of_rows(batch, split_by, tasks), task))


def _change(program: TaskProgram, work: StepWork, given: TaskInput) -> TaskDone:
    """Combine the partial aggregates of the keys that are this task's, and pass on what they change."""
    assert work.state is not None
    waiting = [batches_of(each, program.scratch) for each in given.waiting]
    tables = [pa.Table.from_batches(batches) for batches in waiting if batches]
    aggregator = program.aggregators[work.component]
    part = aggregator.combine(tables)
    state = PartOfState(work.component, work.state, work.split_by, given.task, work.tasks)
    changed = changed_rows(state, work.attempt, part, aggregator)
    if work.in_order:
        changed = in_order(changed, work.split_by)
    written = state.keep_rows(part if are_known(aggregator.combine_kinds) else changed)
    streams = [stream for stream, fields in program.outputs_of(work.component).items() if fields]
    done = TaskDone(given.task, sum(table.num_rows for table in tables), written=written)
    return _emitted(program, work, done, dict.fromkeys(streams, changed))


def _emitted(program: TaskProgram, work: StepWork, done: TaskDone, tables: Mapping[str, pa.Table]) -> TaskDone:
    """With what an update emits, by stream."""
    emitter, outputs = make_emitter(program, work.component, done.task), program.outputs_of(work.component)
    if program.record is not None:
        emitter.record_to(partial(program.record, work.attempt, work.component))
    try:
        for stream, table in tables.items():
            emitter.emit_batch(table.select(list(outputs[stream].names)), stream=stream)
        emitter.flush()
        sent = _sent(work.component, done.task, emitter, emitter.addressed(), emitter.partials())
    except TaskFailed as failed:
        info = TaskInfo(program, work.attempt, done.task, work.tasks, facts=work.facts)
        return replace(done, failure=_failed_task(info, failed))
    return _answer(program, work, done, sent)


def _answer(program: TaskProgram, work: StepWork, done: TaskDone, sent: list[Item]) -> TaskDone:
    """With what it sends on, in files where that is worth it."""
    items = list(staged(program, work.attempt, sent, work.tasks))
    for item in items:
        if isinstance(item, TaskFailure):
            return replace(done, failure=StepFailure(item.code, item.text, is_own=False))
    return replace(done, items=tuple(items))


def _tuples(program: TaskProgram, waiting: Waiting) -> Received:
    return ((batch, *waiting[1:]) for batch in batches_of(waiting, program.scratch))


def _used_state(program: TaskProgram, work: StepWork, part: PartOfState) -> KeyValues | MapStateView:
    if isinstance(program.bolts[work.component].bolt, StatefulBolt):
        return KeyValues.of(work.component, part, work.attempt)
    return MapStateView(work.component, part, work.attempt)


def _items(work: StepWork, task: int, done: CommitTask) -> list[Item]:
    """What a task sends on, in its order."""
    letters: list[Item] = [SetAside((0, task, number), letter) for number, letter in enumerate(done.letters)]
    emitter = done.emitters[work.component]
    return [*letters, *_sent(work.component, task, emitter, done.addressed, done.partials, first=len(letters))]


def _sent(
    component: str,
    task: int,
    emitter: Emitter,
    addressed: Addressed,
    partials: Iterable[tuple[str, pa.Table]],
    *,
    first: int = 0,
) -> list[Item]:
    """What an emitter has for others, after `first` items of the task."""
    items = list[Item]()

    def order() -> tuple[int, int, int]:
        return 0, task, first + len(items)

    for edge, target, batches in addressed:
        stream, rows = edge.grouping.stream, sum(batch.num_rows for batch in batches)
        data = to_ipc(batches, emitter.streams[stream].schema)
        items.append(TuplesToCommit(order(), component, stream, edge.target, target, data, rows))
    for committer, table in partials:
        items.append(PartialAggregates(order(), committer, to_ipc(table.to_batches(), table.schema)))
    return items


def _failed_task(info: TaskInfo, failed: TaskFailed) -> StepFailure:
    """An error raised by a state inside a bolt is passed on unchanged, as it is in the driver."""
    cause = failed.__cause__
    if isinstance(cause, OperatingError) and not failed.at_fault:
        return _failure(cause, str(cause), own=False)
    stays = cause.stays if isinstance(cause, NeedsDriver) else ""
    return StepFailure(failed.code, f"{info}, in the commit phase: {failed}", failed.at_fault, stays=stays)


def _failure(error: TransactionalError, text: str, *, own: bool) -> StepFailure:
    stays = error.stays if isinstance(error, NeedsDriver) else ""
    return StepFailure(error.code, text, error.at_fault, is_own=own, stays=stays)
