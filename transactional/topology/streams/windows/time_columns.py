"""Columns of times: as microseconds, rounded to windows and panes, and which of them are late."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from transactional.core.machine.window_assignment import FIRST_US, LAST_US, Windows, WindowTimes

TIMESTAMP = pa.timestamp("us", tz="UTC")
WINDOW_START, WINDOW_END = "window_start", "window_end"
_FALSE = pa.scalar(False, pa.bool_())


def late_times(windows: Windows, column: pa.Array, times: WindowTimes) -> pa.Array:
    """Return for each time whether it is late, as `Windows.is_late` does for a single one."""
    numbers, on_time = to_microseconds(column), pc.invert(impossible_times(column))
    if times.watermark is not None:
        # Compared like this, the sum of a time and a length can't be too large.
        last_start = floor_to(pc.if_else(on_time, numbers, int_scalar(0)), windows.every_us)
        on_time = pc.and_(on_time, pc.greater(last_start, int_scalar(times.watermark - windows.length_us)))
    return pc.invert(on_time)


def impossible_times(column: pa.Array) -> pa.Array:
    """Return for each time whether it is NULL, or too far from today to have a window."""
    numbers = to_microseconds(column)
    inside = pc.and_(pc.greater_equal(numbers, int_scalar(FIRST_US)), pc.less(numbers, int_scalar(LAST_US)))
    return pc.invert(pc.fill_null(inside, _FALSE))


def to_microseconds(column: pa.Array) -> pa.Array:
    """Convert times to microseconds since 1970."""
    return column.cast(TIMESTAMP).view(pa.int64())


def floor_to(numbers: pa.Array, size: int) -> pa.Array:
    """Round numbers down to multiples of `size`, also negative ones."""
    divisor, zero = int_scalar(size), int_scalar(0)
    remainder = pc.subtract(numbers, pc.multiply(pc.divide(numbers, divisor), divisor))
    return pc.subtract(numbers, pc.if_else(pc.less(remainder, zero), pc.add(remainder, divisor), remainder))


def int_scalar(number: int) -> pa.Scalar:
    """Make a scalar of known type. Arrow would take fifty times as long to infer it."""
    return pa.scalar(number, pa.int64())
