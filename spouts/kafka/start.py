"""Where a Kafka spout begins to read a partition for which no batch has a position.

The rules, for both kinds of spout:

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

from spouts.kafka.clients.cluster import described, topic_of
from spouts.kafka.offsets import OffsetReader, topic_partitions
from spouts.kafka.subscription import Subscription
from spouts.kafka.topics import Warn
from spouts.planning import Logs, PartitionLog
from transactional.model.batch import BatchMetadata, Offset, PartitionId
from transactional.model.errors import ConfigError
from transactional.model.schema import did_you_mean

_WORDS = ("earliest", "latest", "group")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Begin = Literal["earliest", "latest"] | int | datetime
"""The first available offset, the end, or the first record of a time (milliseconds since 1970) or later."""


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


_Fresh = Mapping[PartitionId, PartitionLog]
_Found = dict[PartitionId, Offset | None]


class StartPositions:
    """The start positions of one spout: determined when a partition is first seen, and kept for replays."""

    def __init__(self, start: Start, subscription: Subscription, group_id: str | None, warn: Warn) -> None:
        self._subscription, self._warn = subscription, warn
        self._given = given_offsets(start, subscription) if isinstance(start, Mapping) else {}
        self._group = _group_of(start, group_id)
        begin = "earliest" if isinstance(start, Mapping) else start
        self._begin = _begin_of(self._group.otherwise, _WORDS[:2]) if self._group else _begin_of(begin, _WORDS)
        self._found: _Found = {}
        self._looked = False

    def forget(self) -> None:
        """Determine everything again: the next topology may be a different one."""
        self._found = {}
        self._looked = False

    def pin(self, reader: OffsetReader, after: BatchMetadata, logs: Logs) -> Logs:
        """The logs, with the start of each partition that `after` has no position for.

        Raises `ConfigError` for an explicit offset that the log does not hold, `SourceUnavailable` if the group's
        coordinator does not respond.
        """
        known = {*after.ranges, *self._found}
        fresh = {p: log for p, log in logs.items() if log is not None and p not in known}
        for look_up in (self._of_anew, self._from_given, self._from_group, self._from_begin):
            found = look_up(reader, after, fresh)
            self._found |= found
            fresh = {p: log for p, log in fresh.items() if p not in found}
        self._looked = True
        return {partition: self._pinned(partition, log, after) for partition, log in logs.items()}

    def _pinned(self, partition: PartitionId, log: PartitionLog | None, after: BatchMetadata) -> PartitionLog | None:
        if log is None or partition in after.ranges:
            return log
        start = self._found.get(partition)
        # It joins once its last stable offset has reached its start, or once it has returned where that is.
        if partition not in self._found or (start is not None and start > log.end):
            return None
        return replace(log, start=start)

    # --- each finds the starts of some of the partitions; None: the earliest offset ----------------------------------

    def _of_anew(self, reader: OffsetReader, after: BatchMetadata, logs: _Fresh) -> _Found:
        """Those of recreated topics, under names that were read before."""
        sources = _sources_of(after)
        return {p: None for p in logs if sources.get(topic_of(p.source), set()) - {p.source}}

    def _from_given(self, reader: OffsetReader, after: BatchMetadata, logs: _Fresh) -> _Found:
        found: _Found = {}
        for partition, log in logs.items():
            offset = self._given.get((topic_of(partition.source), partition.index))
            if offset is None:
                continue
            if not log.earliest <= offset <= log.end:
                raise ConfigError(
                    f"start= gives offset {offset} for {described(partition)}, but the available offsets are {log}; "
                    "use one of those, or the end"
                )
            found[partition] = Offset(offset)
        return found

    def _from_group(self, reader: OffsetReader, after: BatchMetadata, logs: _Fresh) -> _Found:
        if self._group is None:
            return {}
        found: _Found = {}
        for partition, offset in reader.of_group(topic_partitions(logs), self._group.group_id or "").items():
            log = logs[partition]
            if offset is not None and log.earliest <= offset <= log.end:
                found[partition] = offset
            elif offset is not None:
                self._warn(
                    f"group {self._group.group_id!r} is at offset {offset} of {described(partition)}, but the offsets "
                    f"available are {log}: it is read from {self._begin!r} instead"
                )
        return found

    def _from_begin(self, reader: OffsetReader, after: BatchMetadata, logs: _Fresh) -> _Found:
        if self._begin == "earliest":
            return dict.fromkeys(logs)
        if self._begin == "latest":
            known = _sources_of(after)
            late = self._looked or (bool(known) and self._subscription.names is None)
            return {p: None if late or topic_of(p.source) in known else log.end for p, log in logs.items()}
        # After the ends: if no record is that late now, none was when the end was read.
        at_time = reader.at_time(topic_partitions(logs), milliseconds(self._begin))
        return {p: logs[p].end if offset is None else offset for p, offset in at_time.items()}


def _sources_of(after: BatchMetadata) -> dict[str, set[str]]:
    """The topics that have positions: by name, the sources that their partitions have had."""
    sources: dict[str, set[str]] = {}
    for partition in after.ranges:
        sources.setdefault(topic_of(partition.source), set()).add(partition.source)
    return sources


def _group_of(start: Start, group_id: str | None) -> GroupOffsets | None:
    if start == "group":
        start = GroupOffsets()
    if not isinstance(start, GroupOffsets):
        return None
    known = start.group_id or group_id
    if not known:
        raise ConfigError("start='group' needs a group: pass group_id=, or GroupOffsets(group_id=...)")
    return GroupOffsets(start.otherwise, known)


def _begin_of(given: object, words: tuple[str, ...]) -> Begin:
    if given == "earliest":
        return "earliest"
    if given == "latest":
        return "latest"
    if isinstance(given, str):
        choice = ", ".join(map(repr, words[:-1])) + f" or {words[-1]!r}"
        raise ConfigError(f"start is {choice}, not {given!r}{did_you_mean(given, words)}")
    if isinstance(given, bool) or not isinstance(given, int | datetime):
        raise ConfigError(
            "start is 'earliest', 'latest', 'group', a time (milliseconds since 1970, or a datetime with time zone), "
            f"GroupOffsets(...) or {{topic: {{partition: offset}}}}; got {given!r}"
        )
    return checked_time(given)


def checked_time(given: int | datetime, option: str = "start") -> int | datetime:
    """A time that a record can have. Raises `ConfigError`, which names the option."""
    if isinstance(given, datetime) and given.utcoffset() is None:
        raise ConfigError(f"{option} is a time without a time zone: {given!r}; add one (tzinfo=UTC, for example)")
    if milliseconds(given) < 0:
        raise ConfigError(f"{option} must not be before 1970, got {given!r}")
    return given


def milliseconds(time: int | datetime) -> int:
    """A time in milliseconds since 1970."""
    # Rounded up: a record at 5 ms is before a time of 5.2 ms.
    return time if isinstance(time, int) else -((_EPOCH - time) // timedelta(milliseconds=1))


def given_offsets(
    given: Mapping[Any, Any], subscription: Subscription, option: str = "start"
) -> dict[tuple[str, int], int]:
    """Explicit offsets by topic and partition. Raises `ConfigError`, which names the option."""
    found: dict[tuple[str, int], int] = {}
    for topic, offsets in given.items():
        if not isinstance(topic, str) or not subscription.could_have(topic):
            raise ConfigError(f"{option}= gives offsets of topic {topic!r}, which is not read: {subscription} is")
        if not isinstance(offsets, Mapping):
            raise ConfigError(f"{option}= takes {{partition: offset}} for topic {topic!r}, got {offsets!r}")
        for index, offset in offsets.items():
            if type(index) is not int or type(offset) is not int or min(index, offset) < 0:
                raise ConfigError(
                    f"{option}= gives {index!r}: {offset!r} for topic {topic!r}: no offset of a partition"
                )
            if not subscription.takes(topic, index):
                raise ConfigError(f"{option}= gives an offset of partition {index} of {topic!r}, which is not read")
            found[topic, index] = offset
    return found
