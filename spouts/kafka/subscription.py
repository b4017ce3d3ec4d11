"""The subscription of a Kafka spout: topics by name, topics by a pattern, or some partitions of topics.

The three kinds are values without a connection: they decide for a name or a partition whether it is read. Which topics
exist is known to `spouts.kafka.topics`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from transactional.model.errors import ConfigError

_TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")


@dataclass(frozen=True, slots=True)
class TopicNames:
    """Whole topics, by their names. A list of names is equivalent. Raises `ConfigError` for an invalid name."""

    names: tuple[str, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "names", check_topic_names(self.names))

    def __str__(self) -> str:
        return ",".join(self.names)

    def can_have_topic(self, topic: str) -> bool:
        """Return True if the topic is, or may become, one of those that are read."""
        return topic in self.names

    def has_partition(self, topic: str, index: int) -> bool:
        """Return True if a partition of such a topic is read."""
        return True


@dataclass(frozen=True, slots=True)
class TopicPattern:
    """Every topic whose whole name matches a regular expression: existing ones, and those created later.

    The cluster's topics are listed every `refresh_ms` milliseconds, 2,000 by default, when a batch is planned. Kafka's
    internal topics never match. A topic that is created later is read from its beginning. None has to exist when the
    topology starts. Raises `ConfigError` for an invalid regular expression.
    """

    pattern: str
    refresh_ms: int = 2_000

    def __post_init__(self) -> None:
        try:
            re.compile(self.pattern)
        except (re.error, TypeError) as error:
            raise ConfigError(f"TopicPattern({self.pattern!r}) is not a regular expression: {error}") from error
        if type(self.refresh_ms) is not int or self.refresh_ms < 0:
            raise ConfigError(f"refresh_ms takes a whole number of at least 0, got {self.refresh_ms!r}")

    @property
    def names(self) -> None:
        """Unknown until the cluster was queried."""
        return

    def __str__(self) -> str:
        return f"pattern {self.pattern}"

    def can_have_topic(self, topic: str) -> bool:
        """Return True if the topic is, or may become, one of those that are read."""
        return re.fullmatch(self.pattern, topic) is not None

    def has_partition(self, topic: str, index: int) -> bool:
        """Return True if a partition of such a topic is read."""
        return True


@dataclass(frozen=True, slots=True)
class TopicPartitions:
    """The chosen partitions of topics: `TopicPartitions({"flights": [0, 2]})`. Other readers take the other partitions.

    Raises `ConfigError` for an invalid topic, and for one without a partition number.
    """

    partitions: Mapping[str, Iterable[int]]

    def __post_init__(self) -> None:
        if not isinstance(self.partitions, Mapping):
            raise ConfigError(f"TopicPartitions takes topic -> partition numbers, got {self.partitions!r}")
        names = check_topic_names(self.partitions)
        object.__setattr__(
            self, "partitions", {name: _parse_partition_numbers(name, self.partitions[name]) for name in names}
        )

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the topics, sorted."""
        return tuple(self.partitions)

    def __str__(self) -> str:
        return ",".join(f"{name}[{index}]" for name, numbers in self.partitions.items() for index in numbers)

    def can_have_topic(self, topic: str) -> bool:
        """Return True if the topic is, or may become, one of those that are read."""
        return topic in self.partitions

    def has_partition(self, topic: str, index: int) -> bool:
        """Return True if a partition of such a topic is read."""
        return index in self.partitions[topic]


Subscription = TopicNames | TopicPattern | TopicPartitions
"""The choice of the topics and partitions that a Kafka spout reads."""


def parse_subscription(topics: object) -> Subscription:
    """Return the subscription that the spout's argument `topics` means. Raises `ConfigError`."""
    if isinstance(topics, TopicNames | TopicPattern | TopicPartitions):
        return topics
    if isinstance(topics, re.Pattern):
        raise ConfigError(f"pass a pattern of topics as TopicPattern({topics.pattern!r})")
    if isinstance(topics, Mapping):
        raise ConfigError(f"pass partitions of topics as TopicPartitions({dict(topics)!r})")
    if not isinstance(topics, Iterable):
        raise ConfigError(f"topics takes names, a TopicPattern or TopicPartitions, got {topics!r}")
    return TopicNames((topics,) if isinstance(topics, str) else tuple(topics))


def _parse_partition_numbers(topic: str, partitions: object) -> tuple[int, ...]:
    numbers = (
        tuple(partitions) if isinstance(partitions, Iterable) and not isinstance(partitions, str) else (partitions,)
    )
    invalid_numbers = [number for number in numbers if type(number) is not int or number < 0]
    if invalid_numbers or not numbers:
        shown_value = repr(invalid_numbers[0]) if invalid_numbers else "nothing"
        raise ConfigError(f"the partitions of topic {topic!r} are numbers from 0; got {shown_value}")
    return tuple(sorted({number for number in numbers if isinstance(number, int)}))


def check_topic_names(topics: Iterable[str]) -> tuple[str, ...]:
    """Return the topic names, sorted. Raises `ConfigError` if there is none, or one is not a valid topic name."""
    names = (topics,) if isinstance(topics, str) else tuple(topics)
    for name in names:
        if type(name) is not str or not _TOPIC_NAME.fullmatch(name):
            raise ConfigError(f"{name!r} is not a valid Kafka topic name: letters, digits and . _ - only, at most 249")
    if not names:
        raise ConfigError("topics is empty; name at least one topic")
    return tuple(sorted(set(names)))
