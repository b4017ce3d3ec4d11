"""`Pipeline`: the operations between two repartitions of a stream, as one bolt.

Adjacent steps on rows run in one pass, so columns become rows once and rows become columns once. A step that gathers
its input holds it back until the batch ends; the steps behind it then run on its output.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

import pyarrow as pa

from transactional.core.ports import LateCounter
from transactional.model.arrow import arrow_schema, batch_from_rows, conform
from transactional.model.arrow.batch_tuples import tuples
from transactional.model.attempt import TransactionAttempt
from transactional.model.errors import SchemaMismatch
from transactional.model.facts import BatchFacts
from transactional.model.groupings import DEFAULT_STREAM
from transactional.model.plumbing.tracebacks import function_location
from transactional.model.schema import Schema
from transactional.model.user_code.tuples import tuple_class
from transactional.topology.bolts.bolts import ArrowBatchBolt, OutputCollector, TopologyContext
from transactional.topology.streams.pipelines.looking_up import LookUp, LookUpStatic
from transactional.topology.streams.pipelines.steps import ArrowStep, GatheringStep, RowStep, StreamStep, TimedStep


class Pipeline(ArrowBatchBolt, LateCounter):
    """Runs steps one after the other. Adjacent row steps share one conversion from columns to rows and back."""

    def __init__(self, steps: Iterable[StreamStep], output: Schema) -> None:
        self.steps = tuple(steps)
        self.output = str(output)  # type: ignore[misc]
        self._step_groups = [
            tuple(run)
            for is_rows, group in groupby(self.steps, lambda step: isinstance(step, RowStep))
            for run in ([tuple(group)] if is_rows else ((step,) for step in group))
        ]

    @property
    def steps_shown(self) -> tuple[str, ...]:
        """The labels of the steps, as `describe` shows them."""
        return tuple(step.label for step in self.steps)

    def prepare(self, context: TopologyContext, collector: OutputCollector, attempt: TransactionAttempt) -> None:
        """Start a batch, and call `prepare` of the steps."""
        self._collector, self._component = collector, context.component_id
        self._is_first, self._facts = context.task_index == 0, context.batch
        self._gathered: dict[int, list[pa.RecordBatch]] = {}
        self.late_counts = Counter[str]()
        self._lookups, self._readers = context.lookups, list(context.subscribers)
        for step in self.steps:
            step.prepare(context)

    def execute_batch(self, batch: pa.RecordBatch) -> None:
        """Pass a record batch through the steps, up to the first one that gathers."""
        self._push(batch.replace_schema_metadata(), 0)

    def finish_batch(self) -> None:
        """Finish the gathering steps, in order."""
        for position, (step, *_) in enumerate(self._step_groups):
            if isinstance(step, LookUp):
                step = replace(step, lookups=self._lookups)
            if isinstance(step, LookUpStatic):
                step = replace(step, versions={} if self._facts is None else self._facts.static_versions)
            if isinstance(step, GatheringStep):
                for batch in step.finish(self._gathered.pop(position, []), is_first=self._is_first):
                    self._push(batch, position + 1)

    def _push(self, batch: pa.RecordBatch, position: int) -> None:
        if not batch.num_rows:
            return
        if position == len(self._step_groups):
            self._collector.emit_batch(batch)
            return
        steps = self._step_groups[position]
        if isinstance(steps[0], GatheringStep):
            self._gathered.setdefault(position, []).append(batch)
            return
        for output in self._apply_steps(batch, steps):
            self._push(output, position + 1)

    def _apply_steps(self, batch: pa.RecordBatch, steps: Sequence[Any]) -> Iterator[pa.RecordBatch]:
        [*_, last] = steps
        schema = arrow_schema(last.output_schema)
        if isinstance(last, ArrowStep):
            yield from conform(last.apply_arrow(batch), schema, component=f"{self._component}: {last.label}")
        elif isinstance(last, TimedStep):
            output = last.apply_with_facts(batch, self._step_facts(last))
            if last.leaves_out_late and output.num_rows < batch.num_rows:
                self.late_counts.update(dict.fromkeys(self._window_components(last), batch.num_rows - output.num_rows))
            yield from conform(output, schema, component=f"{self._component}: {last.label}")
        elif all(step.only_selects for step in steps):
            yield self._select_rows(batch, steps)
        else:
            yield self._to_batch(list(self._call_functions(batch, steps)), schema, last.function)

    def _to_batch(self, rows: list[Any], schema: pa.Schema, function: Any) -> pa.RecordBatch:
        """Make a record batch of the rows that a function returned. Raises `SchemaMismatch` with the place of the
        function."""
        try:
            return batch_from_rows(rows, schema, component=self._component)
        except SchemaMismatch as error:
            place = function_location(function)
            raise SchemaMismatch(str(error) if place is None else f"{error} ({place})") from error

    def _step_facts(self, step: TimedStep) -> BatchFacts | None:
        """Return the facts as they are for the windows that a step belongs to."""
        facts = self._facts
        for component in self._window_components(step):
            facts = facts and facts.for_component(component)
        return facts

    def _window_components(self, step: TimedStep) -> list[str]:
        """The component with the windows that a step belongs to; empty if no component reads from the pipeline."""
        return [step.windows] if step.windows else self._readers[:1]

    def _select_rows(self, batch: pa.RecordBatch, steps: Sequence[RowStep]) -> pa.RecordBatch:
        """Return the rows of a batch that the steps keep, without converting them back to columns."""
        rows = list(tuples(batch, self._component, DEFAULT_STREAM))
        place_of_row = {id(row): number for number, row in enumerate(rows)}
        selected: Iterable[Any] = rows
        for step in steps:
            selected = step.apply_rows(selected)
        places = [place_of_row[id(row)] for row in selected]
        return batch if len(places) == batch.num_rows else batch.take(pa.array(places, pa.int64()))

    def _call_functions(self, batch: pa.RecordBatch, steps: Sequence[RowStep]) -> Iterable[tuple[Any, ...]]:
        rows: Iterable[Any] = tuples(batch, self._component, DEFAULT_STREAM)
        is_named = True
        for step in steps:
            if not is_named:
                rows = map(tuple_class(step.input_schema.names, self._component, DEFAULT_STREAM), rows)
            rows = step.apply_rows(rows)
            is_named = step.only_selects
        return rows
