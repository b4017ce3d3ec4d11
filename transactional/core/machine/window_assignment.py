"""Assigns times to windows, and computes which windows close in a transaction, and which times are late.

Pure. Times are microseconds since 1970. A window lasts from its start up to its end, which is not part of it. Starts
are multiples of `every`, counted from 1970. What is kept is one row per *pane*: the longest span of time of which every
window is made; a tumbling window is one pane.

A window has closed once the transaction's `watermark` has reached its end, and a time is *late* if all its windows have
closed. The watermark never falls from one transaction to the next, and it is recorded with the batch. So all attempts
that use the recorded watermark agree on which times are late.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from math import gcd

from transactional.model.facts import EARLIEST_US, LATEST_US, BatchFacts

DAY_US = 86_400_000_000
FIRST_US = EARLIEST_US
LAST_US = LATEST_US
"""Times from the year 135 up to 9636 have windows: both ends of these are in the years 1 to 9999."""


@dataclass(frozen=True, slots=True)
class Range:
    """The numbers `after < number <= until`; None: there is no lower end."""

    after: int | None
    until: int


@dataclass(frozen=True, slots=True)
class Windows:
    """Windows of `length_us`, one beginning `every_us`: tumbling if both are equal, else sliding."""

    length_us: int
    every_us: int

    @property
    def pane_us(self) -> int:
        """The length of a pane."""
        return gcd(self.length_us, self.every_us)

    def pane_of(self, us: int) -> int:
        """Return the start of the pane of a time."""
        return us // self.pane_us * self.pane_us

    def last_end_of(self, us: int) -> int:
        """Return the end of the last window that contains a time."""
        return us // self.every_us * self.every_us + self.length_us

    def is_late(self, us: int | None, watermark: int | None) -> bool:
        """Return whether all windows of a time have closed. NULL, and a time out of range, are always late."""
        if us is None or not FIRST_US <= us < LAST_US:
            return True
        return watermark is not None and self.last_end_of(us) <= watermark

    def first_open(self, watermark: int) -> int:
        """Return the start of the first window that has not closed."""
        return (watermark - self.length_us) // self.every_us * self.every_us + self.every_us

    def first_time(self, watermark: int, *, by_end: bool) -> int:
        """Return the earliest start of a window that has not closed, or the earliest end."""
        return self.first_open(watermark) + (self.length_us if by_end else 0)

    def closing(self, previous: int | None, watermark: int | None) -> Range | None:
        """Return the range of starts of the windows that close, or None if no window closes.

        `previous` is the watermark of the transaction before.
        """
        if watermark is None or (previous is not None and self.first_open(previous) >= self.first_open(watermark)):
            return None
        last_closed = None if previous is None else self.first_open(previous) - 1
        return Range(last_closed, self.first_open(watermark) - 1)

    def closing_panes(self, previous: int | None, watermark: int | None) -> Range | None:
        """Return the range of starts of the panes of the windows that close, or None if no window closes."""
        starts = self.closing(previous, watermark)
        if starts is None or watermark is None:
            return None
        last_end = self.first_open(watermark) - self.every_us + self.length_us
        return Range(starts.after, last_end - self.pane_us)

    def count_open_windows(self, times: WindowTimes, newest_us: int | None) -> int | None:
        """Count the windows that can still get tuples, up to the window of the newest time.

        With the transactions' own time the newest time is that of this transaction. None if it is not known yet.
        """
        newest = newest_us if times.now_us is None else times.now_us
        if times.watermark is None or newest is None:
            return None
        return max(0, newest // self.every_us - self.first_open(times.watermark) // self.every_us + 1)


@dataclass(frozen=True, slots=True)
class Sessions:
    """Windows that last from their first tuple until `gap_us` after their last one, and up to `longest_us`."""

    gap_us: int
    longest_us: int

    def is_late(self, us: int | None, watermark: int | None) -> bool:
        """Return whether a session of this time alone has closed. NULL, and a time out of range, are always late."""
        if us is None or not FIRST_US <= us < LAST_US:
            return True
        return watermark is not None and us + self.gap_us <= watermark

    def first_time(self, watermark: int, *, by_end: bool) -> int:
        """Return the earliest start that a session may have that has not closed, or the earliest end."""
        return watermark + 1 - (0 if by_end else self.longest_us)

    def session_starts(self, parts: Iterable[tuple[int, int]]) -> list[int]:
        """Join overlapping sessions of one key, given as starts and ends in order of their starts.

        Return for each of them the start of the session that it becomes a part of. A session that would grow longer
        than `longest_us` ends, and another one begins.
        """
        joined_starts = list[int]()
        start = end = None
        for part_start, part_end in parts:
            until = part_end if end is None else max(end, part_end)
            if start is None or end is None or part_start >= end or until - start > self.longest_us:
                start, until = part_start, part_end
            end = until
            joined_starts.append(start)
        return joined_starts


@dataclass(frozen=True, slots=True)
class InnerWindows:
    """The windows of a component `name`, whose rows other windows count.

    `first_time` returns the earliest time that the row of a window may have which has not closed at the given
    watermark.
    """

    name: str
    by_transaction: bool
    first_time: Callable[[int], int]

    def earliest_time(self, previous: BatchFacts) -> int | None:
        """Return the earliest time of rows in the transaction after the one with the facts `previous`.

        None if they may have any time.
        """
        closed_us = previous.time_ms * 1_000 if self.by_transaction else previous.for_component(self.name).watermark_us
        return None if closed_us is None else self.first_time(closed_us)


InnerWindowsByName = Mapping[str, tuple[InnerWindows, ...]]
"""The windows whose rows a component counts, by component. A component comes after those whose windows it counts."""


def with_outer_watermarks(facts: BatchFacts, previous: BatchFacts | None, windows: InnerWindowsByName) -> BatchFacts:
    """Return the facts of a batch with the watermarks of windows that count other windows.

    Such a watermark is the earliest time that a row may still have. So outer windows count the rows of an inner window
    in the transaction in which it closes, and can close in the next one. If `previous`, the facts of the batch before,
    has no such watermark, the outer windows used the watermark of the source until then.
    """
    watermarks = dict[str, tuple[int | None, int | None]]()
    for name, inner_windows in windows.items():
        old_us = None if previous is None else previous.for_component(name).watermark_us
        times = [None if previous is None else inner.earliest_time(previous) for inner in inner_windows]
        new_us = None if None in times else min(us for us in times if us is not None)
        watermarks[name] = max((us for us in (old_us, new_us) if us is not None), default=None), old_us
    return replace(facts, outer_watermarks=watermarks) if watermarks else facts


@dataclass(frozen=True, slots=True)
class WindowTimes:
    """The watermarks of a transaction, in microseconds: windows that end up to `watermark` and not up to
    `previous_watermark` close in it. `now_us` is the time of all its tuples if they have none of their own."""

    watermark: int | None
    previous_watermark: int | None
    now_us: int | None = None


def times_of(facts: BatchFacts | None, *, by_transaction: bool) -> WindowTimes:
    """Return the watermarks of a batch: by event time, or by the transaction's own time, for which no tuple is late."""
    if facts is None:
        return WindowTimes(None, None)
    if not by_transaction:
        return WindowTimes(facts.watermark_us, facts.previous_watermark_us)
    previous = None if facts.previous_time_ms is None else facts.previous_time_ms * 1_000
    return WindowTimes(facts.time_ms * 1_000, previous, facts.time_ms * 1_000)
