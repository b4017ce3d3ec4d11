"""Facts of a batch: decided once, when it is planned, and recorded with it, so that all its replays agree on them.

Event times: which field of a stream they are, how late a tuple may be, and what is known of them by partition.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

HOUR_MS = 3_600_000
EARLIEST_US = -670_000 * 24 * HOUR_MS * 1_000
"""In the year 135: nothing waits for an earlier time, from which differences might be too large for a table."""


@dataclass(frozen=True, slots=True)
class BatchFacts:
    """What holds for a whole batch. `time_ms` is when it was planned, in milliseconds since 1970.

    It never goes back from one transaction to the next, even if the next one is planned on a machine whose clock is
    behind. Tuples with an event time before `late_before_us`, in microseconds since 1970, are late; None as long as
    no event time is known. `previous_time_ms` and `previous_late_before_us` are those of the transaction before it.
    """

    time_ms: int
    late_before_us: int | None = None
    previous_time_ms: int | None = None
    previous_late_before_us: int | None = None


@dataclass(frozen=True, slots=True)
class EventTime:
    """A field of a stream, a timestamp, at which something happened.

    A tuple may be `max_delay_ms` older than the newest one of its partition without being late. A partition without a
    record for `idle_after_ms` holds nothing up; None: it does. A tuple that is more than `max_ahead_ms` ahead of the
    transaction's time makes no other tuple late: its time is somebody's mistake; None: there is no such limit.
    """

    field: str
    max_delay_ms: int = 0
    idle_after_ms: int | None = None
    max_ahead_ms: int | None = HOUR_MS

    def latest_us(self, facts: BatchFacts | None) -> int | None:
        """The latest event time of a batch that counts; None: there is no limit."""
        if facts is None or self.max_ahead_ms is None:
            return None
        return (facts.time_ms + self.max_ahead_ms) * 1_000


class LastSeen(NamedTuple):
    """What is known of a partition: its highest event time, in microseconds since 1970, and the time of the last
    transaction in which it had a record, in milliseconds."""

    event_us: int
    time_ms: int = 0


def facts_after(before: BatchFacts | None, now_ms: int, known: Iterable[tuple[EventTime, LastSeen]] = ()) -> BatchFacts:
    """The facts of the batch after one with the facts `before`, planned at `now_ms`.

    `known` is what has been read so far, one per partition: late is what is behind the slowest of those that are not
    idle, by more than the allowed delay. Neither time goes back, also if a partition appears that is far behind.
    """
    time_ms = now_ms if before is None else max(before.time_ms, now_ms)
    # Since the batch before, nobody has looked whether a partition has a record: not while that batch took its time,
    # nor while nothing ran.
    awaited = _awaited(known, time_ms if before is None else before.time_ms)
    late_before = [max(seen.event_us, EARLIEST_US) - of.max_delay_ms * 1_000 for of, seen in awaited]
    if before is None:
        return BatchFacts(time_ms, min(late_before, default=None))
    found = [late for late in (before.late_before_us, min(late_before, default=None)) if late is not None]
    return BatchFacts(time_ms, max(found, default=None), before.time_ms, before.late_before_us)


def _awaited(known: Iterable[tuple[EventTime, LastSeen]], looked_ms: int) -> list[tuple[EventTime, LastSeen]]:
    """The partitions that were not idle when it was last looked; if all were, those that had been the last not to be.
    Else windows would stay open where transactions take longer than a partition may be silent."""
    until = [(each, _waited_until(*each, looked_ms)) for each in known]
    looked_ms = min(looked_ms, max((last_ms for _, last_ms in until), default=looked_ms))
    return [each for each, last_ms in until if last_ms >= looked_ms]


def _waited_until(of: EventTime, seen: LastSeen, looked_ms: int) -> int:
    return looked_ms if of.idle_after_ms is None else seen.time_ms + of.idle_after_ms
