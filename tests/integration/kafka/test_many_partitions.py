"""One consumer for the many partitions of a task, against a real broker: exact ranges among aborted transactions, in
any order and from several threads; and a partition whose leader is away."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest
from confluent_kafka import Consumer, Message, TopicPartition

from spouts.kafka.clients import consumers as kafka_consumers
from spouts.kafka.clients.cluster import KafkaConnection
from spouts.kafka.clients.pool import consumer_pool
from spouts.kafka.reader import KafkaPartitionReader
from spouts.kafka.records import output_schema
from spouts.kafka_admin import watermarks
from spouts.local_broker import LocalBroker
from tests.integration.brokers import FIRST, NOBODY, SECOND, SecondBroker, await_leaders, create_topics
from tests.integration.kafka_topics import TIMEOUT_MS, new_topic, put, span, transactional_producer
from transactional.errors import SourceUnavailable
from transactional.model.batch import OffsetRange, PartitionId

pytestmark = pytest.mark.kafka

PARTITIONS, TRANSACTIONS = 64, 40
VALUES = output_schema(("offset", "value"), key_type="binary", value_type="string")
Batch = Mapping[int, OffsetRange]


@pytest.fixture(autouse=True)
def moves(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """How many partitions were assigned, each time. No test finds consumers of another."""
    assigned: list[int] = []

    class Noting(Consumer):
        def incremental_assign(self, partitions: list[TopicPartition]) -> None:
            assigned.append(len(partitions))
            super().incremental_assign(partitions)

    monkeypatch.setattr(kafka_consumers, "Consumer", Noting)
    consumer_pool().close()
    yield assigned
    consumer_pool().close()


@dataclass(frozen=True)
class Topic:
    """A topic, and what its partitions hold: offset and value of every record that was committed, in order."""

    bootstrap: str
    name: str
    records: Mapping[int, list[tuple[int, str]]]

    @property
    def reader(self) -> KafkaPartitionReader:
        return KafkaPartitionReader(KafkaConnection(self.bootstrap, timeout_ms=TIMEOUT_MS), VALUES)

    def expected(self, batch: Batch) -> dict[int, list[tuple[int, str]]]:
        return {
            index: [each for each in self.records[index] if offsets.start <= each[0] < offsets.until]
            for index, offsets in batch.items()
        }

    def read(self, batch: Batch) -> dict[int, list[tuple[int, str]]]:
        """As a task does."""
        ranges = [(PartitionId(self.name, index), offsets) for index, offsets in batch.items()]
        self.reader.expect(ranges)
        return {
            partition.index: [
                (row["offset"], row["value"])
                for each in self.reader.read(partition, offsets)
                for row in each.to_pylist()
            ]
            for partition, offsets in ranges
        }

    def batches(self, random: Random) -> list[Batch]:
        """Batches that follow one another, to the end of all logs."""
        ends = {index: end for index, (_, end) in watermarks(self.bootstrap, self.name).items()}
        at, batches = dict.fromkeys(ends, 0), list[Batch]()
        while at != ends:
            until = {index: min(ends[index], at[index] + random.choice((0, 7, 30, 100))) for index in ends}
            batches.append({index: span(at[index], until[index]) for index in ends})
            at = until
        return batches


@pytest.fixture(scope="module", params=["commit", "abort"])
def topic(kafka_broker: LocalBroker, request: pytest.FixtureRequest) -> Topic:
    """Its transactions are committed and aborted by turns, each over some of the partitions; the last one ends it."""
    name, random = new_topic(kafka_broker.bootstrap, PARTITIONS), Random(1)
    records: dict[int, list[tuple[int, str]]] = {index: [] for index in range(PARTITIONS)}
    delivered: list[Message] = []
    with transactional_producer(kafka_broker.bootstrap) as producer:
        for number in range(TRANSACTIONS):
            is_kept = (number % 2 == 0) == (request.param == "abort")
            producer.begin_transaction()
            for value in range(300):
                partition = random.randrange(PARTITIONS)
                kept = f"{number}.{value}" if is_kept else "aborted"
                producer.produce(
                    name, kept, partition=partition, on_delivery=lambda _, message: delivered.append(message)
                )
            producer.flush(30)
            (producer.commit_transaction if is_kept else producer.abort_transaction)(30)
    for message in delivered:
        if (content := (message.value() or b"").decode()) != "aborted":
            records[message.partition() or 0].append((message.offset() or 0, content))
    return Topic(kafka_broker.bootstrap, name, {index: sorted(each) for index, each in records.items()})


@pytest.mark.long("test_batches_in_any_order_are_exact")
def test_batches_in_order_are_exact_and_move_nothing(topic: Topic, moves: list[int]) -> None:
    batches = topic.batches(Random(2))
    for batch in batches:
        assert topic.read(batch) == topic.expected(batch)
    assert sum(moves) == PARTITIONS
    assert len(consumer_pool()) == 1


def test_batches_in_any_order_are_exact(topic: Topic, moves: list[int]) -> None:
    """Attempts in flight overtake one another, others are repeated, and some begin three batches before."""
    batches, random = topic.batches(Random(3)), Random(3)
    for at in range(0, len(batches) - 3, 3):
        for back in (2, 1, 0, *((-1, 2) if at and random.random() < 0.3 else ())):
            batch = batches[at + back]
            assert topic.read(batch) == topic.expected(batch)
    assert len(consumer_pool()) == 1


def test_several_attempts_at_once_are_exact(topic: Topic) -> None:
    batches = topic.batches(Random(4))
    answers: dict[int, dict[int, list[tuple[int, str]]]] = {}

    def read(first: int) -> None:
        for number in range(first, len(batches), 3):
            answers[number] = topic.read(batches[number])

    threads = [threading.Thread(target=read, args=(first,)) for first in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == {number: topic.expected(batch) for number, batch in enumerate(batches)}


def test_a_partition_without_its_leader_is_named_and_the_others_are_read(tmp_path: Path) -> None:
    with LocalBroker() as broker, SecondBroker(broker, tmp_path / "second") as second:
        leaders = {"halves": [FIRST] * 5 + [SECOND] * 5}
        create_topics(broker.bootstrap, leaders)
        for index in range(10):
            put(broker.bootstrap, "halves", [str(number) for number in range(100)], index)
        topic = Topic(broker.bootstrap, "halves", {n: [(at, str(at)) for at in range(100)] for n in range(10)})
        start, later = ({index: span(at, at + 50) for index in range(9, -1, -1)} for at in (0, 50))
        assert topic.read(start) == topic.expected(start)
        os.kill(second.pid, signal.SIGSTOP)
        try:
            await_leaders(broker.bootstrap, {"halves": [FIRST] * 5 + [NOBODY] * 5})
            away = {index: span(0, 100) for index in range(9, -1, -1)}
            with pytest.raises(
                SourceUnavailable, match=r"partition 9 of topic 'halves' .* then nothing arrived for 2000"
            ):
                topic.read(away)
            there = {index: later[index] for index in range(5)}
            assert topic.read(there) == topic.expected(there)
        finally:
            os.kill(second.pid, signal.SIGCONT)
        await_leaders(broker.bootstrap, leaders)
        assert topic.read(later) == topic.expected(later)
