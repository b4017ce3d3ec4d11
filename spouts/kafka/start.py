"""Decides where a Kafka spout begins to read a partition for which no batch has a position.

`StartPositions` applies the spout's `start` to the logs before each planning. The rules, for both kinds of spout:

1. A position in the store always takes precedence. `start` does not apply to a partition that any batch of this
   topology id has listed, also after a restart, and also if its topic was missing in between. A new topology id has no
   positions.
2. The resulting offset is recorded in the first batch that has the partition, even if there is nothing to read. Every
   replay of that batch receives it, also in the next process; until it is recorded, it is kept here.
3. What is added later is read from its beginning: with `"latest"`, every partition that did not exist when the topology
   (or its topic, if topics are listed by name) was first looked at; with any start, a recreated topic.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from spouts.kafka.clients.cluster import describe_partition, topic_of
from spouts.kafka.offsets import OffsetReader, make_topic_partitions
from spouts.kafka.subscription import Subscription
from spouts.kafka.topics import Warn
from spouts.planning import Logs, PartitionLog
from transactional.model.batch import BatchMetadata, Offset, PartitionId
from transactional.model.errors import ConfigError
from transactional.model.schema import did_you_mean

_WORDS = ("earliest", "latest", "group")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Begin = Literal["earliest", "latest"] | int | datetime
"""The first available offset, the end, or the first record whose time is not earlier (milliseconds since 1970)."""


@dataclass(frozen=True, slots=True)
class GroupOffsets:
    """Begin at the offsets that a consumer group has committed (Storm's UNCOMMITTED_*).

    `otherwise` says where to begin in a partition for which the group has none, or one that the log no longer holds.
    `group_id` is the group; None means the spout's own `group_id`. `start="group"` is short for `GroupOffsets()`.
    """

    otherwise: Begin = "earliest"
    group_id: str | None = None


Start = Begin | Literal["group"] | GroupOffsets | Mapping[str, Mapping[int, int]]
"""Where to begin: a `Begin`, a group's offsets, or explicit offsets `{topic: {partition: offset}}`."""


_NewLogs = Mapping[PartitionId, PartitionLog]
_Starts = dict[PartitionId, Offset | None]


class StartPositions:
    """The start positions of one spout. Each is determined when its partition is first seen, and kept for replays."""

    def __init__(self, start: Start, subscription: Subscription, group_id: str | None, warn: Warn) -> None:
        self._subscription, self._warn = subscription, warn
        self._explicit_offsets = parse_offsets(start, subscription) if isinstance(start, Mapping) else {}
        self._group = _parse_group(start, group_id)
        begin = "earliest" if isinstance(start, Mapping) else start
        self._begin = _parse_begin(self._group.otherwise, _WORDS[:2]) if self._group else _parse_begin(begin, _WORDS)
        self._pinned_starts: _Starts = {}
        self._has_looked = False

    def forget(self) -> None:
        """Forget all start positions: the next run may be of a different topology."""
        self._pinned_starts = {}
        self._has_looked = False

    def add_starts(self, reader: OffsetReader, previous_batch: BatchMetadata, logs: Logs) -> Logs:
        """Return the logs, with the start of each partition that has no position in `previous_batch`.

        Raises `ConfigError` for an explicit offset that the log does not hold, `SourceUnavailable` if the group's
        coordinator does not respond.
        """
        known_partitions = {*previous_batch.ranges, *self._pinned_starts}
        new_logs = {p: log for p, log in logs.items() if log is not None and p not in known_partitions}
        for find_starts in (
            self._find_recreated_starts,
            self._find_explicit_starts,
            self._find_group_starts,
            self._find_default_starts,
        ):
            if not new_logs:
                break
            starts = find_starts(reader, previous_batch, new_logs)
            self._pinned_starts |= starts
            new_logs = {p: log for p, log in new_logs.items() if p not in starts}
        self._has_looked = True
        return {
            partition: log if log is None or partition in previous_batch.ranges else self._with_start(partition, log)
            for partition, log in logs.items()
        }

    def _with_start(self, partition: PartitionId, log: PartitionLog) -> PartitionLog | None:
        start = self._pinned_starts.get(partition)
        # It joins once its last stable offset has reached its start, or once it has returned where that is.
        if partition not in self._pinned_starts or (start is not None and start > log.end):
            return None
        return replace(log, start=start)

    # --- each returns the starts of some of the partitions; None: the earliest offset --------------------------------

    def _find_recreated_starts(self, reader: OffsetReader, previous_batch: BatchMetadata, logs: _NewLogs) -> _Starts:
        """Return the starts in recreated topics, whose names were read before under other topic ids."""
        sources_by_topic = _sources_by_topic(previous_batch)
        return {p: None for p in logs if sources_by_topic.get(topic_of(p.source), set()) - {p.source}}

    def _find_explicit_starts(self, reader: OffsetReader, previous_batch: BatchMetadata, logs: _NewLogs) -> _Starts:
        starts: _Starts = {}
        for partition, log in logs.items():
            offset = self._explicit_offsets.get((topic_of(partition.source), partition.index))
            if offset is None:
                continue
            if not log.earliest <= offset <= log.end:
                raise ConfigError(
                    f"start= gives offset {offset} for {describe_partition(partition)}, but the available offsets are "
                    f"{log}; use one of those, or the end"
                )
            starts[partition] = Offset(offset)
        return starts

    def _find_group_starts(self, reader: OffsetReader, previous_batch: BatchMetadata, logs: _NewLogs) -> _Starts:
        if self._group is None:
            return {}
        starts: _Starts = {}
        for partition, offset in reader.query_committed_offsets(
            make_topic_partitions(logs), self._group.group_id or ""
        ).items():
            log = logs[partition]
            if offset is not None and log.earliest <= offset <= log.end:
                starts[partition] = offset
            elif offset is not None:
                self._warn(
                    f"group {self._group.group_id!r} is at offset {offset} of {describe_partition(partition)}, but the "
                    f"offsets available are {log}: it is read from {self._begin!r} instead"
                )
        return starts

    def _find_default_starts(self, reader: OffsetReader, previous_batch: BatchMetadata, logs: _NewLogs) -> _Starts:
        if self._begin == "earliest":
            return dict.fromkeys(logs)
        if self._begin == "latest":
            known_topics = _sources_by_topic(previous_batch)
            is_added_later = self._has_looked or (bool(known_topics) and self._subscription.names is None)
            return {
                p: None if is_added_later or topic_of(p.source) in known_topics else log.end for p, log in logs.items()
            }
        # After the ends: if no record is that late now, none was when the end was read.
        time_offsets = reader.query_offsets_at_time(make_topic_partitions(logs), to_milliseconds(self._begin))
        return {p: logs[p].end if offset is None else offset for p, offset in time_offsets.items()}


def _sources_by_topic(previous_batch: BatchMetadata) -> dict[str, set[str]]:
    """Return the sources that have positions, by the name of their topic. A recreated topic has several."""
    sources: dict[str, set[str]] = {}
    for partition in previous_batch.ranges:
        sources.setdefault(topic_of(partition.source), set()).add(partition.source)
    return sources


def _parse_group(start: Start, group_id: str | None) -> GroupOffsets | None:
    if start == "group":
        start = GroupOffsets()
    if not isinstance(start, GroupOffsets):
        return None
    chosen_id = start.group_id or group_id
    if not chosen_id:
        raise ConfigError("start='group' needs a group: pass group_id=, or GroupOffsets(group_id=...)")
    return GroupOffsets(start.otherwise, chosen_id)


def _parse_begin(start: object, words: tuple[str, ...]) -> Begin:
    if start == "earliest":
        return "earliest"
    if start == "latest":
        return "latest"
    if isinstance(start, str):
        choice = ", ".join(map(repr, words[:-1])) + f" or {words[-1]!r}"
        raise ConfigError(f"start is {choice}, not {start!r}{did_you_mean(start, words)}")
    if isinstance(start, bool) or not isinstance(start, int | datetime):
        raise ConfigError(
            "start is 'earliest', 'latest', 'group', a time (milliseconds since 1970, or a datetime with time zone), "
            f"GroupOffsets(...) or {{topic: {{partition: offset}}}}; got {start!r}"
        )
    return check_time(start)


def check_time(time: int | datetime, option: str = "start") -> int | datetime:
    """Return the time if a record can have it. Raises `ConfigError`, which names the option."""
    if isinstance(time, datetime) and time.utcoffset() is None:
        raise ConfigError(f"{option} is a time without a time zone: {time!r}; add one (tzinfo=UTC, for example)")
    if to_milliseconds(time) < 0:
        raise ConfigError(f"{option} must not be before 1970, got {time!r}")
    return time


def to_milliseconds(time: int | datetime) -> int:
    """Return a time in milliseconds since 1970."""
    # Rounded up: a record at 5 ms is before a time of 5.2 ms.
    return time if isinstance(time, int) else -((_EPOCH - time) // timedelta(milliseconds=1))


def parse_offsets(
    mapping: Mapping[Any, Any], subscription: Subscription, option: str = "start"
) -> dict[tuple[str, int], int]:
    """Return explicit offsets by topic and partition. Raises `ConfigError`, which names the option."""
    parsed: dict[tuple[str, int], int] = {}
    for topic, offsets in mapping.items():
        if not isinstance(topic, str) or not subscription.can_have_topic(topic):
            raise ConfigError(f"{option}= gives offsets of topic {topic!r}, which is not read: {subscription} is")
        if not isinstance(offsets, Mapping):
            raise ConfigError(f"{option}= takes {{partition: offset}} for topic {topic!r}, got {offsets!r}")
        for index, offset in offsets.items():
            if type(index) is not int or type(offset) is not int or min(index, offset) < 0:
                raise ConfigError(
                    f"{option}= gives {index!r}: {offset!r} for topic {topic!r}: no offset of a partition"
                )
            if not subscription.has_partition(topic, index):
                raise ConfigError(f"{option}= gives an offset of partition {index} of {topic!r}, which is not read")
            parsed[topic, index] = offset
    return parsed
