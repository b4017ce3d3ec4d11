"""What both sides of the Kafka spouts share: the connection, the fields of a record, the names of partitions.

A topic that is deleted and recreated under its name is a different topic, with offsets from 0. Kafka distinguishes them
by topic id, and so do we: the source of a partition is the topic's name, `#`, and the beginning of its id
(`flights#gDKxAGA4`). A recreated topic thus has new partitions, and the positions in the old one remain unchanged in
every recorded batch, across replays and restarts. If a cluster has no topic ids, the source is just the name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from transactional.batch import PartitionId
from transactional.errors import ConfigError
from transactional.redaction import SHOWN_INSTEAD, without
from transactional.schema import Field, Schema, did_you_mean

Option = str | int | float | bool

FIELD_TYPES = {
    "topic": "string",
    "partition": "int",
    "offset": "long",
    "key": "binary",
    "value": "binary",
    "timestamp": "timestamp",
    "headers": "array<struct<key:string,value:binary>>",
}
"""The fields of a record. A tuple of a Kafka spout has those that are chosen."""

DEFAULT_FIELDS = ("topic", "partition", "offset", "key", "value")
"""Storm's choice."""

_ID_SEPARATOR = "#"
_ID_CHARACTERS = 8
_TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_SECRET = re.compile(r"password|secret|token|credential|jaas|oauthbearer\.config|\.pem$|ssl_key", re.IGNORECASE)

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


def output_schema(fields: Iterable[str], *, key_type: str, value_type: str) -> Schema:
    """The schema of the chosen fields of a record. Raises `ConfigError` for one that a record does not have."""
    types = {**FIELD_TYPES, "key": _text_or_bytes("key", key_type), "value": _text_or_bytes("value", value_type)}
    chosen = (fields,) if isinstance(fields, str) else tuple(fields)
    if not chosen:
        raise ConfigError(f"fields is empty; choose from {', '.join(types)}")
    for name in chosen:
        if name not in types:
            near = did_you_mean(name, types)
            raise ConfigError(f"a Kafka record has no field {name!r}{near}; it has {', '.join(types)}")
    return Schema(tuple(Field(name, types[name]) for name in chosen))


def record_schema(fields: Iterable[str]) -> Schema:
    """The schema of fields of a record as they are: key and value are bytes."""
    return Schema(tuple(Field(name, FIELD_TYPES[name]) for name in fields))


def checked_topics(topics: Iterable[str]) -> tuple[str, ...]:
    """The topic names, sorted. Raises `ConfigError` if there is none, or one is not a valid topic name."""
    names = (topics,) if isinstance(topics, str) else tuple(topics)
    for name in names:
        if type(name) is not str or not _TOPIC_NAME.fullmatch(name):
            raise ConfigError(f"{name!r} is not a valid Kafka topic name: letters, digits and . _ - only, at most 249")
    if not names:
        raise ConfigError("topics is empty; name at least one topic")
    return tuple(sorted(set(names)))


def source_of(topic: str, topic_id: str | None) -> str:
    """The source of a topic's partitions: its name, and the beginning of its id if the cluster has ids."""
    return topic if topic_id is None else f"{topic}{_ID_SEPARATOR}{topic_id[:_ID_CHARACTERS]}"


def topic_of(source: str) -> str:
    """The topic's name."""
    return source.partition(_ID_SEPARATOR)[0]


def has_id(source: str) -> bool:
    """True if the source identifies which topic of this name is meant."""
    return _ID_SEPARATOR in source


def described(partition: PartitionId) -> str:
    """The partition in words, for messages."""
    return f"partition {partition.index} of topic {topic_of(partition.source)!r}"


def _text_or_bytes(name: str, type_: str) -> str:
    if type_ not in ("binary", "string"):
        raise ConfigError(f"{name}_type is 'binary' or 'string', not {type_!r}")
    return type_
