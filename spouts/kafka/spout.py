"""`TransactionalKafkaSpout` and `OpaqueKafkaSpout`: the driver's side, which plans batches and reads no record.

Storm's KafkaTridentSpoutTransactional and KafkaTridentSpoutOpaque. Ranges end at the last stable
offset, so that no batch waits for a Kafka transaction that is still open.
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
    describe_topics,
    described,
    has_id,
    make_client,
    topic_of,
)
from spouts.kafka.clients.pool import consumer_pool
from spouts.kafka.end import End, EndPositions
from spouts.kafka.mirror import GroupMirror
from spouts.kafka.offsets import OffsetReader, held, topic_partitions
from spouts.kafka.reader import KafkaPartitionReader
from spouts.kafka.records import DEFAULT_FIELDS, output_schema
from spouts.kafka.start import Start, StartPositions
from spouts.kafka.subscription import Subscription, TopicNames, TopicPattern, subscription_of
from spouts.kafka.topics import TopicWatch
from spouts.kafka.translators import Translator, checked_translator
from spouts.planning import Limits, Logs, PartitionLog, record_bytes
from transactional.core.ports.examining import SourceAddress
from transactional.model.batch import BatchMetadata, OffsetRange, PartitionId
from transactional.model.errors import BatchLost, ConfigError, ReplayMismatch, SourceUnavailable
from transactional.model.schema import Schema

_log = logging.getLogger(__name__)

BATCH_RECORDS_MAX = 100_000
"""The default limit of a batch. It matters with a backlog: then larger batches are faster, but later."""


class KafkaSpout(PartitionedSpout):
    """What the two Kafka spouts share; use one of them.

    `topics` are names, a `TopicPattern`, or `TopicPartitions`. `start` says where to begin in partitions for which no
    batch has a position; a position always takes precedence: `"earliest"`, `"latest"` (the end when the topology first
    runs), a time (milliseconds since 1970, or a datetime with time zone), `"group"` or `GroupOffsets(...)`, or explicit
    offsets `{topic: {partition: offset}}`. Partitions that are added later are read from their beginning, also with
    `"latest"`. `end` says where to stop, for a backfill: a time, or explicit offsets in the same form, none of which is
    read any more. It is a limit on what is planned; run with `stop_when_drained` to end there.

    A batch takes at most `batch_records_max` offsets, `partition_records_max` of any one partition, and about
    `batch_bytes_max` bytes, estimated from the size of earlier records. A range longer than `split_records` is read by
    several tasks.

    `fields` are the record's fields in the tuples, out of topic, partition, offset, key, value, timestamp, headers and
    source_id, the beginning of the topic's id, which changes when the topic is created again. Key and value are bytes,
    or text with `key_type="string"` and `value_type="string"`. A `translator` creates other tuples
    from records. `options` are librdkafka's (security, for example). With `group_id` the committed positions are
    mirrored to that consumer group, for tools that show its lag. Waiting for a broker takes at most `timeout_ms`.
    Raises `ConfigError` for invalid arguments.
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
        given = tuple(sorted((options or {}).items()))
        self.connection = KafkaConnection(bootstrap_servers, isolation, timeout_ms, given)
        self.subscription = subscription_of(topics)
        plain = output_schema(fields, key_type=key_type, value_type=value_type)
        super().__init__(_output(plain, translator, self.subscription), limits)
        self._translator = translator
        self._split_records = _checked_split(split_records)
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
        self._checked: dict[PartitionId, int | None] = {}
        """The leader epochs under which positions of earlier ones were found to be right."""
        self._warned: set[str] = set()

    def __repr__(self) -> str:
        options = self.connection.shown_options()
        read = list(self.topics) if isinstance(self.subscription, TopicNames) else self.subscription
        return f"{type(self).__name__}({self.connection.bootstrap_servers!r}, {read!r}, options={options})"

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics' names; with a pattern those that matched when the cluster was last queried."""
        return self.subscription.names or tuple(sorted(self._topics))

    def identity(self) -> Mapping[str, str]:
        """Kind, cluster id and topics; the ids of a transactional spout's topics too, unless a pattern chooses them.

        An opaque spout continues with a recreated topic, also after a restart: its id is in the positions.
        """
        self._opened()
        known = {"kind": type(self).__name__, "cluster": self._cluster_id, "topics": str(self.subscription)}
        if not self.replays_exactly or isinstance(self.subscription, TopicPattern):
            return known
        return known | {"topic ids": ",".join(self._topics[n].id or "" for n in self.topics if n in self._topics)}

    def open(self) -> None:
        """Connect, and check that the topics exist and are suitable for this kind of spout.

        Raises `ConfigError` naming the topic, `SourceUnavailable` naming the address within twice `timeout_ms`.
        """
        self._starts.forget()
        self._ends.forget()
        self._reopen()

    def apart(self) -> Self:
        """With clients of its own; the consumers of this process stay with who reads."""
        apart = super().apart()
        apart._offsets, apart._mirror, apart._is_apart = None, None, True
        apart._starts, apart._ends = copy.copy(self._starts), copy.copy(self._ends)
        apart._watch = copy.copy(self._watch)
        return apart

    def _reopen(self) -> None:
        """Connect; what was decided about partitions that are in no batch yet stays decided."""
        self.close()
        errors: deque[Any] = deque(maxlen=1)
        settings: dict[str, Any] = self.connection.client() | {"error_cb": errors.append}
        admin = make_client(partial(AdminClient, settings), self.connection)
        try:
            self._cluster_id = self._connect(admin, errors)
            self._topics = self._watch.open(admin)
        except BaseException:
            self.close()
            raise
        self._offsets = OffsetReader(admin, self.connection, self._warn)
        self._mirror = GroupMirror(admin, self._group_id, self.connection) if self._group_id else None

    def plan(self, after: BatchMetadata, *, replay: bool) -> BatchMetadata | None:
        """The batch that starts where `after` ends, or None if there is nothing new (see `planning.plan_batch`)."""
        batch, logs = super().plan(after, replay=replay), self._seen or {}
        self._check_epochs(after, logs)
        if batch is None:
            return None
        epochs = {
            partition: log.leader_epoch for partition, log in logs.items() if log and log.leader_epoch is not None
        }
        known = {at: epoch for at, epoch in {**after.metadata, **epochs}.items() if at in batch.ranges}
        return replace(batch, split_records=self._split_records, metadata=known)

    def _check_epochs(self, after: BatchMetadata, logs: Logs) -> None:
        """See that no log has lost what is before its position, and has new records there since.

        A batch has the leader epochs as of its planning. Only after a change of leaders the brokers are queried.
        """
        changed = {
            partition: (after.ranges[partition].until, epoch)
            for partition, epoch in after.metadata.items()
            if (log := logs.get(partition)) and log.leader_epoch not in (None, epoch, self._checked.get(partition))
            if log.earliest < after.ranges[partition].until <= log.end
        }
        for partition in sorted(self._opened().cut_off(changed) if changed else ()):
            position, epoch = changed[partition]
            raise BatchLost(
                f"{described(partition)}: its log was cut off before offset {position}, which was read under leader "
                f"epoch {epoch}, and new records have come since, as after an unclean leader election: those below "
                f"{position} would never be read. Start over with another topology id, or rewind to before the cut"
            )
        self._checked |= {partition: log.leader_epoch for partition in changed if (log := logs[partition])}

    def addresses(self) -> Mapping[str, SourceAddress]:
        """The cluster, for readers without the spout."""
        connection = self.connection
        options = {**connection.client(), "isolation.level": connection.isolation}
        leaves_out = self._translator is not None and self._translator.leaves_out
        return {"": SourceAddress("kafka", connection.bootstrap_servers, options, connection.timeout_ms, leaves_out)}

    def held(self, partitions: Collection[PartitionId]) -> Mapping[PartitionId, OffsetRange | None]:
        """What the partitions hold now; the spout need not be open. Raises `SourceUnavailable`, `ConfigError`."""
        return held(self.connection, partitions, self._watch)

    def logs(self, after: BatchMetadata) -> Logs:
        """The offsets that each partition holds, up to the last stable one. Two or three round trips in all.

        A client that somebody has closed is opened again.
        """
        if self._offsets is None:
            _log.warning("%r was closed while it was in use: it connects again", self)
            self._reopen()
        reader = self._opened()
        admin = reader.admin
        admin.poll(0)  # otherwise its messages about broken connections would pile up
        if self._mirror is not None:
            self._mirror.go_on()
        self._topics = self._watch.look(admin)
        sources = {name: self._source(topic, after) for name, topic in self._topics.items()}
        led = self._led(sources)
        logs: dict[PartitionId, PartitionLog | None] = dict.fromkeys(led)
        logs |= reader.logs(topic_partitions(partition for partition, is_led in led.items() if is_led))
        self._look_for_created_anew(after, sources, logs)
        pinned = self._ends.bound(reader, after, self._starts.pin(reader, after, logs))
        return {p: log and replace(log, record_bytes=self._record_bytes.get(p)) for p, log in pinned.items()}

    def check_replay(self, batch: BatchMetadata) -> None:
        """See `PartitionedSpout`. What the spout read before its topics were changed is not looked at."""
        of = self.subscription
        ranges = {
            at: offsets
            for at, offsets in batch.ranges.items()
            if of.could_have(topic_of(at.source)) and of.takes(topic_of(at.source), at.index)
        }
        super().check_replay(replace(batch, ranges=ranges))

    def check_read(self, batch: BatchMetadata) -> None:
        """Raise `ReplayMismatch` if a topic is no longer the one that was planned.

        Called after reading: ids don't come back, so what was read before is of this topic too.
        """
        read = sorted(p for p, offsets in batch.ranges.items() if len(offsets) and has_id(p.source))
        names = sorted({topic_of(partition.source) for partition in read})
        found = describe_topics(self._opened().admin, self.connection, names) if names else {}
        for partition in read:
            topic = found[topic_of(partition.source)]
            if topic is None or topic.source != partition.source:
                what = "is gone" if topic is None else f"was recreated (now {topic.source!r})"
                raise ReplayMismatch(
                    f"{described(partition)} was planned as {partition.source!r}, but the topic {what}"
                )

    @property
    def sets_records_aside(self) -> bool:
        """True if the translator has `on_error="dead_letter"`: the topology needs a table for these records."""
        return self._translator is not None and self._translator.sets_aside

    def reader(self) -> KafkaPartitionReader:
        """The reader of the ranges, for the executors."""
        return KafkaPartitionReader(self.connection, self.output, self._translator)

    def committed(self, batch: BatchMetadata) -> None:
        """Mirror the positions to the consumer group, if there is one. Does not wait, does not raise."""
        self._record_bytes |= record_bytes(batch)
        if self._mirror is not None:
            current = {topic.source for topic in self._topics.values()} | set(self._topics)
            self._mirror.send({p: offset for p, offset in batch.positions().items() if p.source in current})

    def close(self) -> None:
        """Finish mirroring, within two seconds, and close the clients."""
        if self._mirror is not None:
            self._mirror.close()
        self._mirror = self._offsets = None
        if not self._is_apart:
            consumer_pool().close(self.connection)

    def _opened(self) -> OffsetReader:
        if self._offsets is None:
            raise SourceUnavailable(f"{self!r} is not open: call open() first. Or it was closed while it was in use")
        return self._offsets

    def _warn(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            _log.warning("%s", text)

    def _connect(self, admin: AdminClient, errors: deque[Any]) -> str:
        try:
            return str(admin.describe_cluster(request_timeout=self.connection.timeout_s).result().cluster_id)
        except KafkaException as error:
            admin.poll(0)
            reason = self.connection.redact((errors[0] if errors else error.args[0]).str())
            raise SourceUnavailable(
                f"no Kafka broker at {self.connection.bootstrap_servers} answers within "
                f"{self.connection.timeout_ms} ms: {reason}. Check that it is running, and that this is its address"
            ) from error

    def _source(self, topic: Topic, after: BatchMetadata) -> str:
        """The source of a topic's partitions; positions from when the cluster had no topic ids remain valid."""
        name = topic_of(topic.source)
        known = {p.source for p in after.ranges if topic_of(p.source) == name}
        if topic.id is None and known - {name}:
            raise SourceUnavailable(f"the cluster no longer gives an id for topic {name!r}, so it can't be identified")
        return name if name in known else topic.source

    def _led(self, sources: Mapping[str, str]) -> dict[PartitionId, bool]:
        """The partitions that are read, and whether they have a leader."""
        led: dict[PartitionId, bool] = {}
        for name, source in sources.items():
            for index, is_led in self._topics[name].partitions.items():
                if self.subscription.takes(name, index):
                    led[PartitionId(source, index)] = is_led
        for partition in (partition for partition, is_led in led.items() if not is_led):
            self._warn(f"{described(partition)} has no leader; it is skipped until it has one")
        return led

    def _look_for_created_anew(self, after: BatchMetadata, sources: Mapping[str, str], logs: Logs) -> None:
        for partition, offsets in after.ranges.items():
            now = sources.get(topic_of(partition.source), partition.source)
            if now == partition.source or not has_id(partition.source):
                continue
            text = f"topic {topic_of(partition.source)!r} was recreated: it was {partition.source!r} and is {now!r}"
            if self.replays_exactly:
                raise BatchLost(
                    f"{text}. {described(partition)} was to be read from offset {offsets.start} on; there is now "
                    f"{logs.get(PartitionId(now, partition.index)) or 'no such partition'}, of different records. Use "
                    "OpaqueKafkaSpout, which continues with what is available, or start a topology with a new id"
                )
            self._warn(f"{text}; unread records of the old one are lost, the new one is read from its beginning")


def _output(plain: Schema, translator: Translator | None, subscription: Subscription) -> Schema:
    if translator is None:
        return plain
    if plain != output_schema(DEFAULT_FIELDS, key_type="binary", value_type="binary"):
        raise ConfigError(
            "fields, key_type and value_type are for a spout without a translator, which has its own fields"
        )
    return checked_translator(translator, subscription.names or ()).output


def _checked_split(split_records: int | None) -> int | None:
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
        """True."""
        return True


class OpaqueKafkaSpout(KafkaSpout):
    """An opaque spout over Kafka topics: a replay takes what is available then (see `KafkaSpout`).

    It continues without partitions that don't respond, past lost offsets, and with recreated topics.
    """

    @property
    def replays_exactly(self) -> bool:
        """False."""
        return False
