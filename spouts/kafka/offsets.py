"""Reads offsets from a Kafka cluster: where the logs of partitions begin and end, the first offsets of a time, and the
positions of a consumer group.

`OffsetReader` queries brokers for the planning of a spout. All partitions are queried together by a consumer, which is
fast; an admin client queries them one by one only if a partition does not answer. `read_held_offsets` opens clients of
its own, for examinations beside a run. Every request ends within `timeout_ms`. No client here joins a group, commits an
offset or reads a record's contents.
"""

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
    describe_partition,
    describe_topics,
    has_id,
    make_client,
    topic_of,
)
from spouts.kafka.topics import TopicWatch, Warn
from spouts.planning import PartitionLog
from transactional.model.batch import Offset, OffsetRange, PartitionId
from transactional.model.errors import SourceUnavailable

Queried = Mapping[PartitionId, TopicPartition]
"""The partitions to query, each with the client library's name for it."""

_make_earliest_spec: Callable[[], OffsetSpec] = OffsetSpec.earliest  # without types of their own
_make_latest_spec: Callable[[], OffsetSpec] = OffsetSpec.latest
_TRUNCATION_TEXT = "log truncation detected"
"""The text that distinguishes a truncated log from the other errors with the same code."""
_EVENTS_MAX = 1_000
_POLL_TIMEOUT_S = 0.1
_AT_ONCE_S = 1.0
"""The time for all partitions to answer together, in seconds; after that each is queried by itself."""


def make_topic_partitions(partitions: Any) -> dict[PartitionId, TopicPartition]:
    """Return the partitions in the client library's form, for requests."""
    return {partition: TopicPartition(topic_of(partition.source), partition.index) for partition in partitions}


class OffsetReader:
    """Reads offsets of partitions, times and consumer groups from the brokers.

    Every request ends within `timeout_ms`. `warn` is called for a partition that does not answer. The reader may be
    used from several threads. Its consumer never joins a group.
    """

    def __init__(self, admin: AdminClient, connection: KafkaConnection, warn: Warn) -> None:
        self.admin, self._connection, self._warn = admin, connection, warn
        settings: dict[str, Any] = connection.client_settings({"group.id": "transactional-offsets"})
        settings["isolation.level"] = connection.isolation
        self._consumer = make_client(partial(Consumer, settings), connection)

    def logs(self, queried: Queried) -> dict[PartitionId, PartitionLog | None]:
        """Return each partition's log up to its last stable offset, or None for a partition that does not respond.

        Raises `SourceUnavailable` if no partition responds.
        """
        if not queried:
            return {}
        if logs_at_once := self._read_logs_at_once(queried):
            return logs_at_once
        earliest = self._request_offsets(queried, _make_earliest_spec())
        latest = self._request_offsets(queried, _make_latest_spec())
        logs = {p: self._await_log(p, earliest[tp], latest[tp]) for p, tp in queried.items()}
        if not any(logs.values()):
            topics = ", ".join(sorted({tp.topic for tp in queried.values()}))
            address = self._connection.bootstrap_servers
            raise SourceUnavailable(f"no partition of {topics} at {address} returns its offsets")
        return logs

    def _read_logs_at_once(self, queried: Queried) -> dict[PartitionId, PartitionLog | None] | None:
        """Return all logs by a consumer, in a third of the time that an admin client takes with a future for each.

        None unless all partitions answer within `_AT_ONCE_S`: the consumer does not say which of them has not.
        """
        try:
            earliest, latest = (self._query_offsets(queried, boundary) for boundary in (OFFSET_BEGINNING, OFFSET_END))
            names = ((partition, (topic_of(partition.source), partition.index)) for partition in queried)
            return {partition: _make_log(earliest[name], latest[name]) for partition, name in names}
        except (KafkaException, KeyError):
            return None

    def _query_offsets(self, queried: Queried, boundary: int) -> dict[tuple[str, int], TopicPartition]:
        requested = [TopicPartition(topic_of(source), index, boundary) for source, index in queried]
        seconds = min(_AT_ONCE_S, self._connection.timeout_s / 4)
        answered = self._consumer.offsets_for_times(requested, timeout=seconds)
        return {(partition.topic, partition.partition): partition for partition in answered if partition.error is None}

    def find_truncated(self, positions: Mapping[PartitionId, tuple[Offset, int]]) -> frozenset[PartitionId]:
        """Return the partitions whose logs were truncated below a position, whatever they hold there now.

        `positions` are offsets with the leader epochs under which they were reached. The broker knows where each epoch
        ends, and the consumer compares. Raises `SourceUnavailable` if a partition does not answer.
        """
        settings: dict[str, Any] = self._connection.client_settings(
            {"group.id": "transactional-offsets", "auto.offset.reset": "error", "enable.partition.eof": True}
        ) | {"enable.auto.commit": False, "isolation.level": self._connection.isolation}
        queried, truncated = make_topic_partitions(positions), set[PartitionId]()
        unanswered = {(tp.topic, tp.partition): partition for partition, tp in queried.items()}
        consumer = make_client(partial(Consumer, settings), self._connection)
        try:
            consumer.assign(
                [_with_epoch(queried[partition_id], *positions[partition_id]) for partition_id in positions]
            )
            deadline_s = time.monotonic() + self._connection.timeout_s
            while unanswered and time.monotonic() < deadline_s:
                for message in consumer.consume(_EVENTS_MAX, _POLL_TIMEOUT_S):
                    partition = unanswered.get((str(message.topic()), int(message.partition() or 0)))
                    error = message.error()
                    is_truncated = error is not None and _TRUNCATION_TEXT in error.str()
                    if partition is None or not (
                        is_truncated or error is None or error.code() == KafkaError._PARTITION_EOF
                    ):
                        continue
                    del unanswered[queried[partition].topic, queried[partition].partition]
                    if is_truncated:
                        truncated.add(partition)
        finally:
            consumer.close()
        for partition in unanswered.values():
            raise SourceUnavailable(f"{describe_partition(partition)} does not say whether its log was cut off")
        return frozenset(truncated)

    def query_offsets_at_time(self, queried: Queried, time_ms: int) -> dict[PartitionId, Offset | None]:
        """Return each partition's first offset whose record has the time `time_ms` or later, None if there is none.

        A partition that does not respond is left out.
        """
        if not queried:
            return {}
        spec = OffsetSpec.for_timestamp(time_ms)
        # Otherwise a record of an open Kafka transaction would not count, and those before it would be read.
        futures = self._request_offsets(queried, spec, IsolationLevel.READ_UNCOMMITTED)
        answered_offsets = {
            partition: self._await_start_offset(partition, futures[tp]) for partition, tp in queried.items()
        }
        return {
            p: Offset(offset) if offset >= 0 else None for p, offset in answered_offsets.items() if offset is not None
        }

    def query_committed_offsets(self, queried: Queried, group_id: str) -> dict[PartitionId, Offset | None]:
        """Return the offset that a consumer group has committed for each partition, None if it has none.

        Raises `SourceUnavailable` if the group's coordinator does not respond.
        """
        if not queried:
            return {}
        request = [ConsumerGroupTopicPartitions(group_id, list(queried.values()))]
        answer = self.admin.list_consumer_group_offsets(request, request_timeout=self._connection.timeout_s)
        try:
            answered = answer[group_id].result().topic_partitions
        except KafkaException as error:
            raise SourceUnavailable(
                f"the offsets of consumer group {group_id!r} can't be read: {self._reason(error)}"
            ) from error
        offsets_by_name = {(tp.topic, tp.partition): tp.offset for tp in answered if tp.error is None}
        group_offsets = {p: offsets_by_name.get((tp.topic, tp.partition), -1) for p, tp in queried.items()}
        return {partition: Offset(offset) if offset >= 0 else None for partition, offset in group_offsets.items()}

    def _request_offsets(
        self, queried: Queried, spec: OffsetSpec, isolation: IsolationLevel | None = None
    ) -> dict[TopicPartition, Future[Any]]:
        level = isolation or IsolationLevel[self._connection.isolation.upper()]
        specs = dict.fromkeys(queried.values(), spec)
        seconds = self._connection.timeout_s
        return dict(self.admin.list_offsets(specs, isolation_level=level, request_timeout=seconds))

    def _await_log(self, partition: PartitionId, earliest: Future[Any], latest: Future[Any]) -> PartitionLog | None:
        first, end = self._await_offset(partition, earliest), self._await_offset(partition, latest)
        return None if first is None or end is None else _make_log(first, end)

    def _await_start_offset(self, partition: PartitionId, future: Future[Any]) -> int | None:
        first_record = self._await_offset(partition, future)
        return None if first_record is None else int(first_record.offset)

    def _await_offset(self, partition: PartitionId, future: Future[Any]) -> Any:
        try:
            return future.result()
        except KafkaException as error:
            self._warn(f"{describe_partition(partition)} does not return its offsets: {self._reason(error)}")
            return None

    def _reason(self, error: KafkaException) -> str:
        return self._connection.redact(error.args[0].str())


def _make_log(first: Any, end: Any) -> PartitionLog:
    broker_epoch = end.leader_epoch
    leader_epoch = None if broker_epoch is None or broker_epoch < 0 else int(broker_epoch)
    return PartitionLog(Offset(int(first.offset)), Offset(int(end.offset)), leader_epoch=leader_epoch)


def _with_epoch(partition: TopicPartition, offset: Offset, epoch: int) -> TopicPartition:
    return TopicPartition(partition.topic, partition.partition, offset, leader_epoch=epoch)


def read_held_offsets(
    connection: KafkaConnection, partitions: Collection[PartitionId], watch: TopicWatch
) -> dict[PartitionId, OffsetRange | None]:
    """Return the offsets that each partition holds now, None if it no longer exists, or its topic was recreated.

    See `Spout.read_held_ranges`. Raises `SourceUnavailable` if a partition does not answer, and `ConfigError` for a
    topic that the spout could not read again.
    """
    if not partitions:
        return {}
    settings: dict[str, Any] = connection.client_settings()
    admin = make_client(partial(AdminClient, settings), connection)
    topics = describe_topics(admin, connection, sorted({topic_of(p.source) for p in partitions}))
    can_have_topic = watch.subscription.can_have_topic
    watch.refuse_compacted_topics(
        admin, {name: topic for name, topic in topics.items() if topic and can_have_topic(name)}
    )
    existing = [p for p in partitions if _exists(topics[topic_of(p.source)], p)]
    problems = list[str]()
    logs = OffsetReader(admin, connection, problems.append).logs(make_topic_partitions(existing))
    if problems:
        raise SourceUnavailable("; ".join(problems))
    held_offsets = {p: OffsetRange(log.earliest, log.end) for p, log in logs.items() if log is not None}
    readable_topics = {topic_of(p.source) for p in held_offsets}
    return held_offsets | {
        p: None for p in partitions if p not in held_offsets and topic_of(p.source) not in readable_topics
    }


def _exists(topic: Topic | None, partition: PartitionId) -> bool:
    if topic is None or partition.index not in topic.partitions:
        return False
    return topic.source == partition.source or not has_id(partition.source)
