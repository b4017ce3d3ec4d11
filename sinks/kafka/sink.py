"""`KafkaSink`: publishes the tuples of a stream as records of a Kafka topic, once for each committed transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from confluent_kafka.admin import AdminClient

from sinks.kafka.connection import OVERHEAD_BYTES, Option, SinkConnection
from sinks.kafka.control import ControlTopic, partition_count, topic_settings
from sinks.kafka.publisher import KafkaPublisher
from sinks.kafka.record_encoding import FieldBytes, JsonValue, encode_records
from transactional.core.ports import PublishedRecords, Sink, SinkOwner, SinkPosition
from transactional.model.errors import ConfigError
from transactional.model.schema import Schema

if TYPE_CHECKING:
    import pyarrow as pa

RECORD_BYTES_MAX = 900_000
"""The largest record by default; brokers take a little more than a megabyte by default."""


class KafkaSink(Sink):
    """A sink for a Kafka topic, which has to exist.

    `value` is a `JsonValue`, or the name of a text or binary field that is sent as it is, whose NULL is a tombstone;
    `key` is the name of a field, None for records without keys. Records with equal keys go to one partition, the one
    that Java's clients choose. They are in order if the stream is grouped by the key. Each record has the headers
    `txid` and `attempt`. A tuple that makes a record of more than `record_bytes_max` bytes is a bad tuple. `options`
    are librdkafka's. Readers see what is published with `isolation.level=read_committed`.
    """

    kind = "kafka sink"

    def __init__(
        self,
        bootstrap_servers: str,
        topic: str,
        *,
        key: str | None = None,
        value: JsonValue | str = JsonValue(),  # noqa: B008 - it is immutable
        record_bytes_max: int = RECORD_BYTES_MAX,
        options: Mapping[str, Option] | None = None,
    ) -> None:
        if not topic:
            raise ConfigError("KafkaSink: topic is empty")
        self.connection = SinkConnection(bootstrap_servers, tuple((options or {}).items()))
        self.topic, self.record_bytes_max = topic, record_bytes_max
        self.key = None if key is None else FieldBytes(key, is_key=True)
        self.value = FieldBytes(value, is_key=False) if isinstance(value, str) else value
        self._owner: SinkOwner | None = None
        self._publisher: KafkaPublisher | None = None

    def __repr__(self) -> str:
        return f"KafkaSink({self.connection.bootstrap_servers!r}, {self.topic!r})"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_publisher": None, "_owner": None}

    def check_input(self, fields: Schema, *, used_by: str) -> None:
        if self.key is not None:
            self.key.check_input(fields, used_by=used_by)
        self.value.check_input(fields, used_by=used_by)

    def identity(self) -> Mapping[str, Any]:
        return {"kind": self.kind, "topic": self.topic, "key": str(self.key or ""), "value": str(self.value)}

    def encode(self, batch: pa.RecordBatch) -> pa.Table:
        return encode_records(batch, self.key, self.value, self.record_bytes_max)

    def look(self, owner: SinkOwner) -> SinkPosition | None:
        admin = AdminClient(self.connection.settings({}))
        self._check_topic(admin)
        control = ControlTopic(self.connection, owner)
        return control.visible_position() if control.check(admin) else None

    def open(self, owner: SinkOwner, *, has_published: bool) -> None:
        admin = AdminClient(self.connection.settings({}))
        ControlTopic(self.connection, owner).create(admin, has_published=has_published)
        self._owner, self._publisher = owner, None
        self._publisher = KafkaPublisher(self.connection, owner, self.topic, self.record_bytes_max)

    def position(self) -> SinkPosition | None:
        assert self._owner is not None, "it is open"
        return ControlTopic(self.connection, self._owner).final_position()

    def publish(self, group: Sequence[PublishedRecords]) -> None:
        assert self._publisher is not None, "it is open"
        self._publisher.publish(group)

    def close(self) -> None:
        self._publisher = None

    def _check_topic(self, admin: AdminClient) -> None:
        """Raise `ConfigError` if the topic does not exist, or does not take what the sink sends."""
        if partition_count(admin, self.connection, self.topic) is None:
            raise ConfigError(
                f"topic {self.topic!r} does not exist at {self.connection.bootstrap_servers}; create it, with as many "
                "partitions as its readers need"
            )
        settings = topic_settings(admin, self.connection, self.topic)
        if int(settings["max.message.bytes"]) < self.record_bytes_max + OVERHEAD_BYTES:
            raise ConfigError(
                f"topic {self.topic!r} takes {settings['max.message.bytes']} bytes at once (max.message.bytes), fewer "
                f"than record_bytes_max ({self.record_bytes_max}) of its sink and {OVERHEAD_BYTES} more"
            )
        if "compact" in settings["cleanup.policy"] and self.key is None:
            raise ConfigError(f"topic {self.topic!r} is compacted, and its sink sends records without keys: pass key=")
