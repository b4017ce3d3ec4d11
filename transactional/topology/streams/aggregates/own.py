"""Aggregates of your own: `Combiner` and `Reducer` for one column, `BatchAggregator` for any number of tuples.

`OwnAggregator` runs them beside the built-in aggregates, which Arrow computes: it groups the rows of a table by key and
calls the code of the user for each group, in the order of the rows. So a replay of the same tuples gives the same
values.
"""

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

_ROW_NUMBER = " row"
"""A column with the number of a row. The blank keeps it apart from all fields."""
OWN = "own"
"""The way in which the values of such a column are combined: only its aggregate can do it."""


class Combiner(ABC):
    """One column of your own that is computed in parts: per task, across the tasks of a batch, and with the stored
    value.

    `output` declares it, as in `output = "longest string"`. `combine` must be associative. It is called with values
    that `init`, `combine` and `zero` have returned.
    """

    output: ClassVar[str] = ""

    @abstractmethod
    def init(self, row: Tuple) -> Any:
        """Return the value of one tuple."""

    @abstractmethod
    def combine(self, first: Any, second: Any) -> Any:
        """Return the value of two parts. All tuples of `first` come before those of `second`."""

    def combine_all(self, parts: Sequence[Any]) -> Any:
        """Return the value of several parts, in order. It calls `combine` for one after the other; override it if there
        is a quicker way."""
        return reduce(self.combine, parts)

    def zero(self) -> Any:  # noqa: B027 - optional
        """Return the value of no tuple, for an empty batch."""


class Reducer(ABC):
    """One column of your own that needs its tuples one after the other: all tuples of a key are sent to one task.

    `output` declares it, as in `output = "path string"`.
    """

    output: ClassVar[str] = ""

    @abstractmethod
    def init(self) -> Any:
        """Return the value before the first tuple."""

    @abstractmethod
    def reduce(self, accumulator: Any, row: Tuple) -> Any:
        """Return the value with one more tuple."""


class BatchAggregator(ABC):
    """Makes any number of tuples from all tuples of a batch. `output` declares their fields."""

    output: ClassVar[str] = ""

    @abstractmethod
    def init(self) -> Any:
        """Return the accumulator before the first tuple."""

    @abstractmethod
    def aggregate(self, accumulator: Any, row: Tuple) -> Any:
        """Return the accumulator with one more tuple."""

    @abstractmethod
    def complete(self, accumulator: Any) -> Iterable[tuple[Any, ...]]:
        """Return the output tuples, from the last accumulator."""


@dataclass(frozen=True, slots=True)
class OwnAggregator:
    """Aggregates record batches to one row per key, with at least one column of a `Combiner` or `Reducer`."""

    key: Schema
    values: Schema
    aggregates: tuple[tuple[str, Any], ...]
    input: Schema
    label: str
    limits: ValueCheck | None = None
    computed: ComputedColumns = field(default_factory=ComputedColumns)

    @property
    def combine_kinds(self) -> Mapping[str, str]:
        return {name: aggregate.combine if is_built_in(aggregate) else OWN for name, aggregate in self.aggregates}

    def partial(self, batches: Iterable[pa.RecordBatch]) -> pa.Table:
        """Aggregate input tuples to one row per key."""
        schema = arrow_schema(self.input)
        table = pa.Table.from_batches([batch.select(schema.names).cast(schema) for batch in batches], schema)
        rows = self._aggregate_groups(table, make_step, _parts_from_rows)
        if self.limits is not None:
            self.limits.check(rows, len(self.key))
        return rows

    def combine(self, partials: Iterable[pa.Table]) -> pa.Table:
        """Combine the rows of several parts to one row per key."""
        schema = arrow_schema(Schema((*self.key, *self.values)))
        table = pa.concat_tables(
            [schema.empty_table(), *(table.select(schema.names).cast(schema) for table in partials)]
        )
        return self._aggregate_groups(table, None, _parts_from_partials)

    def _aggregate_groups(
        self, table: pa.Table, step: Callable[[Any], Any] | None, parts_of_groups: Callable[..., Any]
    ) -> pa.Table:
        groups = group_rows(table, self.key.names)
        schema = arrow_schema(Schema((*self.key, *self.values)))
        if not groups:
            return schema.empty_table()
        steps = [
            (name, step(aggregate_) if step else (name, aggregate_.combine))
            for name, aggregate_ in self.aggregates
            if is_built_in(aggregate_)
        ]
        columns = Schema((*self.key, *(self.values[name] for name, _ in steps), Field(_ROW_NUMBER, "long")))
        numbered = table.append_column(_ROW_NUMBER, pa.arange(0, table.num_rows))
        # Arrow makes groups in any order; ours are in the order of their first rows.
        built_in = reduce_rows(
            numbered,
            self.key.names,
            [*(aggregate_ for _, aggregate_ in steps), (_ROW_NUMBER, "min")],
            columns,
            state=self.label,
        ).sort_by(_ROW_NUMBER)
        arrays = {name: built_in[name] for name in columns.names}
        for name, aggregate in self.aggregates:
            if not is_built_in(aggregate):
                parts = parts_of_groups(table, groups, name, aggregate, self.label)
                values = [
                    self._combine_group(table, name, aggregate, *aggregate_)
                    for aggregate_ in zip(groups, parts, strict=True)
                ]
                column = batch_from_rows(
                    [(total,) for total in values], pa.schema([schema.field(name)]), component=self.label
                )
                arrays[name] = pa.chunked_array([column.column(0)])
        return pa.table([arrays[name] for name in schema.names], schema=schema)

    def _combine_group(self, table: pa.Table, name: str, aggregate: Any, group: list[int], parts: list[Any]) -> Any:
        """Return the value of a group, from the values of its parts."""
        if len(parts) == 1:
            return parts[0]
        try:
            return aggregate.combine_all(parts)
        except TooManyCollected as error:
            key = tuple(table[field_name][group[0]].as_py() for field_name in self.key.names)
            raise TooManyCollected(f"{self.label}: column {name!r}, key {key!r}: {error}") from None


def is_built_in(aggregate: Any) -> bool:
    """Return whether Arrow computes an aggregate."""
    return not isinstance(aggregate, Combiner | Reducer)


def group_rows(table: pa.Table, key: Sequence[str]) -> list[list[int]]:
    """Return the row numbers of each key, in order. The keys are in the order of their first rows."""
    if not table.num_rows:
        return []
    if not key:
        return [list(range(table.num_rows))]
    firsts = find_key_positions(table, table, key)
    # The sort is stable, so rows of a key keep their order.
    order = pc.sort_indices(firsts)
    sorted_firsts = firsts.take(order)
    begins = [
        0,
        *pc.add(
            pc.indices_nonzero(pc.not_equal(sorted_firsts.slice(1), sorted_firsts.slice(0, len(sorted_firsts) - 1))), 1
        ).to_pylist(),
    ]
    rows = order.to_pylist()
    return [rows[begin:end] for begin, end in zip(begins, [*begins[1:], len(rows)], strict=True)]


def table_rows(table: pa.Table, label: str) -> list[Tuple]:
    """Return the rows of a table as tuples, in the form that functions of users get."""
    return [row for batch in table.to_batches() for row in tuples(batch, label, DEFAULT_STREAM)]


def _parts_from_rows(
    table: pa.Table, groups: list[list[int]], name: str, aggregate: Combiner | Reducer, label: str
) -> Iterator[list[Any]]:
    """Yield for each group the values of its tuples, or, for a `Reducer`, the value of all of them."""
    rows = table_rows(table, label)
    if isinstance(aggregate, Reducer):
        for group in groups:
            yield [reduce(aggregate.reduce, (rows[number] for number in group), aggregate.init())]
        return
    for group in groups:
        yield [aggregate.init(rows[number]) for number in group]


def _parts_from_partials(
    table: pa.Table, groups: list[list[int]], name: str, aggregate: Combiner, label: str
) -> Iterator[list[Any]]:
    """Return for each group the values of its partial aggregates."""
    values = table[name].to_pylist()
    return ([values[number] for number in group] for group in groups)
