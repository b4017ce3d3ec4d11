"""Updates of states in the commit phase: partial aggregates are merged, and what an update emits is passed on.

There is one class for each kind of update; `update_step` chooses it when the commit phase is made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
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
from transactional.runtime.commit.passing import Passing
from transactional.runtime.commit.step_tasks import ChangingWork, ClosingWork
from transactional.runtime.processing.split_rows import in_order_of_tasks, inputs_of, size_of, whole
from transactional.runtime.tasks.operator_factory import TaskInfo
from transactional.runtime.tasks.step_work import StepWork, TaskInput
from transactional.topology.steps import Step, emitted_by
from transactional.topology.topology import CLOSED, Component

CLOSING_BYTES = 128
"""About what a window that closes takes: the row that is read, and what is made of it."""


def update_step(plan: Step, component: Component, context: CommitContext) -> CommitStep:
    """The step of a state's update."""
    assert component.update is not None
    emitted, kind = set(emitted_by(component)), component.update.update_kind
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
        self.emits = emitted_by(component)

    def _run_in_driver(self, passing: Passing) -> None:
        if not (emitted := self.write(passing)):
            return
        program, attempt, component = self.context.program, passing.attempt, self.component.id
        try:
            emitter = emit_tables(program, attempt, component, 0, emitted)
            passing.take_over(component, list(emitter.partials()), emitter.addressed())
        except TaskFailed as failed:
            raise error_of_tasks([(TaskInfo(program, attempt, 0, 1), failed)]) from failed

    def write(self, passing: Passing) -> Mapping[str, pa.Table]:
        """Write the state; what is emitted, by stream."""
        self.merge(passing, self.partials(passing))
        return {}

    def partials(self, passing: Passing) -> Partials:
        """All partial aggregates, in whatever phase they were made."""
        part = passing.part_of(self.component.id)
        if late := passing.partials.get(self.component.id):
            part = replace(part, table=self.aggregator.combine([part.table, *whole(late, self.context.scratch)]))
        if staged := passing.staged.get(self.component.id):
            part = replace(part, staged=[*part.staged, *staged])
        return part

    def facts(self, passing: Passing) -> BatchFacts | None:
        """What the update knows of the batch."""
        return passing.processed.facts_of(self.component.id)

    def merge(self, passing: Passing, part: Partials) -> None:
        """Merge them into the state."""
        self.state.merge(passing.attempt, part)
        passing.written[self.component.id] = part.table.num_rows + sum(file.rows for file in part.staged)


class ChangingStep(UpdateStep):
    """An update that emits what it changes, or whose values only its aggregator can combine: new values are computed
    before they are merged."""

    def write(self, passing: Passing) -> Mapping[str, pa.Table]:
        """Merge what changes, and emit it."""
        part, plan = self.partials(passing), self.plan
        changed = changed_rows(self.state, passing.attempt, part.table, self.aggregator)
        if plan.in_order:
            changed = in_order_of_tasks(changed, plan.split_by, plan.tasks)
        if not can_combine_all(part.combine):
            part = Partials(kinds_written(part.combine), changed.select(part.table.column_names))
        self.merge(passing, part)
        return {stream: changed for stream in self.emits if stream != CLOSED}

    def _size(self, passing: Passing) -> tuple[int, int]:
        rows, size_bytes = size_of(passing.partials_of(self.component.id))
        passing.rows[self.component.id] += rows
        return rows, size_bytes

    def _work(self, passing: Passing) -> StepWork | None:
        if (part := self._for_tasks(passing)) is None:
            return None
        plan, waiting = self.plan, passing.partials_of(self.component.id)
        inputs = tuple(starmap(TaskInput, enumerate(inputs_of(waiting, plan.split_by, plan.tasks))))
        return ChangingWork(passing.attempt, plan, part, passing.processed.facts, inputs, size_of(waiting)[0])

    def _take(self, passing: Passing, written: Sequence[WrittenPart]) -> None:
        part = passing.part_of(self.component.id)
        none = part.table.slice(0, 0)
        rows = [each.rows.select(none.schema.names).cast(none.schema) for each in written if each.rows is not None]
        files = [each.file for each in written if each.file is not None]
        self.merge(passing, Partials(kinds_written(part.combine), pa.concat_tables([none, *rows]), files))


class ReplacingStep(UpdateStep):
    """An update of rows that depend on one another, such as windows that grow together: it says which of them change
    and which go, and they are put."""

    def write(self, passing: Passing) -> Mapping[str, pa.Table]:
        """Put the rows, and emit those that change; and windows that are filled, if they do not close by time."""
        merged = self._put(passing.attempt, self.partials(passing).table, self.facts(passing))
        passing.written[self.component.id] = merged.changed.num_rows + merged.removed.num_rows
        emitted = {stream: merged.changed for stream in self.emits if stream != CLOSED}
        if CLOSED in self.emits and merged.closed is not None:
            emitted[CLOSED] = merged.closed
        return emitted

    def _put(self, attempt: TransactionAttempt, part: pa.Table, facts: BatchFacts | None) -> MergedRows:
        """A replay reads the same rows as before."""
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
    """An update whose state keeps windows that are open, of which those that close are emitted. They are read before
    the state is written, which is a step `inside` this one. As a job, tasks close the windows, each those of its part
    of the keys, and the driver writes the state."""

    def __init__(self, inside: UpdateStep) -> None:
        super().__init__(inside.plan, inside.component, inside.context)
        self.inside = inside

    def write(self, passing: Passing) -> Mapping[str, pa.Table]:
        """Windows that close come first."""
        return {CLOSED: self._closed(passing), **self.inside.write(passing)}

    def _closed(self, passing: Passing) -> pa.Table:
        """The windows that close in the transaction, as they were before it. A replay of the same batch reads the same
        rows; one with other facts, which closes others, reads them as before, too."""
        plan, facts = self.plan, self.facts(passing)
        if (rows := self.update.closing(facts)) is None:
            return arrow_schema(self.update.closed_fields).empty_table()
        closed = self.update.close_windows(self.state.rows_between(passing.attempt, *rows), facts)
        return in_order_of_tasks(closed, plan.split_by, plan.tasks, self.update.window_key) if plan.in_order else closed

    def _size(self, passing: Passing) -> tuple[int, int]:
        rows = self.update.closing(self.facts(passing))
        count = 0 if rows is None else self.state.count_between(passing.attempt, *rows)
        passing.rows[self.component.id] += count
        return count, count * CLOSING_BYTES

    def _work(self, passing: Passing) -> StepWork | None:
        plan, facts = self.plan, self.facts(passing)
        part, rows = self._for_tasks(passing), self.update.closing(facts)
        if part is None:
            return None
        order, closer = self.update.window_key if plan.in_order else (), self.update.window_closer()
        assert rows is not None, "what closes no window is no job"
        assert closer is not None, "it is split by key"
        inputs = tuple(TaskInput(task, ()) for task in range(plan.tasks))
        return ClosingWork(passing.attempt, plan, part, facts, inputs, 0, rows, closer, order)

    def _take(self, passing: Passing, written: Sequence[WrittenPart]) -> None:
        self.inside.write(passing)


def _tuples(table: pa.Table) -> list[tuple[Any, ...]]:
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


KINDS: Mapping[UpdateKind, type[UpdateStep]] = {
    UpdateKind.COMBINED: UpdateStep,
    UpdateKind.COMPUTED: ChangingStep,
    UpdateKind.REPLACED: ReplacingStep,
}
