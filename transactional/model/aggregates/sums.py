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

from transactional.model.aggregates.places import comparable
from transactional.model.arrow import arrow_schema, spark_type
from transactional.model.errors import ProtocolError, SumOverflow
from transactional.model.schema import Field, Schema

_BITS: Final = {"byte": 8, "short": 16, "int": 32, "long": 64}
_WIDE_DIGITS: Final = 76
_PLACE: Final = " place"
"""Where a row stands. A blank is in no column's name."""

_ENDS: Final = {"first": "min", "last": "max"}
"""The first and the last value by their place: Arrow has neither for nested types, and leaves out a NULL at the
end where there is no key."""

REDUCTIONS: Final = ("sum", "min", "max", "first", "last", "count")
"""How many values of a column become one."""

Step = tuple[str | None, str]
"""A column and one of `REDUCTIONS`; None for the column: the rows are counted."""


@cache
def limits_of(type_: str) -> tuple[int | Decimal, int | Decimal] | None:
    """The smallest and the largest value of a type; None: sums of it are not exact, or there are none."""
    if type_.startswith("decimal"):
        precision, scale = type_[len("decimal(") : -1].split(",")
        nines = (9,) * int(precision)
        return Decimal((1, nines, -int(scale))), Decimal((0, nines, -int(scale)))
    return (-(2 ** (_BITS[type_] - 1)), 2 ** (_BITS[type_] - 1) - 1) if type_ in _BITS else None


def can_overflow(how: str, type_: str) -> bool:
    """Whether values of a type that are combined so may not fit it."""
    return how == "sum" and limits_of(type_) is not None


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

    Raises `SumOverflow`, and `ProtocolError` for a word that is not known.
    """
    specs: list[tuple[Any, ...]] = []
    nans: dict[int, str] = {}
    for number, (name, how) in enumerate(steps):
        if how not in REDUCTIONS:
            raise ProtocolError(f"values become one by {', '.join(REDUCTIONS)}; {how!r} is not known")
        if name is None:
            specs.append(([], "count_all"))
            continue
        if how == "sum" and (wide := _wide(table[name])) is not None:
            # A blank is in no column's name.
            table, name = table.append_column(f" {number}", wide), f" {number}"
        if how == "max" and _has_nan(table[name]):
            nans[number] = f" {number}"
            table = table.append_column(nans[number], pc.is_nan(table[name]))
        specs.append((_PLACE, _ENDS[how]) if how in _ENDS else (name, how))
    specs += [(name, "any") for name in nans.values()]
    if any(how in _ENDS for _, how in steps):
        table = table.append_column(_PLACE, pa.arange(0, table.num_rows))
    width = len(key)
    for name in key:
        if pa.types.is_floating(table[name].type):
            table = table.set_column(table.schema.get_field_index(name), name, comparable(table[name]))
    # Arrow's threads do not preserve the order, and would compete with the executor's other tasks for its cores.
    found = table.group_by(list(key), use_threads=False).aggregate(specs).columns
    for number, (name, how) in enumerate(steps):
        if how in _ENDS:
            found[width + number] = table[name].take(found[width + number])
    for place, number in enumerate(nans):
        column = found[width + number]
        nan = pa.scalar(float("nan"), column.type)
        found[width + number] = pc.if_else(found[width + len(steps) + place], nan, column)
    rows = pa.Table.from_arrays(found[: width + len(steps)], names=list(columns.names))
    return _fitting(rows, columns, width, state)


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
