"""Short words for tests that read from a real broker: topics of their own, Kafka transactions, what a batch holds."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from spouts.kafka.spout import KafkaSpout, OpaqueKafkaSpout, TransactionalKafkaSpout
from spouts.kafka_admin import create_topic, produce
from transactional.model.batch import EMPTY_BATCH, BatchMetadata, Offset, OffsetRange

_numbers = itertools.count(1)

TIMEOUT_MS = 2_000
Opened = Callable[..., Any]
"""What the fixture `opened` makes spouts with."""
BOTH = pytest.mark.parametrize("kind", [TransactionalKafkaSpout, OpaqueKafkaSpout])


def new_topic(bootstrap: str, partitions: int = 1, config: dict[str, str] | None = None) -> str:
    """Create a topic that no other test knows; its name."""
    name = f"topic-{next(_numbers):05}"  # as names sort, so they were made
    create_topic(bootstrap, name, partitions, config)
    return name


def put(bootstrap: str, topic: str, values: Sequence[str | bytes], partition: int = 0) -> None:
    """Write records without key."""
    # An idempotent producer takes half a second to start; no test here needs one.
    records = [(partition, None, value) for value in values]
    produce(bootstrap, topic, records, {"enable.idempotence": False})


def put_at(
    bootstrap: str,
    topic: str,
    records: Sequence[tuple[str, int]],
    partition: int = 0,
    keys: Sequence[str | None] | None = None,
) -> None:
    """Write values, each with its time in milliseconds since 1970. A topic with retention loses those of long ago."""
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    for (value, time_ms), key in zip(records, keys or [None] * len(records), strict=True):
        producer.produce(topic, value, key, partition=partition, timestamp=time_ms)
    assert producer.flush(30) == 0


@contextmanager
def transactional_producer(bootstrap: str) -> Iterator[Producer]:
    """A producer for Kafka transactions; one that is open at the end is aborted."""
    producer = Producer(
        {"bootstrap.servers": bootstrap, "transactional.id": f"producer-{next(_numbers)}", "log_level": 0}
    )
    producer.init_transactions(30)
    yield producer
    with suppress(KafkaException):  # none is open
        producer.abort_transaction(30)


def in_transaction(producer: Producer, topic: str, values: Sequence[str], *, outcome: str) -> None:
    """Write records in one Kafka transaction, and "commit" it, "abort" it, or leave it "open"."""
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, value, partition=0)
    producer.flush(30)
    if outcome == "commit":
        producer.commit_transaction(30)
    elif outcome == "abort":
        producer.abort_transaction(30)


def group_offsets(bootstrap: str, group: str) -> dict[int, int]:
    """Partition → the offset that a group has committed."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    [answer] = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)]).values()
    return {each.partition: each.offset for each in answer.result(30).topic_partitions}


def span(start: int, until: int) -> OffsetRange:
    return OffsetRange(Offset(start), Offset(until))


def planned(spout: KafkaSpout, after: BatchMetadata = EMPTY_BATCH, *, replay: bool = False) -> BatchMetadata:
    """The next batch, of which the test is sure."""
    batch = spout.plan(after, replay=replay)
    assert batch is not None
    return batch


def awaited(spout: KafkaSpout, after: BatchMetadata = EMPTY_BATCH) -> BatchMetadata:
    """The next batch, as soon as there is one: the outcome of a Kafka transaction shows a little later."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        batch = spout.plan(after, replay=False)
        if batch is not None:
            return batch
    raise AssertionError(f"nothing came after {after}")


def ranges(batch: BatchMetadata) -> list[str]:
    """The ranges in order of their partitions, without these' names."""
    return [str(batch.ranges[partition]) for partition in sorted(batch.ranges)]


def rows(spout: KafkaSpout, batch: BatchMetadata) -> list[dict[str, Any]]:
    """Every tuple of a batch."""
    read = (each for p, offsets in batch.non_empty() for each in spout.reader().read(p, offsets))
    return [row for each in read for row in each.to_pylist()]


def values(spout: KafkaSpout, batch: BatchMetadata) -> list[Any]:
    """The values of a batch, partition after partition."""
    return [row["value"] for row in rows(spout, batch)]


def all_values(spout: KafkaSpout, after: BatchMetadata = EMPTY_BATCH) -> list[list[Any]]:
    """What is there after a batch, batch after batch."""
    batches: list[list[Any]] = []
    batch = spout.plan(after, replay=False)
    while batch is not None:
        batches.append(values(spout, batch))
        batch = spout.plan(batch, replay=False)
    return batches
