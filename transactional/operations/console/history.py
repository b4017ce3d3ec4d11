"""Charts of the past: an hour, a day, a month, from the sums by minute, which outlast the attempts."""

from __future__ import annotations

from typing import Final

from transactional.core.store import StoreReader
from transactional.operations.console.data.figures import SPANS, Series, series_of_minutes

_FRESH: Final = 1 / 8
"""What was read is shown again for this share of a slot: a month is 43,200 rows, of which a minute changes one."""


class History:
    """Series by topology and span, read when they are shown."""

    def __init__(self) -> None:
        self._made: dict[tuple[str, str], tuple[int, Series]] = {}

    def series(self, store: StoreReader, topology_id: str, span: str, now_ms: int) -> Series:
        """The series of a span of `SPANS`."""
        key, of = (topology_id, span), SPANS[span]
        made_at_ms, series = self._made.get(key, (0, None))
        if series is None or not 0 <= now_ms - made_at_ms <= of.ms / of.slots * _FRESH:
            minutes = store.minutes(topology_id, since_ms=now_ms - of.ms, each_ms=of.ms // of.slots)
            series = series_of_minutes(minutes, now_ms, of)
            self._made[key] = (now_ms, series)
        return series
