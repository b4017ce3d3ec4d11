"""Many rows to one per key, in Arrow: counts, the first, last, smallest, largest; and sums that are exact or refused.

Arrow and SQL engines let sums of integers wrap around, and round or truncate sums of decimals. Here a sum is
mathematically exact, or `SumOverflow` is raised before anything is written. A sum of floating-point numbers is IEEE's.
NaN is greater than every other number and equal to itself, as in Spark: so min and max don't depend on the order.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from functools import cache
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from transactional.arrow import arrow_schema, spark_type
from transactional.errors import SumOverflow
from transactional.schema import Field, Schema

_BITS: Final = {"byte": 8, "short": 16, "int": 32, "long": 64}
_WIDE_DIGITS: Final = 76
_ANY_VALUE: Final = pc.ScalarAggregateOptions(skip_nulls=False, min_count=0)
"""For the first and the last value NULL is a value like any other."""
_ALL: Final = " all"
"""A column with one value. A blank is in no column's name."""

Step = tuple[str | None, str]
"""A column and how its values meet: `sum`, `min`, `max`, `first`, `last`, `count`; None for the column: the rows are
counted."""


@cache
def limits_of(type_: str) -> tuple[int | Decimal, int | Decimal] | None:
    """The smallest and the largest value of a type; None: sums of it are not exact, or there are none."""
    if type_.startswith("decimal"):
        precision, scale = type_[len("decimal(") : -1].split(",")
        nines = (9,) * int(precision)
        return Decimal((1, nines, -int(scale))), Decimal((0, nines, -int(scale)))
    return (-(2 ** (_BITS[type_] - 1)), 2 ** (_BITS[type_] - 1) - 1) if type_ in _BITS else None


def fits(value: int | Decimal | None, type_: str) -> bool:
    """Whether a whole number or decimal is within the limits of its type. True for types without limits."""
    limits = limits_of(type_)
    return limits is None or value is None or limits[0] <= value <= limits[1]


def unscaled(value: int | Decimal, type_: str) -> int:
    """A value in units of the last digit of its type: 1.25 of decimal(10,2) is 125."""
    if isinstance(value, int):
        return value
    # Without arithmetic, which would round to the digits of the thread's context.
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int), "decimals of a column are finite"
    scale = int(type_[:-1].split(",")[1])
    number = int("".join(map(str, digits)))
    shifted: int = number * 10 ** (exponent + scale) if exponent >= -scale else number // 10 ** (-exponent - scale)
    return -shifted if sign else shifted


def overflow(state: str, field: Field, key: tuple[Any, ...], sum_: object) -> SumOverflow:
    """The error for a sum that does not fit its column."""
    return SumOverflow(
        f"state {state}: the sum for key {key!r} in column {field.name!r} does not fit a {field.type}: {sum_}. Nothing "
        "was written; give the column a wider type (a decimal holds up to 38 digits), or filter such numbers out"
    )


def reduced(
    table: pa.Table, key: Sequence[str], steps: Sequence[Step], columns: Schema, *, state: str = "a state"
) -> pa.Table:
    """One row per key of `table`: key columns, then one column per step, with the names and types of `columns`.

    Raises `SumOverflow`.
    """
    specs: list[tuple[Any, ...]] = []
    nans: dict[int, str] = {}
    for number, (name, how) in enumerate(steps):
        if name is None:
            specs.append(([], "count_all"))
            continue
        if how == "sum" and (wide := _wide(table[name])) is not None:
            # A blank is in no column's name.
            table, name = table.append_column(f" {number}", wide), f" {number}"
        if how == "max" and _has_nan(table[name]):
            nans[number] = f" {number}"
            table = table.append_column(nans[number], pc.is_nan(table[name]))
        specs.append((name, how, _ANY_VALUE) if how in ("first", "last") else (name, how))
    specs += [(name, "any") for name in nans.values()]
    width = len(key)
    found = _aggregated(table, list(key), specs)
    for place, number in enumerate(nans):
        column = found[width + number]
        nan = pa.scalar(float("nan"), column.type)
        found[width + number] = pc.if_else(found[width + len(steps) + place], nan, column)
    rows = pa.Table.from_arrays(found[: width + len(steps)], names=list(columns.names))
    return _fitting(rows, columns, width, state)


def _aggregated(table: pa.Table, key: list[str], specs: list[tuple[Any, ...]]) -> list[pa.ChunkedArray]:
    """The columns of the key and of the aggregates. Arrow's threads do not preserve the order, and would compete with
    the executor's other tasks for its cores."""
    if not key and table.num_rows and any(how == "last" for _, how, *_ in specs):
        # Without a key, Arrow takes the last value that is not NULL, whatever its options are.
        table = table.append_column(_ALL, pa.repeat(pa.scalar(0, pa.int8()), table.num_rows))
        rows = table.group_by([_ALL], use_threads=False).aggregate(specs)
        return list(rows.drop_columns(_ALL).columns)
    return list(table.group_by(key, use_threads=False).aggregate(specs).columns)


def _fitting(rows: pa.Table, columns: Schema, width: int, state: str) -> pa.Table:
    schema = arrow_schema(columns)
    try:
        return rows.cast(schema)
    except pa.ArrowInvalid:
        for field in list(columns)[width:]:
            for number, value in enumerate(rows[field.name].to_pylist()):
                if not fits(value, field.type):
                    key = tuple(rows[name][number].as_py() for name in columns.names[:width])
                    raise overflow(state, field, key, value) from None
        raise


def _wide(column: pa.ChunkedArray) -> pa.ChunkedArray | None:
    """The column in a type in which its sum is exact; None: its own type suffices."""
    type_ = column.type
    if pa.types.is_integer(type_):
        if type_.bit_width < 64 or largest(column) * len(column) < 2**63:
            return None
        return column.cast(pa.decimal128(38, 0))
    if pa.types.is_decimal128(type_):
        if 10**type_.precision * len(column) < 10**38 or largest(column) * len(column) < 10**38:
            return None
        return column.cast(pa.decimal256(_WIDE_DIGITS, type_.scale))
    return None


def largest(column: pa.ChunkedArray) -> int:
    """The largest absolute value of a column of integers or decimals, in units of its last digit; 0: no rows."""
    bounds = pc.min_max(column).as_py()
    if bounds["min"] is None:
        return 0
    name = spark_type(column.type)
    return max(abs(unscaled(bounds["min"], name)), abs(unscaled(bounds["max"], name)))


def _has_nan(column: pa.ChunkedArray) -> bool:
    return pa.types.is_floating(column.type) and bool(pc.any(pc.is_nan(column)).as_py())
