"""A clock that only moves when advanced."""

from __future__ import annotations


class ManualClock:
    """A `Clock` that stands still until `advance` is called. Both of its times move together."""

    def __init__(self, *, wall_ms: int = 0) -> None:
        self._started_at_ms = wall_ms
        self._passed_ms = 0

    def monotonic_ms(self) -> int:
        """Milliseconds since the clock was created."""
        return self._passed_ms

    def wall_ms(self) -> int:
        """Return the milliseconds since 1970 that the test has set."""
        return self._started_at_ms + self._passed_ms

    def advance(self, duration_ms: int) -> None:
        """Move the clock forward by some milliseconds."""
        if duration_ms < 0:
            raise ValueError(f"time only moves forward, got {duration_ms} ms")
        self._passed_ms += duration_ms
