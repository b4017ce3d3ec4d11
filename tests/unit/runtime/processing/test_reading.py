"""How a task of the spout reads the ranges of many partitions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pytest

from spouts import ByTopicTranslator, JsonTranslator, SimpleTranslator
from spouts.kafka.clients.pool import consumer_pool
from spouts.kafka.reader import KafkaPartitionReader
from spouts.kafka.translators import Translator
from spouts.memory import MemoryPartitionReader, MemoryTransactionalSpout
from state.memory import MemoryMapState
from tests.unit.attempts import FIRST, everything
from tests.unit.fakes import builder
from tests.unit.poisoned import letters
from tests.unit.spouts.kafka.fetching import ONE, Cluster, partition, span
from transactional.model.batch import BatchMetadata, OffsetRange, PartitionId
from transactional.model.errors import BoltFailed
from transactional.runtime.executors.local import LocalExecutor


class Jointly(MemoryPartitionReader):
    """Reads all ranges into one record batch, which begins and ends in the middle of one."""

    def read_together(self, ranges: Sequence[tuple[PartitionId, OffsetRange]]) -> Any:
        parts = [(number, batch) for number, each in enumerate(ranges) for batch in self.read(*each)]
        rows = pa.Table.from_batches([batch for _, batch in parts]).combine_chunks().to_batches()[0]
        (first, head), (last, tail) = parts[0], parts[-1]
        inner = [(number, batch.num_rows) for number, batch in parts[1:-1]]
        yield rows.slice(0, 1), [(first, 1)]
        yield rows.slice(1, len(rows) - 2), [(first, head.num_rows - 1), *inner, (last, tail.num_rows - 1)]
        yield rows.slice(len(rows) - 1), [(last, 1)]


@pytest.mark.parametrize("with_checksum", [True, False])
def test_ranges_that_are_read_together_have_a_digest_each(*, with_checksum: bool) -> None:
    """Of many partitions, in few record batches."""
    notes = {index: [("cat", f"{index}-{n}" if n % 3 else None) for n in range(2 + index % 5)] for index in range(128)}
    spout = MemoryTransactionalSpout(notes, "word string, note string", take=10)
    made = builder(spout, parallelism=2)
    made.set_committer_bolt("count", MemoryMapState("word").count()).fields_grouping("spout", "word")
    topology = made.build()
    batch, received = everything(topology), list[tuple[str, int]]()
    executor = LocalExecutor(
        topology, record=lambda _, component, __, part: received.append((component, part.num_rows))
    )
    executor.program = replace(executor.program, spout=replace(executor.program.spout, with_checksum=with_checksum))
    one_by_one = executor.run(FIRST, batch)
    assert received.count(("spout", 4)) >= 25
    received.clear()
    joint_spout = replace(executor.program.spout, reader=Jointly(notes, spout.output))
    executor.program = replace(executor.program, spout=joint_spout)
    assert executor.run(FIRST, batch).digests == one_by_one.digests
    assert len(received) == 2 * 3
    assert sum(count for _, count in received) == sum(map(len, notes.values()))


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ([(0, 2)], "'spout' counts 2 rows of its ranges in a record batch of 3 rows"),
        ([(0, 2), (1, 2)], "counts 4 rows of its ranges in a record batch of 3 rows"),
        ([], "counts 0 rows of its ranges in a record batch of 3 rows"),
    ],
)
def test_wrong_counts_of_a_reader_are_an_error(counts: list[tuple[int, int]], message: str) -> None:
    class Miscounting(MemoryPartitionReader):
        def read_together(self, ranges: Sequence[tuple[PartitionId, OffsetRange]]) -> Any:
            [first] = self.read(*ranges[0])
            yield first.slice(0, 0), []
            yield first, counts

    rows = {0: [("cat",)] * 3, 1: [("dog",)] * 3}
    spout = MemoryTransactionalSpout(rows, "word string", take=10)
    made = builder(spout)
    made.set_committer_bolt("count", MemoryMapState("word").count()).fields_grouping("spout", "word")
    topology = made.build()
    executor = LocalExecutor(topology)
    wrong_spout = replace(executor.program.spout, reader=Miscounting(rows, spout.output))
    executor.program = replace(executor.program, spout=wrong_spout)
    with pytest.raises(BoltFailed, match=message):
        executor.run(FIRST, everything(topology))


@dataclass(frozen=True, slots=True)
class OneByOne(KafkaPartitionReader):
    def read_together(self, ranges: Sequence[tuple[PartitionId, OffsetRange]]) -> None:
        return None


class Filtering(SimpleTranslator):
    """Takes records of several partitions together, skips some, and does not say which."""

    can_mix_partitions = True


def make_value(index: int, offset: int) -> bytes:
    """Return a JSON object, but in every third partition a few other values, and in each 31st no object at all."""
    is_object = index % 31 and (index % 3 or offset % (5 + index % 7))
    return b'{"word": "w%d", "number": %d}' % (index % 9, offset) if is_object else b"no %d/%d" % (index, offset)


def to_tuple(record: Any) -> tuple[str, int] | None:
    return None if record.value.startswith(b"no") else (f"w{record.partition}", record.offset)


OUTPUT = "word string, number long"
TRANSLATORS: dict[str, Translator] = {
    "refusing": JsonTranslator(OUTPUT, on_error="dead_letter"),
    "skipping": ByTopicTranslator(JsonTranslator(OUTPUT, on_error="skip")),
    "filtering": Filtering(to_tuple, OUTPUT),
}


@pytest.mark.parametrize("kind", TRANSLATORS)
def test_records_that_are_translated_together_are_those_of_each_range(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 128 partitions, in some of which records are refused or skipped: rows, digests and dead letters."""
    counts, translator = [30 + index % 11 for index in range(128)], TRANSLATORS[kind]
    Cluster.of(*counts, value_of=make_value, burst=50).install(monkeypatch)
    spout = MemoryTransactionalSpout([[]], OUTPUT, take=100)
    batch = BatchMetadata({partition(index): span(0, count) for index, count in enumerate(counts)})
    made = builder(spout, parallelism=2)
    made.set_committer_bolt("count", MemoryMapState("word").count()).fields_grouping("spout", "word")
    made.set_dead_letters(letters())
    topology = made.build()
    batches = list[pa.RecordBatch]()

    def read(reader_class: type[KafkaPartitionReader]) -> tuple[Any, list[dict[str, Any]], int]:
        consumer_pool().close()
        batches.clear()
        executor = LocalExecutor(
            topology, record=lambda _, component, __, part: batches.append(part) if component == "spout" else None
        )
        reader = reader_class(ONE, spout.output, translator)
        executor.program = replace(executor.program, spout=replace(executor.program.spout, reader=reader))
        processed = executor.run(FIRST, batch)
        rows = [row for part in batches for row in part.to_pylist()]
        return (processed.digests, processed.letters), rows, len(batches)

    expected, expected_rows, batches_one_by_one = read(OneByOne)
    result, rows, joint_batches = read(KafkaPartitionReader)
    consumer_pool().close()
    assert rows == expected_rows
    assert result == expected
    assert bool(result[1]) == translator.sets_aside
    assert kind == "filtering" or joint_batches <= 6 < 100 < batches_one_by_one
