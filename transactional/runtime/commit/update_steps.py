"""Updates of states in the commit phase: partial aggregates are merged, and emitted rows are passed on.

There is one class for each kind of update; `update_step` chooses it when the commit phase is made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import starmap
from typing import Any

import pyarrow as pa

from transactional.core.ports import MergedRows, Partials, UpdateKind, can_combine_all
from transactional.core.ports.split import WrittenPart
from transactional.model.absent import ABSENT, Absent
from transactional.model.arrow import arrow_schema
from transactional.model.attempt import TransactionAttempt
from transactional.model.facts import BatchFacts
from transactional.model.schema import Schema
from transactional.model.user_code.failures import TaskFailed
from transactional.model.user_code.tuples import Key
from transactional.runtime.commit.changed_rows import changed_rows, kinds_written
from transactional.runtime.commit.commit_steps import CommitContext, CommitStep, error_of_tasks
from transactional.runtime.commit.commit_task import emit_tables
from transactional.runtime.commit.exchange import CommitExchange
from transactional.runtime.commit.step_tasks import ChangingWork, ClosingWork
from transactional.runtime.processing.split_rows import read_tables, size_of, sort_like_job, split_inputs
from transactional.runtime.tasks.operator_factory import TaskInfo
from transactional.runtime.tasks.step_work import StepWork, TaskInput
from transactional.topology.steps import Step, read_streams
from transactional.topology.topology import CLOSED, Component

CLOSING_BYTES = 128
"""Approximate size of a window that closes: the row that is read, and the tuple that is made of it."""


def update_step(plan: Step, component: Component, context: CommitContext) -> CommitStep:
    """Create the step of a state's update."""
    assert component.update is not None
    emitted, kind = set(read_streams(component)), component.update.update_kind
    if kind is UpdateKind.COMBINED and emitted - {CLOSED}:
        kind = UpdateKind.COMPUTED
    step = KINDS[kind](plan, component, context)
    return ClosingStep(step) if CLOSED in emitted else step


class UpdateStep(CommitStep):
    """An update that emits nothing, and whose values the state combines itself. It has no tasks of its own."""

    def __init__(self, plan: Step, component: Component, context: CommitContext) -> None:
        super().__init__(plan, component, context)
        assert component.state is not None
        assert component.update is not None
        self.state, self.update = component.state, component.update
        self.aggregator = context.program.aggregators[component.id]
        self.emits = read_streams(component)

    def _run_in_driver(self, exchange: CommitExchange) -> None:
        if not (emitted := self.write_state(exchange)):
            return
        program, attempt, component = self.context.program, exchange.attempt, self.component.id
        try:
            emitter = emit_tables(program, attempt, component, 0, emitted)
            exchange.pass_on(component, list(emitter.partials()), emitter.addressed())
        except TaskFailed as failed:
            raise error_of_tasks([(TaskInfo(program, attempt, 0, 1), failed)]) from failed

    def write_state(self, exchange: CommitExchange) -> Mapping[str, pa.Table]:
        """Write the state. Returns the rows to emit by stream, which only subclasses have."""
        self.merge(exchange, self.partials(exchange))
        return {}

    def partials(self, exchange: CommitExchange) -> Partials:
        """Return all partial aggregates, of the processing phase and of steps."""
        part = exchange.part_of(self.component.id)
        if from_steps := exchange.partials.get(self.component.id):
            part = replace(
                part, table=self.aggregator.combine([part.table, *read_tables(from_steps, self.context.scratch)])
            )
        if staged := exchange.staged.get(self.component.id):
            part = replace(part, staged=[*part.staged, *staged])
        return part

    def facts(self, exchange: CommitExchange) -> BatchFacts | None:
        """Return the facts of the batch for this update."""
        return exchange.processed.facts_of(self.component.id)

    def merge(self, exchange: CommitExchange, part: Partials) -> None:
        """Merge partial aggregates into the state."""
        self.state.merge(exchange.attempt, part)
        exchange.written_rows[self.component.id] = part.table.num_rows + sum(file.rows for file in part.staged)


class ChangingStep(UpdateStep):
    """An update that emits its changes, or whose values only its aggregator can combine. New values are computed before
    they are merged."""

    def write_state(self, exchange: CommitExchange) -> Mapping[str, pa.Table]:
        """Merge the changed rows, and emit them."""
        part, plan = self.partials(exchange), self.plan
        rows_before = partial(self.state.parts.lookup.rows_before, exchange.attempt)
        changed = changed_rows(self.state, rows_before, part.table, self.aggregator)
        if plan.in_order:
            changed = sort_like_job(changed, plan.split_by, plan.tasks)
        if not can_combine_all(part.combine):
            part = Partials(kinds_written(part.combine), changed.select(part.table.column_names))
        self.merge(exchange, part)
        return {stream: changed for stream in self.emits if stream != CLOSED}

    def _size(self, exchange: CommitExchange) -> tuple[int, int]:
        rows, size_bytes = size_of(exchange.partials_of(self.component.id))
        exchange.rows[self.component.id] += rows
        return rows, size_bytes

    def _work(self, exchange: CommitExchange) -> StepWork | None:
        if (part := self._state_for_tasks(exchange)) is None:
            return None
        plan, waiting = self.plan, exchange.partials_of(self.component.id)
        inputs = tuple(starmap(TaskInput, enumerate(split_inputs(waiting, plan.split_by, plan.tasks))))
        return ChangingWork(exchange.attempt, plan, part, exchange.processed.facts, inputs, size_of(waiting)[0])

    def _write_parts(self, exchange: CommitExchange, written: Sequence[WrittenPart]) -> None:
        part = exchange.part_of(self.component.id)
        no_rows = part.table.slice(0, 0)
        rows = [
            done.rows.select(no_rows.schema.names).cast(no_rows.schema) for done in written if done.rows is not None
        ]
        files = [done.file for done in written if done.file is not None]
        self.merge(exchange, Partials(kinds_written(part.combine), pa.concat_tables([no_rows, *rows]), files))


class ReplacingStep(UpdateStep):
    """An update of rows that depend on one another, such as windows that grow together. It computes which rows change
    and which are deleted, and puts them."""

    def write_state(self, exchange: CommitExchange) -> Mapping[str, pa.Table]:
        """Put the rows, and emit the changed ones, and also full windows if windows do not close by time."""
        merged = self._put(exchange.attempt, self.partials(exchange).table, self.facts(exchange))
        exchange.written_rows[self.component.id] = merged.changed.num_rows + merged.removed.num_rows
        emitted = {stream: merged.changed for stream in self.emits if stream != CLOSED}
        if CLOSED in self.emits and merged.closed is not None:
            emitted[CLOSED] = merged.closed
        return emitted

    def _put(self, attempt: TransactionAttempt, part: pa.Table, facts: BatchFacts | None) -> MergedRows:
        """Merge partial aggregates into the stored rows, and put the result. A replay reads the same rows as before."""
        update, state = self.update, self.state
        schema = arrow_schema(Schema((*state.key, *state.values)))
        part = part.select(schema.names).cast(schema)
        rows = update.rows_to_merge(attempt, part, facts)
        if rows is None:
            state.put(attempt, {})
            return MergedRows(schema.empty_table(), schema.empty_table())
        merged = update.merge_rows(rows.select(schema.names).cast(schema), part)
        key, values = list(state.key.names), list(state.values.names)
        written: dict[Key, tuple[Any, ...] | Absent] = dict.fromkeys(_tuples(merged.removed.select(key)), ABSENT)
        keys = _tuples(merged.changed.select(key)) if key else [()]
        written.update(zip(keys, _tuples(merged.changed.select(values)), strict=True))
        state.put(attempt, written)
        return merged


class ClosingStep(UpdateStep):
    """An update whose state keeps open windows, and that emits the windows which close.

    The closing windows are read before the step `inside` writes the state. In a job each task closes the windows of its
    part of the keys, and the driver writes the state.
    """

    def __init__(self, inside: UpdateStep) -> None:
        super().__init__(inside.plan, inside.component, inside.context)
        self.inside = inside

    def write_state(self, exchange: CommitExchange) -> Mapping[str, pa.Table]:
        """Close windows, then write the state."""
        return {CLOSED: self._closing_windows(exchange), **self.inside.write_state(exchange)}

    def _closing_windows(self, exchange: CommitExchange) -> pa.Table:
        """Return the windows that close in the transaction, with their rows before it. A replay reads the same rows,
        even if other facts close other windows."""
        plan, facts = self.plan, self.facts(exchange)
        if (rows := self.update.closing(facts)) is None:
            return arrow_schema(self.update.closed_fields).empty_table()
        closed = self.update.close_windows(self.state.rows_between(exchange.attempt, *rows), facts)
        return sort_like_job(closed, plan.split_by, plan.tasks, self.update.window_key) if plan.in_order else closed

    def _size(self, exchange: CommitExchange) -> tuple[int, int]:
        rows = self.update.closing(self.facts(exchange))
        count = 0 if rows is None else self._count_between(exchange.attempt, *rows)
        exchange.rows[self.component.id] += count
        return count, count * CLOSING_BYTES

    def _count_between(self, attempt: TransactionAttempt, column: str, start: int | None, end: int) -> int:
        estimate = self.state.parts.tasks.count_between(attempt, column, start, end)
        return self.state.rows_between(attempt, column, start, end).num_rows if estimate is None else estimate

    def _work(self, exchange: CommitExchange) -> StepWork | None:
        plan, facts = self.plan, self.facts(exchange)
        part, rows = self._state_for_tasks(exchange), self.update.closing(facts)
        if part is None:
            return None
        order, closer = self.update.window_key if plan.in_order else (), self.update.window_closer()
        assert rows is not None, "a step that closes no window is no job"
        assert closer is not None, "the update is split by key"
        inputs = tuple(TaskInput(task, ()) for task in range(plan.tasks))
        return ClosingWork(exchange.attempt, plan, part, facts, inputs, 0, rows, closer, order)

    def _write_parts(self, exchange: CommitExchange, written: Sequence[WrittenPart]) -> None:
        self.inside.write_state(exchange)


def _tuples(table: pa.Table) -> list[tuple[Any, ...]]:
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


KINDS: Mapping[UpdateKind, type[UpdateStep]] = {
    UpdateKind.COMBINED: UpdateStep,
    UpdateKind.COMPUTED: ChangingStep,
    UpdateKind.REPLACED: ReplacingStep,
}
