"""Columns of times: their numbers, and which of them are late."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from transactional.core.machine.window_assignment import FIRST_US, LAST_US, Windows, WindowTimes

TIMESTAMP = pa.timestamp("us", tz="UTC")
WINDOW_START, WINDOW_END = "window_start", "window_end"
_FALSE = pa.scalar(False, pa.bool_())


def are_late(of: Windows, column: pa.Array, times: WindowTimes) -> pa.Array:
    """For each time whether it is late; what `Windows.is_late` says, of columns."""
    numbers, on_time = numbers_of(column), pc.invert(are_outside(column))
    if times.watermark is not None:
        # Compared like this, the sum of a time and a length can't be too large.
        last_start = floored(pc.if_else(on_time, numbers, number(0)), of.every_us)
        on_time = pc.and_(on_time, pc.greater(last_start, number(times.watermark - of.length_us)))
    return pc.invert(on_time)


def are_outside(column: pa.Array) -> pa.Array:
    """For each time whether no window has it."""
    numbers = numbers_of(column)
    inside = pc.and_(pc.greater_equal(numbers, number(FIRST_US)), pc.less(numbers, number(LAST_US)))
    return pc.invert(pc.fill_null(inside, _FALSE))


def numbers_of(column: pa.Array) -> pa.Array:
    """Times as microseconds since 1970."""
    return column.cast(TIMESTAMP).view(pa.int64())


def floored(numbers: pa.Array, size: int) -> pa.Array:
    """The multiples of `size` at or below the numbers, also of negative ones."""
    of, zero = number(size), number(0)
    rest = pc.subtract(numbers, pc.multiply(pc.divide(numbers, of), of))
    return pc.subtract(numbers, pc.if_else(pc.less(rest, zero), pc.add(rest, of), rest))


def number(value: int) -> pa.Scalar:
    """Said to be one, it costs a fiftieth of what Arrow takes to find that out."""
    return pa.scalar(value, pa.int64())
