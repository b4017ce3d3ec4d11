"""`Pipeline`: the operations between two repartitions of a stream as one bolt."""

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
from transactional.model.plumbing.tracebacks import place_of
from transactional.model.schema import Schema
from transactional.model.user_code.tuples import tuple_class
from transactional.topology.bolts.bolts import ArrowBatchBolt, OutputCollector, TopologyContext
from transactional.topology.streams.pipelines.looking_up import LookUp, LookUpStatic
from transactional.topology.streams.pipelines.steps import ArrowStep, GatheringStep, RowStep, StreamStep, TimedStep


class Pipeline(ArrowBatchBolt, LateCounter):
    """Runs steps one after the other. Columns become rows once for adjacent steps on rows, and rows columns."""

    def __init__(self, steps: Iterable[StreamStep], output: Schema) -> None:
        self.steps = tuple(steps)
        self.output = str(output)  # type: ignore[misc]
        self._passes = [
            tuple(run)
            for is_rows, group in groupby(self.steps, lambda step: isinstance(step, RowStep))
            for run in ([tuple(group)] if is_rows else ((step,) for step in group))
        ]

    @property
    def steps_shown(self) -> tuple[str, ...]:
        """What `describe` shows."""
        return tuple(step.label for step in self.steps)

    def prepare(self, context: TopologyContext, collector: OutputCollector, attempt: TransactionAttempt) -> None:
        """Start a batch, and prepare the functions that want it."""
        self._collector, self._component = collector, context.component_id
        self._is_first, self._facts = context.task_index == 0, context.batch
        self._kept: dict[int, list[pa.RecordBatch]] = {}
        self.late_counts = Counter[str]()
        self._lookups, self._readers = context.lookups, list(context.subscribers)
        for step in self.steps:
            step.prepare(context)

    def execute_batch(self, batch: pa.RecordBatch) -> None:
        """Pass a batch through the steps, as far as the first that waits for the end."""
        self._push(batch.replace_schema_metadata(), 0)

    def finish_batch(self) -> None:
        """Finish the steps that have waited, in order."""
        for at, (step, *_) in enumerate(self._passes):
            if isinstance(step, LookUp):
                step = replace(step, lookups=self._lookups)
            if isinstance(step, LookUpStatic):
                step = replace(step, versions={} if self._facts is None else self._facts.static_versions)
            if isinstance(step, GatheringStep):
                for batch in step.finish(self._kept.pop(at, []), is_first=self._is_first):
                    self._push(batch, at + 1)

    def _push(self, batch: pa.RecordBatch, at: int) -> None:
        if not batch.num_rows:
            return
        if at == len(self._passes):
            self._collector.emit_batch(batch)
            return
        steps = self._passes[at]
        if isinstance(steps[0], GatheringStep):
            self._kept.setdefault(at, []).append(batch)
            return
        for made in self._made(batch, steps):
            self._push(made, at + 1)

    def _made(self, batch: pa.RecordBatch, steps: Sequence[Any]) -> Iterator[pa.RecordBatch]:
        [*_, last] = steps
        schema = arrow_schema(last.after)
        if isinstance(last, ArrowStep):
            yield from conform(last.on(batch), schema, component=f"{self._component}: {last.label}")
        elif isinstance(last, TimedStep):
            made = last.at(batch, self._facts_of(last))
            if last.leaves_out_late and made.num_rows < batch.num_rows:
                self.late_counts.update(dict.fromkeys(self._with_windows(last), batch.num_rows - made.num_rows))
            yield from conform(made, schema, component=f"{self._component}: {last.label}")
        elif all(step.only_selects for step in steps):
            yield self._selected(batch, steps)
        else:
            yield self._from_rows(list(self._rows(batch, steps)), schema, last.function)

    def _from_rows(self, rows: list[Any], schema: pa.Schema, function: Any) -> pa.RecordBatch:
        """What a function has made. Raises `SchemaMismatch`, which says where the function is."""
        try:
            return batch_from_rows(rows, schema, component=self._component)
        except SchemaMismatch as error:
            place = place_of(function)
            raise SchemaMismatch(str(error) if place is None else f"{error} ({place})") from error

    def _facts_of(self, step: TimedStep) -> BatchFacts | None:
        """As they are for the windows that a step belongs to."""
        facts = self._facts
        for component in self._with_windows(step):
            facts = facts and facts.of(component)
        return facts

    def _with_windows(self, step: TimedStep) -> list[str]:
        """The component with the windows that a step belongs to; none if nobody reads from it."""
        return [step.windows] if step.windows else self._readers[:1]

    def _selected(self, batch: pa.RecordBatch, steps: Sequence[RowStep]) -> pa.RecordBatch:
        """The rows that are left, without making columns of them again."""
        rows = list(tuples(batch, self._component, DEFAULT_STREAM))
        place = {id(row): number for number, row in enumerate(rows)}
        left: Iterable[Any] = rows
        for step in steps:
            left = step.over(left)
        kept = [place[id(row)] for row in left]
        return batch if len(kept) == batch.num_rows else batch.take(pa.array(kept, pa.int64()))

    def _rows(self, batch: pa.RecordBatch, steps: Sequence[RowStep]) -> Iterable[tuple[Any, ...]]:
        rows: Iterable[Any] = tuples(batch, self._component, DEFAULT_STREAM)
        is_named = True
        for step in steps:
            if not is_named:
                rows = map(tuple_class(step.before.names, self._component, DEFAULT_STREAM), rows)
            rows = step.over(rows)
            is_named = step.only_selects
        return rows
