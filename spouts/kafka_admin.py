"""Administers Kafka clusters for tests, examples and benchmarks: creates topics, deletes records, writes records.

Each call returns once the next client can see its effect, so that nobody has to wait afterwards. The product itself
creates no topic and writes no record with these functions.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    ClusterMetadata,
    NewPartitions,
    NewTopic,
)

from transactional.model.errors import OperatingError, SourceUnavailable

_TIMEOUT_S = 30.0
_PAUSE_S = 0.01
# librdkafka's number for "choose by the key": equal keys go to one partition, none at all to a random one.
_ANY_PARTITION = -1
_NOW = 0


def cluster_id(bootstrap: str, *, timeout_ms: int = 30_000) -> str | None:
    """Return the id of the cluster behind `bootstrap`, or None if no broker responds within `timeout_ms`."""
    with _admin(bootstrap) as admin:
        try:
            metadata = admin.list_topics(timeout=timeout_ms / 1000)
        except KafkaException:
            return None
        return metadata.cluster_id if metadata.brokers else None


def create_topic(bootstrap: str, name: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> None:
    """Create a topic, with a replication factor of 1 and the given topic configs, and wait for its leaders.

    Raises OperatingError if the cluster refuses it, for example because it exists.
    """
    topic = NewTopic(name, num_partitions=partitions, replication_factor=1, config=dict(config or {}))
    with _admin(bootstrap) as admin:
        _await_futures(
            f"create topic {name!r} at {bootstrap}", admin.create_topics([topic], operation_timeout=_TIMEOUT_S)
        )
        _await_metadata(
            admin,
            f"topic {name!r}: {partitions} led partitions",
            lambda m: _count_led_partitions(m, name) == partitions,
        )


def add_partitions(bootstrap: str, name: str, partitions: int) -> None:
    """Extend a topic to `partitions` in total, and wait for the leaders. Raises OperatingError if that is refused."""
    with _admin(bootstrap) as admin:
        new_partitions = [NewPartitions(name, partitions)]
        _await_futures(f"add partitions to {name!r} at {bootstrap}", admin.create_partitions(new_partitions))
        _await_metadata(
            admin,
            f"topic {name!r}: {partitions} led partitions",
            lambda m: _count_led_partitions(m, name) == partitions,
        )


def delete_topic(bootstrap: str, name: str) -> None:
    """Delete a topic and wait until it is gone. Raises OperatingError if the cluster refuses, or has none."""
    with _admin(bootstrap) as admin:
        _await_futures(
            f"delete topic {name!r} at {bootstrap}", admin.delete_topics([name], operation_timeout=_TIMEOUT_S)
        )
        _await_metadata(admin, f"topic {name!r} gone", lambda metadata: name not in metadata.topics)


def delete_records(bootstrap: str, name: str, first_kept_offsets: Mapping[int, int]) -> None:
    """Move the log start of each partition to an offset, as retention would, but immediately.

    `first_kept_offsets` maps a partition to its new log start. Raises OperatingError if the cluster refuses.
    """
    starts = [TopicPartition(name, partition, offset) for partition, offset in first_kept_offsets.items()]
    with _admin(bootstrap) as admin:
        _await_futures(f"delete records of {name!r} at {bootstrap}", admin.delete_records(starts))


def watermarks(bootstrap: str, name: str) -> dict[int, tuple[int, int]]:
    """Return the log start and the high watermark, one past the last record, of each partition of a topic.

    Raises SourceUnavailable if the cluster does not respond, or has no such topic.
    """
    consumer = Consumer({**_client_settings(bootstrap), "group.id": "watermarks", "enable.auto.commit": False})
    try:
        partitions = consumer.list_topics(name, timeout=_TIMEOUT_S).topics[name].partitions
        if not partitions:
            raise SourceUnavailable(f"there is no topic {name!r} at {bootstrap}: create it first")
        return {
            partition: consumer.get_watermark_offsets(TopicPartition(name, partition), timeout=_TIMEOUT_S)
            for partition in partitions
        }
    except KafkaException as error:
        raise SourceUnavailable(f"the watermarks of {name!r} at {bootstrap} could not be read: {error}") from error
    finally:
        consumer.close()


def produce(
    bootstrap: str,
    topic: str,
    records: Iterable[tuple[int | None, str | bytes | None, str | bytes | None]],
    settings: Mapping[str, str | int | float | bool] | None = None,
    times_ms: Iterable[int] | None = None,
) -> int:
    """Write records `(partition or None, key, value)` in their order, and return how many the broker acknowledged.

    Without a partition the key determines it, by librdkafka's CRC-32, not by Java's murmur2. `settings` are
    librdkafka's and override ours. `times_ms` are the records' times, since 1970; without them it is now. Raises
    OperatingError, with the first reason, if a record was not acknowledged within half a minute.
    """
    failures: list[str] = []
    producer = Producer({**_producer_settings(bootstrap), **(settings or {})})

    def handle_delivery(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            failures.append(str(error))

    def enqueue(partition: int, key: str | bytes | None, value: str | bytes | None, time_ms: int) -> None:
        while True:
            try:
                return producer.produce(topic, value, key, partition, on_delivery=handle_delivery, timestamp=time_ms)
            except BufferError:
                producer.poll(_PAUSE_S)
            except KafkaException as error:
                # A missing partition is reported here, where the topic's metadata are already known.
                return failures.append(str(error))

    count, times = 0, itertools.repeat(_NOW) if times_ms is None else iter(times_ms)
    for partition, key, value in records:
        enqueue(_ANY_PARTITION if partition is None else partition, key, value, next(times))
        count += 1
        if failures:
            break
    # Bounded: a record that is not acknowledged in time fails, and so leaves the queue.
    producer.flush()
    if failures:
        raise OperatingError(
            f"{len(failures)} of {count} records for topic {topic!r} at {bootstrap} were not acknowledged: "
            f"{failures[0]}; check that the topic and the partition exist, and that the broker is running"
        )
    return count


def _producer_settings(bootstrap: str) -> dict[str, str | int | float | bool]:
    return {
        **_client_settings(bootstrap),
        "enable.idempotence": True,
        "linger.ms": 5,
        "message.timeout.ms": 30_000,
        "topic.metadata.propagation.max.ms": 5_000,
        # A callback for each of a million records would take longer than sending them.
        "delivery.report.only.error": True,
        "queue.buffering.max.messages": 200_000,
        "queue.buffering.max.kbytes": 256 * 1024,
    }


def _client_settings(bootstrap: str) -> dict[str, str | int | float | bool]:
    # Nothing on stderr: problems that matter are raised as errors.
    return {"bootstrap.servers": bootstrap, "log_level": 0}


def _admin(bootstrap: str) -> AdminClient:
    return AdminClient(_client_settings(bootstrap))


def _await_futures(action: str, futures: Mapping[Any, Future[Any]]) -> None:
    for future in futures.values():
        try:
            future.result(_TIMEOUT_S)
        except (KafkaException, TimeoutError) as error:
            raise OperatingError(f"could not {action}: {error}") from error


def _count_led_partitions(metadata: ClusterMetadata, name: str) -> int:
    topic = metadata.topics.get(name)
    return sum(partition.leader >= 0 for partition in topic.partitions.values()) if topic else 0


def _await_metadata(admin: AdminClient, expected_state: str, is_reached: Callable[[ClusterMetadata], bool]) -> None:
    deadline = time.monotonic() + _TIMEOUT_S
    while not is_reached(admin.list_topics(timeout=_TIMEOUT_S)):
        if time.monotonic() > deadline:
            raise SourceUnavailable(f"the metadata did not show {expected_state} within {_TIMEOUT_S:.0f} s")
        admin.poll(_PAUSE_S)
