"""Which consumer reads which partition, without a broker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import Message

from spouts.kafka.clients.cluster import KafkaConnection
from spouts.kafka.clients.fetched import PIECE_RECORDS_MAX, FetchedPartition
from spouts.kafka.clients.pool import UNSHARED_MAX, ConsumerPool, consumer_pool
from spouts.kafka.reader import KafkaPartitionReader
from spouts.kafka.records import output_schema
from spouts.kafka.translators import SimpleTranslator
from tests.unit.spouts.kafka.fetching import ONE, OTHER, Cluster, partition, span
from transactional.errors import ReplayMismatch
from transactional.model.batch import OffsetRange, PartitionId

MANY = UNSHARED_MAX + 5


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    return Cluster.of(*[1_000] * 2 * MANY).install(monkeypatch)


@pytest.fixture
def pool(cluster: Cluster) -> ConsumerPool:
    return ConsumerPool()


def expect(pool: ConsumerPool, indexes: range, start: int = 0, connection: KafkaConnection = ONE) -> None:
    pool.expect(connection, [(partition(index), span(start, start + 10)) for index in indexes])


def read(pool: ConsumerPool, index: int, start: int = 0, connection: KafkaConnection = ONE) -> list[int]:
    offsets = span(start, start + 10)
    with pool.leasing(connection, partition(index), offsets) as consumer:
        pieces = list(consumer.read(partition(index), offsets))
    return [message.offset() or 0 for piece in pieces for message in piece]


def test_a_few_partitions_have_a_consumer_each(pool: ConsumerPool) -> None:
    for start in (0, 10, 20):
        expect(pool, range(UNSHARED_MAX), start)
        for index in range(UNSHARED_MAX):
            assert read(pool, index, start) == list(range(start, start + 10))
    assert len(pool) == UNSHARED_MAX


def test_many_partitions_share_one(pool: ConsumerPool, cluster: Cluster) -> None:
    for start in (0, 10, 20):
        expect(pool, range(MANY), start)
        for index in range(MANY):
            assert read(pool, index, start) == list(range(start, start + 10))
    [client] = cluster.clients
    assert [len(each) for each in client.assigned] == [MANY]
    assert client.unassigned == []


def test_partitions_that_come_later_join_the_others(pool: ConsumerPool) -> None:
    """As those that had nothing new at first: few in each batch."""
    expect(pool, range(MANY))
    expect(pool, range(MANY + 1))
    assert read(pool, MANY + 1) == list(range(10))
    assert len(pool) == 1


def test_one_by_one_they_share_one_too_in_the_end(pool: ConsumerPool) -> None:
    for index in range(MANY):
        assert read(pool, index) == list(range(10))
    assert len(pool) == UNSHARED_MAX + 1


def test_each_connection_has_its_own(pool: ConsumerPool, cluster: Cluster) -> None:
    for connection in (ONE, OTHER):
        assert read(pool, 0, connection=connection) == list(range(10))
    pool.close(ONE)
    assert [client.is_closed for client in cluster.clients] == [True, False]
    assert read(pool, 0, 10) == list(range(10, 20))
    assert len(cluster.clients) == 3


@pytest.mark.parametrize("start", [0, 5, 100_000])
def test_a_partition_that_is_read_elsewhere_at_the_same_time_gets_another(pool: ConsumerPool, start: int) -> None:
    """As by an attempt that goes on after it was aborted, or by another topology."""
    with (
        pool.leasing(ONE, partition(0), span(0, 10)) as one,
        pool.leasing(ONE, partition(0), span(start, start + 10)) as it,
    ):
        assert one is not it
    with (
        pool.leasing(ONE, partition(0), span(0, 10)) as one,
        pool.leasing(ONE, partition(0), span(20, 30)) as it,
        pool.leasing(ONE, partition(0, "t#anew"), span(30, 40)) as anew,
    ):
        assert one is it
        assert one is not anew


def test_a_consumer_is_closed_once_nobody_reads(pool: ConsumerPool, cluster: Cluster) -> None:
    with pool.leasing(ONE, partition(0), span(0, 10)) as consumer:
        pool.close()
        assert [client.is_closed for client in cluster.clients] == [False]
        assert len(list(consumer.read(partition(0), span(0, 10)))) > 0
    assert [client.is_closed for client in cluster.clients] == [True]
    assert len(pool) == 0


def test_after_an_error_a_new_one_connects(pool: ConsumerPool, cluster: Cluster) -> None:
    offsets = span(0, 10)
    with (
        pytest.raises(ZeroDivisionError),
        pool.leasing(ONE, partition(0), offsets),
        pool.leasing(ONE, partition(1), offsets),
    ):
        raise ZeroDivisionError
    assert [client.is_closed for client in cluster.clients] == [True, True]
    assert len(pool) == 0


def test_offsets_that_are_gone_are_no_reason_to_connect_again(pool: ConsumerPool) -> None:
    with pytest.raises(ReplayMismatch), pool.leasing(ONE, partition(0), span(0, 10)):
        raise ReplayMismatch("retention came first", available_from=5, read_until=0)
    assert len(pool) == 1


def test_a_reader_that_is_given_up_gives_its_consumer_back(pool: ConsumerPool, cluster: Cluster) -> None:
    with pytest.raises(GeneratorExit), pool.leasing(ONE, partition(0), span(0, 10)):
        raise GeneratorExit
    assert read(pool, 0, 10) == list(range(10, 20))
    assert len(cluster.clients) == 1


def test_a_reader_may_be_closed_while_its_thread_looks_for_a_consumer(pool: ConsumerPool, cluster: Cluster) -> None:
    """As by the garbage collector, which comes at any time."""
    given_up = pool.leasing(ONE, partition(0), span(0, 10))
    given_up.__enter__()
    cluster.before_connecting = lambda: given_up.__exit__(None, None, None)
    assert read(pool, 1) == list(range(10))


def test_a_forked_process_has_a_pool_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = consumer_pool()
    assert consumer_pool() is ours
    monkeypatch.setattr("spouts.kafka.clients.pool._pools", [ours])
    monkeypatch.setattr("spouts.kafka.clients.pool.getpid", lambda: -1)
    theirs = consumer_pool()
    assert theirs is not ours
    assert consumer_pool() is theirs


@pytest.mark.parametrize(("source", "id_"), [("t#Ab3", "Ab3"), ("t", "")])
def test_a_record_has_the_identity_of_its_topic(source: str, id_: str, cluster: Cluster) -> None:
    """As a field of its own, in a record that a function translates, and in its dead letter."""
    consumer_pool().close()
    fields = output_schema(("topic", "partition", "offset", "source_id"), key_type="binary", value_type="binary")
    reader = KafkaPartitionReader(ONE, fields)
    [batch] = reader.read(partition(0, source), span(0, 2))
    assert [tuple(row.values()) for row in batch.to_pylist()] == [("t", 0, 0, id_), ("t", 0, 1, id_)]
    function = SimpleTranslator(lambda record: (record.source_id,), "id string", on_error="dead_letter")
    [batch, *_] = KafkaPartitionReader(ONE, function.output, function).read(partition(0, source), span(2, 3))
    assert batch.to_pylist() == [{"id": id_}]
    refusing = replace(reader, translator=SimpleTranslator(lambda _: (1 / 0,), "id string", on_error="dead_letter"))
    [refused] = [
        each for each in refusing.read_or_refuse(partition(0, source), span(3, 4)) if not hasattr(each, "schema")
    ]
    assert refused.values["source_id"] == id_
    consumer_pool().close()


ALL_FIELDS = output_schema(
    ("topic", "partition", "offset", "source_id", "key", "value"), key_type="binary", value_type="binary"
)


def read_together(reader: KafkaPartitionReader, ranges: Sequence[tuple[PartitionId, OffsetRange]]) -> list[Any]:
    records = reader.read_together(ranges)
    assert records is not None
    return list(records)


@pytest.mark.parametrize(("every", "batches"), [(1, 5), (2, 3)])
def test_short_ranges_share_record_batches(every: int, batches: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 64 ranges with 156 offsets, all of which or half of which hold a record."""
    Cluster.of(*[400] * 64, every=every).install(monkeypatch)
    consumer_pool().close()
    reader = KafkaPartitionReader(ONE, ALL_FIELDS)
    ranges = [(partition(index, f"t#{index % 3}"), span(10, 166)) for index in range(64)]
    joint = read_together(reader, ranges)
    assert len(joint) == batches
    rows = [row for batch, _ in joint for row in batch.to_pylist()]
    assert rows == [row for each in ranges for batch in reader.read(*each) for row in batch.to_pylist()]
    assert [batch.num_rows for batch, _ in joint] == [sum(count for _, count in counts) for _, counts in joint]
    assert [number for _, counts in joint for number, _ in counts] == list(range(64))
    consumer_pool().close()


def test_a_range_of_large_records_is_spread_over_record_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    Cluster.of(*[20] * 9, bytes=1024 * 1024).install(monkeypatch)
    consumer_pool().close()
    ranges = [(partition(index), span(0, 20)) for index in range(9)]
    joint = read_together(KafkaPartitionReader(ONE, ALL_FIELDS), ranges)
    assert max(batch.num_rows for batch, _ in joint) < 30
    assert sum(batch.num_rows for batch, _ in joint) == 9 * 20
    consumer_pool().close()


def test_what_was_fetched_ahead_is_taken_without_a_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 64 partitions: one by one only until a poll has brought what is ahead."""
    Cluster.of(*[200] * 64, burst=200).install(monkeypatch)
    consumer_pool().close()
    reader, leases = KafkaPartitionReader(ONE, ALL_FIELDS), list[OffsetRange]()
    lease = consumer_pool().leasing

    def count_lease(connection: KafkaConnection, index: PartitionId, offsets: OffsetRange) -> Any:
        leases.append(offsets)
        return lease(connection, index, offsets)

    monkeypatch.setattr(consumer_pool(), "leasing", count_lease)
    for start in range(0, 200, 20):
        ranges = [(partition(index), span(start, start + 20)) for index in range(64)]
        reader.expect(ranges)
        rows = [row["offset"] for batch, _ in read_together(reader, ranges) for row in batch.to_pylist()]
        assert rows == [*range(start, start + 20)] * 64
    assert len(leases) < 20, "of 640 ranges"
    consumer_pool().close()


def test_a_range_that_is_read_elsewhere_is_not_taken_from_its_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    Cluster.of(*[20] * 9, burst=20).install(monkeypatch)
    pool = ConsumerPool()
    ranges = [(partition(index), span(0, 10)) for index in range(9)]
    pool.expect(ONE, ranges)
    assert read(pool, 8) == list(range(10))
    with pool.leasing(ONE, *ranges[0]) as consumer:
        assert pool.take_whole(ONE, ranges) == []
        assert sum(map(len, consumer.read(*ranges[0]))) == 10
    assert pool.take_whole(ONE, ranges) == []


@pytest.mark.parametrize(("records", "bytes_"), [(PIECE_RECORDS_MAX + 1, 10), (9, 1024 * 1024)])
def test_a_range_that_is_larger_than_a_piece_is_not_taken_whole(records: int, bytes_: int) -> None:
    value = b"x" * bytes_
    buffer = FetchedPartition(partition(0), 0)
    buffer.add([Message(topic="t", partition=0, offset=offset, value=value) for offset in range(2 * records)])
    assert buffer.take_whole(span(0, records)) is None
    assert 0 < len(buffer.take(span(0, records)).messages) < records


def test_a_translator_gets_the_records_of_one_partition() -> None:
    translator = SimpleTranslator(lambda record: (record.source_id,), "id string")
    assert KafkaPartitionReader(ONE, translator.output, translator).read_together([(partition(0), span(0, 1))]) is None
