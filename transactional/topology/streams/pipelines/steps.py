"""The steps of a pipeline: on rows, on Arrow batches, and on all tuples of a batch in a task."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pyarrow as pa
from pyarrow.compute import Expression

from transactional.model.arrow import arrow_schema, batch_from_rows, conform
from transactional.model.arrow.computed import evaluated
from transactional.model.facts import BatchFacts
from transactional.model.schema import Schema
from transactional.model.user_code.tuples import Tuple
from transactional.topology.bolts.bolts import TopologyContext
from transactional.topology.streams.pipelines.functions import (
    appended_rows,
    id_name,
    many_rows,
    one_row,
    prepare_function,
)

Rows = Iterable[tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class StreamStep(ABC):
    """One operation on tuples. `label` is what `describe` and messages call it, `after` are the fields it makes."""

    label: str
    after: Schema

    @property
    def short(self) -> str:
        """What an id has of it."""
        return self.label.rsplit(").", 1)[-1].split("(")[0]

    def prepare(self, context: TopologyContext) -> None:  # noqa: B027 - optional
        """Called before the tuples of a batch."""


@dataclass(frozen=True, slots=True)
class RowStep(StreamStep):
    """Calls a function with every row. `before` are the fields of the row."""

    before: Schema
    function: Callable[[Tuple], Any]

    @property
    def short(self) -> str:
        """The function's name, if it has one."""
        return id_name(self.function) or self.label.split("(")[0]

    def prepare(self, context: TopologyContext) -> None:
        """Prepare the function, if it wants that."""
        prepare_function(self.function, context)

    @property
    def only_selects(self) -> bool:
        """Whether it leaves every row that it keeps as it is."""
        return False

    @abstractmethod
    def over(self, rows: Iterable[Tuple]) -> Rows:
        """The rows that it makes of some."""


class Map(RowStep):
    """One row for each."""

    def over(self, rows: Iterable[Tuple]) -> Rows:
        """Replace the rows."""
        function, label, width = self.function, self.label, len(self.after)
        for row in rows:
            made = function(row)
            yield made if isinstance(made, tuple) and len(made) == width else one_row(label, made, width)


class FlatMap(RowStep):
    """Any number of rows for each."""

    def over(self, rows: Iterable[Tuple]) -> Rows:
        """Replace the rows."""
        function, label, width = self.function, self.label, len(self.after)
        for row in rows:
            yield from many_rows(label, function(row), width)


class Each(RowStep):
    """The row with values appended, any number of times."""

    def over(self, rows: Iterable[Tuple]) -> Rows:
        """Append to the rows."""
        function, label, width = self.function, self.label, len(self.after) - len(self.before)
        for row in rows:
            for made in appended_rows(label, function(row), width):
                yield (*row, *made)


class Filter(RowStep):
    """The rows of which the function says yes."""

    @property
    def only_selects(self) -> bool:
        """It does."""
        return True

    def over(self, rows: Iterable[Tuple]) -> Rows:
        """Leave out the others."""
        # Not `filter`: it would take a StopIteration of the function for the end of the rows.
        function = self.function
        return (row for row in rows if function(row))


class Peek(RowStep):
    """All rows; the function is called with each."""

    @property
    def only_selects(self) -> bool:
        """It does."""
        return True

    def over(self, rows: Iterable[Tuple]) -> Rows:
        """Call the function."""
        function = self.function
        for row in rows:
            function(row)
            yield row


class ArrowStep(StreamStep):
    """Makes a record batch of a record batch."""

    @abstractmethod
    def on(self, batch: pa.RecordBatch) -> pa.RecordBatch | pa.Table:
        """The batch that it makes of one."""


@dataclass(frozen=True, slots=True)
class TimedStep(StreamStep):
    """Makes a record batch of a record batch, and of the facts of the transaction's batch."""

    leaves_out_late: ClassVar[bool] = False
    """Whether what it leaves out are the late tuples."""
    windows: str = field(default="", kw_only=True)
    """The component with the windows; empty: it is the one that reads from the pipeline."""

    @abstractmethod
    def at(self, batch: pa.RecordBatch, facts: BatchFacts | None) -> pa.RecordBatch | pa.Table:
        """The batch that it makes of one."""


@dataclass(frozen=True, slots=True)
class Where(ArrowStep):
    """The rows for which an expression is true."""

    expression: Expression

    def on(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Leave out the others."""
        return batch.filter(self.expression)


@dataclass(frozen=True, slots=True)
class Compute(ArrowStep):
    """One expression for each column."""

    columns: Mapping[str, Expression]

    def on(self, batch: pa.RecordBatch) -> pa.Table:
        """Evaluate them."""
        return evaluated(batch, self.columns)


@dataclass(frozen=True, slots=True)
class Select(ArrowStep):
    """Some of the columns, in order, maybe with other names."""

    names: tuple[str, ...]

    def on(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Pick them."""
        return batch.select(list(self.names)).rename_columns(list(self.after.names))


@dataclass(frozen=True, slots=True)
class Apply(ArrowStep):
    """A function of a record batch."""

    function: Callable[[pa.RecordBatch], Any]

    def on(self, batch: pa.RecordBatch) -> Any:
        """Call it."""
        return self.function(batch)


class GatheringStep(StreamStep):
    """Keeps what it is given, and continues at the end of the batch."""

    @abstractmethod
    def finish(self, kept: Sequence[pa.RecordBatch], *, is_first: bool) -> Iterator[pa.RecordBatch]:
        """What it makes of all tuples of the task, which `is_first` if its number is 0."""


@dataclass(frozen=True, slots=True)
class Aggregated(GatheringStep):
    """One row per key. With `is_final` the tuples are aggregates of tasks.

    `nothing` is the row that is made without tuples: in each task, or, with `is_whole`, in one.
    """

    aggregator: Any
    is_final: bool = False
    nothing: tuple[Any, ...] | None = None
    is_whole: bool = False

    def finish(self, kept: Sequence[pa.RecordBatch], *, is_first: bool) -> Iterator[pa.RecordBatch]:
        """Reduce them."""
        if self.is_final:
            table = self.aggregator.combine([pa.Table.from_batches([batch]) for batch in kept])
        else:
            table = self.aggregator.partial(kept)
        if not table.num_rows and self.nothing is not None and (is_first or not self.is_whole):
            row = batch_from_rows([self.nothing], table.schema, component=self.label)
            table = pa.Table.from_batches([row])
        table = self.aggregator.computed.appended(table).select(list(self.after.names))
        yield from conform(table, arrow_schema(self.after), component=self.label)
