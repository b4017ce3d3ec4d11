"""What every spout keeps to: `check_spout` over the memory spouts, and over Kafka with a real broker.

The other tests are about what spouts have whose partitions are logs: offsets, limits and a lag.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest

from spouts.base import PartitionedSpout
from spouts.kafka.spout import OpaqueKafkaSpout, TransactionalKafkaSpout
from spouts.kafka_admin import create_topic, produce
from spouts.memory import MemoryTransactionalSpout, OpaqueMemoryTransactionalSpout
from spouts.planning import Limits
from tests.contract.sources import KINDS, PARTITIONS, KafkaSource, MemorySource, Source, names
from transactional.model.batch import EMPTY_BATCH, METADATA_VERSION, BatchMetadata, Offset, OffsetRange, PartitionId
from transactional.testing import SPOUT_CASES, check_spout

REAL = [pytest.param("kafka", marks=pytest.mark.kafka), pytest.param("opaque kafka", marks=pytest.mark.kafka)]
KINDS_OF_REPLAY = {"a_lost_batch_ends_the_run", "an_opaque_replay_is_planned_again"}
NOT_MADE = {"a_partition_that_is_away_keeps_its_position", "less_than_a_batch_is_an_error"}


@pytest.mark.parametrize("kind", [MemoryTransactionalSpout, OpaqueMemoryTransactionalSpout])
def test_a_memory_spout_keeps_what_is_promised(kind: type[MemoryTransactionalSpout]) -> None:
    """Storm rows T20 and K7a, as `test_a_kafka_spout_keeps_what_is_promised`."""
    rows: dict[str, list[list[tuple[str]]]] = {}

    def append(source: str, partition: int, words: Sequence[str]) -> None:
        rows.setdefault(source, [[], []])[partition] += [(word,) for word in words]

    refused = check_spout(lambda source: kind(rows.setdefault(source, [[], []]), "value string", 1_000), append)
    replays = KINDS_OF_REPLAY if kind is MemoryTransactionalSpout else {"a_lost_batch_ends_the_run"}
    assert set(refused) == replays | NOT_MADE | {
        "another_source_has_another_identity",
        "ranges_that_are_read_together_keep_their_tuples",
    }


@pytest.mark.kafka
@pytest.mark.sampled(9)
@pytest.mark.parametrize("kind", [TransactionalKafkaSpout, OpaqueKafkaSpout])
@pytest.mark.parametrize("case", SPOUT_CASES)
def test_a_kafka_spout_keeps_what_is_promised(
    kind: type[TransactionalKafkaSpout | OpaqueKafkaSpout], case: str, request: pytest.FixtureRequest
) -> None:
    bootstrap, prefix = request.getfixturevalue("kafka_broker").bootstrap, f"contract-{next(names)}"
    topics = set[str]()

    def topic_of(source: str) -> str:
        topic = f"{prefix}-{source}"
        if topic not in topics:
            create_topic(bootstrap, topic, PARTITIONS)
            topics.add(topic)
        return topic

    def append(source: str, partition: int, words: Sequence[str]) -> None:
        produce(bootstrap, topic_of(source), [(partition, None, word) for word in words])

    refused = check_spout(lambda source: KafkaSource(kind, bootstrap, topic_of(source)).spout(), append, case)
    assert set(refused) <= KINDS_OF_REPLAY | NOT_MADE


@pytest.fixture(params=["memory", "opaque memory", *REAL])
def source(request: pytest.FixtureRequest) -> Source:
    kind = KINDS[request.param]
    if issubclass(kind, MemoryTransactionalSpout):
        return MemorySource(kind, [[] for _ in range(PARTITIONS)])
    bootstrap, topic = request.getfixturevalue("kafka_broker").bootstrap, f"contract-{next(names)}"
    create_topic(bootstrap, topic, PARTITIONS)
    assert issubclass(kind, TransactionalKafkaSpout | OpaqueKafkaSpout)
    return KafkaSource(kind, bootstrap, topic)


@pytest.fixture
def spout(source: Source) -> Iterator[PartitionedSpout]:
    opened = source.spout()
    opened.open()
    yield opened
    opened.close()


def planned(spout: PartitionedSpout, after: BatchMetadata = EMPTY_BATCH) -> BatchMetadata:
    """The next batch, of which the test is sure."""
    batch = spout.plan(after, replay=False)
    assert batch is not None
    return batch


def words_of(spout: PartitionedSpout, batch: BatchMetadata) -> list[list[str]]:
    """What the batch holds, one list per partition that has something."""
    return [words_in(spout.reader().read(p, offsets, batch.metadata.get(p))) for p, offsets in batch.non_empty()]


def only(batch: BatchMetadata) -> tuple[PartitionId, OffsetRange, Any]:
    """What a reader is told of the one partition of which the batch has something."""
    [(partition, offsets)] = batch.non_empty()
    return partition, offsets, batch.metadata.get(partition)


def words_in(batches: Iterator[pa.RecordBatch]) -> list[str]:
    return [word for batch in batches for word in batch.column("value").to_pylist()]


def sizes(batch: BatchMetadata) -> list[int]:
    return [len(batch.ranges[p]) for p in sorted(batch.ranges)]


def test_a_partition_with_nothing_is_an_empty_range(source: Source, spout: PartitionedSpout) -> None:
    """Storm rows T43 and K7b."""
    source.append(1, ["x"])
    batch = planned(spout)
    assert sizes(batch) == [0, 1]
    [nothing] = [(p, offsets) for p, offsets in batch.ranges.items() if not len(offsets)]
    assert list(spout.reader().read(*nothing)) == []


def test_a_limit_cuts_the_source_into_batches_without_loss(source: Source, spout: PartitionedSpout) -> None:
    source.append(0, [str(number) for number in range(10)])
    source.append(1, ["x"])
    spout.limits = Limits(batch_records_max=4)
    after, seen, counts = EMPTY_BATCH, [], []
    while (batch := spout.plan(after, replay=False)) is not None:
        seen += words_of(spout, batch)
        counts.append(batch.offset_count)
        after = batch
    assert counts == [4, 4, 3]
    assert sorted(word for words in seen for word in words) == sorted([*map(str, range(10)), "x"])


def test_a_replay_begins_where_the_recorded_batch_has_begun(source: Source, spout: PartitionedSpout) -> None:
    source.append(0, ["a", "b", "c"])
    [partition] = [p for p, _ in planned(spout).non_empty()]
    begun = BatchMetadata({partition: OffsetRange(Offset(1), Offset(1))})
    replay = spout.plan(begun, replay=True)
    assert replay is not None
    assert words_of(spout, replay) == [["b", "c"]]


def test_a_reader_that_is_left_half_way_does_no_harm(source: Source, spout: PartitionedSpout) -> None:
    source.append(0, [str(number) for number in range(30_000)])
    batch = planned(spout)
    abandoned = spout.reader().read(*only(batch))
    assert next(abandoned).num_rows < 30_000
    assert hasattr(abandoned, "close")
    abandoned.close()
    [words] = words_of(spout, batch)
    assert words == [str(number) for number in range(30_000)]


def test_lag_counts_what_was_not_read(source: Source, spout: PartitionedSpout) -> None:
    assert spout.parts.backlog.lag(EMPTY_BATCH) is None
    source.append(0, ["a", "b"])
    batch = planned(spout)
    assert spout.parts.backlog.lag(EMPTY_BATCH) == 2
    assert spout.parts.backlog.lag(batch) == 0
    source.append(1, ["x", "y", "z"])
    planned(spout, batch)
    assert spout.parts.backlog.lag(batch) == 3


def test_a_recorded_batch_has_the_version_of_its_format(source: Source, spout: PartitionedSpout) -> None:
    source.append(0, ["a"])
    assert json.loads(planned(spout).to_json())["version"] == METADATA_VERSION


def test_the_identity_outlives_a_restart(source: Source, spout: PartitionedSpout) -> None:
    again = source.spout()
    again.open()
    identity = spout.identity()
    assert identity == again.identity()
    assert identity["kind"] == source.kind.__name__
    assert all(isinstance(text, str) for pair in identity.items() for text in pair)
    again.close()


def test_nothing_was_lost(source: Source, spout: PartitionedSpout) -> None:
    source.append(0, ["a"])
    planned(spout)
    assert spout.lost_offsets == 0
