"""Windows of a stream, as they are declared: `tumbling("5 minutes")`, `sliding("1 hour", every="5 minutes")`,
`session("30 minutes", longest="12 hours")`, `count(100)`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from transactional.core.machine.window_assignment import Sessions, Windows
from transactional.model.durations import Duration
from transactional.model.errors import ConfigError
from transactional.topology.windows.event_times import duration_us

EVENT, TRANSACTION = "event", "transaction"
"""The time of what happened, and the time at which its transaction was planned."""
PANES_MAX = 10_000
"""A window that closes is computed from its parts."""
PANE = "pane"
"""What a state calls the number of a part of windows by count that overlap."""
TUPLES_MAX = 1_000_000
"""The tuples of windows by count are read and written by the driver."""


@dataclass(frozen=True, slots=True)
class Window:
    """How tuples are distributed over windows. Made by `tumbling` and `sliding`."""

    label: str
    windows: Windows
    time: str

    @property
    def by_transaction(self) -> bool:
        """Whether all tuples of a transaction have its time."""
        return self.time == TRANSACTION

    @property
    def start(self) -> str:
        """What the state calls the start of what it keeps a row of: a window, or a pane of several."""
        return "window_start" if self.windows.length_us == self.windows.every_us else "pane_start"


@dataclass(frozen=True, slots=True)
class Session:
    """Tuples of a key that follow one another closely. Made by `session`."""

    label: str
    sessions: Sessions
    time: str

    @property
    def by_transaction(self) -> bool:
        """Whether all tuples of a transaction have its time."""
        return self.time == TRANSACTION

    @property
    def start(self) -> str:
        """What the state calls the start of a session."""
        return "window_start"


@dataclass(frozen=True, slots=True)
class CountWindow:
    """Windows of so many tuples. Made by `count`."""

    label: str
    windows: Windows
    """Numbers of tuples instead of times."""

    @property
    def by_transaction(self) -> bool:
        """No time has a say in them."""
        return False

    @property
    def parts(self) -> int:
        """Of how many parts a window is made, which those that overlap have in common."""
        return self.windows.length_us // self.windows.pane_us

    @property
    def start(self) -> str:
        """What the state calls the place where a row begins."""
        return "window_start" if self.parts == 1 else "pane_start"

    @property
    def end(self) -> str:
        """What it calls the place behind its last tuple so far."""
        return "window_end" if self.parts == 1 else "pane_end"

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns that it has for places; `pane` is one of its key."""
        return (self.start, self.end) if self.parts == 1 else (PANE, self.start, self.end)


def tumbling(length: Duration, *, time: str = EVENT) -> Window:
    """Windows of this length, one after the other: each time is in one of them.

    They begin at multiples of the length, counted from 1970 in UTC: those of `1 day` at midnight. `time` is `event`,
    for the event time of the stream, or `transaction`, for the time at which its transaction was planned.
    """
    us = duration_us("tumbling: length", length)
    return Window(f"tumbling({_shown(length)}{_of(time)})", Windows(us, us), _checked("tumbling", time))


def sliding(length: Duration, *, every: Duration, time: str = EVENT) -> Window:
    """Windows of this length, one beginning after each `every`: each time is in `length / every` of them.

    `time` is as for `tumbling`. Raises `ConfigError` if windows slide by more than their length.
    """
    length_us, every_us = duration_us("sliding: length", length), duration_us("sliding: every", every)
    if every_us > length_us:
        raise ConfigError(
            f"sliding: windows of {_shown(length)} that begin every {_shown(every)} leave times out; let every be at "
            "most the length"
        )
    windows = Windows(length_us, every_us)
    if length_us // windows.pane_us > PANES_MAX:
        raise ConfigError(
            f"sliding: windows of {_shown(length)} that begin every {_shown(every)} are made of "
            f"{length_us // windows.pane_us} parts, more than {PANES_MAX}: let every be longer, and divide the length"
        )
    label = f"sliding({_shown(length)}, every={_shown(every)}{_of(time)})"
    return Window(label, windows, _checked("sliding", time))


def session(gap: Duration, *, longest: Duration, time: str = EVENT) -> Session:
    """Windows of the tuples of a key between which there is no gap as long as this one: from the first of them until
    `gap` after the last one.

    A session never lasts longer than `longest`: the next tuple begins another one. `time` is as for `tumbling`.
    """
    gap_us, longest_us = duration_us("session: gap", gap), duration_us("session: longest", longest)
    if gap_us > longest_us:
        raise ConfigError(
            f"session: one of a single tuple lasts {_shown(gap)}, its gap, and longest is {_shown(longest)}: let it be "
            "at least the gap"
        )
    label = f"session({_shown(gap)}, longest={_shown(longest)}{_of(time)})"
    return Session(label, Sessions(gap_us, longest_us), _checked("session", time))


def count(length: Any, *, every: Any = None) -> CountWindow:
    """Windows of the last `length` tuples, one after each `every`; without it one after the other.

    The first ones have fewer tuples if `every` is less than the length.
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


def _checked(used_by: str, time: Any) -> str:
    if time not in (EVENT, TRANSACTION):
        raise ConfigError(f"{used_by}: time is 'event' or 'transaction'; got {time!r}")
    return str(time)


def _shown(duration: Duration) -> str:
    return str(duration).strip()


def _of(time: Any) -> str:
    return "" if time == EVENT else f", time={time}"
