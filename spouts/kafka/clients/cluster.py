"""The cluster behind a Kafka spout: how it is reached, and its topics, with the names of their partitions.

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
from functools import partial
from typing import Any, TypeVar

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient

from transactional.model.batch import PartitionId
from transactional.model.errors import ConfigError, SourceUnavailable
from transactional.model.plumbing.redaction import SHOWN_INSTEAD, without

Option = str | int | float | bool
Client = TypeVar("Client")

_ID_SEPARATOR = "#"
_ID_CHARACTERS = 8
_SECRET = re.compile(r"password|secret|token|credential|jaas|oauthbearer\.config|\.pem$|ssl_key", re.IGNORECASE)

_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
"""What librdkafka takes before an address."""
_OURS = {
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
    """How to reach a cluster. Equal connections share consumers. `options` are librdkafka's; secrets are hidden.

    Raises `ConfigError` for an option that is ours to set.
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
            if name in _OURS:
                raise ConfigError(f"the option {name!r} can't be set in options=: {_OURS[name]}")

    @property
    def timeout_s(self) -> float:
        """The maximum time for anything that waits for a broker, in seconds."""
        return self.timeout_ms / 1000

    def client(self, defaults: Mapping[str, Option] | None = None) -> dict[str, Option]:
        """The settings of a librdkafka client: our defaults, overridden by the user's, overridden by the mandatory
        ones."""
        base: dict[str, Option] = {"socket.timeout.ms": self.timeout_ms, "log_level": 0, **(defaults or {})}
        return {**base, **dict(self.options), "bootstrap.servers": self.bootstrap_servers}

    def redact(self, text: object) -> str:
        """The text without the secrets of this connection, in case a library includes one."""
        return without((value for name, value in self.options if is_secret(name)), str(text))

    def shown_options(self) -> dict[str, Option]:
        """The options as they may be displayed."""
        return {name: SHOWN_INSTEAD if is_secret(name) else value for name, value in self.options}


def is_secret(option: str) -> bool:
    """True for an option whose value must not be displayed."""
    return _SECRET.search(option) is not None


def source_of(topic: str, topic_id: str | None) -> str:
    """The source of a topic's partitions: its name, and the beginning of its id if the cluster has ids."""
    return topic if topic_id is None else f"{topic}{_ID_SEPARATOR}{topic_id[:_ID_CHARACTERS]}"


def topic_of(source: str) -> str:
    """The topic's name."""
    return source.partition(_ID_SEPARATOR)[0]


def id_of(source: str) -> str:
    """The beginning of the topic's id, "" without one: two topics that have the same name have different ones."""
    return source.partition(_ID_SEPARATOR)[2]


def has_id(source: str) -> bool:
    """True if the source identifies which topic of this name is meant."""
    return _ID_SEPARATOR in source


def described(partition: PartitionId) -> str:
    """The partition in words, for messages."""
    return f"partition {partition.index} of topic {topic_of(partition.source)!r}"


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic as it is now: the source of its partitions, its id, and whether each partition has a leader."""

    source: str
    id: str | None
    partitions: Mapping[int, bool]
    is_internal: bool = False


def make_client(make: partial[Client], connection: KafkaConnection) -> Client:
    """A librdkafka client. Raises `ConfigError` if the options are invalid."""
    try:
        return make()
    except (KafkaException, TypeError, ValueError) as error:
        reason = error.args[0].str() if isinstance(error, KafkaException) else error
        raise ConfigError(f"options={connection.shown_options()}: {connection.redact(reason)}") from None


def describe_topics(admin: AdminClient, connection: KafkaConnection, topics: Sequence[str]) -> dict[str, Topic | None]:
    """The topics as they are now, None for one that does not exist. Raises `SourceUnavailable` within `timeout_ms`."""
    futures = admin.describe_topics(TopicCollection(list(topics)), request_timeout=connection.timeout_s)
    return {topic: _described(topic, future, connection) for topic, future in futures.items()}


def _described(topic: str, future: Future[Any], connection: KafkaConnection) -> Topic | None:
    try:
        found = future.result()
    except KafkaException as error:
        if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            return None
        reason = connection.redact(error.args[0].str())
        where = connection.bootstrap_servers
        raise SourceUnavailable(f"topic {topic!r} at {where} can't be described: {reason}") from error
    # The library prints an id in plain base64, and one of zeros for a cluster without ids; Kafka's tools print it so:
    text = str(found.topic_id).replace("/", "_").replace("+", "-")
    topic_id = text if text.strip("A") else None
    led = {each.id: each.leader is not None for each in found.partitions}
    return Topic(source_of(topic, topic_id), topic_id, led, bool(found.is_internal))
