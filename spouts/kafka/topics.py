"""The topics of a subscription as the cluster has them now: found, described, and checked for the kind of spout."""

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


class TopicWatch:
    """Looks up the topics of one spout, again and again."""

    def __init__(
        self, subscription: Subscription, connection: KafkaConnection, *, replays_exactly: bool, warn: Warn
    ) -> None:
        self.subscription, self.connection = subscription, connection
        self.replays_exactly = replays_exactly
        self._warn = warn
        self._names: Sequence[str] = subscription.names or ()
        self._names_until_s = 0.0
        self._compacted: dict[str, str | None] = {}

    def open(self, admin: AdminClient) -> dict[str, Topic]:
        """The existing topics. Raises `ConfigError` if a listed one is missing, or none is suitable."""
        self._names_until_s = 0.0
        found = self._described(admin)
        self._refuse_missing(admin, found)
        topics = {name: topic for name, topic in found.items() if topic is not None}
        self.refuse_compacted(admin, topics)
        if not topics:
            self._warn(f"no topic at {self.connection.bootstrap_servers} matches {self.subscription} yet")
        return topics

    def look(self, admin: AdminClient) -> dict[str, Topic]:
        """The topics that exist now; missing ones are logged. Raises `SourceUnavailable` within `timeout_ms`."""
        found = self._described(admin)
        for name in sorted(name for name, topic in found.items() if topic is None):
            self._warn(f"topic {name!r} is gone; its positions are kept")
        there = {name: topic for name, topic in found.items() if topic is not None}
        return {name: topic for name, topic in there.items() if self._is_fit(admin, name, topic)}

    def _described(self, admin: AdminClient) -> dict[str, Topic | None]:
        names = self._listed(admin)
        found = describe_topics(admin, self.connection, names) if names else {}
        if isinstance(self.subscription, TopicPattern):
            return {name: topic for name, topic in found.items() if topic is None or not topic.is_internal}
        return found

    def _listed(self, admin: AdminClient) -> Sequence[str]:
        """The names: as given, or those that match, queried again every `refresh_ms`."""
        if not isinstance(self.subscription, TopicPattern) or time.monotonic() < self._names_until_s:
            return self._names
        there = self._all_names(admin)
        self._names = sorted(name for name in there if self.subscription.could_have(name))
        self._names_until_s = time.monotonic() + self.subscription.refresh_ms / 1000
        return self._names

    def _all_names(self, admin: AdminClient) -> Sequence[str]:
        try:
            return sorted(admin.list_topics(timeout=self.connection.timeout_s).topics)
        except KafkaException as error:
            where, reason = self.connection.bootstrap_servers, self.connection.redact(error.args[0].str())
            raise SourceUnavailable(f"the topics at {where} can't be listed: {reason}") from error

    def _refuse_missing(self, admin: AdminClient, found: Mapping[str, Topic | None]) -> None:
        for name, topic in found.items():
            if topic is None and self.subscription.names is not None:
                raise ConfigError(
                    f"there is no topic {name!r} at {self.connection.bootstrap_servers}"
                    f"{did_you_mean(name, self._all_names(admin))}; create it first"
                )
            if topic is not None and isinstance(self.subscription, TopicPartitions):
                missing = sorted(set(self.subscription.partitions[name]) - set(topic.partitions))
                if missing:
                    raise ConfigError(
                        f"topic {name!r} at {self.connection.bootstrap_servers} has {len(topic.partitions)} "
                        f"partitions, numbered from 0, and no partition {missing[0]}"
                    )

    # --- compaction: it removes records from recorded ranges, so that they can't be replayed as they were
    # --------------

    def _is_fit(self, admin: AdminClient, name: str, topic: Topic) -> bool:
        """Whether a topic that has come to match during the run may be read; the others were checked in `open`."""
        problem = self._compaction(admin, name, topic) if isinstance(self.subscription, TopicPattern) else None
        if problem is not None:
            self._warn(f"{problem}; it is skipped")
        return problem is None

    def refuse_compacted(self, admin: AdminClient, topics: Mapping[str, Topic]) -> None:
        """Raise `ConfigError` for a topic that a transactional spout could not read again."""
        for name, topic in topics.items():
            problem = self._compaction(admin, name, topic)
            if problem is not None:
                raise ConfigError(problem)

    def _compaction(self, admin: AdminClient, name: str, topic: Topic) -> str | None:
        """What is wrong with the topic for a transactional spout. Queried once for each."""
        if not self.replays_exactly:
            return None
        if topic.source not in self._compacted:
            self._compacted[topic.source] = self._policy(admin, name)
        policy = self._compacted[topic.source]
        if policy is None or "compact" not in policy:
            return None
        return (
            f"topic {name!r} has cleanup.policy={policy}: compaction changes what a replay reads; "
            "use OpaqueKafkaSpout, or a topic with cleanup.policy=delete"
        )

    def _policy(self, admin: AdminClient, name: str) -> str | None:
        resource = ConfigResource(ResourceType.TOPIC, name)
        [future] = admin.describe_configs([resource], request_timeout=self.connection.timeout_s).values()
        try:
            return str(future.result()["cleanup.policy"].value)
        except KafkaException as error:
            reason = self.connection.redact(error.args[0].str())
            self._warn(f"topic {name!r}: could not determine whether it is compacted: {reason}")
            return None
