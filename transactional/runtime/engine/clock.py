"""The real clock. Only this module reads the time, so that tests and the simulation can replace it."""

from __future__ import annotations

import time


class SystemClock:
    """The clocks of this machine."""

    def monotonic_ms(self) -> int:
        """Return milliseconds of the monotonic clock, for durations."""
        return time.monotonic_ns() // 1_000_000

    def wall_ms(self) -> int:
        """Return the milliseconds since 1970."""
        return time.time_ns() // 1_000_000
