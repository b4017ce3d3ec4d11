"""The Kafka spouts' reading against a real broker: exact ranges, holes in the log, consumers that are kept, outages."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from spouts.kafka.clients import consumers as kafka_consumers
from spouts.kafka.clients.cluster import KafkaConnection
from spouts.kafka.clients.pool import consumer_pool
from spouts.kafka.reader import KafkaPartitionReader
from spouts.kafka.records import FIELD_TYPES, output_schema
from spouts.kafka_admin import delete_records
from spouts.local_broker import LocalBroker
from tests.integration.kafka_topics import (
    TIMEOUT_MS,
    in_transaction,
    new_topic,
    put,
    span,
    transactional_producer,
)
from transactional.errors import OperatingError, ReplayMismatch, SchemaMismatch, SourceUnavailable
from transactional.model.arrow import arrow_schema
from transactional.model.batch import OffsetRange, PartitionId

pytestmark = pytest.mark.kafka

VALUES = output_schema(("offset", "value"), key_type="binary", value_type="string")
EVERYTHING = output_schema(FIELD_TYPES, key_type="string", value_type="binary")


@pytest.fixture
def bootstrap(kafka_broker: LocalBroker) -> Iterator[str]:
    """The broker's address. No test finds consumers of another."""
    consumer_pool().close()
    yield kafka_broker.bootstrap
    consumer_pool().close()


@pytest.fixture
def moves(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every time that a consumer had to be sent somewhere, instead of reading on."""
    seen: list[str] = []

    class Noting(Consumer):
        def incremental_assign(self, partitions: list[TopicPartition]) -> None:
            seen.extend(f"{each.partition}: {each.offset}" for each in partitions)
            super().incremental_assign(partitions)

    monkeypatch.setattr(kafka_consumers, "Consumer", Noting)
    return seen


def reader(bootstrap: str, *, isolation: str = "read_committed", timeout_ms: int = TIMEOUT_MS) -> KafkaPartitionReader:
    return KafkaPartitionReader(KafkaConnection(bootstrap, isolation, timeout_ms), VALUES)


def values(bootstrap: str, topic: str, offsets: OffsetRange, partition: int = 0, **options: Any) -> list[str]:
    batches = reader(bootstrap, **options).read(PartitionId(topic, partition), offsets)
    return [value for batch in batches for value in batch.column("value").to_pylist()]


def numbers(start: int, until: int) -> list[str]:
    return [str(number) for number in range(start, until)]


# --- what a record becomes ----------------------------------------------------------------------------------------


def test_every_field_of_a_record_comes_through(bootstrap: str) -> None:
    topic = new_topic(bootstrap, 2)
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    headers: list[tuple[str, str | bytes | None]] = [("trace", b"1"), ("trace", None), ("empty", b"")]
    producer.produce(topic, b"\xff", "clé", partition=1, timestamp=1_700_000_000_123, headers=headers)
    producer.produce(topic, None, None, partition=1, timestamp=5)
    producer.flush(30)
    everything = KafkaPartitionReader(KafkaConnection(bootstrap), EVERYTHING)
    [batch] = everything.read(PartitionId(topic, 1), span(0, 2))
    assert batch.schema == arrow_schema(EVERYTHING)
    full, bare = batch.to_pylist()
    assert full == {
        "topic": topic,
        "partition": 1,
        "offset": 0,
        "key": "clé",
        "value": b"\xff",
        "timestamp": datetime(2023, 11, 14, 22, 13, 20, 123_000, tzinfo=UTC),
        "headers": [{"key": key, "value": value} for key, value in headers],
        "source_id": "",
    }
    assert (bare["offset"], bare["key"], bare["value"], bare["headers"]) == (1, None, None, [])


def test_bytes_that_are_no_text_are_reported_with_their_place(bootstrap: str) -> None:
    topic = new_topic(bootstrap)
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    for value in (b"fine", None, b"ab\xff"):
        producer.produce(topic, value, partition=0)
    producer.flush(30)
    told = rf"value at offset 2 of partition 0 of topic '{topic}' is not UTF-8 \(invalid start byte at byte 2\)"
    with pytest.raises(SchemaMismatch, match=told):
        values(bootstrap, topic, span(0, 3))
    assert values(bootstrap, topic, span(0, 2)) == ["fine", None]


# --- exact ranges -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("start", "until"), [(0, 50), (0, 1), (49, 50), (7, 23), (3, 3)])
def test_a_range_is_read_exactly(bootstrap: str, start: int, until: int) -> None:
    """Storm row K6."""
    topic = new_topic(bootstrap)
    put(bootstrap, topic, numbers(0, 50))
    assert values(bootstrap, topic, span(start, until)) == numbers(start, until)


def test_many_records_come_in_bounded_record_batches(bootstrap: str) -> None:
    topic = new_topic(bootstrap)
    put(bootstrap, topic, numbers(0, 50_000))
    batches = list(reader(bootstrap).read(PartitionId(topic, 0), span(100, 49_900)))
    assert max(batch.num_rows for batch in batches) <= 2 * 10_000
    assert [value for batch in batches for value in batch.column("offset").to_pylist()] == list(range(100, 49_900))


def test_large_records_come_in_bounded_record_batches(bootstrap: str) -> None:
    topic = new_topic(bootstrap)
    put(bootstrap, topic, ["x" * 500_000] * 60)
    batches = list(reader(bootstrap).read(PartitionId(topic, 0), span(0, 60)))
    assert sum(batch.num_rows for batch in batches) == 60
    assert max(batch.nbytes for batch in batches) < 20_000_000


def test_aborted_and_control_records_are_holes_in_a_range(bootstrap: str) -> None:
    topic = new_topic(bootstrap)
    with transactional_producer(bootstrap) as producer:
        in_transaction(producer, topic, ["a", "b"], outcome="commit")  # 0, 1; 2 is a control record
        in_transaction(producer, topic, ["no", "no"], outcome="abort")  # 3, 4; 5
        in_transaction(producer, topic, ["c"], outcome="commit")  # 6; 7
        in_transaction(producer, topic, ["no"], outcome="abort")  # 8; 9, and nothing behind
    for _ in range(2):
        assert values(bootstrap, topic, span(0, 3)) == ["a", "b"]
        assert values(bootstrap, topic, span(3, 6)) == []
        assert values(bootstrap, topic, span(6, 8)) == ["c"]
        assert values(bootstrap, topic, span(8, 10)) == []
    assert values(bootstrap, topic, span(0, 10)) == ["a", "b", "c"]
    assert values(bootstrap, topic, span(1, 7)) == ["b", "c"]
    assert values(bootstrap, topic, span(0, 10), isolation="read_uncommitted") == ["a", "b", "no", "no", "c", "no"]


# --- consumers that are kept --------------------------------------------------------------------------------------


def test_a_consumer_reads_on_where_it_stopped(bootstrap: str, moves: list[str]) -> None:
    topic = new_topic(bootstrap)
    put(bootstrap, topic, numbers(0, 100))
    for start in range(0, 100, 10):
        assert values(bootstrap, topic, span(start, start + 10)) == numbers(start, start + 10)
    put(bootstrap, topic, numbers(100, 110))
    assert values(bootstrap, topic, span(100, 110)) == numbers(100, 110)
    assert moves == ["0: 0"]


def test_a_consumer_reads_on_over_holes(bootstrap: str, moves: list[str]) -> None:
    """The end of a log that was announced while an earlier range was read is not announced again."""
    topic = new_topic(bootstrap)
    with transactional_producer(bootstrap) as producer:
        for number in range(4):
            in_transaction(producer, topic, [str(number)], outcome="commit")
            in_transaction(producer, topic, ["no"], outcome="abort")
    assert [values(bootstrap, topic, span(start, start + 1)) for start in range(16)] == [
        [str(offset // 4)] if offset % 4 == 0 else [] for offset in range(16)
    ]
    assert moves == ["0: 0"]


def test_a_reading_that_was_given_up_is_not_read_on(bootstrap: str) -> None:
    topic = new_topic(bootstrap)
    put(bootstrap, topic, numbers(0, 30_000))
    assert values(bootstrap, topic, span(0, 10)) == numbers(0, 10)
    abandoned = reader(bootstrap).read(PartitionId(topic, 0), span(10, 30_000))
    assert next(abandoned).num_rows < 29_990
    del abandoned
    assert values(bootstrap, topic, span(10, 30_000)) == numbers(10, 30_000)


def test_what_is_skipped_is_not_sought(bootstrap: str, moves: list[str]) -> None:
    """Another worker reads the range between, or this one does later."""
    topic = new_topic(bootstrap)
    put(bootstrap, topic, numbers(0, 100))
    assert values(bootstrap, topic, span(0, 10)) == numbers(0, 10)
    assert values(bootstrap, topic, span(60, 70)) == numbers(60, 70)
    assert values(bootstrap, topic, span(20, 30)) == numbers(20, 30)
    assert moves == ["0: 0"]


def test_readers_in_several_threads_do_not_get_in_each_others_way(bootstrap: str) -> None:
    topic = new_topic(bootstrap)
    put(bootstrap, topic, numbers(0, 20_000))
    answers: dict[int, list[str]] = {}

    def read(start: int) -> None:
        answers[start] = values(bootstrap, topic, span(start, start + 5_000))

    threads = [threading.Thread(target=read, args=(start,)) for start in range(0, 20_000, 5_000)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == {start: numbers(start, start + 5_000) for start in range(0, 20_000, 5_000)}


def test_a_forked_process_takes_consumers_of_its_own(bootstrap: str) -> None:
    """As the Python workers of Spark are: forked from a process that may have read before."""
    topic = new_topic(bootstrap)
    put(bootstrap, topic, numbers(0, 20))
    assert values(bootstrap, topic, span(0, 10)) == numbers(0, 10)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking with threads, from Python 3.12 on
        child = os.fork()
    if child == 0:
        os._exit(0 if values(bootstrap, topic, span(10, 20)) == numbers(10, 20) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert values(bootstrap, topic, span(10, 20)) == numbers(10, 20)


def test_a_process_ends_quietly_with_consumers_open(bootstrap: str) -> None:
    topic = new_topic(bootstrap)
    put(bootstrap, topic, numbers(0, 10))
    program = (
        "from spouts.kafka.reader import KafkaPartitionReader as R\n"
        "from spouts.kafka.clients.cluster import *; from spouts.kafka.records import *\n"
        "from transactional.model.batch import OffsetRange, PartitionId\n"
        "schema = output_schema(['value'], key_type='binary', value_type='string')\n"
        f"reader = R(KafkaConnection({bootstrap!r}), schema)\n"
        f"assert sum(b.num_rows for b in reader.read(PartitionId({topic!r}, 0), OffsetRange(0, 10))) == 10\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=240, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


# --- what can't be read -------------------------------------------------------------------------------------------


def test_a_range_whose_start_is_gone_is_refused(bootstrap: str) -> None:
    topic = new_topic(bootstrap)
    put(bootstrap, topic, numbers(0, 10))
    delete_records(bootstrap, topic, {0: 4})
    with pytest.raises(ReplayMismatch, match=rf"'{topic}': the offsets \[2, 8\) were planned.* are \[4, 10\)"):
        values(bootstrap, topic, span(2, 8))
    assert values(bootstrap, topic, span(4, 8)) == numbers(4, 8)


def test_a_hole_that_may_be_a_loss_is_refused(bootstrap: str) -> None:
    """The consumer has fetched the aborted record's place long ago; the log's start moved before it was asked again."""
    topic = new_topic(bootstrap)
    with transactional_producer(bootstrap) as producer:
        in_transaction(producer, topic, ["a"], outcome="commit")
        in_transaction(producer, topic, ["b"], outcome="commit")
    assert values(bootstrap, topic, span(0, 1)) == ["a"]
    delete_records(bootstrap, topic, {0: 3})
    with pytest.raises(ReplayMismatch, match=r"\[1, 4\) were planned, but the available ones are \[3, 4\)"):
        values(bootstrap, topic, span(1, 4))


def test_offsets_that_are_not_there_yet_are_waited_for_and_then_reported(bootstrap: str) -> None:
    topic = new_topic(bootstrap)
    put(bootstrap, topic, numbers(0, 3))
    started = time.monotonic()
    told = rf"'{topic}' at .* was read up to offset 3 of \[0, 5\), then nothing arrived for 500 ms"
    with pytest.raises(SourceUnavailable, match=told):
        values(bootstrap, topic, span(0, 5), timeout_ms=500)
    assert time.monotonic() - started < 5


def test_a_topic_that_does_not_exist_is_reported(bootstrap: str) -> None:
    with pytest.raises(SourceUnavailable, match=r"'never-made'.*nothing arrived"):
        values(bootstrap, "never-made", span(0, 1), timeout_ms=500)


def test_an_address_where_nobody_answers_is_reported_in_time(capfd: pytest.CaptureFixture[str]) -> None:
    started = time.monotonic()
    with pytest.raises(SourceUnavailable, match=r"nothing arrived for 1000 ms \(the last error: .*refused"):
        values("127.0.0.1:1", "flights", span(0, 1), timeout_ms=1_000)
    assert time.monotonic() - started < 5
    assert capfd.readouterr() == ("", "")


def test_reading_goes_on_after_the_broker_was_killed(capfd: pytest.CaptureFixture[str]) -> None:
    with LocalBroker() as broker:
        topic = new_topic(broker.bootstrap)
        put(broker.bootstrap, topic, numbers(0, 20))
        assert values(broker.bootstrap, topic, span(0, 10)) == numbers(0, 10)
        broker.kill()
        with pytest.raises(OperatingError):
            values(broker.bootstrap, topic, span(0, 30), timeout_ms=500)
        broker.start()
        assert values(broker.bootstrap, topic, span(10, 20), timeout_ms=20_000) == numbers(10, 20)
        consumer_pool().close()
    assert capfd.readouterr() == ("", "")
