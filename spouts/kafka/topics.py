"""Watches the topics of a subscription: which of them the cluster has now, and whether the spout can read them.

`TopicWatch` queries the cluster when the spout is opened and before each planning. A transactional spout refuses
compacted topics, because compaction removes records from recorded ranges, which then can't be replayed as they were.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from spouts.kafka.clients.cluster import KafkaConnection, Topic, describe_topics
from spouts.kafka.subscription import Subscription, TopicPartitions, TopicPattern
from transactional.model.errors import ConfigError, SourceUnavailable
from transactional.model.schema import did_you_mean

Warn = Callable[[str], None]
"""Logs a warning, but the same one only once."""
_RECENT_S = 1.0
"""The time for which the description of a topic that was read is good enough to plan by, in seconds."""


class TopicWatch:
    """Looks up the topics of one spout when it is opened, and again before each planning."""

    def __init__(
        self, subscription: Subscription, connection: KafkaConnection, *, replays_exactly: bool, warn: Warn
    ) -> None:
        self.subscription, self.connection = subscription, connection
        self.replays_exactly = replays_exactly
        self._warn = warn
        self._names: Sequence[str] = subscription.names or ()
        self._names_until_s = 0.0
        self._policies: dict[str, str | None] = {}
        self._recent_topics: tuple[dict[str, Topic | None], float] = {}, 0.0

    def open(self, admin: AdminClient) -> dict[str, Topic]:
        """Return the existing topics. Raises `ConfigError` if a topic listed by name is missing, or is compacted and
        the spout is transactional."""
        self._names_until_s, self._recent_topics = 0.0, ({}, 0.0)
        topics_by_name = self._describe(admin)
        self._refuse_missing(admin, topics_by_name)
        topics = {name: topic for name, topic in topics_by_name.items() if topic is not None}
        self.refuse_compacted_topics(admin, topics)
        if not topics:
            self._warn(f"no topic at {self.connection.bootstrap_servers} matches {self.subscription} yet")
        return topics

    def list_existing(self, admin: AdminClient) -> dict[str, Topic]:
        """Return the topics that exist now, and log missing ones. Raises `SourceUnavailable` within `timeout_ms`."""
        topics_by_name = self._describe(admin)
        for name in sorted(name for name, topic in topics_by_name.items() if topic is None):
            self._warn(f"topic {name!r} is gone; its positions are kept")
        existing = {name: topic for name, topic in topics_by_name.items() if topic is not None}
        return {name: topic for name, topic in existing.items() if self._can_read(admin, name, topic)}

    def describe_now(self, admin: AdminClient, names: Sequence[str]) -> dict[str, Topic | None]:
        """Return the topics by name, None for one that does not exist.

        The next planning uses them if it comes within `_RECENT_S`: a description is an object for each replica of each
        partition. A topic that is recreated meanwhile is noticed after reading, where nothing but this counts.
        """
        topics_by_name = describe_topics(admin, self.connection, names)
        self._recent_topics = topics_by_name, time.monotonic() + _RECENT_S
        return topics_by_name

    def _describe(self, admin: AdminClient) -> dict[str, Topic | None]:
        names, (recent_topics, until_s) = self._list_names(admin), self._recent_topics
        self._recent_topics = {}, 0.0
        if time.monotonic() > until_s:
            recent_topics = {}
        topics_by_name = {name: recent_topics[name] for name in names if recent_topics.get(name)}
        if missing_names := [name for name in names if name not in topics_by_name]:
            topics_by_name |= describe_topics(admin, self.connection, missing_names)
        if isinstance(self.subscription, TopicPattern):
            return {name: topic for name, topic in topics_by_name.items() if topic is None or not topic.is_internal}
        return topics_by_name

    def _list_names(self, admin: AdminClient) -> Sequence[str]:
        """Return the names of the subscription; those that match a pattern are queried again every `refresh_ms`."""
        if not isinstance(self.subscription, TopicPattern) or time.monotonic() < self._names_until_s:
            return self._names
        existing_names = self._query_all_names(admin)
        self._names = sorted(name for name in existing_names if self.subscription.can_have_topic(name))
        self._names_until_s = time.monotonic() + self.subscription.refresh_ms / 1000
        return self._names

    def _query_all_names(self, admin: AdminClient) -> Sequence[str]:
        try:
            return sorted(admin.list_topics(timeout=self.connection.timeout_s).topics)
        except KafkaException as error:
            address, reason = self.connection.bootstrap_servers, self.connection.redact(error.args[0].str())
            raise SourceUnavailable(f"the topics at {address} can't be listed: {reason}") from error

    def _refuse_missing(self, admin: AdminClient, topics_by_name: Mapping[str, Topic | None]) -> None:
        for name, topic in topics_by_name.items():
            if topic is None and self.subscription.names is not None:
                raise ConfigError(
                    f"there is no topic {name!r} at {self.connection.bootstrap_servers}"
                    f"{did_you_mean(name, self._query_all_names(admin))}; create it first"
                )
            if topic is not None and isinstance(self.subscription, TopicPartitions):
                missing = sorted(set(self.subscription.partitions[name]) - set(topic.partitions))
                if missing:
                    raise ConfigError(
                        f"topic {name!r} at {self.connection.bootstrap_servers} has {len(topic.partitions)} "
                        f"partitions, numbered from 0, and no partition {missing[0]}"
                    )

    def _can_read(self, admin: AdminClient, name: str, topic: Topic) -> bool:
        """True if a topic may be read that began to match during the run; the other topics were checked in `open`."""
        problem = self._describe_compaction(admin, name, topic) if isinstance(self.subscription, TopicPattern) else None
        if problem is not None:
            self._warn(f"{problem}; it is skipped")
        return problem is None

    def refuse_compacted_topics(self, admin: AdminClient, topics: Mapping[str, Topic]) -> None:
        """Raise `ConfigError` for a topic that a transactional spout could not read again."""
        for name, topic in topics.items():
            problem = self._describe_compaction(admin, name, topic)
            if problem is not None:
                raise ConfigError(problem)

    def _describe_compaction(self, admin: AdminClient, name: str, topic: Topic) -> str | None:
        """Return why a transactional spout can't read the topic, or None. Queries the cluster once for each topic."""
        if not self.replays_exactly:
            return None
        if topic.source not in self._policies:
            self._policies[topic.source] = self._query_policy(admin, name)
        policy = self._policies[topic.source]
        if policy is None or "compact" not in policy:
            return None
        return (
            f"topic {name!r} has cleanup.policy={policy}: compaction changes what a replay reads; "
            "use OpaqueKafkaSpout, or a topic with cleanup.policy=delete"
        )

    def _query_policy(self, admin: AdminClient, name: str) -> str | None:
        resource = ConfigResource(ResourceType.TOPIC, name)
        [future] = admin.describe_configs([resource], request_timeout=self.connection.timeout_s).values()
        try:
            return str(future.result()["cleanup.policy"].value)
        except KafkaException as error:
            reason = self.connection.redact(error.args[0].str())
            self._warn(f"topic {name!r}: could not determine whether it is compacted: {reason}")
            return None
