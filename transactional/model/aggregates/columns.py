"""The aggregates that a state can store per key, and `TableAggregator`, which computes them in Arrow.

An `Aggregate` is computed in steps: per task, across the tasks of a batch, and onto the stored values. It is one stored
column, or several from which its value is computed when it is read. The values of a column must be combined in such a
way that the order of the steps does not matter, but for `first` and `last`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from dataclasses import field as attribute
from typing import Any, ClassVar, Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow.compute import Expression

from transactional.model.aggregates.key_matching import has_unique_sorted_keys, sort_by_key
from transactional.model.aggregates.sums import Step, reduce_rows
from transactional.model.arrow import arrow_schema, arrow_type
from transactional.model.arrow.computed import ComputedColumns
from transactional.model.errors import ConfigError
from transactional.model.schema import Schema

_DECIMAL_DIGITS_MAX, _COUNT_DIGITS = 38, 19
_SUM_DIGITS = 10
"""The number of digits that a sum of decimals has in addition to those of the field, up to 38 in all."""
_MORE_DIGITS = 4
"""The number of digits that an average of decimals has in addition, before the point and after it."""
_SUMMABLE = {"byte": "long", "short": "long", "int": "long", "long": "long", "float": "double", "double": "double"}
_ORDERED = ("byte", "short", "int", "long", "float", "double", "string", "date", "timestamp", "boolean", "binary")


class Aggregate:
    """A value computed from the tuples of each key, stored in one column or computed from several when it is read.

    To write an aggregate of your own, extend this class. An aggregate of one column has a `field`, `combine`, which
    says how the field's values are combined, and `type_for`. An aggregate of several columns has `columns` and
    `finish`.
    """

    combine: ClassVar[str] = ""
    """The combination of the column's values, in a batch and with the stored one: `sum`, `min`, `max`, `first` or
    `last`."""
    partial: ClassVar[str] = ""
    """The reduction of a batch's tuples to a value of the column, if it differs from `combine`: `count`, whose results
    are summed up."""
    field: str | None
    """The input field, None for a count."""

    def type_for(self, input_type: str) -> str:
        """Return the column's type for a type of the input field. Raises `ConfigError` for an unsupported type."""
        return input_type

    def columns(self, name: str) -> Mapping[str, Aggregate]:
        """Return the columns to store for a column of this name: aggregates of one column each, by name."""
        return {name: self}

    def finish(self) -> Expression | None:
        """Return the value to read, as an expression over the stored columns, or None if it is stored itself."""
        return None

    def finish_sql(self, quote: Callable[[str], str]) -> str | None:
        """Return the expression of `finish` in the SQL of Spark and DataFusion, for views. `quote` quotes a name."""
        return None

    def finish_typed(self, stored: Schema) -> Expression | None:
        """Return the expression of `finish` for these types of stored columns. Raises `ConfigError`."""
        return self.finish()

    def finish_typed_sql(self, stored: Schema, quote: Callable[[str], str]) -> str | None:
        """Return the expression of `finish_sql` for these types of stored columns, or None if SQL lacks it."""
        return self.finish_sql(quote)

    def zero(self) -> Any:
        """Return the value of a column for no tuples. As in Storm, a sum of nothing is 0."""
        return 0 if self.combine == "sum" else None


@dataclass(frozen=True, slots=True)
class Count(Aggregate):
    """The number of tuples, as long."""

    combine: ClassVar[str] = "sum"
    field = None

    def type_for(self, input_type: str) -> str:
        return "long"


@dataclass(frozen=True, slots=True)
class Sum(Aggregate):
    """The sum of a field: long for integers, double for floating-point numbers, decimals with ten more digits.

    NULL counts as nothing; the sum of only NULLs is NULL. Sums of integers and decimals are exact, or `SumOverflow`.
    """

    field: str
    combine: ClassVar[str] = "sum"

    def type_for(self, input_type: str) -> str:
        """Return a type that is wide enough for the sum of many rows."""
        if input_type.startswith("decimal"):
            precision, scale = input_type[len("decimal(") : -1].split(",")
            return f"decimal({min(int(precision) + _SUM_DIGITS, _DECIMAL_DIGITS_MAX)},{scale})"
        if input_type not in _SUMMABLE:
            raise ConfigError(f"field {self.field!r} is a {input_type}, which has no sum; use a number")
        return _SUMMABLE[input_type]


@dataclass(frozen=True, slots=True)
class Min(Aggregate):
    """The smallest value of a field. NULL counts as nothing; NaN is greater than every other number."""

    field: str
    combine: ClassVar[str] = "min"

    def type_for(self, input_type: str) -> str:
        return _check_ordered(self.field, input_type)


@dataclass(frozen=True, slots=True)
class Max(Aggregate):
    """The largest value of a field. NULL counts as nothing; NaN is greater than every other number."""

    field: str
    combine: ClassVar[str] = "max"

    def type_for(self, input_type: str) -> str:
        return _check_ordered(self.field, input_type)


@dataclass(frozen=True, slots=True)
class CountOf(Aggregate):
    """The number of tuples in which a field is not NULL, as long."""

    field: str
    combine: ClassVar[str] = "sum"
    partial: ClassVar[str] = "count"

    def type_for(self, input_type: str) -> str:
        return "long"


@dataclass(frozen=True, slots=True)
class First(Aggregate):
    """The first value of a field, NULL as well: in the order of tasks, and in a task as tuples arrive."""

    field: str
    combine: ClassVar[str] = "first"


@dataclass(frozen=True, slots=True)
class Last(Aggregate):
    """The last value of a field, NULL as well: in the order of tasks, and in a task as tuples arrive."""

    field: str
    combine: ClassVar[str] = "last"


@dataclass(frozen=True, slots=True)
class Avg(Aggregate):
    """The average of a field: a double, or of a decimal(p,s) a decimal(p+4,s+4), as in Spark, rounded half up. NULL
    counts as nothing, and the average of nothing is NULL.

    A state stores a sum and a count of which it is computed, `sum_<field>` and `count_<field>`. A decimal of more than
    27 digits, whose sum has not ten digits more, has no average. Views in SQL lack averages of decimals.
    """

    field: str

    def columns(self, name: str) -> Mapping[str, Aggregate]:
        """Return a sum and a count."""
        return {f"sum_{self.field}": Sum(self.field), f"count_{self.field}": CountOf(self.field)}

    def finish(self) -> Expression:
        """Return the sum divided by the count, as doubles."""
        total, count = (pc.field(name).cast("double", safe=False) for name in self.columns(""))
        return pc.if_else(count > 0, pc.divide(total, count), pa.scalar(None, pa.float64()))

    def finish_sql(self, quote: Callable[[str], str]) -> str:
        total, count = (f"CAST({quote(name)} AS DOUBLE)" for name in self.columns(""))
        return f"CASE WHEN {count} > 0 THEN {total} / {count} END"

    def finish_typed(self, stored: Schema) -> Expression:
        """Return a decimal, rounded half up, if the sum is a decimal, else a double."""
        sum_type = arrow_type(stored[f"sum_{self.field}"].type)
        return self._decimal(sum_type) if pa.types.is_decimal(sum_type) else self.finish()

    def finish_typed_sql(self, stored: Schema, quote: Callable[[str], str]) -> str | None:
        """Return None for decimals, because engines round their quotients differently."""
        return None if stored[f"sum_{self.field}"].type.startswith("decimal") else self.finish_sql(quote)

    def _decimal(self, sum_type: pa.Decimal128Type) -> Expression:
        digits, scale = sum_type.precision - _SUM_DIGITS, sum_type.scale
        if sum_type.precision == _DECIMAL_DIGITS_MAX:
            raise ConfigError(
                f"field {self.field!r} has no average: it is a decimal of more than {digits - 1} digits; cast it to "
                f"decimal({digits - 1},{min(scale, digits - 1)}) or double, or keep Sum and Count and divide them"
            )
        total, count = (pc.field(name) for name in self.columns(""))
        counted = pc.if_else(count > 0, count, pa.scalar(None, pa.int64())).cast(pa.decimal256(_COUNT_DIGITS, 0))
        # The quotient has twenty digits more than the sum, and is cut off there, which is right for rounding half up.
        quotient = pc.divide(total.cast(pa.decimal256(sum_type.precision, scale)), counted)
        rounded = pc.round(quotient, ndigits=scale + _MORE_DIGITS, round_mode="half_towards_infinity")
        return rounded.cast(pa.decimal128(digits + _MORE_DIGITS, scale + _MORE_DIGITS))


COMBINATIONS: Final = ("sum", "min", "max", "first", "last")
"""The ways to combine two values of a column."""


@dataclass(frozen=True, slots=True)
class StoredColumns:
    """The columns that the `requested` aggregates store, and the columns that are computed from them when read.

    `aggregates` has an aggregate of one column for each stored column, by name.
    """

    aggregates: Mapping[str, Any]
    computed: ComputedColumns
    requested: Mapping[str, Any]

    @classmethod
    def from_aggregates(cls, requested: Mapping[str, Any]) -> StoredColumns:
        """Return the columns for aggregates by name; anything but an `Aggregate` is a column that is stored as it is.

        Columns of aggregates that are stored themselves come first. Raises `ConfigError` for two columns of one name,
        and for an unknown combination.
        """
        own_aggregates = {name: aggregate for name, aggregate in requested.items() if isinstance(aggregate, Aggregate)}
        computed = {name: aggregate for name, aggregate in own_aggregates.items() if aggregate.finish() is not None}
        stored_columns = dict[str, Any]()
        for name, aggregate in sorted(requested.items(), key=lambda item: item[0] in computed):
            for column, column_aggregate in (
                aggregate.columns(name) if name in own_aggregates else {name: aggregate}
            ).items():
                if stored_columns.setdefault(column, column_aggregate) != column_aggregate or column in computed:
                    raise ConfigError(f"{name}={aggregate} needs the column {column!r}; give yours another name")
                if name in own_aggregates:
                    _check_combine(f"{name}={aggregate}", column_aggregate)
        return cls(stored_columns, ComputedColumns(computed), requested)


def _check_combine(aggregate_text: str, aggregate: Aggregate) -> None:
    combination, partial = aggregate.combine, aggregate.partial
    if combination not in COMBINATIONS:
        raise ConfigError(
            f"{aggregate_text} combines its values by {combination!r}; there are {', '.join(COMBINATIONS)}"
        )
    if partial and (partial, combination) != ("count", "sum"):
        raise ConfigError(
            f"{aggregate_text} makes values by {partial!r} and combines them by {combination!r}; only a count has two "
            "words, count and sum"
        )


def _check_ordered(field: str, input_type: str) -> str:
    if input_type not in _ORDERED and not input_type.startswith("decimal"):
        raise ConfigError(f"field {field!r} is a {input_type}, which has no order; min and max need one")
    return input_type


def make_step(aggregate: Aggregate) -> Step:
    """Return the step that reduces tuples to a value of the aggregate's column."""
    return aggregate.field, aggregate.partial or aggregate.combine


def describe_aggregates(aggregates: Mapping[str, Any]) -> dict[str, str]:
    """Return a description of each aggregate by column, such as `sum(amount)`, made from the name of its class."""
    return {
        name: f"{type(aggregate).__name__.lower()}({getattr(aggregate, 'field', None) or ''})"
        for name, aggregate in aggregates.items()
    }


class ValueCheck(Protocol):
    """The check of a state for values that Arrow can represent and the state can't store."""

    def check(self, rows: pa.Table, width: int) -> None:
        """Raise `SchemaMismatch` for a value that the state can't store. The first `width` columns are the key."""


@dataclass(frozen=True, slots=True)
class TableAggregator:
    """Reduces record batches to one row per key: key columns, then value columns.

    Sums are exact, or `SumOverflow` is raised, which names the `state`.
    """

    key: Schema
    values: Schema
    aggregates: tuple[tuple[str, Aggregate], ...]
    state: str = "a state"
    limits: ValueCheck | None = None
    computed: ComputedColumns = attribute(default_factory=ComputedColumns)

    @property
    def combine_kinds(self) -> Mapping[str, str]:
        """The combination of partial values, by value column."""
        return {name: aggregate.combine for name, aggregate in self.aggregates}

    def partial(self, batches: Iterable[pa.RecordBatch]) -> pa.Table:
        """Reduce input tuples to one row per key; many rows are sorted by key.

        Raises `SchemaMismatch` for a value that the state can't store.
        """
        tables = [pa.Table.from_batches([batch]) for batch in batches if batch.num_rows]
        if not tables:
            return self._schema().empty_table()
        steps: list[Step] = [make_step(aggregate) for _, aggregate in self.aggregates]
        rows = self._reduce(pa.concat_tables(tables), steps)
        if self.limits is not None:
            self.limits.check(rows, len(self.key))
        return sort_by_key(rows, self.key.names)

    def combine(self, partials: Iterable[pa.Table]) -> pa.Table:
        """Combine tables with one row per key each to one table with one row per key."""
        tables = [table.cast(self._schema()) for table in partials if table.num_rows]
        if not tables:
            return self._schema().empty_table()
        if len(tables) == 1:
            return tables[0]
        all_rows = sort_by_key(pa.concat_tables(tables), self.key.names)
        if has_unique_sorted_keys(all_rows, self.key.names):
            return all_rows
        return self._reduce(all_rows, [(name, aggregate.combine) for name, aggregate in self.aggregates])

    def _reduce(self, table: pa.Table, steps: list[Step]) -> pa.Table:
        return reduce_rows(table, self.key.names, steps, Schema((*self.key, *self.values)), state=self.state)

    def _schema(self) -> pa.Schema:
        return arrow_schema(Schema((*self.key, *self.values)))
