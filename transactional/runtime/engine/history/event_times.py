"""How far event time is with a transaction commit, as the store keeps it for people: no decision depends on it."""

from __future__ import annotations

from typing import Any

from transactional.model.batch import BatchMetadata
from transactional.topology.closing import TimedWindows
from transactional.topology.topology import Topology


def event_time_of(topology: Topology, batch: BatchMetadata) -> dict[str, Any]:
    """The newest event time read so far; the watermark, before which tuples are late; and how many windows are open, by
    component: None if no time says so; and of those that may be open the watermark, when the last one ends, and whether
    they go by the time of transactions. Times are microseconds since 1970. Nothing for a topology without any of it."""
    timed = TimedWindows.of_topology(topology)
    windows, facts = timed.windows, batch.facts
    if facts is None or not (windows or batch.event_times):
        return {}
    newest_us = max((seen.event_us for seen in batch.event_times.values()), default=None)
    return {
        "event_time": {
            "newest_us": newest_us,
            "watermark_us": facts.watermark_us,
            "open": {name: each.open_windows(facts.of(name), newest_us) for name, each in windows.items()},
            "open_until": {
                name: [*times, windows[name].closes_without_input] for name, times in timed.open_until_us(batch).items()
            },
        }
    }
