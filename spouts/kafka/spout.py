"""`TransactionalKafkaSpout` and `OpaqueKafkaSpout`: the driver's side of the Kafka spouts.

They are Storm's KafkaTridentSpoutTransactional and KafkaTridentSpoutOpaque. Before each planning the spout looks up its
topics and the logs of their partitions, adds starts and ends, and leaves the ranges to `PartitionedSpout`. Ranges end
at the last stable offset, so that no batch waits for a Kafka transaction that is still open. A batch stores the leader
epochs of its partitions, by which a truncated log is recognized later. This side reads no record: the reader does, on
the executors (`spouts.kafka.reader`).
"""

from __future__ import annotations

import copy
import logging
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Literal, Self

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from spouts.base import PartitionedSpout
from spouts.kafka.clients.cluster import (
    KafkaConnection,
    Option,
    Topic,
    describe_partition,
    has_id,
    make_client,
    topic_of,
)
from spouts.kafka.clients.pool import consumer_pool
from spouts.kafka.end import End, EndPositions
from spouts.kafka.mirror import GroupMirror
from spouts.kafka.offsets import OffsetReader, make_topic_partitions, read_held_offsets
from spouts.kafka.reader import KafkaPartitionReader
from spouts.kafka.records import DEFAULT_FIELDS, output_schema
from spouts.kafka.start import Start, StartPositions
from spouts.kafka.subscription import Subscription, TopicNames, TopicPattern, parse_subscription
from spouts.kafka.topics import TopicWatch
from spouts.kafka.translators import Translator, check_translator
from spouts.planning import Limits, Logs, PartitionLog, mean_record_bytes
from transactional.core.ports.examining import SourceAddress
from transactional.core.ports.spout_parts import SourceExamination, SpoutParts
from transactional.model.batch import BatchMetadata, OffsetRange, PartitionId
from transactional.model.errors import BatchLost, ConfigError, ReplayMismatch, SourceUnavailable
from transactional.model.schema import Schema

_log = logging.getLogger(__name__)

BATCH_RECORDS_MAX = 100_000
"""The default limit of a batch. With a backlog, larger batches raise the throughput, and the latency."""


class KafkaSpout(PartitionedSpout, SourceExamination):
    """The base class of the two Kafka spouts; use one of those.

    `topics` are names, a `TopicPattern`, or `TopicPartitions`. `start` says where to begin in partitions for which no
    batch has a position; a position always takes precedence: `"earliest"`, `"latest"` (the end when the topology first
    runs), a time (milliseconds since 1970, or a datetime with time zone), `"group"` or `GroupOffsets(...)`, or explicit
    offsets `{topic: {partition: offset}}`. Partitions that are added later are read from their beginning, also with
    `"latest"`. `end` says where to stop, for a backfill: a time, or explicit offsets in the same form, which are not
    read themselves. It only limits the planning; run with `stop_when_drained` to end there.

    A batch takes at most `batch_records_max` offsets, `partition_records_max` of any one partition, and about
    `batch_bytes_max` bytes, estimated from the size of earlier records. A range longer than `split_records` is read by
    several tasks.

    `fields` are the record's fields in the tuples, out of topic, partition, offset, key, value, timestamp, headers and
    source_id, the beginning of the topic's id, which changes when the topic is created again. Key and value are bytes,
    or text with `key_type="string"` and `value_type="string"`. A `translator` creates other tuples from records.
    `options` are librdkafka's (security, for example). With `group_id` the committed positions are mirrored to that
    consumer group, for tools that show its lag. Waiting for a broker takes at most `timeout_ms`. Raises `ConfigError`
    for invalid arguments.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        topics: Iterable[str] | Subscription,
        *,
        batch_records_max: int | None = BATCH_RECORDS_MAX,
        partition_records_max: int | None = None,
        batch_bytes_max: int | None = None,
        split_records: int | None = None,
        start: Start = "earliest",
        end: End | None = None,
        fields: Iterable[str] = DEFAULT_FIELDS,
        key_type: Literal["binary", "string"] = "binary",
        value_type: Literal["binary", "string"] = "binary",
        translator: Translator | None = None,
        options: Mapping[str, Option] | None = None,
        isolation: Literal["read_committed", "read_uncommitted"] = "read_committed",
        group_id: str | None = None,
        timeout_ms: int = 10_000,
    ) -> None:
        limits = Limits(batch_records_max, partition_records_max, batch_bytes_max)
        sorted_options = tuple(sorted((options or {}).items()))
        self.connection = KafkaConnection(bootstrap_servers, isolation, timeout_ms, sorted_options)
        self.subscription = parse_subscription(topics)
        record_output = output_schema(fields, key_type=key_type, value_type=value_type)
        super().__init__(_output_of(record_output, translator, self.subscription), limits)
        self._translator = translator
        self._split_records = _check_split_records(split_records)
        self._group_id = group_id
        self._starts = StartPositions(start, self.subscription, group_id, self._warn)
        self._ends = EndPositions(end, self.subscription)
        self._offsets: OffsetReader | None = None
        self._is_apart = False
        self._mirror: GroupMirror | None = None
        self._cluster_id = ""
        self._watch = TopicWatch(
            self.subscription, self.connection, replays_exactly=self.replays_exactly, warn=self._warn
        )
        self._topics: dict[str, Topic] = {}
        self._record_bytes: dict[PartitionId, float] = {}
        self._checked_epochs: dict[PartitionId, int | None] = {}
        """The leader epochs for which the brokers have confirmed the positions that were reached under earlier ones."""
        self._logged_warnings: set[str] = set()

    def __repr__(self) -> str:
        options = self.connection.redacted_options()
        shown_topics = list(self.topics) if isinstance(self.subscription, TopicNames) else self.subscription
        return f"{type(self).__name__}({self.connection.bootstrap_servers!r}, {shown_topics!r}, options={options})"

    @property
    def topics(self) -> tuple[str, ...]:
        """The names of the topics; with a pattern, the names that matched when the cluster was last queried."""
        return self.subscription.names or tuple(sorted(self._topics))

    @property
    def parts(self) -> SpoutParts:
        """The parts of a spout over partitions, and its own examination of the cluster."""
        return replace(super().parts, examination=self)

    def identity(self) -> Mapping[str, str]:
        """Return kind, cluster id and topics, for a transactional spout with topic ids, unless a pattern chooses them.

        An opaque spout continues with a recreated topic, also after a restart: its positions name the topic's id.
        """
        self._require_open()
        identity = {"kind": type(self).__name__, "cluster": self._cluster_id, "topics": str(self.subscription)}
        if not self.replays_exactly or isinstance(self.subscription, TopicPattern):
            return identity
        return identity | {"topic ids": ",".join(self._topics[n].id or "" for n in self.topics if n in self._topics)}

    def open(self) -> None:
        """Connect, and check that the topics exist and are suitable for this kind of spout.

        Raises `ConfigError` naming the topic, `SourceUnavailable` naming the address within twice `timeout_ms`.
        """
        self._starts.forget()
        self._ends.forget()
        self._connect()

    def copy_unopened(self) -> Self:
        """Return a copy with clients of its own. Its `close` leaves the shared consumers of this process open."""
        spout = super().copy_unopened()
        spout._offsets, spout._mirror, spout._is_apart = None, None, True
        spout._starts, spout._ends = copy.copy(self._starts), copy.copy(self._ends)
        spout._watch = copy.copy(self._watch)
        return spout

    def _connect(self) -> None:
        """Connect again. The start and end positions that were already determined stay the same."""
        self.close()
        errors: deque[Any] = deque(maxlen=1)
        settings: dict[str, Any] = self.connection.client_settings() | {"error_cb": errors.append}
        admin = make_client(partial(AdminClient, settings), self.connection)
        try:
            self._cluster_id = self._query_cluster_id(admin, errors)
            self._topics = self._watch.open(admin)
        except BaseException:
            self.close()
            raise
        self._offsets = OffsetReader(admin, self.connection, self._warn)
        self._mirror = GroupMirror(admin, self._group_id, self.connection) if self._group_id else None

    def plan(self, previous_batch: BatchMetadata, *, replay: bool) -> BatchMetadata | None:
        """Return the batch that starts where `previous_batch` ends, or None if nothing is new (see `plan_batch`)."""
        batch, logs = super().plan(previous_batch, replay=replay), self._latest_logs or {}
        self._check_epochs(previous_batch, logs)
        if batch is None:
            return None
        epochs = {
            partition: log.leader_epoch for partition, log in logs.items() if log and log.leader_epoch is not None
        }
        epochs_read = {
            partition: epoch
            for partition, epoch in {**previous_batch.metadata, **epochs}.items()
            if partition in batch.ranges
        }
        return replace(batch, split_records=self._split_records, metadata=epochs_read)

    def _check_epochs(self, previous_batch: BatchMetadata, logs: Logs) -> None:
        """Raise `BatchLost` if a log was truncated below its position and has new records there since.

        A batch stores the leader epochs as of its planning. The brokers are queried only after a change of leaders.
        """
        reelected = {
            partition: (previous_batch.ranges[partition].until, epoch)
            for partition, epoch in previous_batch.metadata.items()
            if (log := logs.get(partition))
            and log.leader_epoch not in (None, epoch, self._checked_epochs.get(partition))
            if log.earliest < previous_batch.ranges[partition].until <= log.end
        }
        for partition in sorted(self._require_open().find_truncated(reelected) if reelected else ()):
            position, epoch = reelected[partition]
            raise BatchLost(
                f"{describe_partition(partition)}: its log was cut off before offset {position}, which was read "
                f"under leader epoch {epoch}, and new records were written since, as after an unclean leader election: "
                f"those below {position} would never be read. Start over with another topology id, or rewind to before "
                "the cut"
            )
        self._checked_epochs |= {partition: log.leader_epoch for partition in reelected if (log := logs[partition])}

    def addresses(self) -> Mapping[str, SourceAddress]:
        """Return the address of the cluster, for readers without the spout."""
        connection = self.connection
        options = {**connection.client_settings(), "isolation.level": connection.isolation}
        skips_records = self._translator is not None and self._translator.skips_records
        return {"": SourceAddress("kafka", connection.bootstrap_servers, options, connection.timeout_ms, skips_records)}

    def read_held_ranges(self, partitions: Collection[PartitionId]) -> Mapping[PartitionId, OffsetRange | None]:
        """Return the offsets that the partitions hold now; the spout need not be open.

        Raises `SourceUnavailable` if a broker does not respond, `ConfigError` for a topic that can't be read again.
        """
        return read_held_offsets(self.connection, partitions, self._watch)

    def logs(self, previous_batch: BatchMetadata) -> Logs:
        """Return the offsets that each partition holds, up to the last stable one, in two or three round trips.

        A client that was closed meanwhile is opened again.
        """
        if self._offsets is None:
            _log.warning("%r was closed while it was in use: it connects again", self)
            self._connect()
        reader = self._require_open()
        admin = reader.admin
        admin.poll(0)  # otherwise its messages about broken connections would pile up
        if self._mirror is not None:
            self._mirror.proceed()
        self._topics = self._watch.list_existing(admin)
        sources = {name: self._source_of(topic, previous_batch) for name, topic in self._topics.items()}
        has_leader = self._list_partitions(sources)
        logs: dict[PartitionId, PartitionLog | None] = dict.fromkeys(has_leader)
        logs |= reader.logs(
            make_topic_partitions(partition for partition, is_available in has_leader.items() if is_available)
        )
        self._check_recreated_topics(previous_batch, sources, logs)
        bounded_logs = self._ends.apply(reader, previous_batch, self._starts.add_starts(reader, previous_batch, logs))
        if self._limit is None and self.limits.batch_bytes_max is None:
            return bounded_logs
        return {p: log and replace(log, record_bytes=self._record_bytes.get(p)) for p, log in bounded_logs.items()}

    def check_replay(self, batch: BatchMetadata) -> None:
        """Check as `PartitionedSpout` does, but only the partitions that the spout still reads.

        The topics of the spout may have been changed since the batch was planned.
        """
        subscription = self.subscription
        ranges = {
            partition: offsets
            for partition, offsets in batch.ranges.items()
            if subscription.can_have_topic(topic_of(partition.source))
            and subscription.has_partition(topic_of(partition.source), partition.index)
        }
        super().check_replay(replace(batch, ranges=ranges))

    def check_read(self, batch: BatchMetadata) -> None:
        """Raise `ReplayMismatch` if a topic is no longer the one that was planned.

        Called after reading: topic ids are never reused, so if the id is right now, it was right during the read.
        """
        sources = {partition.source for partition, offsets in batch.ranges.items() if len(offsets)}
        names_of_sources = {source: topic_of(source) for source in sorted(sources) if has_id(source)}
        names = sorted(set(names_of_sources.values()))
        topics_by_name = self._watch.describe_now(self._require_open().admin, names) if names else {}
        for source, name in names_of_sources.items():
            topic = topics_by_name[name]
            if topic is None or topic.source != source:
                problem = "is gone" if topic is None else f"was recreated (now {topic.source!r})"
                partition = min(p for p, offsets in batch.ranges.items() if p.source == source and len(offsets))
                raise ReplayMismatch(
                    f"{describe_partition(partition)} was planned as {source!r}, but the topic {problem}"
                )

    def reader(self) -> KafkaPartitionReader:
        """Return the reader of the ranges, for the executors."""
        return KafkaPartitionReader(self.connection, self.output, self._translator)

    def committed(self, batch: BatchMetadata) -> None:
        """Mirror the positions to the consumer group, if there is one. Does not wait, does not raise."""
        self._record_bytes |= mean_record_bytes(batch)
        if self._mirror is not None:
            existing_sources = {topic.source for topic in self._topics.values()} | set(self._topics)
            self._mirror.send({p: offset for p, offset in batch.positions().items() if p.source in existing_sources})

    def close(self) -> None:
        """Finish mirroring, within two seconds, and close the clients."""
        if self._mirror is not None:
            self._mirror.close()
        self._mirror = self._offsets = None
        if not self._is_apart:
            consumer_pool().close(self.connection)

    def _require_open(self) -> OffsetReader:
        if self._offsets is None:
            raise SourceUnavailable(f"{self!r} is not open: call open() first. Or it was closed while it was in use")
        return self._offsets

    def _warn(self, text: str) -> None:
        if text not in self._logged_warnings:
            self._logged_warnings.add(text)
            _log.warning("%s", text)

    def _query_cluster_id(self, admin: AdminClient, errors: deque[Any]) -> str:
        try:
            return str(admin.describe_cluster(request_timeout=self.connection.timeout_s).result().cluster_id)
        except KafkaException as error:
            admin.poll(0)
            reason = self.connection.redact((errors[0] if errors else error.args[0]).str())
            raise SourceUnavailable(
                f"no Kafka broker at {self.connection.bootstrap_servers} answers within "
                f"{self.connection.timeout_ms} ms: {reason}. Check that it is running, and that this is its address"
            ) from error

    def _source_of(self, topic: Topic, previous_batch: BatchMetadata) -> str:
        """Return the source of a topic's partitions: without an id if the recorded positions were made without ids."""
        name = topic_of(topic.source)
        recorded_sources = {source for source in previous_batch.sources if topic_of(source) == name}
        if topic.id is None and recorded_sources - {name}:
            raise SourceUnavailable(f"the cluster no longer gives an id for topic {name!r}, so it can't be identified")
        return name if name in recorded_sources else topic.source

    def _list_partitions(self, sources: Mapping[str, str]) -> dict[PartitionId, bool]:
        """Return the partitions that are read, and for each whether it has a leader."""
        has_leader: dict[PartitionId, bool] = {}
        for name, source in sources.items():
            for index, is_available in self._topics[name].partitions.items():
                if self.subscription.has_partition(name, index):
                    has_leader[PartitionId(source, index)] = is_available
        for partition in (partition for partition, is_available in has_leader.items() if not is_available):
            self._warn(f"{describe_partition(partition)} has no leader; it is skipped until it has one")
        return has_leader

    def _check_recreated_topics(self, previous_batch: BatchMetadata, sources: Mapping[str, str], logs: Logs) -> None:
        if previous_batch.sources <= set(sources.values()):
            return
        for partition, offsets in previous_batch.ranges.items():
            current_source = sources.get(topic_of(partition.source), partition.source)
            if current_source == partition.source or not has_id(partition.source):
                continue
            problem = (
                f"topic {topic_of(partition.source)!r} was recreated: it was {partition.source!r} and is "
                f"{current_source!r}"
            )
            if self.replays_exactly:
                raise BatchLost(
                    f"{problem}. {describe_partition(partition)} was to be read from offset {offsets.start} on; there "
                    f"is now {logs.get(PartitionId(current_source, partition.index)) or 'no such partition'}, of "
                    "different records. Use OpaqueKafkaSpout, which continues with what is "
                    "available, or start a topology with a new id"
                )
            self._warn(f"{problem}; unread records of the old one are lost, the new one is read from its beginning")


def _output_of(record_output: Schema, translator: Translator | None, subscription: Subscription) -> Schema:
    if translator is None:
        return record_output
    if record_output != output_schema(DEFAULT_FIELDS, key_type="binary", value_type="binary"):
        raise ConfigError(
            "fields, key_type and value_type are for a spout without a translator, which has its own fields"
        )
    return check_translator(translator, subscription.names or ()).output


def _check_split_records(split_records: int | None) -> int | None:
    if split_records is not None and (type(split_records) is not int or split_records < 1):
        raise ConfigError(
            f"split_records takes a whole number of at least 1, or None for no splitting; got {split_records!r}"
        )
    return split_records


class TransactionalKafkaSpout(KafkaSpout):
    """A transactional spout over Kafka topics: a replay reads exactly the recorded offsets (see `KafkaSpout`).

    If offsets are lost before they were read, it stops with `BatchLost` rather than skip them.
    """

    @property
    def replays_exactly(self) -> bool:
        return True


class OpaqueKafkaSpout(KafkaSpout):
    """An opaque spout over Kafka topics: a replay takes what is available then (see `KafkaSpout`).

    It continues without partitions that don't respond, past lost offsets, and with recreated topics.
    """

    @property
    def replays_exactly(self) -> bool:
        return False
