"""The series of charts over an hour, a day or a month, from the sums by minute, which outlast the attempts."""

from __future__ import annotations

from typing import Final

from transactional.core.store import StoreReader
from transactional.operations.console.data.figures import SPANS, Series, series_of_minutes

_FRESH: Final = 1 / 8
"""The share of a slot for which a series is shown again: a month is 43,200 rows, and a minute changes one of them."""


class History:
    """A cache of series by topology and span."""

    def __init__(self) -> None:
        self._cache: dict[tuple[str, str], tuple[int, Series]] = {}

    def series(self, store: StoreReader, topology_id: str, span: str, now_ms: int) -> Series:
        """Return the series of a span that ends now; `span` is a key of `SPANS`."""
        key, covered = (topology_id, span), SPANS[span]
        made_at_ms, series = self._cache.get(key, (0, None))
        if series is None or not 0 <= now_ms - made_at_ms <= covered.ms / covered.slots * _FRESH:
            minutes = store.minutes(topology_id, since_ms=now_ms - covered.ms, each_ms=covered.ms // covered.slots)
            series = series_of_minutes(minutes, now_ms, covered)
            self._cache[key] = (now_ms, series)
        return series
