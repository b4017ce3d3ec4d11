"""Worlds of windows of windows: as those of windows, whose rows are counted by other windows, and theirs by others.

What these count is known from what the first ones have passed on, by the transactions in which they did.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import timedelta
from itertools import count
from random import Random
from typing import Any

from tests.windows.plain import SECOND, Plain, Read
from tests.windows.world import Parts, World, since_1970
from transactional.trident import Count, Sum, session, sliding, tumbling

OUTER: tuple[tuple[int, int, int | None], ...] = ((20, 20, None), (14, 7, None), (60, 60, None), (0, 1, 8))
"""Lengths, distances and gaps, in seconds."""
LONGEST = timedelta(seconds=40)
"""Of sessions: as long as an outer window waits for one that has begun in it."""


class CascadeWorld(World):
    """One run."""

    names = ("open", "closed", "late", "outer", "outer-closed", "outer-late", "top", "top-closed")

    def __init__(self, seed: int, parts: Parts | None = None) -> None:
        random = Random(f"cascade of {seed}")
        self.outer, self.on = random.choice(OUTER), random.choice(("window_start", "window_end"))
        super().__init__(seed, parts)

    def start(self) -> None:
        """Sessions are cut earlier than elsewhere, so that what waits for them closes."""
        self.longest_s = round(LONGEST.total_seconds())
        super().start()

    def go_further(self, windows: Any) -> None:
        """Windows of the windows that close, and of those."""
        if self.by_transaction:
            return
        length, every, gap = (timedelta(seconds=s or 0) for s in self.outer)
        outer = sliding(length, every=every) if self.outer[2] is None else session(gap, longest=LONGEST)
        rows = windows.closed().rename(inner=self.on).project("page", "inner", "clicks").group_by("page")
        found = rows.window(outer, on="inner").persistent_aggregate(
            self.state("outer"), rows=Count(), sum=Sum("clicks")
        )
        kept = found.closed().group_by("page", "window_start")
        kept.persistent_aggregate(self.state("outer-closed"), rows=Sum("rows"), sum=Sum("sum"), times=Count())
        found.late().group_by("page", "inner").persistent_aggregate(self.state("outer-late"), Count())
        rows = found.closed().rename(inner="window_start").project("page", "inner", "rows").group_by("page")
        top = rows.window(tumbling("50 seconds"), on="inner").persistent_aggregate(self.state("top"), rows=Sum("rows"))
        kept = top.closed().group_by("page", "window_start")
        kept.persistent_aggregate(self.state("top-closed"), rows=Sum("rows"), times=Count())

    def check(self) -> None:
        """Nothing that windows have passed on is late for the next ones, and these close as soon as they can."""
        super().check()
        if self.by_transaction:
            return
        lasts = self.length_s if self.gap_s is None else self.longest_s
        bounds = [first_after(us, lasts, self.every_s if self.gap_s is None else None) for us in self.plain.thresholds]
        if self.on == "window_end":
            bounds = [None if us is None else us + lasts * SECOND for us in bounds]
        outer = self.passed("closed", "clicks", self.outer, bounds, self.on)
        assert not self.rows_of("outer-late")
        self.compare("outer", "sum", outer)
        length, every, gap = self.outer
        lasts = length if gap is None else self.longest_s
        bounds = [first_after(us, lasts, every if gap is None else None) for us in outer.thresholds]
        top = self.passed("outer-closed", "rows", (50, 50, None), bounds, "window_start")
        self.compare("top", "rows", top)
        self.reached["outer windows closed"] += len(outer.closed)
        self.reached["top windows closed"] += len(top.closed)

    def passed(
        self, table: str, value: str, of: tuple[int, int, int | None], bounds: list[int | None], on: str
    ) -> Plain:
        """Windows of the rows that a table has got, by transaction. `bounds` is by transaction the earliest time that
        was possible after it: what is before it closes in the next one."""
        length, every, gap = of
        plain = Plain(length * SECOND, every * SECOND, 0, None, 0, by_transaction=False)
        plain.gap = None if gap is None else gap * SECOND
        numbers, by_txid = count(1), dict[int, list[Read]]()
        stored = {(at[0], since_1970(at[1])): row.txid for at, row in self.tables[table].rows.items()}
        for row in self.rows_of(table):
            page, start = row["page"], since_1970(row["window_start"])
            us = start if on == "window_start" else since_1970(row["end"])
            by_txid.setdefault(stored[page, start], []).append(Read(next(numbers), page, row[value], us, 0))
        for number in range(len(bounds)):
            earlier = [us for us in bounds[:number] if us is not None]
            threshold = max(earlier, default=None)
            plain.thresholds.append(threshold)
            plain.close(threshold)
            for read in sorted(by_txid.get(number + 1, []), key=lambda read: read.id):
                plain.count(read, read.us, threshold)
        assert not plain.late, "what windows have passed on is late for the next ones"
        if gap is None and bounds:
            last = max((us for us in bounds if us is not None), default=None)
            left = [key for key in plain.windows if last is not None and plain._end(*key) <= last]
            assert not left, "the run has ended before windows of windows have closed"
        return plain

    def compare(self, name: str, value: str, plain: Plain) -> None:
        """The tables of windows with what plain Python has of them. Of sessions that would be longer than they may be,
        that the same is in them: where one is cut, so may be those behind it."""
        closed = {(row["page"], since_1970(row["window_start"])): row for row in self.rows_of(f"{name}-closed")}
        assert all(row["times"] == 1 for row in closed.values()), "a window of windows has closed more than once"
        if plain.longest_session > self.longest_s * SECOND:
            expected = [(page, sum) for (page, _), (_, sum) in (*plain.closed.items(), *plain.windows.items())]
            found = [(row["page"], row[value]) for row in (*closed.values(), *self.rows_of(name))]
            assert totals(found) == totals(expected)
            self.reached["outer sessions cut"] += 1
            return
        assert {key: row[value] for key, row in closed.items()} == {key: sum for key, (_, sum) in plain.closed.items()}


def totals(rows: Iterable[tuple[str, int]]) -> Counter[str]:
    """By page."""
    found = Counter[str]()
    for page, number in rows:
        found[page] += number
    return found


def first_after(threshold: int | None, lasts_s: int, every_s: int | None) -> int | None:
    """The earliest start of what has not closed: of windows that begin at multiples, or may at any time."""
    if threshold is None:
        return None
    first = threshold - lasts_s * SECOND + 1
    return first if every_s is None else first + -first % (every_s * SECOND)
