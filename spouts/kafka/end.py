"""Decides where a Kafka spout stops reading, for a backfill of a part of a topic: at explicit offsets, or at a time.

`EndPositions` lowers the ends of the logs before a batch is planned. An end is a limit on planning, nothing more: no
batch depends on it, and the next run may have another one. A position that is already beyond it stays where it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from spouts.kafka.clients.cluster import topic_of
from spouts.kafka.offsets import OffsetReader, make_topic_partitions
from spouts.kafka.start import check_time, parse_offsets, to_milliseconds
from spouts.kafka.subscription import Subscription
from spouts.planning import Logs, cap_log_end
from transactional.model.batch import BatchMetadata, Offset, PartitionId
from transactional.model.errors import ConfigError

End = int | datetime | Mapping[str, Mapping[int, int]]
"""The first time that is not read (milliseconds since 1970), or the first such offsets:
`{topic: {partition: offset}}`."""


class EndPositions:
    """The ends of one spout's partitions. An end that depends on a time is fixed once a record has that time."""

    def __init__(self, end: End | None, subscription: Subscription) -> None:
        self._explicit_offsets = parse_offsets(end, subscription, "end") if isinstance(end, Mapping) else {}
        self._time_ms = _parse_time_ms(end)
        self._time_offsets: dict[PartitionId, Offset] = {}

    def forget(self) -> None:
        """Forget all ends: the next run may be of a different topology."""
        self._time_offsets = {}

    def apply(self, reader: OffsetReader, previous_batch: BatchMetadata, logs: Logs) -> Logs:
        """Return the logs with their ends lowered.

        Read the logs before the call: a record that arrives between the two may have a later time.
        """
        if self._time_ms is None and not self._explicit_offsets:
            return logs
        positions = previous_batch.positions()
        ends = {
            p: Offset(self._explicit_offsets[key])
            for p in logs
            if (key := (topic_of(p.source), p.index)) in self._explicit_offsets
        }
        unanswered = set[PartitionId]()
        if self._time_ms is not None:
            undecided = [p for p, log in logs.items() if log is not None and p not in self._time_offsets]
            time_offsets = reader.query_offsets_at_time(make_topic_partitions(undecided), self._time_ms)
            # If no record has such a time now, none had when the log was read.
            self._time_offsets |= {p: offset for p, offset in time_offsets.items() if offset is not None}
            unanswered = set(undecided) - set(time_offsets)
            ends = self._time_offsets
        return {
            p: None if log is None or p in unanswered else cap_log_end(log, ends.get(p), positions.get(p))
            for p, log in logs.items()
        }


def _parse_time_ms(end: object) -> int | None:
    if end is None or isinstance(end, Mapping):
        return None
    if isinstance(end, bool) or not isinstance(end, int | datetime):
        raise ConfigError(
            "end is a time (milliseconds since 1970, or a datetime with time zone) or {topic: {partition: offset}}; "
            f"got {end!r}"
        )
    return to_milliseconds(check_time(end, "end"))
