"""Aggregates of your own: `Combiner` and `Reducer` for one column, `BatchAggregator` for any number of tuples."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from transactional.model.aggregates import ValueCheck, make_step
from transactional.model.aggregates.key_matching import find_key_positions
from transactional.model.aggregates.sums import reduce_rows
from transactional.model.arrow import arrow_schema, batch_from_rows
from transactional.model.arrow.batch_tuples import tuples
from transactional.model.arrow.computed import ComputedColumns
from transactional.model.errors import TooManyCollected
from transactional.model.groupings import DEFAULT_STREAM
from transactional.model.schema import Field, Schema
from transactional.model.user_code.tuples import Tuple

_ROW = " row"
"""Where a row stands. A blank is in no column's name."""
OWN = "own"
"""How the values of such a column are combined: by its aggregate alone."""


class Combiner(ABC):
    """One column of your own that is computed in parts: per task, across the tasks of a batch, onto what is stored.

    `output` declares it: `output = "longest string"`. `combine` must be associative, and is called with what `init`,
    `combine` and `zero` return.
    """

    output: ClassVar[str] = ""

    @abstractmethod
    def init(self, row: Tuple) -> Any:
        """The value of one tuple."""

    @abstractmethod
    def combine(self, one: Any, other: Any) -> Any:
        """The value of two parts."""

    def combine_all(self, parts: Sequence[Any]) -> Any:
        """The value of several parts, in order: by `combine`, one after the other, unless there is a quicker way."""
        return reduce(self.combine, parts)

    def zero(self) -> Any:  # noqa: B027 - optional
        """The value of no tuple."""


class Reducer(ABC):
    """One column of your own that needs its tuples one after the other: all tuples of a key are sent to one task.

    `output` declares it: `output = "path string"`.
    """

    output: ClassVar[str] = ""

    @abstractmethod
    def init(self) -> Any:
        """The value before the first tuple."""

    @abstractmethod
    def reduce(self, value: Any, row: Tuple) -> Any:
        """The value with one more tuple."""


class BatchAggregator(ABC):
    """Makes any number of tuples of all tuples of a batch. `output` declares their fields."""

    output: ClassVar[str] = ""

    @abstractmethod
    def init(self) -> Any:
        """What is kept before the first tuple."""

    @abstractmethod
    def aggregate(self, kept: Any, row: Tuple) -> Any:
        """What is kept with one more tuple."""

    @abstractmethod
    def complete(self, kept: Any) -> Iterable[tuple[Any, ...]]:
        """The tuples."""


@dataclass(frozen=True, slots=True)
class OwnAggregator:
    """Reduces record batches to one row per key, some of whose columns are computed by your own aggregates."""

    key: Schema
    values: Schema
    aggregates: tuple[tuple[str, Any], ...]
    input: Schema
    label: str
    limits: ValueCheck | None = None
    computed: ComputedColumns = field(default_factory=ComputedColumns)

    @property
    def combine_kinds(self) -> Mapping[str, str]:
        """How the partial values of each value column are combined."""
        return {name: aggregate.combine if is_built_in(aggregate) else OWN for name, aggregate in self.aggregates}

    def partial(self, batches: Iterable[pa.RecordBatch]) -> pa.Table:
        """Input tuples → one row per key."""
        schema = arrow_schema(self.input)
        table = pa.Table.from_batches([batch.select(schema.names).cast(schema) for batch in batches], schema)
        rows = self._reduced(table, make_step, _of_rows)
        if self.limits is not None:
            self.limits.check(rows, len(self.key))
        return rows

    def combine(self, partials: Iterable[pa.Table]) -> pa.Table:
        """One row per key and part → one row per key."""
        schema = arrow_schema(Schema((*self.key, *self.values)))
        table = pa.concat_tables(
            [schema.empty_table(), *(table.select(schema.names).cast(schema) for table in partials)]
        )
        return self._reduced(table, None, _of_parts)

    def _reduced(self, table: pa.Table, step: Callable[[Any], Any] | None, own: Callable[..., Any]) -> pa.Table:
        groups = groups_of(table, self.key.names)
        schema = arrow_schema(Schema((*self.key, *self.values)))
        if not groups:
            return schema.empty_table()
        steps = [
            (name, step(each) if step else (name, each.combine)) for name, each in self.aggregates if is_built_in(each)
        ]
        columns = Schema((*self.key, *(self.values[name] for name, _ in steps), Field(_ROW, "long")))
        numbered = table.append_column(_ROW, pa.arange(0, table.num_rows))
        # The groups are in the order of their first rows; those that Arrow makes here are in any.
        found = reduce_rows(
            numbered, self.key.names, [*(each for _, each in steps), (_ROW, "min")], columns, state=self.label
        ).sort_by(_ROW)
        arrays = {name: found[name] for name in columns.names}
        for name, aggregate in self.aggregates:
            if not is_built_in(aggregate):
                parts = own(table, groups, name, aggregate, self.label)
                values = [self._one(table, name, aggregate, *each) for each in zip(groups, parts, strict=True)]
                made = batch_from_rows(
                    [(value,) for value in values], pa.schema([schema.field(name)]), component=self.label
                )
                arrays[name] = pa.chunked_array([made.column(0)])
        return pa.table([arrays[name] for name in schema.names], schema=schema)

    def _one(self, table: pa.Table, name: str, aggregate: Any, group: list[int], parts: list[Any]) -> Any:
        """The value of a group, of the values of its parts."""
        if len(parts) == 1:
            return parts[0]
        try:
            return aggregate.combine_all(parts)
        except TooManyCollected as error:
            key = tuple(table[each][group[0]].as_py() for each in self.key.names)
            raise TooManyCollected(f"{self.label}: column {name!r}, key {key!r}: {error}") from None


def is_built_in(aggregate: Any) -> bool:
    """Whether Arrow computes it."""
    return not isinstance(aggregate, Combiner | Reducer)


def groups_of(table: pa.Table, key: Sequence[str]) -> list[list[int]]:
    """For each key the numbers of its rows, in order. The keys are in the order of their first rows."""
    if not table.num_rows:
        return []
    if not key:
        return [list(range(table.num_rows))]
    firsts = find_key_positions(table, table, key)
    # Which keeps the order of equal ones.
    order = pc.sort_indices(firsts)
    of = firsts.take(order)
    begins = [0, *pc.add(pc.indices_nonzero(pc.not_equal(of.slice(1), of.slice(0, len(of) - 1))), 1).to_pylist()]
    rows = order.to_pylist()
    return [rows[begin:end] for begin, end in zip(begins, [*begins[1:], len(rows)], strict=True)]


def rows_of(table: pa.Table, label: str) -> list[Tuple]:
    """The rows of a table, as functions get them."""
    return [row for batch in table.to_batches() for row in tuples(batch, label, DEFAULT_STREAM)]


def _of_rows(
    table: pa.Table, groups: list[list[int]], name: str, aggregate: Combiner | Reducer, label: str
) -> Iterator[list[Any]]:
    """For each group the values of its parts, which are tuples."""
    rows = rows_of(table, label)
    if isinstance(aggregate, Reducer):
        for group in groups:
            yield [reduce(aggregate.reduce, (rows[at] for at in group), aggregate.init())]
        return
    for group in groups:
        yield [aggregate.init(rows[at]) for at in group]


def _of_parts(
    table: pa.Table, groups: list[list[int]], name: str, aggregate: Combiner, label: str
) -> Iterator[list[Any]]:
    values = table[name].to_pylist()
    return ([values[at] for at in group] for group in groups)
