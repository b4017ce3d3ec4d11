"""Facts of a batch: decided once, when it is planned, and recorded with it, so that all its replays agree on them.

Event times: which field of a stream they are, how late a tuple may be, and what is known of them by partition.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import NamedTuple

HOUR_MS = 3_600_000
EMPTY_MS = 60_000
"""So long an empty partition is waited for if its stream has no `idle_after`."""
EARLIEST_US = -670_000 * 24 * HOUR_MS * 1_000
"""In the year 135: nothing waits for an earlier time, from which differences might be too large for a table."""
LATEST_US = 2_800_000 * 24 * HOUR_MS * 1_000
"""In the year 9636: nothing is late because of a later time, whatever the limit is."""


StaticVersion = str
"""A version of a static table: an opaque token of the table, which names the table as well as its version."""


@dataclass(frozen=True, slots=True)
class BatchFacts:
    """What holds for a whole batch. `time_ms` is when it was planned, in milliseconds since 1970.

    It never goes back from one transaction to the next, even if the next one is planned on a machine whose clock is
    behind. Tuples with an event time before `watermark_us`, in microseconds since 1970, are late; None as long as
    no event time is known. `previous_time_ms` and `previous_watermark_us` are those of the transaction before it.
    """

    time_ms: int
    watermark_us: int | None = None
    previous_time_ms: int | None = None
    previous_watermark_us: int | None = None
    static_versions: Mapping[str, StaticVersion] = field(default_factory=dict, hash=False, kw_only=True)
    """What the batch has recorded of static tables, by table: handed on with the facts, stored beside them."""
    behind: Mapping[str, tuple[int | None, int | None]] = field(default_factory=dict, hash=False, kw_only=True)
    """By component, of windows that count the rows of other windows: `watermark_us` and `previous_watermark_us` of
    theirs. They are behind those of the source by what the other windows still keep."""
    last_row_ms: Mapping[str, int] = field(default_factory=dict, hash=False, kw_only=True)
    """By component with windows by the transactions' own time, the time of the last transaction that may have brought
    it a row."""

    def of(self, component: str) -> BatchFacts:
        """As they are for the tuples of a component: other ones if it has windows of windows."""
        if component not in self.behind:
            return self
        watermark_us, previous_us = self.behind[component]
        return replace(self, watermark_us=watermark_us, previous_watermark_us=previous_us)


@dataclass(frozen=True, slots=True)
class EventTime:
    """A field of a stream, a timestamp, at which something happened.

    A tuple may be `max_delay_ms` older than the newest one of its partition without being late. A partition without a
    record for `idle_after_ms` holds nothing up; None: it does. A tuple that is more than `max_ahead_ms` ahead of the
    transaction's time makes no other tuple late: its time is somebody's mistake; None: there is no such limit, but for
    times that no window has.
    """

    field: str
    max_delay_ms: int = 0
    idle_after_ms: int | None = None
    max_ahead_ms: int | None = HOUR_MS

    def latest_us(self, facts: BatchFacts | None) -> int:
        """The latest event time of a batch that counts."""
        if facts is None or self.max_ahead_ms is None:
            return LATEST_US - 1
        return min((facts.time_ms + self.max_ahead_ms) * 1_000, LATEST_US - 1)


class LastSeen(NamedTuple):
    """What is known of a partition: its highest event time, in microseconds since 1970, and the time of the last
    transaction in which it had a record, in milliseconds."""

    event_us: int
    time_ms: int = 0


class Listing(StrEnum):
    """How it is with a partition that the source lists, and of which no event time is known."""

    UNREAD = "unread"
    """It has records that were not read, or whose batch is not committed yet."""
    AWAY = "no answer"
    """The source does not say what it holds."""
    EMPTY = "empty"
    UNTIMED = "no event time"
    """Records of it were read, none of which has a time that counts."""

    @property
    def lasts(self) -> bool:
        """Whether it is waited for until that changes, however long it takes."""
        return self in (Listing.UNREAD, Listing.AWAY)


class Listed(NamedTuple):
    """What is recorded of such a partition: the time of the first transaction that has listed it, in milliseconds, how
    it was with it when this one was planned, and whether that waited for it."""

    time_ms: int
    listing: Listing
    is_awaited: bool = True


def looked_at(before: BatchFacts | None, now_ms: int) -> tuple[int, int]:
    """The time of the batch after one with the facts `before`, which is planned at `now_ms`; and when it was last
    looked whether partitions have records: not while the batch before took its time, nor while nothing ran."""
    return (now_ms, now_ms) if before is None else (max(before.time_ms, now_ms), before.time_ms)


def facts_after(
    before: BatchFacts | None,
    now_ms: int,
    known: Iterable[tuple[EventTime, LastSeen]] = (),
    listed: Iterable[Listed] = (),
) -> BatchFacts:
    """The facts of the batch after one with the facts `before`, planned at `now_ms`.

    `known` is what has been read so far, one per partition: late is what is behind the slowest of those that are not
    idle, by more than the allowed delay. While one of the partitions that are only `listed` is waited for, nothing more
    becomes late. Neither time goes back, also if a partition appears that is far behind.
    """
    time_ms, looked_ms = looked_at(before, now_ms)
    awaited, silent_ms = _awaited(known, looked_ms)
    if any(each.is_awaited for each in listed):
        awaited = []
    watermarks = [max(seen.event_us, EARLIEST_US) + (silent_ms - of.max_delay_ms) * 1_000 for of, seen in awaited]
    if before is None:
        return BatchFacts(time_ms, min(watermarks, default=None))
    bounds = [us for us in (before.watermark_us, min(watermarks, default=None)) if us is not None]
    return BatchFacts(time_ms, max(bounds, default=None), before.time_ms, before.watermark_us)


def _awaited(
    known: Iterable[tuple[EventTime, LastSeen]], looked_ms: int
) -> tuple[list[tuple[EventTime, LastSeen]], int]:
    """The partitions that were not idle when it was last looked. If all were: those that had been the last not to be,
    and for how long all have been. So long event time has gone on by the clock, else the last windows of a source that
    falls silent would never close."""
    until = [(each, _waited_until(*each, looked_ms)) for each in known]
    waited_ms = min(looked_ms, max((last_ms for _, last_ms in until), default=looked_ms))
    return [each for each, last_ms in until if last_ms >= waited_ms], looked_ms - waited_ms


def _waited_until(of: EventTime, seen: LastSeen, looked_ms: int) -> int:
    return looked_ms if of.idle_after_ms is None else seen.time_ms + of.idle_after_ms


def follows_clock(before: BatchFacts, known: Iterable[tuple[EventTime, LastSeen]]) -> bool:
    """Whether all partitions are silent, so that the watermark of the batch after `before` follows the clock."""
    return _awaited(known, before.time_ms)[1] > 0
