"""Which consumers a process keeps where it reads more partitions than it may have consumers, and what one has fetched
too early."""

from __future__ import annotations

import logging

import pytest
from confluent_kafka import Message

import spouts.kafka.consumers as kafka_consumers
from spouts.kafka.cluster import KafkaConnection
from spouts.kafka.consumers import CachedConsumer, ConsumerPool
from transactional.batch import Offset, OffsetRange, PartitionId

ONE, OTHER = KafkaConnection("one:9092"), KafkaConnection("other:9092")


class Unconnected(CachedConsumer):
    """A consumer without a client."""

    def __init__(self, connection: KafkaConnection) -> None:
        self.connection = connection
        self.partition = None
        self.next_offset = 0
        self.is_closed = False

    def close(self) -> None:
        self.is_closed = True


class Reading:
    """Reads partitions in turns, as a task does transaction after transaction."""

    def __init__(self) -> None:
        self.pool = ConsumerPool()

    def moves(self, partitions: int, rounds: int, connection: KafkaConnection = ONE) -> list[int]:
        """How many ranges of each round were not where a consumer had stopped."""
        return [self._round(partitions, number, connection) for number in range(rounds)]

    def _round(self, partitions: int, number: int, connection: KafkaConnection) -> int:
        return sum(self._moves(PartitionId("t", each), number * 10, connection) for each in range(partitions))

    def _moves(self, partition: PartitionId, start: int, connection: KafkaConnection) -> bool:
        offsets = OffsetRange(Offset(start), Offset(start + 10))
        with self.pool.leased(connection, partition, offsets) as consumer:
            moves = not consumer.continues(partition, offsets)
            consumer.partition, consumer.next_offset = partition, offsets.until
        return moves


@pytest.fixture
def reading(monkeypatch: pytest.MonkeyPatch) -> Reading:
    monkeypatch.setattr(kafka_consumers, "CachedConsumer", Unconnected)
    return Reading()


def test_as_many_partitions_as_a_large_topic_has_continue(reading: Reading) -> None:
    assert reading.moves(512, 3) == [512, 0, 0]


def test_above_the_limit_all_others_continue(
    reading: Reading, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(kafka_consumers, "CONSUMERS_MAX", 8)
    with caplog.at_level(logging.WARNING):
        first, *later = reading.moves(10, 5)
    assert first == 10
    assert max(later) <= 3, "those of two partitions, and the one that they take turns on"
    assert len(reading.pool) == 8
    [warning] = caplog.messages
    assert warning.startswith("this process reads more than 8 partitions of Kafka")


def test_consumers_of_another_connection_make_room(reading: Reading, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_consumers, "CONSUMERS_MAX", 8)
    reading.moves(8, 1, OTHER)
    assert reading.moves(6, 3) == [6, 0, 0]
    assert len(reading.pool) == 8


def test_tasks_side_by_side_close_what_is_too_much(reading: Reading, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_consumers, "CONSUMERS_MAX", 1)
    offsets = OffsetRange(Offset(0), Offset(10))
    here, there = (reading.pool.leased(ONE, PartitionId("t", each), offsets) for each in range(2))
    with here as one, there as other:
        pass
    assert (len(reading.pool), getattr(one, "is_closed", None), getattr(other, "is_closed", None)) == (1, True, False)


class Fetched:
    """A client that has fetched records with these offsets; what is between them are the markers of transactions."""

    def __init__(self, *offsets: int) -> None:
        self._waiting = [Message(topic="t", partition=0, offset=each) for each in offsets]

    def assign(self, partitions: object) -> None:
        """It stands where it should."""

    def consume(self, most: int, _: float) -> list[Message]:
        taken, self._waiting = self._waiting[:most], self._waiting[most:]
        return taken


def test_what_was_fetched_with_an_earlier_range_is_read_in_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_consumers, "make_client", lambda *_: Fetched(0, 1, 2, 4, 5, 6, 8))
    consumer, partition = CachedConsumer(ONE), PartitionId("t", 0)
    ranges = [OffsetRange(Offset(start), Offset(until)) for start, until in ((0, 5), (5, 6), (6, 9))]
    read = [[each.offset() for part in consumer.read(partition, offsets) for each in part] for offsets in ranges]
    assert read == [[0, 1, 2, 4], [5], [6, 8]]
