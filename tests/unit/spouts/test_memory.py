"""The memory spouts: Storm's batches over their partitions, replays that vary, rows that don't fit."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from spouts.memory import MemoryTransactionalSpout, OpaqueMemoryTransactionalSpout
from transactional.errors import ConfigError, ReplayMismatch, SchemaMismatch
from transactional.model.batch import EMPTY_BATCH, BatchMetadata, Offset, OffsetRange, PartitionId
from transactional.model.facts import Listing

# The rows of Storm's TransactionalGlobalCount (row E1): three partitions of 6, 4 and 9 tuples.
DATA = {
    0: [["cat"], ["dog"], ["chicken"], ["cat"], ["dog"], ["apple"]],
    1: [["cat"], ["dog"], ["apple"], ["banana"]],
    2: [["cat"], ["cat"], ["cat"], ["cat"], ["cat"], ["dog"], ["dog"], ["dog"], ["dog"]],
}


def partition(index: int) -> PartitionId:
    return PartitionId("memory", index)


def span(start: int, until: int) -> OffsetRange:
    return OffsetRange(Offset(start), Offset(until))


def batches(spout: MemoryTransactionalSpout) -> Iterator[BatchMetadata]:
    """Every batch until there is nothing more."""
    after = EMPTY_BATCH
    while (planned := spout.plan(after, replay=False)) is not None:
        yield planned
        after = planned


def rows(spout: MemoryTransactionalSpout, batch: BatchMetadata) -> list[tuple[Any, ...]]:
    read = [b for p, offsets in batch.non_empty() for b in spout.reader().read(p, offsets)]
    return [tuple(row.values()) for each in read for row in each.to_pylist()]


def test_partitions_are_listed_as_they_were_planned_with_or_as_they_are() -> None:
    data: list[list[tuple[str]]] = [[("cat",)], []]
    spout = OpaqueMemoryTransactionalSpout(data, fields="word string", take=1, disabled=[0])
    assert spout.list_partitions(EMPTY_BATCH) == {partition(0): Listing.AWAY, partition(1): Listing.EMPTY}
    spout.plan(EMPTY_BATCH, replay=False)
    spout.set_disabled(0, disabled=False)
    data[1].append(("dog",))
    assert spout.list_partitions(EMPTY_BATCH) == {partition(0): Listing.AWAY, partition(1): Listing.EMPTY}
    assert spout.list_partitions(EMPTY_BATCH) == {partition(0): Listing.UNREAD, partition(1): Listing.UNREAD}


def test_three_partitions_and_three_tuples_of_each_make_batches_of_9_7_and_3() -> None:
    """Storm row E1."""
    spout = MemoryTransactionalSpout(DATA, fields="word string", take=3)
    planned = list(batches(spout))
    assert [batch.offset_count for batch in planned] == [9, 7, 3]
    assert [len(rows(spout, batch)) for batch in planned] == [9, 7, 3]
    assert rows(spout, planned[2]) == [("dog",)] * 3


def test_a_sequence_of_partitions_is_numbered_from_0() -> None:
    spout = MemoryTransactionalSpout([[("a", 1)], [("b", 2), ("c", None)]], "word string, count long", 5)
    batch = spout.plan(EMPTY_BATCH, replay=False)
    assert batch == BatchMetadata({partition(0): span(0, 1), partition(1): span(0, 2)})
    assert rows(spout, batch) == [("a", 1), ("b", 2), ("c", None)]


def test_the_columns_have_the_declared_types_and_names() -> None:
    spout = MemoryTransactionalSpout([[("a", 1)]], "word string, count int", 1)
    [batch] = spout.reader().read(partition(0), span(0, 1))
    assert batch.schema == pa.schema([("word", pa.string()), ("count", pa.int32())])


def test_rows_that_are_appended_are_new_input() -> None:
    words = [["cat"]]
    spout = MemoryTransactionalSpout([words], "word string", 3)
    first = spout.plan(EMPTY_BATCH, replay=False)
    assert first is not None
    assert spout.plan(first, replay=False) is None
    words.append(["dog"])
    second = spout.plan(first, replay=False)
    assert second is not None
    assert rows(spout, second) == [("dog",)]


def test_a_copy_of_the_reader_that_lacks_rows_says_so() -> None:
    words = [["cat"]]
    spout = MemoryTransactionalSpout([words], "word string", 3)
    copied = pickle.loads(pickle.dumps(spout.reader()))
    words.append(["dog"])
    with pytest.raises(ReplayMismatch, match=r"memory\[0\] should be read over \[0, 2\) but has 1 rows"):
        list(copied.read(partition(0), span(0, 2)))


def test_an_opaque_replay_leaves_out_a_disabled_partition_and_keeps_its_position() -> None:
    spout = OpaqueMemoryTransactionalSpout(DATA, fields="word string", take=3)
    first = spout.plan(EMPTY_BATCH, replay=False)
    assert first is not None
    spout.set_disabled(1, disabled=True)
    replay = spout.plan(first, replay=True)
    assert replay == BatchMetadata({partition(0): span(3, 6), partition(1): span(3, 3), partition(2): span(3, 6)})
    assert spout.lag(replay) is None
    spout.set_disabled(1, disabled=False)
    again = spout.plan(replay, replay=False)
    assert again == BatchMetadata({partition(0): span(6, 6), partition(1): span(3, 4), partition(2): span(6, 9)})


def test_an_opaque_replay_may_be_empty() -> None:
    spout = OpaqueMemoryTransactionalSpout(DATA, "word string", 3, disabled=[0, 1, 2])
    assert spout.plan(EMPTY_BATCH, replay=False) is None
    assert spout.plan(EMPTY_BATCH, replay=True) == EMPTY_BATCH


def test_take_may_change_between_two_attempts() -> None:
    spout = OpaqueMemoryTransactionalSpout([DATA[2]], "word string", 5)
    assert spout.plan(EMPTY_BATCH, replay=False) == BatchMetadata({partition(0): span(0, 5)})
    spout.take = 4
    assert spout.plan(EMPTY_BATCH, replay=True) == BatchMetadata({partition(0): span(0, 4)})
    assert spout.take == 4


@pytest.mark.parametrize(
    ("data", "fields", "take", "error", "message"),
    [
        ([], "word string", 3, ConfigError, "at least one partition"),
        ([["cat"]], "word string", 3, ConfigError, "row 0 of partition 0 is 'cat', but a row is a tuple"),
        ([[("cat", 1)]], "word string", 3, ConfigError, "a value for each of the 1 fields 'word string'"),
        ([[("cat",)], [("dog",), ()]], "word string", 3, ConfigError, "row 1 of partition 1"),
        ([[("cat",)], [("dog",)]], "word long", 3, SchemaMismatch, r"'memory\[0\]' declares field 'word' as long"),
        ([[("cat",)]], "word text", 3, ConfigError, "unknown type 'text'"),
        ([[("cat",)]], "word string", 0, ConfigError, "take is the number of rows"),
        ([[("cat",)]], "word string", True, ConfigError, "take is the number of rows"),
        ({-1: []}, "word string", 3, ConfigError, "-1 is not such a number"),
        ({"a": []}, "word string", 3, ConfigError, "'a' is not such a number"),
    ],
)
def test_what_does_not_fit_is_reported_at_once(
    data: Any, fields: str, take: int, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        MemoryTransactionalSpout(data, fields=fields, take=take)
