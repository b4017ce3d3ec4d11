"""Topics as their cluster describes them: existence, partitions, settings, and the limits that records have to respect.

Tasks get the limits with the sink, so a record that its topic would refuse is a bad tuple before anything is committed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from sinks.kafka.connection import TIMEOUT_S, SinkConnection, kafka_error
from transactional.model.errors import ConfigError

REPLICAS_MIN: Final = 3
IN_SYNC_MIN: Final = 2
"""The replicas of a topic, and how many of them must have a record, so that a broken disk loses nothing."""
OVERHEAD_BYTES: Final = 1_000
"""The number of bytes that a request may have besides the content of the largest record."""

BATCH_BYTES: Final = 1_000_000
"""The default of librdkafka for the bytes of a batch."""


@dataclass(frozen=True, slots=True)
class TopicLimits:
    """The limits of a topic when it was described. `request_bytes_max` is its `max.message.bytes`.

    By default a topic has no limits: it was not described.
    """

    topic: str
    partitions: int = 2**31
    request_bytes_max: int = 2**31
    is_compacted: bool = False

    @property
    def record_bytes_max(self) -> int:
        """The largest content of a record: key, value and headers."""
        return self.request_bytes_max - OVERHEAD_BYTES

    def admits(self, earlier: TopicLimits) -> bool:
        """Return whether the topic takes every record that it took under earlier limits."""
        return (
            self.partitions == earlier.partitions
            and self.request_bytes_max >= earlier.request_bytes_max
            and self.is_compacted <= earlier.is_compacted
        )


def read_limits(admin: AdminClient, connection: SinkConnection, topic: str) -> TopicLimits:
    """Return the limits of a topic. Raises `ConfigError` if it can't be used, and `SinkUnavailable`."""
    partitions = partition_count(admin, connection, topic)
    if partitions is None:
        raise ConfigError(
            f"topic {topic!r} does not exist at {connection.bootstrap_servers}; create it, with as many partitions as "
            "its readers need"
        )
    settings = topic_settings(admin, connection, topic)
    bytes_max = int(settings["max.message.bytes"])
    if bytes_max < 2 * OVERHEAD_BYTES:
        raise ConfigError(
            f"topic {topic!r} takes {bytes_max} bytes at once (max.message.bytes), and its sink needs at least "
            f"{2 * OVERHEAD_BYTES}"
        )
    return TopicLimits(topic, partitions, bytes_max, "compact" in settings["cleanup.policy"])


def name_topics(topics: Sequence[str]) -> str:
    """Return the topic in words, or several of them, of which each record is in one: `topic 'a', 'b' or 'c'`."""
    *first_names, last_name = map(repr, topics)
    return f"topic {', '.join(first_names)} or {last_name}" if first_names else f"topic {last_name}"


def size_settings(connection: SinkConnection, limits: Sequence[TopicLimits]) -> dict[str, int]:
    """Return the settings by which a producer respects the limits of all its topics.

    A batch is for one topic, but producers have one limit for all batches: that of the smallest topic. A record that is
    larger makes a batch by itself.
    """
    sizes = [topic.request_bytes_max for topic in limits]
    if min(sizes) == max(sizes):
        return {"message.max.bytes": max(sizes)}
    batch_bytes_max = int(dict(connection.options).get("batch.size", BATCH_BYTES))
    return {"message.max.bytes": max(sizes), "batch.size": min(batch_bytes_max, *sizes)}


def find_risks(admin: AdminClient, connection: SinkConnection, topic: str) -> Iterator[str]:
    """Yield the settings of a topic with which its brokers may lose committed records; none if there is no such topic.

    Raises `SinkUnavailable`.
    """
    partitions = _describe_partitions(admin, connection, topic)
    if not partitions:
        return
    settings = topic_settings(admin, connection, topic)
    replicas = min(len(partition.replicas) for partition in partitions)
    if replicas < REPLICAS_MIN:
        yield f"topic {topic!r} has {replicas} {'replica' if replicas == 1 else 'replicas'}, fewer than {REPLICAS_MIN}"
    if int(settings["min.insync.replicas"]) < IN_SYNC_MIN:
        yield f"topic {topic!r} has min.insync.replicas {settings['min.insync.replicas']}, less than {IN_SYNC_MIN}"
    if settings["unclean.leader.election.enable"] == "true":
        yield f"topic {topic!r} has unclean.leader.election.enable true"


def partition_count(admin: AdminClient, connection: SinkConnection, topic: str) -> int | None:
    """The number of partitions of a topic, None if there is no such topic. Raises `SinkUnavailable`."""
    partitions = _describe_partitions(admin, connection, topic)
    return None if partitions is None else len(partitions)


def _describe_partitions(admin: AdminClient, connection: SinkConnection, topic: str) -> list[Any] | None:
    futures = admin.describe_topics(TopicCollection([topic]), request_timeout=TIMEOUT_S)
    try:
        return list(futures[topic].result().partitions)
    except KafkaException as error:
        if kafka_error(error).code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            return None
        raise connection.unavailable(f"topic {topic!r} can't be described", error) from error


def topic_settings(admin: AdminClient, connection: SinkConnection, topic: str) -> dict[str, str]:
    """The settings of a topic. Raises `SinkUnavailable`."""
    resource = ConfigResource(ResourceType.TOPIC, topic)
    try:
        entries: dict[str, Any] = admin.describe_configs([resource], request_timeout=TIMEOUT_S)[resource].result()
    except KafkaException as error:
        raise connection.unavailable(f"the settings of topic {topic!r} can't be read", error) from error
    return {name: entry.value for name, entry in entries.items()}


def cluster_id(admin: AdminClient, connection: SinkConnection) -> str:
    """Return the id of the cluster. Raises `SinkUnavailable`."""
    try:
        return str(admin.describe_cluster(request_timeout=TIMEOUT_S).result().cluster_id)
    except KafkaException as error:
        raise connection.unavailable("the cluster can't be described", error) from error
