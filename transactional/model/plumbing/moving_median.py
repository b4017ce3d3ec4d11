"""`MovingMedian`: what something costs, by the last few times that it was done."""

from __future__ import annotations

from collections import deque
from statistics import median
from typing import Final

REMEMBERED: Final = 5
"""So many measurements count."""


class MovingMedian:
    """The median of the last measurements: one of them may have been delayed. Not thread-safe."""

    def __init__(self) -> None:
        self._last: deque[float] = deque(maxlen=REMEMBERED)

    def add(self, measured: float) -> None:
        """One more; the oldest one is forgotten."""
        self._last.append(measured)

    @property
    def value(self) -> float | None:
        """None: nothing was measured yet."""
        return median(self._last) if self._last else None
