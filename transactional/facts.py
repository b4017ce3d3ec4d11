"""Facts of a batch: decided once, when it is planned, and recorded with it, so that all its replays agree on them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BatchFacts:
    """What holds for a whole batch. `time_ms` is when it was planned, in milliseconds since 1970.

    It never goes back from one transaction to the next, even if the next one is planned on a machine whose clock is
    behind. Tuples with an event time before `late_before_us`, in microseconds since 1970, are late; None as long as
    no event time is known.
    """

    time_ms: int
    late_before_us: int | None = None


def facts_after(
    before: BatchFacts | None, now_ms: int, event_times: Collection[int] = (), lag_ms: int = 0
) -> BatchFacts:
    """The facts of the batch after one with the facts `before`, planned at `now_ms`.

    `event_times` are the highest ones read so far, one per partition, in microseconds: what is `lag_ms` older than the
    lowest of them is late. Neither time goes back.
    """
    late_before = min(event_times) - lag_ms * 1_000 if event_times else None
    if before is None:
        return BatchFacts(now_ms, late_before)
    known = [late for late in (before.late_before_us, late_before) if late is not None]
    return BatchFacts(max(before.time_ms, now_ms), max(known, default=None))
