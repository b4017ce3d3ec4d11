"""How a larger table in the merge layout is written: file by file in the driver's memory, or by delta-rs' MERGE.

Both leave the same, so it may be another way with each transaction. The cheaper one is chosen by what the last writes
have cost per row; each is tried again now and then, for tables and batches change. Pure.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum
from statistics import median
from typing import Final

REMEMBERED: Final = 5
"""So many writes count; by the median, since one may have been delayed."""
TRY_AFTER: Final = 3
"""After so many writes the other way is tried for the first time."""
TRY_EVERY: Final = 100
"""And again after so many; what is several times as dear, ten times as rarely."""
MUCH_DEARER: Final = 2.5
COMING_WEIGHT: Final = 2
"""A row that comes costs about as much as two that are stored: it is hashed, and written."""
FEW_TOUCHED: Final = 0.5
"""Files with so much of a table are rewritten without a question."""


class Way(Enum):
    """A way of writing."""

    FILES = "file by file"
    MERGE = "delta-rs' MERGE"


@dataclass(frozen=True, slots=True)
class Chosen:
    """A way, and why."""

    way: Way
    why: str

    def __str__(self) -> str:
        return f"{self.way.value}: {self.why}"


@dataclass(slots=True)
class _Measured:
    """Milliseconds per row in the last writes, and how many writes ago the last of them was."""

    each: deque[float] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    ago: int = 0


class Ways:
    """Chooses how one table is written. `stored` and `coming` are numbers of rows."""

    def __init__(self) -> None:
        self._measured = {way: _Measured() for way in Way}
        self._writes = 0
        self.chosen: Chosen | None = None

    def choose(self, stored: int, coming: int, touched: int | None = None) -> Chosen:
        """The way for the next write; `touched` is how many rows the files have that may have to be rewritten."""
        clear = None if touched is None else self._without_trial(stored, touched)
        self.chosen = clear or self._chosen(_rows(stored, coming))
        return self.chosen

    def only(self, why: str) -> Chosen:
        """There is no choice: delta-rs."""
        self.chosen = Chosen(Way.MERGE, why)
        return self.chosen

    def learn(self, way: Way, stored: int, coming: int, took_ms: float) -> None:
        """A write took this long."""
        self._writes += 1
        for known in self._measured.values():
            known.ago += 1
        self._measured[way].each.append(took_ms / max(1, _rows(stored, coming)))
        self._measured[way].ago = 0

    def _without_trial(self, stored: int, touched: int) -> Chosen | None:
        """A MERGE reads at least all keys."""
        if touched > FEW_TOUCHED * stored:
            return None
        return Chosen(Way.FILES, f"{touched} of {stored} rows are in files that may have a key that comes")

    def _chosen(self, rows: int) -> Chosen:
        costs = {way: median(known.each) * rows for way, known in self._measured.items() if known.each}
        if not costs:
            return Chosen(Way.FILES, "nothing is measured yet")
        best = min(costs, key=lambda way: costs[way])
        other = Way.MERGE if best is Way.FILES else Way.FILES
        if other not in costs:
            is_time = self._writes >= TRY_AFTER
            return Chosen(other, "it is tried") if is_time else Chosen(best, f"about {costs[best]:.0f} ms")
        every = TRY_EVERY * (10 if costs[other] > MUCH_DEARER * costs[best] else 1)
        if self._measured[other].ago >= every:
            return Chosen(other, "it is tried again")
        return Chosen(best, f"about {costs[best]:.0f} ms, {costs[other]:.0f} ms by {other.value}")


def _rows(stored: int, coming: int) -> int:
    return stored + COMING_WEIGHT * coming
