"""Connects to the cluster behind a Kafka spout, describes its topics, and names the partitions of their batches.

A topic that is deleted and recreated under its name is a different topic, with offsets from 0. Kafka distinguishes them
by topic id, and so do we: the source of a partition is the topic's name, `#`, and the beginning of its id
(`flights#gDKxAGA4`). A recreated topic thus has new partitions, and the positions in the old one remain unchanged in
every recorded batch, across replays and restarts. If a cluster has no topic ids, the source is just the name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any, TypeVar

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient

from transactional.model.batch import PartitionId
from transactional.model.errors import ConfigError, SourceUnavailable
from transactional.model.plumbing.redaction import REDACTED, redact_secrets

Option = str | int | float | bool
Client = TypeVar("Client")

_ID_SEPARATOR = "#"
_ID_CHARACTERS = 8
_SOURCES_MAX = 1_000
_SECRET = re.compile(r"password|secret|token|credential|jaas|oauthbearer\.config|\.pem$|ssl_key", re.IGNORECASE)

_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
"""The protocols that librdkafka accepts before an address."""
_RESERVED_OPTIONS = {
    "bootstrap.servers": "set it with the first argument",
    "metadata.broker.list": "set it with the first argument",
    "isolation.level": "use isolation=",
    "enable.auto.commit": "positions are kept with the transactions; group_id= mirrors them to a consumer group",
    "enable.auto.offset.store": "positions are kept with the transactions; group_id= mirrors them to a consumer group",
    "auto.offset.reset": "use start=; a lost offset must not go unnoticed later",
    "enable.partition.eof": "the reader needs it on",
}


@dataclass(frozen=True, slots=True)
class KafkaConnection:
    """The addresses and options for connecting to a cluster. Readers with equal connections share consumers.

    `options` are librdkafka's; the `repr` leaves them out, because they may hold secrets. Raises `ConfigError` for
    an option that the spout sets itself.
    """

    bootstrap_servers: str
    isolation: str = "read_committed"
    timeout_ms: int = 10_000
    options: tuple[tuple[str, Option], ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        if not self.bootstrap_servers.strip():
            raise ConfigError("bootstrap_servers is empty; it takes host:port, or several of them, separated by commas")
        for address in self.bootstrap_servers.split(","):
            scheme, separator, _ = address.strip().rpartition("://")
            if separator and scheme.upper() not in _PROTOCOLS:
                raise ConfigError(
                    f"bootstrap_servers takes addresses of brokers as host:port, not {address.strip()!r}: leave out "
                    f"{scheme}://, which is no protocol of Kafka's"
                )
        if self.isolation not in ("read_committed", "read_uncommitted"):
            raise ConfigError(f"isolation is 'read_committed' or 'read_uncommitted', not {self.isolation!r}")
        if type(self.timeout_ms) is not int or self.timeout_ms < 1:
            raise ConfigError(f"timeout_ms takes a whole number of at least 1, got {self.timeout_ms!r}")
        for name, _ in self.options:
            if name in _RESERVED_OPTIONS:
                raise ConfigError(f"the option {name!r} can't be set in options=: {_RESERVED_OPTIONS[name]}")

    @property
    def timeout_s(self) -> float:
        """The maximum time that any request waits for a broker, in seconds."""
        return self.timeout_ms / 1000

    def client_settings(self, defaults: Mapping[str, Option] | None = None) -> dict[str, Option]:
        """Return the settings of a librdkafka client: `defaults`, overridden by the user's options, overridden by the
        mandatory ones."""
        base: dict[str, Option] = {"socket.timeout.ms": self.timeout_ms, "log_level": 0, **(defaults or {})}
        return {**base, **dict(self.options), "bootstrap.servers": self.bootstrap_servers}

    def redact(self, text: object) -> str:
        """Return the text without the secrets of this connection, in case a library includes one."""
        return redact_secrets((value for name, value in self.options if is_secret(name)), str(text))

    def redacted_options(self) -> dict[str, Option]:
        """Return the options with their secrets replaced, for display."""
        return {name: REDACTED if is_secret(name) else value for name, value in self.options}


def is_secret(option: str) -> bool:
    """Return True for an option whose value must not be displayed."""
    return _SECRET.search(option) is not None


def source_of(topic: str, topic_id: str | None) -> str:
    """Return the source of a topic's partitions: its name, and the beginning of its id if the cluster has ids."""
    return topic if topic_id is None else f"{topic}{_ID_SEPARATOR}{topic_id[:_ID_CHARACTERS]}"


@lru_cache(_SOURCES_MAX)
def topic_of(source: str) -> str:
    """Return the name of the topic that a source stands for."""
    return source.partition(_ID_SEPARATOR)[0]


def id_of(source: str) -> str:
    """Return the beginning of the topic's id, or "" without one. Two topics of the same name have different ids."""
    return source.partition(_ID_SEPARATOR)[2]


def has_id(source: str) -> bool:
    """Return True if the source identifies which topic of this name is meant."""
    return _ID_SEPARATOR in source


def describe_partition(partition: PartitionId) -> str:
    """Return the partition in words, for messages."""
    return f"partition {partition.index} of topic {topic_of(partition.source)!r}"


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic as the cluster describes it: the source of its partitions, its id, and whether each has a leader."""

    source: str
    id: str | None
    partitions: Mapping[int, bool]
    is_internal: bool = False


def make_client(make: partial[Client], connection: KafkaConnection) -> Client:
    """Return a librdkafka client. Raises `ConfigError` if the options are invalid."""
    try:
        return make()
    except (KafkaException, TypeError, ValueError) as error:
        reason = error.args[0].str() if isinstance(error, KafkaException) else error
        raise ConfigError(f"options={connection.redacted_options()}: {connection.redact(reason)}") from None


def describe_topics(admin: AdminClient, connection: KafkaConnection, topics: Sequence[str]) -> dict[str, Topic | None]:
    """Return the topics by name, None for one that does not exist. Raises `SourceUnavailable` within `timeout_ms`."""
    futures = admin.describe_topics(TopicCollection(list(topics)), request_timeout=connection.timeout_s)
    return {topic: _await_description(topic, future, connection) for topic, future in futures.items()}


def _await_description(topic: str, future: Future[Any], connection: KafkaConnection) -> Topic | None:
    try:
        description = future.result()
    except KafkaException as error:
        if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            return None
        reason = connection.redact(error.args[0].str())
        address = connection.bootstrap_servers
        raise SourceUnavailable(f"topic {topic!r} at {address} can't be described: {reason}") from error
    # The library prints an id in plain base64, and one of zeros for a cluster without ids; Kafka's tools print it
    # URL-safe.
    text = str(description.topic_id).replace("/", "_").replace("+", "-")
    topic_id = text if text.strip("A") else None
    has_leader = {partition.id: partition.leader is not None for partition in description.partitions}
    return Topic(source_of(topic, topic_id), topic_id, has_leader, bool(description.is_internal))
