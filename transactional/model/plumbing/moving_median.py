"""`MovingMedian`: estimates the cost of an operation from its last few measurements."""

from __future__ import annotations

from collections import deque
from statistics import median
from typing import Final

MEASUREMENTS_MAX: Final = 5
"""The number of measurements that count."""


class MovingMedian:
    """The median of the last measurements, which a single delayed one does not change. Not thread-safe."""

    def __init__(self) -> None:
        self._last: deque[float] = deque(maxlen=MEASUREMENTS_MAX)

    def add(self, measured: float) -> None:
        """Add a measurement, which replaces the oldest one."""
        self._last.append(measured)

    @property
    def value(self) -> float | None:
        """The median, or None if nothing was measured yet."""
        return median(self._last) if self._last else None
