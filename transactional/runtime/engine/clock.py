"""The real clock. The only place that reads the time."""

from __future__ import annotations

import time


class SystemClock:
    """The machine's own clocks."""

    def monotonic_ms(self) -> int:
        """Milliseconds that only increase."""
        return time.monotonic_ns() // 1_000_000

    def wall_ms(self) -> int:
        """Milliseconds since 1970."""
        return time.time_ns() // 1_000_000
