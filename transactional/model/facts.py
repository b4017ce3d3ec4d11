"""The facts of a batch: its time and its watermark, decided when it is planned, and recorded with it.

All replays of a batch use the recorded facts, so that they agree on what is late and which windows close.
`compute_facts` computes them from the event times seen in each partition, the clock, and the facts of the previous
batch. The functions are pure; neither the time nor the watermark of a topology ever goes back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import NamedTuple

HOUR_MS = 3_600_000
EMPTY_MS = 60_000
"""The time for which the watermark waits for an empty partition if its stream has no `idle_after`."""
EARLIEST_US = -670_000 * 24 * HOUR_MS * 1_000
"""A time in the year 135. Nothing waits for an earlier one, whose difference from now might be too large for a
table."""
LATEST_US = 2_800_000 * 24 * HOUR_MS * 1_000
"""A time in the year 9636. A later one never advances the watermark, whatever the limit is."""


StaticVersion = str
"""A version of a static table: an opaque token of the table, which names the table as well as its version."""


@dataclass(frozen=True, slots=True)
class BatchFacts:
    """The facts of a whole batch. `time_ms` is the time when it was planned, in milliseconds since 1970.

    It never goes back from one transaction to the next, even if the next one is planned on a machine whose clock is
    behind. Tuples with an event time before `watermark_us`, in microseconds since 1970, are late; None as long as
    no event time is known. `previous_time_ms` and `previous_watermark_us` are those of the transaction before it.
    """

    time_ms: int
    watermark_us: int | None = None
    previous_time_ms: int | None = None
    previous_watermark_us: int | None = None
    static_versions: Mapping[str, StaticVersion] = field(default_factory=dict, hash=False, kw_only=True)
    """The versions of static tables that the batch reads, by table. They are stored beside the facts."""
    outer_watermarks: Mapping[str, tuple[int | None, int | None]] = field(
        default_factory=dict, hash=False, kw_only=True
    )
    """`watermark_us` and `previous_watermark_us` by component, for components with windows over other windows.

    Their watermarks are behind those of the source, because the other windows still keep rows."""
    last_row_ms: Mapping[str, int] = field(default_factory=dict, hash=False, kw_only=True)
    """The time of the last transaction that may have brought a row, by component with windows by the transactions' own
    time."""

    def for_component(self, component: str) -> BatchFacts:
        """Return the facts for a component: with watermarks of its own if it has windows over other windows."""
        if component not in self.outer_watermarks:
            return self
        watermark_us, previous_us = self.outer_watermarks[component]
        return replace(self, watermark_us=watermark_us, previous_watermark_us=previous_us)


@dataclass(frozen=True, slots=True)
class EventTime:
    """A field of a stream, a timestamp, at which something happened.

    A tuple may be `max_delay_ms` older than the newest one of its partition without being late. A partition without a
    record for `idle_after_ms` no longer holds back the watermark; None: it always does. A tuple whose time is more than
    `max_ahead_ms` ahead of the transaction's time does not advance the watermark: its time is probably wrong; None:
    there is no such limit, except for times that no window has.
    """

    field: str
    max_delay_ms: int = 0
    idle_after_ms: int | None = None
    max_ahead_ms: int | None = HOUR_MS

    def latest_us(self, facts: BatchFacts | None) -> int:
        """Return the latest event time of a batch that may advance the watermark, in microseconds since 1970."""
        if facts is None or self.max_ahead_ms is None:
            return LATEST_US - 1
        return min((facts.time_ms + self.max_ahead_ms) * 1_000, LATEST_US - 1)


class LastSeen(NamedTuple):
    """The highest event time of a partition, in microseconds since 1970, and the time of the last transaction in which
    the partition had a record, in milliseconds since 1970."""

    event_us: int
    time_ms: int = 0


class Listing(StrEnum):
    """The situation of a partition that the source lists, and of which no event time is known."""

    UNREAD = "unread"
    """The partition has records that were not read, or whose batch is not committed yet."""
    AWAY = "no answer"
    """The source does not say what it holds."""
    EMPTY = "empty"
    UNTIMED = "no event time"
    """Records of the partition were read, none of which has a valid event time."""

    @property
    def is_lasting(self) -> bool:
        """True if the watermark waits for the partition until this changes, however long it takes."""
        return self in (Listing.UNREAD, Listing.AWAY)


class Listed(NamedTuple):
    """The record of a listed partition without event times.

    `time_ms` is the time of the first transaction that listed it, `listing` its situation when this transaction was
    planned, and `is_awaited` whether the watermark waited for it.
    """

    time_ms: int
    listing: Listing
    is_awaited: bool = True


def batch_times(previous: BatchFacts | None, now_ms: int) -> tuple[int, int]:
    """Return the time of a batch that is planned at `now_ms`, and the time at which partitions were last checked.

    Whether partitions have records was not checked while the `previous` batch took its time, nor while nothing ran.
    """
    return (now_ms, now_ms) if previous is None else (max(previous.time_ms, now_ms), previous.time_ms)


def compute_facts(
    previous: BatchFacts | None,
    now_ms: int,
    partitions_seen: Iterable[tuple[EventTime, LastSeen]] = (),
    listed: Iterable[Listed] = (),
) -> BatchFacts:
    """Return the facts of the batch that follows one with the facts `previous`, and is planned at `now_ms`.

    `partitions_seen` has the event times read so far, one item per partition. The watermark is the event time of the
    slowest partition that is not idle, less the allowed delay. It does not advance while one of the `listed` partitions
    is awaited. Neither time goes back, even if a partition appears that is far behind.
    """
    time_ms, last_check_ms = batch_times(previous, now_ms)
    awaited, silent_ms = _awaited_partitions(partitions_seen, last_check_ms)
    if any(partition.is_awaited for partition in listed):
        awaited = []
    watermarks = [
        max(last_seen.event_us, EARLIEST_US) + (silent_ms - event_time.max_delay_ms) * 1_000
        for event_time, last_seen in awaited
    ]
    if previous is None:
        return BatchFacts(time_ms, min(watermarks, default=None))
    bounds = [us for us in (previous.watermark_us, min(watermarks, default=None)) if us is not None]
    return BatchFacts(time_ms, max(bounds, default=None), previous.time_ms, previous.watermark_us)


def _awaited_partitions(
    partitions_seen: Iterable[tuple[EventTime, LastSeen]], last_check_ms: int
) -> tuple[list[tuple[EventTime, LastSeen]], int]:
    """Return the partitions that were not idle at the last check, and the time for which all have been idle.

    If all were idle, the partitions are those that became idle last. For the time that all are idle, event time follows
    the clock: otherwise the last windows of a source that falls silent would never close.
    """
    deadlines = [(partition, _waited_until_ms(*partition, last_check_ms)) for partition in partitions_seen]
    waited_ms = min(last_check_ms, max((last_ms for _, last_ms in deadlines), default=last_check_ms))
    return [partition for partition, last_ms in deadlines if last_ms >= waited_ms], last_check_ms - waited_ms


def _waited_until_ms(event_time: EventTime, last_seen: LastSeen, last_check_ms: int) -> int:
    return last_check_ms if event_time.idle_after_ms is None else last_seen.time_ms + event_time.idle_after_ms


def follows_clock(previous: BatchFacts, partitions_seen: Iterable[tuple[EventTime, LastSeen]]) -> bool:
    """Return True if all partitions are idle, so that the watermark of the batch after `previous` follows the clock."""
    return _awaited_partitions(partitions_seen, previous.time_ms)[1] > 0
