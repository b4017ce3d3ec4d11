"""Event time on a page: how far it is, how far it is behind, which windows are open, what came too late."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from transactional.core.store import AttemptTimes
from transactional.model.drawing.formats import DASH, format_count, format_duration, format_time_of_day
from transactional.operations.console.data.figures import committed_of, event_time_in
from transactional.operations.console.data.tiles import Tile, ago

UNKNOWN: Final = "not known yet"


@dataclass(frozen=True, slots=True)
class OpenWindows:
    """The windows of one component: how many are `open`, whatever the number of keys, None if no time says so; how many
    tuples came after theirs had closed; and of those that may be open when the last one ends, and what closes them."""

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
        """How far the watermark is behind the newest event time."""
        if self.newest_ms is None or self.watermark_ms is None:
            return None
        return self.newest_ms - self.watermark_ms

    @property
    def late(self) -> int:
        """All tuples that came too late."""
        return sum(each.late for each in self.windows)


def event_times_of(own: Sequence[AttemptTimes]) -> EventTimes | None:
    """Of the attempts of one run, newest first; None: the topology has no event time, or none was recorded."""
    committed = committed_of(own)
    reached = event_time_in(committed[0].details) if committed else {}
    if not reached:
        return None
    late = Counter[str]()
    for each in committed:
        late.update((each.details or {}).get("late", {}))
    names = [*reached["open"], *(name for name in late if name not in reached["open"])]
    ends = reached.get("open_until", {})
    windows = [_windows(name, reached["open"].get(name), late[name], ends.get(name)) for name in names]
    return EventTimes(_ms(reached["newest_us"]), _ms(reached["watermark_us"]), windows, len(committed))


def _windows(name: str, open: int | None, late: int, until: Sequence[int] | None) -> OpenWindows:
    """`until` are the watermark, when the last window ends, and whether the windows go by the time of transactions."""
    if until is None:
        return OpenWindows(name, open, late)
    return OpenWindows(name, open, late, _ms(until[1]), "the clock" if until[2] else "later events")


def _ms(us: int | None) -> int | None:
    return None if us is None else us // 1_000


def event_tiles(times: EventTimes, now_ms: int) -> list[Tile]:
    """The figures of event time."""
    known = [each.open for each in times.windows if each.open is not None]
    note = "of sessions not known" if len(known) < len(times.windows) else f"of {len(known)} components"
    if len(known) == len(times.windows) == 1:
        note = f"of {times.windows[0].component}"
    behind = UNKNOWN if times.behind_ms is None else "behind the newest event"
    return [
        Tile("watermark", *_at(times.watermark_ms, now_ms)),
        Tile("newest event", *_at(times.newest_ms, now_ms)),
        Tile("watermark lag", format_duration(times.behind_ms), behind),
        Tile("open windows", format_count(sum(known)) if known else DASH, note),
        Tile("late tuples", format_count(times.late), f"last {format_count(times.transactions)} transactions"),
    ]


def _at(at_ms: int | None, now_ms: int) -> tuple[str, str]:
    """A moment, and how long ago that is; an event may be ahead of the clock."""
    if at_ms is None:
        return DASH, UNKNOWN
    return format_time_of_day(at_ms)[:8], f"in {format_duration(at_ms - now_ms)}" if at_ms > now_ms else ago(
        at_ms, now_ms
    )
