"""The windows of a stream, as a program declares them: tumbling, sliding, sessions, and windows by count.

`tumbling("5 minutes")`, `sliding("1 hour", every="5 minutes")`, `session("30 minutes", longest="12 hours")` and
`count(100)` check their arguments and return a description. `core/machine/window_assignment.py` has the arithmetic.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from transactional.core.machine.window_assignment import Sessions, Windows
from transactional.model.durations import Duration
from transactional.model.errors import ConfigError
from transactional.topology.windows.event_times import duration_us

EVENT, TRANSACTION = "event", "transaction"
"""The times that windows use: the event time of a tuple, or the time at which its transaction was planned."""
PANES_MAX = 10_000
"""The largest number of parts of a window. It is computed from its parts when it closes."""
PANE = "pane"
"""The key column of a state with the number of a part, for windows by count that overlap."""
TUPLES_MAX = 1_000_000
"""The largest number of tuples in a window by count. The driver reads and writes them."""


@dataclass(frozen=True, slots=True)
class Window:
    """Windows of time: how tuples are distributed over them. Made by `tumbling` and `sliding`."""

    label: str
    windows: Windows
    time: str

    @property
    def by_transaction(self) -> bool:
        """True if all tuples of a transaction have the time of the transaction."""
        return self.time == TRANSACTION

    @property
    def start(self) -> str:
        """The column of a state with the start of a row: of a window, or of a pane that several windows share."""
        return "window_start" if self.windows.length_us == self.windows.every_us else "pane_start"


@dataclass(frozen=True, slots=True)
class Session:
    """Windows of the tuples of a key that follow one another closely. Made by `session`."""

    label: str
    sessions: Sessions
    time: str

    @property
    def by_transaction(self) -> bool:
        """True if all tuples of a transaction have the time of the transaction."""
        return self.time == TRANSACTION

    @property
    def start(self) -> str:
        """The column of a state with the start of a session."""
        return "window_start"


@dataclass(frozen=True, slots=True)
class CountWindow:
    """Windows of a number of tuples. Made by `count`."""

    label: str
    windows: Windows
    """The arithmetic of the windows, with numbers of tuples instead of times."""

    @property
    def by_transaction(self) -> bool:
        """False, as windows by count depend on no time."""
        return False

    @property
    def parts(self) -> int:
        """The number of panes in a window. Windows that overlap share panes."""
        return self.windows.length_us // self.windows.pane_us

    @property
    def start(self) -> str:
        """The column of a state with the place where a row begins."""
        return "window_start" if self.parts == 1 else "pane_start"

    @property
    def end(self) -> str:
        """The column of a state with the place behind the last tuple of a row."""
        return "window_end" if self.parts == 1 else "pane_end"

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of a state for places. `pane` is a column of its key."""
        return (self.start, self.end) if self.parts == 1 else (PANE, self.start, self.end)


def tumbling(length: Duration, *, time: str = EVENT) -> Window:
    """Windows of equal length, one after the other: each time is in one of them.

    They begin at multiples of the length, counted from 1970 in UTC, so windows of `1 day` begin at midnight. `time` is
    `event`, for the event time of the stream, or `transaction`, for the time at which a tuple's transaction was
    planned.
    """
    us = duration_us("tumbling: length", length)
    return Window(f"tumbling({_text(length)}{_time_suffix(time)})", Windows(us, us), _check_time_kind("tumbling", time))


def sliding(length: Duration, *, every: Duration, time: str = EVENT) -> Window:
    """Windows of equal length, one of which begins after each `every`: each time is in `length / every` of them.

    `time` is as for `tumbling`. Raises `ConfigError` if windows slide by more than their length.
    """
    length_us, every_us = duration_us("sliding: length", length), duration_us("sliding: every", every)
    if every_us > length_us:
        raise ConfigError(
            f"sliding: windows of {_text(length)} that begin every {_text(every)} leave times out; let every be at "
            "most the length"
        )
    windows = Windows(length_us, every_us)
    if length_us // windows.pane_us > PANES_MAX:
        raise ConfigError(
            f"sliding: windows of {_text(length)} that begin every {_text(every)} are made of "
            f"{length_us // windows.pane_us} parts, more than {PANES_MAX}: let every be longer, and divide the length"
        )
    label = f"sliding({_text(length)}, every={_text(every)}{_time_suffix(time)})"
    return Window(label, windows, _check_time_kind("sliding", time))


def session(gap: Duration, *, longest: Duration, time: str = EVENT) -> Session:
    """Windows of the tuples of a key, from the first one until `gap` after the last one.

    A tuple that comes after a longer gap begins another session. A session never lasts longer than `longest`: then the
    next tuple begins another one. `time` is as for `tumbling`.
    """
    gap_us, longest_us = duration_us("session: gap", gap), duration_us("session: longest", longest)
    if gap_us > longest_us:
        raise ConfigError(
            f"session: one of a single tuple lasts {_text(gap)}, its gap, and longest is {_text(longest)}: let it be "
            "at least the gap"
        )
    label = f"session({_text(gap)}, longest={_text(longest)}{_time_suffix(time)})"
    return Session(label, Sessions(gap_us, longest_us), _check_time_kind("session", time))


def count(length: Any, *, every: Any = None) -> CountWindow:
    """Windows of the last `length` tuples, one after each `every` tuples; without `every`, one after the other.

    The first windows have fewer tuples if `every` is less than the length.
    """
    every = length if every is None else every
    for name, number in (("length", length), ("every", every)):
        if isinstance(number, bool) or not isinstance(number, int) or not 0 < number <= TUPLES_MAX:
            raise ConfigError(f"count: {name} is {number!r}; it is a number of tuples, from 1 to {TUPLES_MAX:,}")
    if every > length:
        raise ConfigError(
            f"count: windows of {length} tuples, one after each {every}, leave tuples out; let every be at most the "
            "length"
        )
    label = f"count({length})" if every == length else f"count({length}, every={every})"
    return CountWindow(label, Windows(length, every))


def _check_time_kind(used_by: str, time: Any) -> str:
    if time not in (EVENT, TRANSACTION):
        raise ConfigError(f"{used_by}: time is 'event' or 'transaction'; got {time!r}")
    return str(time)


def _text(duration: Duration) -> str:
    return str(duration).strip()


def _time_suffix(time: Any) -> str:
    return "" if time == EVENT else f", time={time}"
