"""How tuples become one row per key: the aggregates of a column, and `TableAggregator`, which computes them in Arrow.

An aggregate is computed in steps: per task, across the tasks of a batch, and onto the stored values.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import pyarrow as pa

from transactional.aggregates.ordered import have_keys_once, in_order
from transactional.aggregates.sums import Step, reduced
from transactional.arrow import arrow_schema
from transactional.errors import ConfigError
from transactional.schema import Schema

_DECIMAL_DIGITS_MAX = 38
_SUMMABLE = {"byte": "long", "short": "long", "int": "long", "long": "long", "float": "double", "double": "double"}
_ORDERED = ("byte", "short", "int", "long", "float", "double", "string", "date", "timestamp", "boolean", "binary")


class Aggregate(Protocol):
    """How one value column is computed from the tuples of a batch, and combined with the stored value."""

    combine: ClassVar[str]

    @property
    def field(self) -> str | None:
        """The input field, None for a count."""

    def type_for(self, input_type: str) -> str:
        """The column's type for a given type of the input field. Raises `ConfigError` if there is none."""


@dataclass(frozen=True, slots=True)
class Count:
    """The number of tuples, as long."""

    combine: ClassVar[str] = "sum"

    @property
    def field(self) -> str | None:
        """A count needs no field."""
        return None

    def type_for(self, input_type: str) -> str:
        """Always long."""
        return "long"


@dataclass(frozen=True, slots=True)
class Sum:
    """The sum of a field: long for integers, double for floating-point numbers, decimals with ten more digits.

    NULL counts as nothing; the sum of only NULLs is NULL. Sums of integers and decimals are exact, or `SumOverflow`.
    """

    field: str
    combine: ClassVar[str] = "sum"

    def type_for(self, input_type: str) -> str:
        """Wide enough for many rows."""
        if input_type.startswith("decimal"):
            precision, scale = input_type[len("decimal(") : -1].split(",")
            return f"decimal({min(int(precision) + 10, _DECIMAL_DIGITS_MAX)},{scale})"
        if input_type not in _SUMMABLE:
            raise ConfigError(f"field {self.field!r} is a {input_type}, which has no sum; use a number")
        return _SUMMABLE[input_type]


@dataclass(frozen=True, slots=True)
class Min:
    """The smallest value of a field. NULL counts as nothing; NaN is greater than every other number."""

    field: str
    combine: ClassVar[str] = "min"

    def type_for(self, input_type: str) -> str:
        """The field's own."""
        return _ordered(self.field, input_type)


@dataclass(frozen=True, slots=True)
class Max:
    """The largest value of a field. NULL counts as nothing; NaN is greater than every other number."""

    field: str
    combine: ClassVar[str] = "max"

    def type_for(self, input_type: str) -> str:
        """The field's own."""
        return _ordered(self.field, input_type)


@dataclass(frozen=True, slots=True)
class CountOf:
    """The number of tuples in which a field is not NULL, as long."""

    field: str
    combine: ClassVar[str] = "sum"
    partial: ClassVar[str] = "count"

    def type_for(self, input_type: str) -> str:
        """Always long."""
        return "long"


@dataclass(frozen=True, slots=True)
class First:
    """The first value of a field, NULL as well: in the order of tasks, and in a task as tuples arrive."""

    field: str
    combine: ClassVar[str] = "first"

    def type_for(self, input_type: str) -> str:
        """The field's own."""
        return input_type


@dataclass(frozen=True, slots=True)
class Last:
    """The last value of a field, NULL as well: in the order of tasks, and in a task as tuples arrive."""

    field: str
    combine: ClassVar[str] = "last"

    def type_for(self, input_type: str) -> str:
        """The field's own."""
        return input_type


def _ordered(field: str, input_type: str) -> str:
    if input_type not in _ORDERED and not input_type.startswith("decimal"):
        raise ConfigError(f"field {field!r} is a {input_type}, which has no order; min and max need one")
    return input_type


def aggregates_shown(aggregates: Mapping[str, Any]) -> dict[str, str]:
    """Aggregates by column in words, `sum(amount)`; those of your own by the names of their classes."""
    return {
        name: f"{type(each).__name__.lower()}({getattr(each, 'field', None) or ''})"
        for name, each in aggregates.items()
    }


class ValueCheck(Protocol):
    """What a state refuses of what Arrow can represent."""

    def check(self, rows: pa.Table, width: int) -> None:
        """Raise `SchemaMismatch` for a value that is refused. `width` columns are the key."""


@dataclass(frozen=True, slots=True)
class TableAggregator:
    """Reduces record batches to one row per key: key columns, then value columns. Sums are exact, or `SumOverflow` is
    raised, which names the `state`."""

    key: Schema
    values: Schema
    aggregates: tuple[tuple[str, Aggregate], ...]
    state: str = "a state"
    limits: ValueCheck | None = None

    @property
    def combine_kinds(self) -> Mapping[str, str]:
        """How the partial values of each value column are combined."""
        return {name: aggregate.combine for name, aggregate in self.aggregates}

    def partial(self, batches: Iterable[pa.RecordBatch]) -> pa.Table:
        """Input tuples → one row per key, many of them in order. Raises `SchemaMismatch` for what the state refuses."""
        tables = [pa.Table.from_batches([batch]) for batch in batches if batch.num_rows]
        if not tables:
            return self._schema().empty_table()
        steps: list[Step] = [(each.field, getattr(each, "partial", each.combine)) for _, each in self.aggregates]
        rows = self._reduce(pa.concat_tables(tables), steps)
        if self.limits is not None:
            self.limits.check(rows, len(self.key))
        return in_order(rows, self.key.names)

    def combine(self, partials: Iterable[pa.Table]) -> pa.Table:
        """One row per key and part → one row per key."""
        tables = [table.cast(self._schema()) for table in partials if table.num_rows]
        if not tables:
            return self._schema().empty_table()
        if len(tables) == 1:
            return tables[0]
        every = in_order(pa.concat_tables(tables), self.key.names)
        if have_keys_once(every, self.key.names):
            return every
        return self._reduce(every, [(name, aggregate.combine) for name, aggregate in self.aggregates])

    def _reduce(self, table: pa.Table, steps: list[Step]) -> pa.Table:
        return reduced(table, self.key.names, steps, Schema((*self.key, *self.values)), state=self.state)

    def _schema(self) -> pa.Schema:
        return arrow_schema(Schema((*self.key, *self.values)))
