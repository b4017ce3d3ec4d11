"""The event time of a transaction commit, as the store keeps it for people. No decision depends on it."""

from __future__ import annotations

from typing import Any

from transactional.model.batch import BatchMetadata
from transactional.topology.closing import TimedWindows
from transactional.topology.topology import Topology


def event_time_of(topology: Topology, batch: BatchMetadata) -> dict[str, Any]:
    """Return the event time of a batch as JSON values, or nothing for a topology without event times and windows.

    It has the newest event time read so far, the watermark, and the number of open windows by component, which is None
    if it can't be known. For windows that may be open it also has the watermark, the end of the last one, and whether
    transaction time closes them. Times are microseconds since 1970.
    """
    timed = TimedWindows.from_topology(topology)
    windows, facts = timed.windows, batch.facts
    if facts is None or not (windows or batch.event_times):
        return {}
    newest_us = max((partition.event_us for partition in batch.event_times.values()), default=None)
    return {
        "event_time": {
            "newest_us": newest_us,
            "watermark_us": facts.watermark_us,
            "open": {
                name: window.count_open_windows(facts.for_component(name), newest_us)
                for name, window in windows.items()
            },
            "open_until": {
                name: [*times, windows[name].closes_without_input] for name, times in timed.open_until_us(batch).items()
            },
        }
    }
