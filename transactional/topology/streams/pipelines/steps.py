"""The steps of a pipeline: on rows, on Arrow batches, and on all tuples of a batch in a task.

Each operation of a stream becomes one step. A row step calls a function with every row; an Arrow step maps a record
batch to another one; a timed step also gets the facts of the batch, such as its watermark; a gathering step waits for
the end of the batch. `Pipeline` runs them one after the other. A step must not change after it was built: tasks run
copies of it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pyarrow as pa
from pyarrow.compute import Expression

from transactional.model.arrow import arrow_schema, batch_from_rows, conform
from transactional.model.arrow.computed import evaluate_columns
from transactional.model.facts import BatchFacts
from transactional.model.schema import Schema
from transactional.model.user_code.tuples import Tuple
from transactional.topology.bolts.bolts import TopologyContext
from transactional.topology.streams.pipelines.user_functions import (
    appended_rows,
    id_name,
    many_rows,
    one_row,
    prepare_function,
)

Rows = Iterable[tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class StreamStep(ABC):
    """One operation on tuples. `label` is its name in `describe` and in messages, `output_schema` are the fields of its
    output."""

    label: str
    output_schema: Schema

    @property
    def short_name(self) -> str:
        """The name of the operation, which becomes part of the component id."""
        return self.label.rsplit(").", 1)[-1].split("(")[0]

    def prepare(self, context: TopologyContext) -> None:  # noqa: B027 - optional
        """Prepare for a batch. Called before its first tuple."""


@dataclass(frozen=True, slots=True)
class RowStep(StreamStep):
    """Calls a function with every row, whose fields are `input_schema`."""

    input_schema: Schema
    function: Callable[[Tuple], Any]

    @property
    def short_name(self) -> str:
        """The name of the function, or that of the operation if the function has none."""
        return id_name(self.function) or self.label.split("(")[0]

    def prepare(self, context: TopologyContext) -> None:
        """Call the function's `prepare`, if it has one."""
        prepare_function(self.function, context)

    @property
    def only_selects(self) -> bool:
        """True if the step leaves rows out and changes none."""
        return False

    @abstractmethod
    def apply_rows(self, rows: Iterable[Tuple]) -> Rows:
        """Return the rows that the step makes of these."""


class Map(RowStep):
    """Replaces each row by one row."""

    def apply_rows(self, rows: Iterable[Tuple]) -> Rows:
        function, label, width = self.function, self.label, len(self.output_schema)
        for row in rows:
            output = function(row)
            yield output if isinstance(output, tuple) and len(output) == width else one_row(label, output, width)


class FlatMap(RowStep):
    """Replaces each row by any number of rows."""

    def apply_rows(self, rows: Iterable[Tuple]) -> Rows:
        function, label, width = self.function, self.label, len(self.output_schema)
        for row in rows:
            yield from many_rows(label, function(row), width)


class Each(RowStep):
    """Appends values to each row, any number of times; a row without values is dropped."""

    def apply_rows(self, rows: Iterable[Tuple]) -> Rows:
        function, label, width = self.function, self.label, len(self.output_schema) - len(self.input_schema)
        for row in rows:
            for appended in appended_rows(label, function(row), width):
                yield (*row, *appended)


class Filter(RowStep):
    """Keeps the rows for which the function returns a true value."""

    @property
    def only_selects(self) -> bool:
        return True

    def apply_rows(self, rows: Iterable[Tuple]) -> Rows:
        # Not `filter`: it would take a StopIteration of the function for the end of the rows.
        function = self.function
        return (row for row in rows if function(row))


class Peek(RowStep):
    """Calls the function with each row, and passes all rows on."""

    @property
    def only_selects(self) -> bool:
        return True

    def apply_rows(self, rows: Iterable[Tuple]) -> Rows:
        function = self.function
        for row in rows:
            function(row)
            yield row


class ArrowStep(StreamStep):
    """Maps a record batch to another one."""

    @abstractmethod
    def apply_arrow(self, batch: pa.RecordBatch) -> pa.RecordBatch | pa.Table:
        """Return the output for one batch."""


@dataclass(frozen=True, slots=True)
class TimedStep(StreamStep):
    """Maps a record batch to another one, depending on the facts of the transaction."""

    leaves_out_late: ClassVar[bool] = False
    """True if the tuples that the step leaves out are late."""
    windows: str = field(default="", kw_only=True)
    """The component with the windows. Empty if it is the one that reads from the pipeline."""

    @abstractmethod
    def apply_with_facts(self, batch: pa.RecordBatch, facts: BatchFacts | None) -> pa.RecordBatch | pa.Table:
        """Return the output for one batch. `facts` are None in a query."""


@dataclass(frozen=True, slots=True)
class Where(ArrowStep):
    """Keeps the rows for which an expression is true."""

    expression: Expression

    def apply_arrow(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.filter(self.expression)


@dataclass(frozen=True, slots=True)
class Compute(ArrowStep):
    """Computes each column by an expression."""

    columns: Mapping[str, Expression]

    def apply_arrow(self, batch: pa.RecordBatch) -> pa.Table:
        return evaluate_columns(batch, self.columns)


@dataclass(frozen=True, slots=True)
class Select(ArrowStep):
    """Selects columns, in order, and gives them the names of the output schema."""

    names: tuple[str, ...]

    def apply_arrow(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.select(list(self.names)).rename_columns(list(self.output_schema.names))


@dataclass(frozen=True, slots=True)
class Apply(ArrowStep):
    """Applies a function to each record batch."""

    function: Callable[[pa.RecordBatch], Any]

    def apply_arrow(self, batch: pa.RecordBatch) -> Any:
        return self.function(batch)


class GatheringStep(StreamStep):
    """Collects the record batches of a task, and makes its output at the end of the batch."""

    @abstractmethod
    def finish(self, batches: Sequence[pa.RecordBatch], *, is_first: bool) -> Iterator[pa.RecordBatch]:
        """Return the output for all tuples of a task. `is_first` is true in the task with number 0."""


@dataclass(frozen=True, slots=True)
class Aggregated(GatheringStep):
    """Makes one row per key. With `is_final` the input are the partial aggregates of tasks.

    `empty_row` is the output without any tuple: of each task, or of the first one alone if the step `is_whole`.
    """

    aggregator: Any
    is_final: bool = False
    empty_row: tuple[Any, ...] | None = None
    is_whole: bool = False

    def finish(self, batches: Sequence[pa.RecordBatch], *, is_first: bool) -> Iterator[pa.RecordBatch]:
        if self.is_final:
            table = self.aggregator.combine([pa.Table.from_batches([batch]) for batch in batches])
        else:
            table = self.aggregator.partial(batches)
        if not table.num_rows and self.empty_row is not None and (is_first or not self.is_whole):
            row = batch_from_rows([self.empty_row], table.schema, component=self.label)
            table = pa.Table.from_batches([row])
        table = self.aggregator.computed.append_to(table).select(list(self.output_schema.names))
        yield from conform(table, arrow_schema(self.output_schema), component=self.label)
