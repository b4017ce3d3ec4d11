"""What every spout keeps to: the same tests over the memory spouts, spouts of one's own, and Kafka with a real broker.

Those that are about offsets are for the spouts that have some.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from spouts.base import PartitionedSpout
from spouts.kafka.spout import OpaqueKafkaSpout, TransactionalKafkaSpout
from spouts.kafka_admin import create_topic
from spouts.memory import MemoryTransactionalSpout
from spouts.planning import Limits
from tests.contract.sources import (
    KINDS,
    PARTITIONS,
    KafkaSource,
    MemorySource,
    OwnOpaqueSpout,
    OwnSource,
    OwnSpout,
    Source,
    names,
)
from transactional.core.ports import Spout
from transactional.errors import OperatingError
from transactional.model.arrow import arrow_schema
from transactional.model.batch import EMPTY_BATCH, METADATA_VERSION, BatchMetadata, Offset, OffsetRange, PartitionId

REAL = [pytest.param("kafka", marks=pytest.mark.kafka), pytest.param("opaque kafka", marks=pytest.mark.kafka)]
LOGS = ["memory", "opaque memory", *REAL]
of_logs = pytest.mark.parametrize("source", LOGS, indirect=True)
"""For the spouts whose partitions are logs: they have offsets, limits and a lag."""


@pytest.fixture(params=[*LOGS, "own", "own opaque"])
def source(request: pytest.FixtureRequest) -> Source:
    kind = KINDS[request.param]
    if issubclass(kind, OwnSpout | OwnOpaqueSpout):
        return OwnSource(kind, [[] for _ in range(PARTITIONS)])
    if issubclass(kind, MemoryTransactionalSpout):
        return MemorySource(kind, [[] for _ in range(PARTITIONS)])
    bootstrap, topic = request.getfixturevalue("kafka_broker").bootstrap, f"contract-{next(names)}"
    create_topic(bootstrap, topic, PARTITIONS)
    assert issubclass(kind, TransactionalKafkaSpout | OpaqueKafkaSpout)
    return KafkaSource(kind, bootstrap, topic)


@pytest.fixture
def spout(source: Source) -> Iterator[Spout]:
    opened = source.spout()
    opened.open()
    yield opened
    opened.close()


@pytest.fixture
def log_spout(spout: Spout) -> PartitionedSpout:
    """The spout, where its partitions are logs."""
    assert isinstance(spout, PartitionedSpout)
    return spout


def planned(spout: Spout, after: BatchMetadata = EMPTY_BATCH) -> BatchMetadata:
    """The next batch, of which the test is sure."""
    batch = spout.plan(after, replay=False)
    assert batch is not None
    return batch


def words_of(spout: Spout, batch: BatchMetadata) -> list[list[str]]:
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


def test_a_source_without_anything_has_no_batch(spout: Spout) -> None:
    assert spout.plan(EMPTY_BATCH, replay=False) is None


def test_a_batch_holds_what_is_there_in_order(source: Source, spout: Spout) -> None:
    source.append(0, ["a", "b", "c"])
    source.append(1, ["x"])
    batch = planned(spout)
    assert words_of(spout, batch) == [["a", "b", "c"], ["x"]]
    assert spout.plan(batch, replay=False) is None


def test_the_record_batches_have_the_declared_columns(source: Source, spout: Spout) -> None:
    source.append(0, ["a"])
    [batch] = spout.reader().read(*only(planned(spout)))
    assert batch.schema == arrow_schema(spout.output)


def test_the_next_batch_starts_where_the_last_one_ended(source: Source, spout: Spout) -> None:
    source.append(0, ["a"])
    source.append(1, ["x", "y"])
    first = planned(spout)
    source.append(1, ["z"])
    second = planned(spout, first)
    assert words_of(spout, second) == [["z"]]
    assert {p: r.start for p, r in second.ranges.items()} == first.positions()
    assert sizes(second) == [0, 1]


@of_logs
def test_a_partition_with_nothing_is_an_empty_range(source: Source, spout: Spout) -> None:
    """Storm rows T43 and K7b."""
    source.append(1, ["x"])
    batch = planned(spout)
    assert sizes(batch) == [0, 1]
    [nothing] = [(p, offsets) for p, offsets in batch.ranges.items() if not len(offsets)]
    assert list(spout.reader().read(*nothing)) == []


@of_logs
def test_a_limit_cuts_the_source_into_batches_without_loss(source: Source, log_spout: PartitionedSpout) -> None:
    source.append(0, [str(number) for number in range(10)])
    source.append(1, ["x"])
    log_spout.limits = Limits(batch_records_max=4)
    after, seen, counts = EMPTY_BATCH, [], []
    while (batch := log_spout.plan(after, replay=False)) is not None:
        seen += words_of(log_spout, batch)
        counts.append(batch.offset_count)
        after = batch
    assert counts == [4, 4, 3]
    assert sorted(word for words in seen for word in words) == sorted([*map(str, range(10)), "x"])


def test_reading_again_gives_the_same(source: Source, spout: Spout) -> None:
    source.append(0, ["a", "b", "c", "d"])
    first = planned(spout)
    assert words_of(spout, first) == words_of(spout, first) == [["a", "b", "c", "d"]]


@of_logs
def test_reading_a_part_of_a_range_leaves_the_rest_alone(source: Source, spout: Spout) -> None:
    source.append(0, ["a", "b", "c", "d"])
    first = planned(spout)
    [(partition, offsets)] = first.non_empty()
    inner = OffsetRange(Offset(offsets.start + 1), Offset(offsets.start + 3))
    assert words_in(spout.reader().read(partition, inner)) == ["b", "c"]
    assert words_of(spout, first) == [["a", "b", "c", "d"]]


def test_a_recorded_batch_reads_the_same_after_a_restart(source: Source, spout: Spout) -> None:
    """Storm row T20: also when the source has more by then."""
    source.append(0, ["a", "b"])
    recorded = planned(spout).to_json()
    assert json.loads(recorded)["version"] == METADATA_VERSION
    spout.close()
    source.append(0, ["c"])
    restarted = source.spout()
    restarted.open()
    batch = BatchMetadata.from_json(recorded)
    restarted.parts.replays.check_replay(batch)
    assert words_of(restarted, batch) == [["a", "b"]]
    assert words_of(restarted, planned(restarted, batch)) == [["c"]]
    restarted.close()


def test_a_replay_that_is_requested_always_has_a_batch(source: Source, spout: Spout) -> None:
    assert spout.plan(EMPTY_BATCH, replay=True) is not None
    source.append(0, ["a"])
    assert spout.plan(planned(spout), replay=True) is not None


@of_logs
def test_a_replay_begins_where_it_is_reported_that_the_recorded_batch_has_begun(source: Source, spout: Spout) -> None:
    source.append(0, ["a", "b", "c"])
    [partition] = [p for p, _ in planned(spout).non_empty()]
    begun = BatchMetadata({partition: OffsetRange(Offset(1), Offset(1))})
    replay = spout.plan(begun, replay=True)
    assert replay is not None
    assert words_of(spout, replay) == [["b", "c"]]


def test_a_range_that_is_not_there_is_never_less_in_silence(source: Source, spout: Spout) -> None:
    """Storm row K7a. Within the time-out; what was there may have been delivered before."""
    source.append(0, ["a"])
    partition, offsets, metadata = only(planned(spout))
    beyond = OffsetRange(offsets.start, Offset(offsets.until + 1))
    with pytest.raises(OperatingError):
        list(spout.reader().read(partition, beyond, metadata))


def test_a_reader_can_be_pickled_and_made_before_open(source: Source, spout: Spout) -> None:
    reader = pickle.loads(pickle.dumps(source.spout().reader()))
    source.append(0, ["a", "b"])
    copied = pickle.loads(pickle.dumps(source.spout().reader()))
    assert words_in(copied.read(*only(planned(spout)))) == ["a", "b"]
    assert type(reader) is type(copied)


def test_a_reader_that_is_left_half_way_does_no_harm(source: Source, spout: Spout) -> None:
    source.append(0, [str(number) for number in range(30_000)])
    batch = planned(spout)
    abandoned = spout.reader().read(*only(batch))
    assert next(abandoned).num_rows < 30_000
    assert hasattr(abandoned, "close")
    abandoned.close()
    [words] = words_of(spout, batch)
    assert words == [str(number) for number in range(30_000)]


@of_logs
def test_lag_counts_what_was_not_read(source: Source, spout: Spout) -> None:
    assert spout.parts.backlog.lag(EMPTY_BATCH) is None
    source.append(0, ["a", "b"])
    batch = planned(spout)
    assert spout.parts.backlog.lag(EMPTY_BATCH) == 2
    assert spout.parts.backlog.lag(batch) == 0
    source.append(1, ["x", "y", "z"])
    planned(spout, batch)
    assert spout.parts.backlog.lag(batch) == 3


def test_the_identity_outlives_a_restart(source: Source, spout: Spout) -> None:
    again = source.spout()
    again.open()
    identity = spout.identity()
    assert identity == again.identity()
    assert identity["kind"] == source.kind.__name__
    assert all(isinstance(text, str) for pair in identity.items() for text in pair)
    again.close()


def test_being_reported_of_commits_and_closing_twice_is_harmless(source: Source, spout: Spout) -> None:
    source.append(0, ["a"])
    spout.committed(planned(spout))
    spout.committed(EMPTY_BATCH)
    spout.close()
    spout.close()


@of_logs
def test_nothing_was_lost(source: Source, log_spout: PartitionedSpout) -> None:
    source.append(0, ["a"])
    planned(log_spout)
    assert log_spout.lost_offsets == 0
