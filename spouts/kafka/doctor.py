"""The doctor's examination of a Kafka spout's source: what its partitions hold now, without opening the spout."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import Any

from confluent_kafka.admin import AdminClient

from spouts.kafka.cluster import KafkaConnection, Topic, describe_topics, has_id, make_client, topic_of
from spouts.kafka.offsets import OffsetReader, topic_partitions
from spouts.kafka.topics import TopicWatch
from transactional.batch import OffsetRange, PartitionId
from transactional.errors import SourceUnavailable


def held(
    connection: KafkaConnection, partitions: Collection[PartitionId], watch: TopicWatch
) -> dict[PartitionId, OffsetRange | None]:
    """What each partition holds now, None for one that is gone, or whose topic was recreated (see `Spout.held`).

    Raises `SourceUnavailable`, and `ConfigError`, also for a topic that the spout could not read again.
    """
    if not partitions:
        return {}
    settings: dict[str, Any] = connection.client()
    admin = make_client(partial(AdminClient, settings), connection)
    topics = describe_topics(admin, connection, sorted({topic_of(each.source) for each in partitions}))
    could_have = watch.subscription.could_have
    watch.refuse_compacted(admin, {name: topic for name, topic in topics.items() if topic and could_have(name)})
    there = [each for each in partitions if _is_there(topics[topic_of(each.source)], each)]
    problems = list[str]()
    logs = OffsetReader(admin, connection, problems.append).logs(topic_partitions(there))
    if problems:
        raise SourceUnavailable("; ".join(problems))
    found = {each: OffsetRange(log.earliest, log.end) for each, log in logs.items() if log is not None}
    current = {topic_of(each.source) for each in found}
    return found | {each: None for each in partitions if each not in found and topic_of(each.source) not in current}


def _is_there(topic: Topic | None, partition: PartitionId) -> bool:
    if topic is None or partition.index not in topic.partitions:
        return False
    return topic.source == partition.source or not has_id(partition.source)
