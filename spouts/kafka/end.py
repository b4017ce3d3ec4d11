"""Where a Kafka spout stops reading: given offsets, or a time; for a backfill of a part of a topic.

An end is a limit on what is planned, nothing more: no batch depends on it, and the next run may have another one. A
position that is already beyond it stays where it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from spouts.kafka.clients.cluster import topic_of
from spouts.kafka.offsets import OffsetReader, topic_partitions
from spouts.kafka.start import checked_time, given_offsets, milliseconds
from spouts.kafka.subscription import Subscription
from spouts.planning import Logs, bounded
from transactional.model.batch import BatchMetadata, Offset, PartitionId
from transactional.model.errors import ConfigError

End = int | datetime | Mapping[str, Mapping[int, int]]
"""The first time that is not read (milliseconds since 1970), or the first offsets: `{topic: {partition: offset}}`."""


class EndPositions:
    """The ends of one spout's partitions. One that a time gives is kept, once there is a record of that time."""

    def __init__(self, end: End | None, subscription: Subscription) -> None:
        self._given = given_offsets(end, subscription, "end") if isinstance(end, Mapping) else {}
        self._time_ms = _time_of(end)
        self._found: dict[PartitionId, Offset] = {}

    def forget(self) -> None:
        """Look again: the next topology may be a different one."""
        self._found = {}

    def bound(self, reader: OffsetReader, after: BatchMetadata, logs: Logs) -> Logs:
        """The logs as if they ended there. They have to be read first: what comes later may be of a later time."""
        if self._time_ms is None and not self._given:
            return logs
        positions = after.positions()
        ends = {p: Offset(self._given[key]) for p in logs if (key := (topic_of(p.source), p.index)) in self._given}
        missing = set[PartitionId]()
        if self._time_ms is not None:
            wanted = [p for p, log in logs.items() if log is not None and p not in self._found]
            at_time = reader.at_time(topic_partitions(wanted), self._time_ms)
            # Where no record is that late now, none was when the log was read.
            self._found |= {p: offset for p, offset in at_time.items() if offset is not None}
            missing = set(wanted) - set(at_time)
            ends = self._found
        return {
            p: None if log is None or p in missing else bounded(log, ends.get(p), positions.get(p))
            for p, log in logs.items()
        }


def _time_of(end: object) -> int | None:
    if end is None or isinstance(end, Mapping):
        return None
    if isinstance(end, bool) or not isinstance(end, int | datetime):
        raise ConfigError(
            "end is a time (milliseconds since 1970, or a datetime with time zone) or {topic: {partition: offset}}; "
            f"got {end!r}"
        )
    return milliseconds(checked_time(end, "end"))
