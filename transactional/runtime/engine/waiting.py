"""Logs that windows wait for partitions of which there was no record yet: one line for each, after a minute."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Mapping
from datetime import timedelta

from transactional.core.machine.listing import awaited, shown
from transactional.model.batch import PartitionId
from transactional.model.facts import EMPTY_MS, EventTime, Listed

_log = logging.getLogger(__name__)


class WaitLog:
    """What one run has waited for, since when, by the time of day in milliseconds."""

    def __init__(self) -> None:
        self._since_ms: dict[PartitionId, int] = {}
        self._logged: set[PartitionId] = set()

    def note(self, listed: Mapping[PartitionId, Listed], times: Mapping[PartitionId, EventTime], now_ms: int) -> None:
        """What is listed now. The minute of one that was not waited for in between begins again."""
        waits = {at: each for at, each in listed.items() if each.is_awaited}
        self._since_ms = {at: self._since_ms.get(at, now_ms) for at in waits}
        self._logged &= waits.keys()
        fresh = [at for at in waits.keys() - self._logged if now_ms - self._since_ms[at] >= EMPTY_MS]
        self._logged |= set(fresh)
        by_idle = defaultdict[int | None, dict[PartitionId, Listed]](dict)
        for at in fresh:
            by_idle[times[at].idle_after_ms][at] = waits[at]
        for idle_ms, of in by_idle.items():
            idle = None if idle_ms is None else str(timedelta(milliseconds=idle_ms))
            _log.warning("windows wait for %s, no record yet; idle_after=%s", shown(awaited(of)), idle)
