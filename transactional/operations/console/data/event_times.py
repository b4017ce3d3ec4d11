"""Event time on a page: the watermark, its lag behind the newest event, open windows, and late tuples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from transactional.core.store import AttemptTimes
from transactional.model.drawing.formats import DASH, format_count, format_duration, format_time_of_day
from transactional.operations.console.data.figures import committed_of, event_time_in
from transactional.operations.console.data.tiles import Tile, format_age

UNKNOWN: Final = "not known yet"


@dataclass(frozen=True, slots=True)
class OpenWindows:
    """The windows of one component.

    `open` is the number of open windows, whatever the number of keys, or None if it is unknown, as for sessions. `late`
    is the number of tuples that came after their window had closed. `last_end_ms` is the end of the last window that
    may be open, and `waits_for` names what closes it.
    """

    component: str
    open: int | None
    late: int
    last_end_ms: int | None = None
    waits_for: str = ""


@dataclass(frozen=True, slots=True)
class EventTimes:
    """Event time as of the last transaction commit; late tuples are those of the last `transactions`."""

    newest_ms: int | None
    watermark_ms: int | None
    windows: Sequence[OpenWindows]
    transactions: int

    @property
    def behind_ms(self) -> int | None:
        """The milliseconds by which the watermark is behind the newest event time, or None if one is unknown."""
        if self.newest_ms is None or self.watermark_ms is None:
            return None
        return self.newest_ms - self.watermark_ms

    @property
    def late(self) -> int:
        """The number of late tuples of all components."""
        return sum(component.late for component in self.windows)


def event_times_of(attempts: Sequence[AttemptTimes]) -> EventTimes | None:
    """Return the event times of one run, whose attempts are given newest first. None if the topology has no event time,
    or none was recorded."""
    committed = committed_of(attempts)
    event_time = event_time_in(committed[0].details) if committed else {}
    if not event_time:
        return None
    late_by_component = Counter[str]()
    for attempt in committed:
        late_by_component.update((attempt.details or {}).get("late", {}))
    names = [*event_time["open"], *(name for name in late_by_component if name not in event_time["open"])]
    ends = event_time.get("open_until", {})
    windows = [
        _make_windows(name, event_time["open"].get(name), late_by_component[name], ends.get(name)) for name in names
    ]
    return EventTimes(_ms(event_time["newest_us"]), _ms(event_time["watermark_us"]), windows, len(committed))


def _make_windows(name: str, open: int | None, late: int, until: Sequence[int] | None) -> OpenWindows:
    """Return the windows of a component. `until` has the watermark, the end of the last window, and whether windows
    are cut by the time of transactions."""
    if until is None:
        return OpenWindows(name, open, late)
    return OpenWindows(name, open, late, _ms(until[1]), "the clock" if until[2] else "later events")


def _ms(us: int | None) -> int | None:
    return None if us is None else us // 1_000


def event_tiles(times: EventTimes, now_ms: int) -> list[Tile]:
    """Return the figures of event time."""
    open_counts = [component.open for component in times.windows if component.open is not None]
    note = "of sessions not known" if len(open_counts) < len(times.windows) else f"of {len(open_counts)} components"
    if len(open_counts) == len(times.windows) == 1:
        note = f"of {times.windows[0].component}"
    lag_note = UNKNOWN if times.behind_ms is None else "behind the newest event"
    return [
        Tile("watermark", *_time_and_age(times.watermark_ms, now_ms)),
        Tile("newest event", *_time_and_age(times.newest_ms, now_ms)),
        Tile("watermark lag", format_duration(times.behind_ms), lag_note),
        Tile("open windows", format_count(sum(open_counts)) if open_counts else DASH, note),
        Tile("late tuples", format_count(times.late), f"last {format_count(times.transactions)} transactions"),
    ]


def _time_and_age(at_ms: int | None, now_ms: int) -> tuple[str, str]:
    """Return a time, and how long ago it was, or how far it is ahead of the clock."""
    if at_ms is None:
        return DASH, UNKNOWN
    return format_time_of_day(at_ms)[:8], f"in {format_duration(at_ms - now_ms)}" if at_ms > now_ms else format_age(
        at_ms, now_ms
    )
