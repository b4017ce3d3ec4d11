"""`Minutes` sums up what a run commits in each minute, as one row in the store, which is kept longer than the
attempts."""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

from transactional.core.store.history import MinuteRecord
from transactional.model.batch import BatchMetadata
from transactional.runtime.engine.history.timeline import Flight

MINUTE_MS: Final = 60_000
BUCKETS_MS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 30_000)
"""Upper bounds of the durations that `MinuteRecord.latencies` counts. Its last count is for durations above all."""


class Minutes:
    """Sums up one minute at a time. `failures` counts the failures since the last transaction that was added."""

    def __init__(self) -> None:
        self.failures = 0
        self._current: MinuteRecord | None = None

    def add(self, flight: Flight, batch: BatchMetadata, lag: int | None) -> MinuteRecord | None:
        """Count a transaction that is about to be committed. Returns the minute before once it is over, to be stored
        with this commit."""
        at_ms = flight.committed.wall_ms - flight.committed.wall_ms % MINUTE_MS
        previous = self._current
        if previous is None or at_ms > previous.at_ms:
            current, finished = MinuteRecord(at_ms, 0, 0, 0, (0,) * (len(BUCKETS_MS) + 1)), previous
        else:
            current, finished = previous, None  # also if the clock was set back
        self._current = self._sum(current, flight, batch, lag)
        self.failures = 0
        return finished

    def _sum(self, current: MinuteRecord, flight: Flight, batch: BatchMetadata, lag: int | None) -> MinuteRecord:
        latency_ms = flight.committed.monotonic_ms - flight.issued.monotonic_ms
        counts = list(current.latencies)
        counts[bisect_left(BUCKETS_MS, latency_ms)] += 1
        return MinuteRecord(
            current.at_ms,
            current.transactions + 1,
            current.rows + (batch.record_count or 0),
            current.failures + self.failures,
            tuple(counts),
            current.lag_sum + (lag or 0),
            max(current.lag_max, lag or 0),
            {phase: current.phases_ms.get(phase, 0) + ms for phase, ms in flight.phases_ms.items()},
        )
