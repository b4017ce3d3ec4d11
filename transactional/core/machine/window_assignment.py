"""Windows of time: which of them a time belongs to, when it is too late for it, which ones close, what is still needed.

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
        """The start of the pane of a time."""
        return us // self.pane_us * self.pane_us

    def last_end_of(self, us: int) -> int:
        """The end of the last window that contains a time."""
        return us // self.every_us * self.every_us + self.length_us

    def is_late(self, us: int | None, watermark: int | None) -> bool:
        """Whether nothing can be counted at this time any more; nothing ever could at no time, or an absurd one."""
        if us is None or not FIRST_US <= us < LAST_US:
            return True
        return watermark is not None and self.last_end_of(us) <= watermark

    def first_open(self, watermark: int) -> int:
        """The start of the first window that has not closed."""
        return (watermark - self.length_us) // self.every_us * self.every_us + self.every_us

    def first_time(self, watermark: int, *, by_end: bool) -> int:
        """The earliest start of a window that has not closed, or the earliest end."""
        return self.first_open(watermark) + (self.length_us if by_end else 0)

    def closing(self, previous: int | None, watermark: int | None) -> Range | None:
        """Which starts have the windows that close when `watermark` grows; None: no window closes."""
        if watermark is None or (previous is not None and self.first_open(previous) >= self.first_open(watermark)):
            return None
        after = None if previous is None else self.first_open(previous) - 1
        return Range(after, self.first_open(watermark) - 1)

    def panes_closing(self, previous: int | None, watermark: int | None) -> Range | None:
        """Which starts have the panes of those windows; None: no window closes."""
        starts = self.closing(previous, watermark)
        if starts is None or watermark is None:
            return None
        last_end = self.first_open(watermark) - self.every_us + self.length_us
        return Range(starts.after, last_end - self.pane_us)

    def open_until(self, times: WindowTimes, newest_us: int | None) -> int | None:
        """How many windows can still get tuples that are not late, up to the one of the newest time; of the
        transactions' own time, up to now. None: that is not known yet."""
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
        """Whether a session of this time alone has closed; at no time, or an absurd one, there is none."""
        if us is None or not FIRST_US <= us < LAST_US:
            return True
        return watermark is not None and us + self.gap_us <= watermark

    def first_time(self, watermark: int, *, by_end: bool) -> int:
        """The earliest start that a session may have that has not closed, or the earliest end."""
        return watermark + 1 - (0 if by_end else self.longest_us)

    def session_starts(self, parts: Iterable[tuple[int, int]]) -> list[int]:
        """Return for each part of sessions of one key the start of the session that it belongs to.

        `parts` are start and end, in the order of their starts. Parts that overlap are one session, unless it would
        last longer than `longest_us`: then another one begins.
        """
        starts = list[int]()
        start = end = None
        for part_start, part_end in parts:
            until = part_end if end is None else max(end, part_end)
            if start is None or end is None or part_start >= end or until - start > self.longest_us:
                start, until = part_start, part_end
            end = until
            starts.append(start)
        return starts


@dataclass(frozen=True, slots=True)
class WindowsAbove:
    """Windows, of a component `name`, whose rows other windows count. `first_time` is the earliest time that a row may
    have of a window that has not closed at a time."""

    name: str
    by_transaction: bool
    first_time: Callable[[int], int]

    def first_after(self, before: BatchFacts) -> int | None:
        """The earliest time of the rows of the transaction after the one with the facts `before`. None: it may be any
        time."""
        closed_us = before.time_ms * 1_000 if self.by_transaction else before.for_component(self.name).watermark_us
        return None if closed_us is None else self.first_time(closed_us)


WindowsBehind = Mapping[str, tuple[WindowsAbove, ...]]
"""By component with windows of windows: those whose rows it counts. Each comes after those that it counts."""


def with_windows_behind(facts: BatchFacts, before: BatchFacts | None, windows: WindowsBehind) -> BatchFacts:
    """The facts of a batch with what is late for windows of windows: what is before all rows that may still come.

    So they count the rows of a window in the transaction in which it closes, and can close in the next one. Where the
    batch `before` has recorded nothing of them, they went by the times of the source until then.
    """
    behind = dict[str, tuple[int | None, int | None]]()
    for name, above in windows.items():
        was = None if before is None else before.for_component(name).watermark_us
        first = [None if before is None else each.first_after(before) for each in above]
        now = None if None in first else min(us for us in first if us is not None)
        behind[name] = max((us for us in (was, now) if us is not None), default=None), was
    return replace(facts, behind=behind) if behind else facts


@dataclass(frozen=True, slots=True)
class WindowTimes:
    """The watermarks of a transaction, in microseconds: windows that end up to `watermark` and not up to
    `previous_watermark` close in it. `now_us` is the time of all its tuples if they have none of their own."""

    watermark: int | None
    previous_watermark: int | None
    now_us: int | None = None


def times_of(facts: BatchFacts | None, *, by_transaction: bool) -> WindowTimes:
    """Event times, or the transaction's own time, which none of its tuples can miss."""
    if facts is None:
        return WindowTimes(None, None)
    if not by_transaction:
        return WindowTimes(facts.watermark_us, facts.previous_watermark_us)
    previous = None if facts.previous_time_ms is None else facts.previous_time_ms * 1_000
    return WindowTimes(facts.time_ms * 1_000, previous, facts.time_ms * 1_000)
