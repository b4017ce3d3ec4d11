"""`KafkaSink`: publishes the tuples of a stream as records of Kafka topics, once for each committed transaction."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any

from confluent_kafka.admin import AdminClient

from sinks.kafka.avro_value import AvroValue
from sinks.kafka.checksums import sum_checksums
from sinks.kafka.connection import TRANSACTION_TIMEOUT_MS, Option, SinkConnection
from sinks.kafka.control import ControlTopic, control_topic
from sinks.kafka.json_value import JsonValue
from sinks.kafka.publisher import KafkaPublisher, TimeoutTooLong
from sinks.kafka.record_encoding import HEADER, KEY, VALUE, FieldBytes, RecordForm
from sinks.kafka.sender import close_sender, sender_for
from sinks.kafka.topics import TopicLimits, cluster_id, find_risks, name_topics, read_limits
from transactional.core.ports import PublishedRecords, Sink, SinkAddress, SinkOwner, SinkPosition
from transactional.model.errors import ConfigError, SinkUnavailable
from transactional.model.names import SINK_TOPICS
from transactional.model.schema import Schema

if TYPE_CHECKING:
    import pyarrow as pa


class KafkaSink(Sink):
    """A sink for a Kafka topic, which has to exist, or for several topics.

    With several `topics`, the string field `topic_field` names the topic of each record. A tuple that names none of
    them is a bad tuple.

    `value` is a `JsonValue`, an `AvroValue`, or the name of a text or binary field that is sent as it is; `key` is the
    name of a field, an `AvroValue`, or None for records without keys. Records with equal keys go to one partition, the
    one that Java's clients choose, unless the field `partition` has a number. They are in order if the stream is
    grouped by the key. A record is a tombstone if the boolean field `tombstone` is true, or if the field that is its
    value is NULL. `headers` are text or binary fields by name; each record has the headers `txid` and `attempt`
    besides. A tuple whose record the topic would refuse is a bad tuple. `options` are librdkafka's. Readers see what is
    published with `isolation.level=read_committed`.
    """

    kind = "kafka sink"
    can_send = True

    def __init__(
        self,
        bootstrap_servers: str,
        topic: str | None = None,
        *,
        topics: Sequence[str] = (),
        topic_field: str | None = None,
        key: AvroValue | str | None = None,
        value: JsonValue | AvroValue | str = JsonValue(),  # noqa: B008 - it is immutable
        headers: Mapping[str, str] | None = None,
        partition: str | None = None,
        tombstone: str | None = None,
        options: Mapping[str, Option] | None = None,
    ) -> None:
        self.topics = _topic_names(topic, topics, topic_field)
        self.connection = SinkConnection(bootstrap_servers, tuple((options or {}).items()))
        self.form = RecordForm(
            FieldBytes(key, KEY) if isinstance(key, str) else copy(key),
            FieldBytes(value, VALUE) if isinstance(value, str) else copy(value),
            {name: FieldBytes(field, HEADER.strip()) for name, field in (headers or {}).items()},
            partition,
            tombstone,
            topic_field,
        )
        self._limits: Sequence[TopicLimits] = ()
        self._cluster_id = ""
        self._timeout_ms = TRANSACTION_TIMEOUT_MS
        """How long a Kafka transaction may be open: doubled while a single transaction takes longer."""
        self._owner: SinkOwner | None = None
        self._publisher: KafkaPublisher | None = None

    def __repr__(self) -> str:
        topics = repr(self.topics[0])
        if self.form.topic is not None:
            topics = f"topics={list(self.topics)}, topic_field={self.form.topic!r}"
        return f"KafkaSink({self.connection.bootstrap_servers!r}, {topics})"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_publisher": None, "_owner": None}

    @property
    def target_name(self) -> str:
        return name_topics(self.topics)

    def check_input(self, fields: Schema, *, used_by: str) -> None:
        self.form.check_input(fields, used_by=used_by)

    def record_fields(self, fields: Schema) -> Schema:
        return self.form.fields(fields)

    def prepare(self) -> None:
        admin = self._admin()
        self._cluster_id = cluster_id(admin, self.connection)
        self._limits = self._read_limits(admin)
        for role, part in ((KEY, self.form.key_part), (VALUE, self.form.value_part)):
            if isinstance(part, AvroValue):
                part.prepare(self.topics, role)

    def identity(self) -> Mapping[str, Any]:
        is_listed = self.form.topic is not None
        topics = {SINK_TOPICS: dict.fromkeys(self.topics, "listed")} if is_listed else {"topic": self.topics[0]}
        return {"kind": self.kind, "cluster": self._cluster_id, **topics, **self.form.identity()}

    def encode(self, batch: pa.RecordBatch) -> pa.Table:
        return self.form.encode(batch, self._limits or [*map(TopicLimits, self.topics)])

    def checksum(self, staged: pa.Table) -> int:
        return sum_checksums(staged)

    def address(self) -> SinkAddress:
        options = dict(self.connection.options)
        by_field = self.form.topic is not None
        return SinkAddress("kafka", self.topics, self.connection.bootstrap_servers, options, by_field)

    def risks(self, topology_id: str) -> Iterator[str]:
        admin = self._admin()
        for topic in (*self.topics, control_topic(topology_id)):
            yield from find_risks(admin, self.connection, topic)

    def look(self, owner: SinkOwner) -> SinkPosition | None:
        admin = self._admin()
        self._check_limits(self._read_limits(admin))
        control = ControlTopic(self.connection, owner)
        return control.visible_position() if control.check(admin) else None

    def open(self, owner: SinkOwner, *, has_published: bool) -> None:
        assert self._limits, "it has been looked at"
        ControlTopic(self.connection, owner).create(self._admin(), has_published=has_published)
        self._owner, self._publisher = owner, None
        try:
            self._publisher = KafkaPublisher(self.connection, owner, self._limits, self._timeout_ms)
        except TimeoutTooLong as error:
            self._timeout_ms = max(TRANSACTION_TIMEOUT_MS, self._timeout_ms // 2)
            raise self.connection.unavailable(
                f"sink {owner.sink!r} has transactions that take longer than {self._timeout_ms} ms to publish, and "
                "transaction.max.timeout.ms of the brokers allows no more",
                str(error),
            ) from error

    def fence_removed(self, owner: SinkOwner, identity: Mapping[str, Any]) -> bool:
        if (identity.get("kind"), identity.get("cluster")) != (self.kind, self._cluster_id):
            return False
        assert self._limits, "it is prepared"
        KafkaPublisher(self.connection, owner, self._limits, TRANSACTION_TIMEOUT_MS)
        return True

    def position(self) -> SinkPosition | None:
        assert self._owner is not None, "it is open"
        return ControlTopic(self.connection, self._owner).final_position()

    def publish(self, group: Sequence[PublishedRecords]) -> None:
        assert self._publisher is not None, "it is open"
        try:
            self._publisher.publish(group)
        except SinkUnavailable as error:
            if error.has_timed_out and len(group) == 1:
                error.is_fenced = True  # only another producer has another time-out
                self._timeout_ms *= 2
            raise

    def send(self, records: pa.Table) -> Mapping[int, str]:
        assert self._limits, "it is prepared"
        return sender_for(self.connection, self._limits).send(records)

    def close(self) -> None:
        self._publisher = None
        if self._limits:
            close_sender(self.connection, self._limits)

    def _admin(self) -> AdminClient:
        return AdminClient(self.connection.settings({}))

    def _read_limits(self, admin: AdminClient) -> list[TopicLimits]:
        """Return the limits of the topics. Raises `ConfigError` for one that takes no record of this sink."""
        limits = [read_limits(admin, self.connection, topic) for topic in self.topics]
        for topic in limits:
            if topic.is_compacted and self.form.key_part is None:
                raise ConfigError(
                    f"topic {topic.topic!r} is compacted, which refuses records without keys: KafkaSink needs key="
                )
        return limits

    def _check_limits(self, limits: Sequence[TopicLimits]) -> None:
        """Keep the limits, in the order of the topics, unless there are some.

        Raises `ConfigError` if tasks check records by limits that a topic no longer has.
        """
        for topic, earlier in zip(limits, self._limits, strict=False):  # none at first
            if not topic.admits(earlier):
                raise ConfigError(
                    f"topic {topic.topic!r} has other settings than when this process has started: {topic}, and before "
                    f"{earlier}. Start it again, so that its tasks check records by the new ones"
                )
        self._limits = self._limits or limits


def _topic_names(topic: str | None, topics: Sequence[str], topic_field: str | None) -> tuple[str, ...]:
    """Return the topics of a sink. Raises `ConfigError` for none, and for a list of topics without a field."""
    is_list = not isinstance(topics, str) and all(isinstance(name, str) for name in topics)
    is_name = isinstance(topic, str | None)
    if not (is_list and is_name) or not (topic is None) == bool(topics) == (topic_field is not None):
        raise ConfigError(
            "KafkaSink takes a topic, or topics=['a', 'b'], a list, with topic_field=, the field that names one of "
            f"them; got topic={topic!r}, topics={topics!r}, topic_field={topic_field!r}"
        )
    names = tuple(topics) if topic is None else (topic,)
    for name in names:
        if not name or names.count(name) > 1:
            raise ConfigError(f"KafkaSink: {'a topic is empty' if not name else f'topics= has {name!r} twice'}")
    return names
