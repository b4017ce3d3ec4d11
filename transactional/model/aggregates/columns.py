"""How tuples become one row per key: the aggregates of a column, and `TableAggregator`, which computes them in Arrow.

An aggregate is computed in steps: per task, across the tasks of a batch, and onto the stored values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from dataclasses import field as attribute
from typing import Any, ClassVar, Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow.compute import Expression

from transactional.model.aggregates.places import have_keys_once, in_order
from transactional.model.aggregates.sums import Step, reduced
from transactional.model.arrow import arrow_schema, arrow_type
from transactional.model.arrow.computed import ComputedColumns
from transactional.model.errors import ConfigError
from transactional.model.schema import Schema

_DECIMAL_DIGITS_MAX, _COUNT_DIGITS = 38, 19
_SUM_DIGITS = 10
"""So many digits more a sum of decimals has, unless that is more than there are."""
_MORE_DIGITS = 4
"""So many digits more an average of decimals has, before the point or behind it."""
_SUMMABLE = {"byte": "long", "short": "long", "int": "long", "long": "long", "float": "double", "double": "double"}
_ORDERED = ("byte", "short", "int", "long", "float", "double", "string", "date", "timestamp", "boolean", "binary")


class Aggregate:
    """What is computed of the tuples of each key: one column that is stored, or several of which it is made when read.

    One of your own extends this class. If it is one column, it has a `field`, `combine`, which says how
    the field's values are combined, and `type_for`. If it is several, it has `columns` and `finish`.
    """

    combine: ClassVar[str] = ""
    """How the column's values combine, in a batch and with the stored one: `sum`, `min`, `max`, `first`, `last`."""
    partial: ClassVar[str] = ""
    """How the tuples of a batch become a value of the column, where that is not the same: `count`, to be summed up."""
    field: str | None
    """The input field, None for a count."""

    def type_for(self, input_type: str) -> str:
        """The column's type for a given type of the input field. Raises `ConfigError` if there is none."""
        return input_type

    def columns(self, name: str) -> Mapping[str, Aggregate]:
        """The columns that are stored for a column of this name, by their names: aggregates of one column each."""
        return {name: self}

    def finish(self) -> Expression | None:
        """What is read, as an expression over the stored columns; None: the one that is stored."""
        return None

    def finish_sql(self, quoted: Callable[[str], str]) -> str | None:
        """As `finish`, in SQL of Spark and DataFusion, in which `quoted` names a column; for views."""
        return None

    def finish_typed(self, stored: Schema) -> Expression | None:
        """As `finish`, where it depends on the types of the stored columns. Raises `ConfigError`."""
        return self.finish()

    def finish_typed_sql(self, stored: Schema, quoted: Callable[[str], str]) -> str | None:
        """As `finish_sql`, where it depends on the types of the stored columns."""
        return self.finish_sql(quoted)

    def zero(self) -> Any:
        """The value of no tuple at all, of a column: as in Storm nothing adds up to 0."""
        return 0 if self.combine == "sum" else None


@dataclass(frozen=True, slots=True)
class Count(Aggregate):
    """The number of tuples, as long."""

    combine: ClassVar[str] = "sum"
    field = None
    """A count needs none."""

    def type_for(self, input_type: str) -> str:
        """Always long."""
        return "long"


@dataclass(frozen=True, slots=True)
class Sum(Aggregate):
    """The sum of a field: long for integers, double for floating-point numbers, decimals with ten more digits.

    NULL counts as nothing; the sum of only NULLs is NULL. Sums of integers and decimals are exact, or `SumOverflow`.
    """

    field: str
    combine: ClassVar[str] = "sum"

    def type_for(self, input_type: str) -> str:
        """Wide enough for many rows."""
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
        """The field's own."""
        return _ordered(self.field, input_type)


@dataclass(frozen=True, slots=True)
class Max(Aggregate):
    """The largest value of a field. NULL counts as nothing; NaN is greater than every other number."""

    field: str
    combine: ClassVar[str] = "max"

    def type_for(self, input_type: str) -> str:
        """The field's own."""
        return _ordered(self.field, input_type)


@dataclass(frozen=True, slots=True)
class CountOf(Aggregate):
    """The number of tuples in which a field is not NULL, as long."""

    field: str
    combine: ClassVar[str] = "sum"
    partial: ClassVar[str] = "count"

    def type_for(self, input_type: str) -> str:
        """Always long."""
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
        """Sum and count."""
        return {f"sum_{self.field}": Sum(self.field), f"count_{self.field}": CountOf(self.field)}

    def finish(self) -> Expression:
        """The one divided by the other. A double is as near to a large sum as it can be."""
        total, count = (pc.field(name).cast("double", safe=False) for name in self.columns(""))
        return pc.if_else(count > 0, pc.divide(total, count), pa.scalar(None, pa.float64()))

    def finish_sql(self, quoted: Callable[[str], str]) -> str:
        """The same."""
        total, count = (f"CAST({quoted(name)} AS DOUBLE)" for name in self.columns(""))
        return f"CASE WHEN {count} > 0 THEN {total} / {count} END"

    def finish_typed(self, stored: Schema) -> Expression:
        """A decimal, if the sum is one: as exact as decimals are everywhere."""
        sum_type = arrow_type(stored[f"sum_{self.field}"].type)
        return self._decimal(sum_type) if pa.types.is_decimal(sum_type) else self.finish()

    def finish_typed_sql(self, stored: Schema, quoted: Callable[[str], str]) -> str | None:
        """None of decimals: engines round their quotients differently."""
        return None if stored[f"sum_{self.field}"].type.startswith("decimal") else self.finish_sql(quoted)

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


WORDS: Final = ("sum", "min", "max", "first", "last")
"""How the values of a column are combined, of tuples or of partial aggregates."""


@dataclass(frozen=True, slots=True)
class StoredColumns:
    """What the aggregates that are `requested` store, by columns, each an aggregate of its own, and what is computed of
    it when it is read."""

    aggregates: Mapping[str, Any]
    computed: ComputedColumns
    requested: Mapping[str, Any]

    @classmethod
    def of(cls, requested: Mapping[str, Any]) -> StoredColumns:
        """Of aggregates by the names of their columns; what is no `Aggregate` is a column as it is. Those that are
        stored as they are come first.

        Raises `ConfigError` for two columns of one name, and for words that are not known.
        """
        ours = {name: each for name, each in requested.items() if isinstance(each, Aggregate)}
        computed = {name: each for name, each in ours.items() if each.finish() is not None}
        stored = dict[str, Any]()
        for name, aggregate in sorted(requested.items(), key=lambda item: item[0] in computed):
            for column, needed in (aggregate.columns(name) if name in ours else {name: aggregate}).items():
                if stored.setdefault(column, needed) != needed or column in computed:
                    raise ConfigError(f"{name}={aggregate} needs the column {column!r}; give yours another name")
                if name in ours:
                    _check_words(f"{name}={aggregate}", needed)
        return cls(stored, ComputedColumns(computed), requested)


def _check_words(shown: str, aggregate: Aggregate) -> None:
    word, partial = aggregate.combine, aggregate.partial
    if word not in WORDS:
        raise ConfigError(f"{shown} combines its values by {word!r}; there are {', '.join(WORDS)}")
    if partial and (partial, word) != ("count", "sum"):
        raise ConfigError(
            f"{shown} makes values by {partial!r} and combines them by {word!r}; only a count has two words, count and "
            "sum"
        )


def _ordered(field: str, input_type: str) -> str:
    if input_type not in _ORDERED and not input_type.startswith("decimal"):
        raise ConfigError(f"field {field!r} is a {input_type}, which has no order; min and max need one")
    return input_type


def step_of(aggregate: Aggregate) -> Step:
    """How tuples become a value of its column."""
    return aggregate.field, aggregate.partial or aggregate.combine


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
    computed: ComputedColumns = attribute(default_factory=ComputedColumns)

    @property
    def combine_kinds(self) -> Mapping[str, str]:
        """How the partial values of each value column are combined."""
        return {name: aggregate.combine for name, aggregate in self.aggregates}

    def partial(self, batches: Iterable[pa.RecordBatch]) -> pa.Table:
        """Input tuples → one row per key, many of them in order. Raises `SchemaMismatch` for what the state refuses."""
        tables = [pa.Table.from_batches([batch]) for batch in batches if batch.num_rows]
        if not tables:
            return self._schema().empty_table()
        steps: list[Step] = [step_of(each) for _, each in self.aggregates]
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
