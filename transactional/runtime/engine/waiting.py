"""Logs, after a minute, which partitions without a record hold up windows.

A window closes only when every partition has passed its end, so a partition without any record keeps all windows open.
A topology may wait for it on purpose, or because it is misconfigured: one warning for each such partition says so.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Mapping
from datetime import timedelta

from transactional.core.machine.listing import awaited_partitions, format_awaited
from transactional.model.batch import PartitionId
from transactional.model.facts import EMPTY_MS, EventTime, Listed

_log = logging.getLogger(__name__)


class PartitionWaitLog:
    """The partitions that the windows of one run wait for, each with the wall-clock time since when."""

    def __init__(self) -> None:
        self._since_ms: dict[PartitionId, int] = {}
        self._logged: set[PartitionId] = set()

    def update(self, listed: Mapping[PartitionId, Listed], times: Mapping[PartitionId, EventTime], now_ms: int) -> None:
        """Take in the current list of partitions, and log those that have been awaited for a minute. A partition that
        was not awaited in between starts its minute again."""
        awaited_now = {partition: entry for partition, entry in listed.items() if entry.is_awaited}
        self._since_ms = {partition: self._since_ms.get(partition, now_ms) for partition in awaited_now}
        self._logged &= awaited_now.keys()
        unlogged = awaited_now.keys() - self._logged
        overdue = [partition for partition in unlogged if now_ms - self._since_ms[partition] >= EMPTY_MS]
        self._logged |= set(overdue)
        by_idle = defaultdict[int | None, dict[PartitionId, Listed]](dict)
        for partition in overdue:
            by_idle[times[partition].idle_after_ms][partition] = awaited_now[partition]
        for idle_ms, partitions in by_idle.items():
            idle = None if idle_ms is None else str(timedelta(milliseconds=idle_ms))
            _log.warning(
                "windows wait for %s, no record yet; idle_after=%s",
                format_awaited(awaited_partitions(partitions)),
                idle,
            )
