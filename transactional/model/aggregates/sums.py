"""Reduces many Arrow rows to one per key: counts, first, last, smallest and largest values, and exact sums.

Arrow and SQL engines let sums of integers wrap around, and round or truncate sums of decimals. Here a sum of integers
or decimals must be mathematically exact, or `SumOverflow` is raised before anything is written. A sum of floating-point
numbers is IEEE's. NaN is greater than every other number and equal to itself, as in Spark, so that the smallest and
largest value don't depend on the order of rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from functools import cache
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from transactional.model.aggregates.key_matching import make_comparable
from transactional.model.arrow import arrow_schema
from transactional.model.errors import ProtocolError, SumOverflow
from transactional.model.schema import Field, Schema

_BITS: Final = {"byte": 8, "short": 16, "int": 32, "long": 64}
_WIDE_DIGITS: Final = 76
_POSITION: Final = " place"
"""The name of an added column with the position of each row. No column of a user has a blank in its name."""

_REDUCTION_OF_POSITIONS: Final = {"first": "min", "last": "max"}
"""The reductions of row positions that give the first and the last value. Arrow's own support no nested types, and skip
a NULL at the end if there is no key."""

REDUCTIONS: Final = ("sum", "min", "max", "first", "last", "count")
"""The names of the ways in which many values of a column become one."""

Step = tuple[str | None, str]
"""The name of a column, and one of `REDUCTIONS`. Without a column the rows are counted."""


@cache
def type_limits(type_: str) -> tuple[int | Decimal, int | Decimal] | None:
    """Return the smallest and the largest value of a type, or None if the type has no exact sums."""
    if type_.startswith("decimal"):
        precision, scale = type_[len("decimal(") : -1].split(",")
        nines = (9,) * int(precision)
        return Decimal((1, nines, -int(scale))), Decimal((0, nines, -int(scale)))
    return (-(2 ** (_BITS[type_] - 1)), 2 ** (_BITS[type_] - 1) - 1) if type_ in _BITS else None


def can_overflow(reduction: str, type_: str) -> bool:
    """Return True if the result of this reduction of a type's values may not fit the type."""
    return reduction == "sum" and type_limits(type_) is not None


def fits_type(number: int | Decimal | None, type_: str) -> bool:
    """Return True if a whole number or decimal is within the limits of its type. True for types without limits."""
    limits = type_limits(type_)
    return limits is None or number is None or limits[0] <= number <= limits[1]


def to_unscaled(number: int | Decimal) -> int:
    """Return a number of a column in units of the last digit of its type: 1.25 of decimal(10,2) is 125."""
    if isinstance(number, int):
        return number
    # Without arithmetic, which would round to the digits of the thread's context. A value has all digits of its type.
    sign, digits, _ = number.as_tuple()
    unscaled = int("".join(map(str, digits)))
    return -unscaled if sign else unscaled


def make_overflow_error(state: str, field: Field, key: tuple[Any, ...], sum_: object) -> SumOverflow:
    """Return the error for a sum that does not fit its column."""
    return SumOverflow(
        f"state {state}: the sum for key {key!r} in column {field.name!r} does not fit a {field.type}: {sum_}. Nothing "
        "was written; give the column a wider type (a decimal holds up to 38 digits), or filter such numbers out"
    )


def reduce_rows(
    table: pa.Table, key: Sequence[str], steps: Sequence[Step], columns: Schema, *, state: str = "a state"
) -> pa.Table:
    """Return one row per key of `table`: key columns, then one column per step, with names and types of `columns`.

    Raises `SumOverflow` for a sum that does not fit its column, `ProtocolError` for an unknown reduction.
    """
    specs: list[tuple[Any, ...]] = []
    nan_columns: dict[int, str] = {}
    for number, (name, reduction) in enumerate(steps):
        if reduction not in REDUCTIONS:
            raise ProtocolError(f"values become one by {', '.join(REDUCTIONS)}; {reduction!r} is not known")
        if name is None:
            specs.append(([], "count_all"))
            continue
        if reduction == "sum" and (widened := _widen_for_sum(table[name])) is not None:
            # No column of a user has a blank in its name.
            table, name = table.append_column(f" {number}", widened), f" {number}"
        if reduction == "max" and _has_nan(table[name]):
            nan_columns[number] = f" {number}"
            table = table.append_column(nan_columns[number], pc.is_nan(table[name]))
        specs.append(
            (_POSITION, _REDUCTION_OF_POSITIONS[reduction])
            if reduction in _REDUCTION_OF_POSITIONS
            else (name, reduction)
        )
    specs += [(name, "any") for name in nan_columns.values()]
    if any(reduction in _REDUCTION_OF_POSITIONS for _, reduction in steps):
        table = table.append_column(_POSITION, pa.arange(0, table.num_rows))
    width = len(key)
    for name in key:
        if pa.types.is_floating(table[name].type):
            table = table.set_column(table.schema.get_field_index(name), name, make_comparable(table[name]))
    # Arrow's threads do not preserve the order, and would compete with the executor's other tasks for its cores.
    reduced_columns = table.group_by(list(key), use_threads=False).aggregate(specs).columns
    for number, (name, reduction) in enumerate(steps):
        if reduction in _REDUCTION_OF_POSITIONS:
            reduced_columns[width + number] = table[name].take(reduced_columns[width + number])
    for nan_index, number in enumerate(nan_columns):
        column = reduced_columns[width + number]
        nan = pa.scalar(float("nan"), column.type)
        reduced_columns[width + number] = pc.if_else(reduced_columns[width + len(steps) + nan_index], nan, column)
    rows = pa.Table.from_arrays(reduced_columns[: width + len(steps)], names=list(columns.names))
    return _cast_rows(rows, columns, width, state)


def _cast_rows(rows: pa.Table, columns: Schema, width: int, state: str) -> pa.Table:
    schema = arrow_schema(columns)
    try:
        return rows.cast(schema)
    except pa.ArrowInvalid:
        for field in list(columns)[width:]:
            for number, value in enumerate(rows[field.name].to_pylist()):
                if not fits_type(value, field.type):
                    key = tuple(rows[name][number].as_py() for name in columns.names[:width])
                    raise make_overflow_error(state, field, key, value) from None
        raise


def _widen_for_sum(column: pa.ChunkedArray) -> pa.ChunkedArray | None:
    """Return the column in a wider type in which its sum is exact, or None if its own type suffices."""
    type_ = column.type
    if pa.types.is_integer(type_):
        if type_.bit_width < 64 or max_magnitude(column) * len(column) < 2**63:
            return None
        return column.cast(pa.decimal128(38, 0))
    if pa.types.is_decimal128(type_):
        if 10**type_.precision * len(column) < 10**38 or max_magnitude(column) * len(column) < 10**38:
            return None
        return column.cast(pa.decimal256(_WIDE_DIGITS, type_.scale))
    return None


def max_magnitude(column: pa.ChunkedArray) -> int:
    """Return the largest absolute value of integers or decimals, in units of the last digit; 0 for no rows."""
    bounds = pc.min_max(column).as_py()
    return 0 if bounds["min"] is None else max(abs(to_unscaled(bounds["min"])), abs(to_unscaled(bounds["max"])))


def _has_nan(column: pa.ChunkedArray) -> bool:
    return pa.types.is_floating(column.type) and bool(pc.any(pc.is_nan(column)).as_py())
