"""What every spout keeps to: the same tests over the memory spouts and over the Kafka spouts with a real broker."""

from __future__ import annotations

import itertools
import json
import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa
import pytest

from spouts.base import PartitionedSpout
from spouts.kafka import OpaqueKafkaSpout, TransactionalKafkaSpout
from spouts.kafka_admin import create_topic, produce
from spouts.memory import MemoryTransactionalSpout, OpaqueMemoryTransactionalSpout
from spouts.planning import Limits
from tests.integration.conftest import kafka_broker  # noqa: F401 - a fixture
from transactional.arrow import arrow_schema
from transactional.batch import EMPTY_BATCH, BatchMetadata, Offset, OffsetRange
from transactional.errors import OperatingError
from transactional.ports import Spout

PARTITIONS = 2
_names = itertools.count(1)


class Source(Protocol):
    """A source of two partitions of words, and the spouts over it."""

    def append(self, partition: int, words: Sequence[str]) -> None:
        """Add words; whoever asks afterwards sees them."""

    def spout(self) -> PartitionedSpout:
        """A spout over this source, not yet open."""


@dataclass
class MemorySource:
    kind: type[MemoryTransactionalSpout]
    words: list[list[tuple[str]]]

    def append(self, partition: int, words: Sequence[str]) -> None:
        self.words[partition] += [(word,) for word in words]

    def spout(self) -> PartitionedSpout:
        return self.kind(self.words, fields="value string", take=1_000)


@dataclass
class KafkaSource:
    kind: type[TransactionalKafkaSpout | OpaqueKafkaSpout]
    bootstrap: str
    topic: str

    def append(self, partition: int, words: Sequence[str]) -> None:
        produce(self.bootstrap, self.topic, [(partition, None, word) for word in words])

    def spout(self) -> PartitionedSpout:
        return self.kind(self.bootstrap, [self.topic], fields=("value",), value_type="string", timeout_ms=2_000)


KINDS: dict[str, type[PartitionedSpout]] = {
    "memory": MemoryTransactionalSpout,
    "opaque memory": OpaqueMemoryTransactionalSpout,
    "kafka": TransactionalKafkaSpout,
    "opaque kafka": OpaqueKafkaSpout,
}
REAL = [pytest.param("kafka", marks=pytest.mark.kafka), pytest.param("opaque kafka", marks=pytest.mark.kafka)]


@pytest.fixture(params=["memory", "opaque memory", *REAL])
def source(request: pytest.FixtureRequest) -> Source:
    kind = KINDS[request.param]
    if issubclass(kind, MemoryTransactionalSpout):
        return MemorySource(kind, [[] for _ in range(PARTITIONS)])
    bootstrap, topic = request.getfixturevalue("kafka_broker").bootstrap, f"contract-{next(_names)}"
    create_topic(bootstrap, topic, PARTITIONS)
    assert issubclass(kind, TransactionalKafkaSpout | OpaqueKafkaSpout)
    return KafkaSource(kind, bootstrap, topic)


@pytest.fixture
def spout(source: Source) -> Iterator[PartitionedSpout]:
    opened = source.spout()
    opened.open()
    yield opened
    opened.close()


def planned(spout: Spout, after: BatchMetadata = EMPTY_BATCH) -> BatchMetadata:
    """The next batch, of which the test is sure."""
    batch = spout.plan(after, replay=False)
    assert batch is not None
    return batch


def words_of(spout: Spout, batch: BatchMetadata) -> list[list[str]]:
    """What the batch holds, one list per partition that has something."""
    return [words_in(spout.reader().read(p, offsets)) for p, offsets in batch.non_empty()]


def words_in(batches: Iterator[pa.RecordBatch]) -> list[str]:
    return [word for batch in batches for word in batch.column("value").to_pylist()]


def sizes(batch: BatchMetadata) -> list[int]:
    return [len(batch.ranges[p]) for p in sorted(batch.ranges)]


def test_a_source_without_anything_has_no_batch(spout: PartitionedSpout) -> None:
    assert spout.plan(EMPTY_BATCH, replay=False) is None


def test_a_batch_holds_what_is_there_in_order(source: Source, spout: PartitionedSpout) -> None:
    source.append(0, ["a", "b", "c"])
    source.append(1, ["x"])
    batch = planned(spout)
    assert words_of(spout, batch) == [["a", "b", "c"], ["x"]]
    assert spout.plan(batch, replay=False) is None


def test_the_record_batches_have_the_declared_columns(source: Source, spout: PartitionedSpout) -> None:
    source.append(0, ["a"])
    [(partition, offsets)] = planned(spout).non_empty()
    [batch] = spout.reader().read(partition, offsets)
    assert batch.schema == arrow_schema(spout.output)


def test_the_next_batch_starts_where_the_last_one_ended(source: Source, spout: PartitionedSpout) -> None:
    source.append(0, ["a"])
    source.append(1, ["x", "y"])
    first = planned(spout)
    source.append(1, ["z"])
    second = planned(spout, first)
    assert words_of(spout, second) == [["z"]]
    assert {p: r.start for p, r in second.ranges.items()} == first.positions()
    assert sizes(second) == [0, 1]


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


def test_reading_again_gives_the_same(source: Source, spout: PartitionedSpout) -> None:
    source.append(0, ["a", "b", "c", "d"])
    first = planned(spout)
    [(partition, offsets)] = first.non_empty()
    assert words_of(spout, first) == words_of(spout, first) == [["a", "b", "c", "d"]]
    inner = OffsetRange(Offset(offsets.start + 1), Offset(offsets.start + 3))
    assert words_in(spout.reader().read(partition, inner)) == ["b", "c"]
    assert words_of(spout, first) == [["a", "b", "c", "d"]]


def test_a_recorded_batch_reads_the_same_after_a_restart(source: Source, spout: PartitionedSpout) -> None:
    """Storm row T20: also when the source has more by then."""
    source.append(0, ["a", "b"])
    recorded = planned(spout).to_json()
    assert json.loads(recorded)["version"] == 1
    spout.close()
    source.append(0, ["c"])
    restarted = source.spout()
    restarted.open()
    batch = BatchMetadata.from_json(recorded)
    restarted.check_replay(batch)
    assert words_of(restarted, batch) == [["a", "b"]]
    assert words_of(restarted, planned(restarted, batch)) == [["c"]]
    restarted.close()


def test_a_replay_that_is_asked_for_always_has_a_batch(source: Source, spout: PartitionedSpout) -> None:
    assert spout.plan(EMPTY_BATCH, replay=True) is not None
    source.append(0, ["a"])
    assert spout.plan(planned(spout), replay=True) is not None


def test_a_range_that_is_not_there_is_never_less_in_silence(source: Source, spout: PartitionedSpout) -> None:
    """Storm row K7a. Within the time-out; what was there may have been delivered before."""
    source.append(0, ["a"])
    [(partition, offsets)] = planned(spout).non_empty()
    beyond = OffsetRange(offsets.start, Offset(offsets.until + 1))
    with pytest.raises(OperatingError):
        list(spout.reader().read(partition, beyond))


def test_a_reader_can_be_pickled_and_made_before_open(source: Source, spout: PartitionedSpout) -> None:
    reader = pickle.loads(pickle.dumps(source.spout().reader()))
    source.append(0, ["a", "b"])
    copied = pickle.loads(pickle.dumps(source.spout().reader()))
    [(partition, offsets)] = planned(spout).non_empty()
    assert words_in(copied.read(partition, offsets)) == ["a", "b"]
    assert type(reader) is type(copied)


def test_a_reader_that_is_left_half_way_does_no_harm(source: Source, spout: PartitionedSpout) -> None:
    source.append(0, [str(number) for number in range(30_000)])
    spout.limits = Limits()
    batch = planned(spout)
    [(partition, offsets)] = batch.non_empty()
    abandoned = spout.reader().read(partition, offsets)
    assert next(abandoned).num_rows < len(offsets)
    assert hasattr(abandoned, "close")
    abandoned.close()
    [words] = words_of(spout, batch)
    assert words == [str(number) for number in range(30_000)]


def test_lag_counts_what_was_not_read(source: Source, spout: PartitionedSpout) -> None:
    assert spout.lag(EMPTY_BATCH) is None
    source.append(0, ["a", "b"])
    batch = planned(spout)
    assert spout.lag(EMPTY_BATCH) == 2
    assert spout.lag(batch) == 0
    source.append(1, ["x", "y", "z"])
    planned(spout, batch)
    assert spout.lag(batch) == 3


def test_the_identity_outlives_a_restart(source: Source, spout: PartitionedSpout) -> None:
    again = source.spout()
    again.open()
    identity = spout.identity()
    assert identity == again.identity()
    assert identity["kind"] == type(spout).__name__
    assert all(isinstance(text, str) for pair in identity.items() for text in pair)
    again.close()


def test_being_told_of_commits_and_closing_twice_is_harmless(source: Source, spout: PartitionedSpout) -> None:
    source.append(0, ["a"])
    spout.committed(planned(spout))
    spout.committed(EMPTY_BATCH)
    spout.close()
    spout.close()


def test_nothing_was_lost(source: Source, spout: PartitionedSpout) -> None:
    source.append(0, ["a"])
    planned(spout)
    assert spout.lost_offsets == 0
