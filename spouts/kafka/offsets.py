"""Kafka's offsets: the start and end of the partitions' logs, offsets for times, and a group's positions."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any

from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    Consumer,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec

from spouts.kafka.clients.cluster import (
    KafkaConnection,
    Topic,
    describe_topics,
    described,
    has_id,
    make_client,
    topic_of,
)
from spouts.kafka.topics import TopicWatch, Warn
from spouts.planning import PartitionLog
from transactional.model.batch import Offset, OffsetRange, PartitionId
from transactional.model.errors import SourceUnavailable

Queried = Mapping[PartitionId, TopicPartition]
"""The partitions in our terms and in Kafka's."""

_earliest: Callable[[], OffsetSpec] = OffsetSpec.earliest  # without types of their own
_latest: Callable[[], OffsetSpec] = OffsetSpec.latest
_TRUNCATED = "log truncation detected"
"""In the text of an error whose code is that of other resets, too."""
_EVENTS = 1_000
_WAIT_S = 0.1
_TOGETHER_S = 1.0
"""Within this, all partitions answer at once, or each is queried by itself."""


def topic_partitions(partitions: Any) -> dict[PartitionId, TopicPartition]:
    """The given partitions, prepared for requests."""
    return {partition: TopicPartition(topic_of(partition.source), partition.index) for partition in partitions}


class OffsetReader:
    """Reads offsets. Every request ends within `timeout_ms`; a partition without an answer is reported only once.

    May be used from several threads. Its consumer never joins a group.
    """

    def __init__(self, admin: AdminClient, connection: KafkaConnection, warn: Warn) -> None:
        self.admin, self._connection, self._warn = admin, connection, warn
        settings: dict[str, Any] = connection.client({"group.id": "transactional-offsets"})
        settings["isolation.level"] = connection.isolation
        self._consumer = make_client(partial(Consumer, settings), connection)

    def logs(self, queried: Queried) -> dict[PartitionId, PartitionLog | None]:
        """Each partition's log up to its last stable offset, None if it does not respond.

        Raises `SourceUnavailable` if none does.
        """
        if not queried:
            return {}
        if together := self._logs_together(queried):
            return together
        earliest = self._list(queried, _earliest())
        latest = self._list(queried, _latest())
        logs = {p: self._log_of(p, earliest[tp], latest[tp]) for p, tp in queried.items()}
        if not any(logs.values()):
            topics = ", ".join(sorted({tp.topic for tp in queried.values()}))
            where = self._connection.bootstrap_servers
            raise SourceUnavailable(f"no partition of {topics} at {where} returns its offsets")
        return logs

    def _logs_together(self, queried: Queried) -> dict[PartitionId, PartitionLog | None] | None:
        """The same by a consumer, in a third of the time: an admin client has a future for each partition. None unless
        all of them answer at once: it does not say which does not."""
        try:
            earliest, latest = (self._positions(queried, at) for at in (OFFSET_BEGINNING, OFFSET_END))
            return {
                partition: _log(earliest[tp.topic, tp.partition], latest[tp.topic, tp.partition])
                for partition, tp in queried.items()
            }
        except (KafkaException, KeyError):
            return None

    def _positions(self, queried: Queried, at: int) -> dict[tuple[str, int], TopicPartition]:
        wanted = [TopicPartition(tp.topic, tp.partition, at) for tp in queried.values()]
        seconds = min(_TOGETHER_S, self._connection.timeout_s / 4)
        answers = self._consumer.offsets_for_times(wanted, timeout=seconds)
        return {(each.topic, each.partition): each for each in answers if each.error is None}

    def cut_off(self, positions: Mapping[PartitionId, tuple[Offset, int]]) -> frozenset[PartitionId]:
        """The partitions whose logs were cut off below a position since they had that leader epoch, whatever they have
        there now: the broker knows where each epoch ends, and the consumer compares.

        Raises `SourceUnavailable` if a partition does not answer.
        """
        settings: dict[str, Any] = self._connection.client(
            {"group.id": "transactional-offsets", "auto.offset.reset": "error", "enable.partition.eof": True}
        ) | {"enable.auto.commit": False, "isolation.level": self._connection.isolation}
        queried, cut = topic_partitions(positions), set[PartitionId]()
        waiting = {(tp.topic, tp.partition): partition for partition, tp in queried.items()}
        consumer = make_client(partial(Consumer, settings), self._connection)
        try:
            consumer.assign([_with_epoch(queried[each], *positions[each]) for each in positions])
            until_s = time.monotonic() + self._connection.timeout_s
            while waiting and time.monotonic() < until_s:
                for message in consumer.consume(_EVENTS, _WAIT_S):
                    partition = waiting.get((str(message.topic()), int(message.partition() or 0)))
                    error = message.error()
                    is_cut = error is not None and _TRUNCATED in error.str()
                    if partition is None or not (is_cut or error is None or error.code() == KafkaError._PARTITION_EOF):
                        continue
                    del waiting[queried[partition].topic, queried[partition].partition]
                    if is_cut:
                        cut.add(partition)
        finally:
            consumer.close()
        for partition in waiting.values():
            raise SourceUnavailable(f"{described(partition)} does not say whether its log was cut off")
        return frozenset(cut)

    def at_time(self, queried: Queried, time_ms: int) -> dict[PartitionId, Offset | None]:
        """The first offset of each partition whose time is `time_ms` or later, None if there is none.

        A partition that does not respond is missing.
        """
        if not queried:
            return {}
        spec = OffsetSpec.for_timestamp(time_ms)
        # Otherwise a record of an open Kafka transaction would not count, and those before it would be read.
        futures = self._list(queried, spec, IsolationLevel.READ_UNCOMMITTED)
        told = {partition: self._offset(partition, futures[tp]) for partition, tp in queried.items()}
        return {p: Offset(offset) if offset >= 0 else None for p, offset in told.items() if offset is not None}

    def of_group(self, queried: Queried, group_id: str) -> dict[PartitionId, Offset | None]:
        """What a consumer group has committed for each partition, None if it has nothing.

        Raises `SourceUnavailable` if the group's coordinator does not respond.
        """
        if not queried:
            return {}
        request = [ConsumerGroupTopicPartitions(group_id, list(queried.values()))]
        answer = self.admin.list_consumer_group_offsets(request, request_timeout=self._connection.timeout_s)
        try:
            told = answer[group_id].result().topic_partitions
        except KafkaException as error:
            raise SourceUnavailable(
                f"the offsets of consumer group {group_id!r} can't be read: {self._reason(error)}"
            ) from error
        offsets = {(each.topic, each.partition): each.offset for each in told if each.error is None}
        found = {p: offsets.get((tp.topic, tp.partition), -1) for p, tp in queried.items()}
        return {partition: Offset(offset) if offset >= 0 else None for partition, offset in found.items()}

    def _list(
        self, queried: Queried, spec: OffsetSpec, isolation: IsolationLevel | None = None
    ) -> dict[TopicPartition, Future[Any]]:
        level = isolation or IsolationLevel[self._connection.isolation.upper()]
        wanted = dict.fromkeys(queried.values(), spec)
        seconds = self._connection.timeout_s
        return dict(self.admin.list_offsets(wanted, isolation_level=level, request_timeout=seconds))

    def _log_of(self, partition: PartitionId, earliest: Future[Any], latest: Future[Any]) -> PartitionLog | None:
        first, end = self._found(partition, earliest), self._found(partition, latest)
        return None if first is None or end is None else _log(first, end)

    def _offset(self, partition: PartitionId, future: Future[Any]) -> int | None:
        found = self._found(partition, future)
        return None if found is None else int(found.offset)

    def _found(self, partition: PartitionId, future: Future[Any]) -> Any:
        try:
            return future.result()
        except KafkaException as error:
            self._warn(f"{described(partition)} does not return its offsets: {self._reason(error)}")
            return None

    def _reason(self, error: KafkaException) -> str:
        return self._connection.redact(error.args[0].str())


def _log(first: Any, end: Any) -> PartitionLog:
    epoch = end.leader_epoch
    known = None if epoch is None or epoch < 0 else int(epoch)
    return PartitionLog(Offset(int(first.offset)), Offset(int(end.offset)), leader_epoch=known)


def _with_epoch(partition: TopicPartition, offset: Offset, epoch: int) -> TopicPartition:
    return TopicPartition(partition.topic, partition.partition, offset, leader_epoch=epoch)


def held(
    connection: KafkaConnection, partitions: Collection[PartitionId], watch: TopicWatch
) -> dict[PartitionId, OffsetRange | None]:
    """What each partition holds now, None for one that is gone, or whose topic was recreated (see `Spout.held`).

    Raises `SourceUnavailable`, and `ConfigError`, also for a topic that the spout could not read again.
    """
    if not partitions:
        return {}
    settings: dict[str, Any] = connection.client()
    admin = make_client(partial(AdminClient, settings), connection)
    topics = describe_topics(admin, connection, sorted({topic_of(each.source) for each in partitions}))
    could_have = watch.subscription.could_have
    watch.refuse_compacted(admin, {name: topic for name, topic in topics.items() if topic and could_have(name)})
    there = [each for each in partitions if _is_there(topics[topic_of(each.source)], each)]
    problems = list[str]()
    logs = OffsetReader(admin, connection, problems.append).logs(topic_partitions(there))
    if problems:
        raise SourceUnavailable("; ".join(problems))
    found = {each: OffsetRange(log.earliest, log.end) for each, log in logs.items() if log is not None}
    current = {topic_of(each.source) for each in found}
    return found | {each: None for each in partitions if each not in found and topic_of(each.source) not in current}


def _is_there(topic: Topic | None, partition: PartitionId) -> bool:
    if topic is None or partition.index not in topic.partitions:
        return False
    return topic.source == partition.source or not has_id(partition.source)
