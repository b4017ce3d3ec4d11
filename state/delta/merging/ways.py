"""How a larger table in the merge layout is written: file by file in the driver's memory, or by delta-rs' MERGE.

Both leave the same, so it may be another way with each transaction. The cheaper one is chosen by what the last writes
of about as many rows have cost per row; each is tried again now and then, for tables and batches change. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from transactional.plumbing.moving_median import MovingMedian

TRY_AFTER: Final = 20
"""After so many writes the other way is tried for the first time: it may cost three times as much."""
TRY_EVERY: Final = 100
"""And again after so many; what is several times as dear, ten times as rarely."""
MUCH_DEARER: Final = 2.5
COMING_WEIGHT: Final = 2
"""A row that comes costs about as much as two that are stored: it is hashed, and written."""
FEW_TOUCHED: Final = 0.5
"""Files with so much of a table are rewritten without a question."""
ALIKE: Final = 10
"""Batches that differ in size by less than this are compared with one another."""


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

    each: MovingMedian = field(default_factory=MovingMedian)
    ago: int = 0


class _SizeClass:
    """Writes of batches of about one size."""

    def __init__(self) -> None:
        self._measured = {way: _Measured() for way in Way}
        self._writes = 0

    def learn(self, way: Way, per_row_ms: float) -> None:
        """A write took so long for each of its rows."""
        self._writes += 1
        for known in self._measured.values():
            known.ago += 1
        self._measured[way].each.add(per_row_ms)
        self._measured[way].ago = 0

    def choose(self, rows: int) -> Chosen:
        """The way of a write of so many rows."""
        per_row = {way: known.each.value for way, known in self._measured.items()}
        costs = {way: cost * rows for way, cost in per_row.items() if cost is not None}
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


class Ways:
    """Chooses how one table is written. `stored` and `coming` are numbers of rows."""

    def __init__(self) -> None:
        self._classes = dict[int, _SizeClass]()
        self.chosen: Chosen | None = None

    def choose(self, stored: int, coming: int, touched: int | None = None) -> Chosen:
        """The way for the next write; `touched` is how many rows the files have that may have to be rewritten."""
        clear = None if touched is None else self._without_trial(stored, touched)
        self.chosen = clear or self._chosen(stored, coming)
        return self.chosen

    def only(self, why: str) -> Chosen:
        """There is no choice: delta-rs."""
        self.chosen = Chosen(Way.MERGE, why)
        return self.chosen

    def learn(self, way: Way, stored: int, coming: int, took_ms: float) -> None:
        """A write took this long."""
        self._of(coming).learn(way, took_ms / max(1, _rows(stored, coming)))

    def _without_trial(self, stored: int, touched: int) -> Chosen | None:
        """A MERGE reads at least all keys."""
        if touched > FEW_TOUCHED * stored:
            return None
        return Chosen(Way.FILES, f"{touched} of {stored} rows are in files that may have a key that comes")

    def _chosen(self, stored: int, coming: int) -> Chosen:
        return self._of(coming).choose(_rows(stored, coming))

    def _of(self, coming: int) -> _SizeClass:
        number = 0
        while coming >= ALIKE:
            coming, number = coming // ALIKE, number + 1
        return self._classes.setdefault(number, _SizeClass())


def _rows(stored: int, coming: int) -> int:
    return stored + COMING_WEIGHT * coming
