"""Spouts of one's own: how batches are planned and emitted, what is carried forward, how mistakes are told."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pytest

from spouts.contract_reader import ROWS_PER_BATCH
from spouts.contract_spout import METADATA_CHARACTERS_MAX, as_json
from spouts.contracts import PartitionedTransactionalSpout, TransactionalSpout
from tests.unit.own_spouts import Numbers, OpaqueWordLists, Span, WordLists, Words, batches, span, tuples_of
from transactional import TransactionalTopologyBuilder
from transactional.batch import EMPTY_BATCH, BatchMetadata, Offset, OffsetRange, PartitionId
from transactional.errors import (
    BoltFailed,
    ConfigError,
    CorruptRecord,
    ReplayMismatch,
    SchemaMismatch,
    SourceUnavailable,
)


def words() -> Words:
    return {"a": ["cat", "dog", "chicken"], "b": ["cat"]}


def step(start: int, until: int) -> OffsetRange:
    return OffsetRange(Offset(start), Offset(until))


A, B = PartitionId("a", 0), PartitionId("b", 0)


class TestTransactionalSpout:
    """Storm row T8."""

    def test_batches_follow_each_other_and_every_part_emits_its_share(self) -> None:
        numbers = Numbers()
        spout = numbers.as_spout(3)
        first, second, third = batches(spout)
        assert [sorted(tuples_of(spout, batch)) for batch in (first, second, third)] == [
            [(0,), (1,), (2,), (3,)],
            [(4,), (5,), (6,), (7,)],
            [(8,), (9,)],
        ]
        assert tuples_of(spout, first) == [(0,), (3,), (1,), (2,)]
        assert numbers.asked == [None, span(0, 4), span(4, 8), span(8, 10)]

    def test_each_part_is_a_partition_that_counts_batches(self) -> None:
        _, second, _ = batches(Numbers().as_spout(2))
        assert second.ranges == {PartitionId("part", 0): step(1, 2), PartitionId("part", 1): step(1, 2)}

    def test_a_recorded_batch_is_emitted_without_asking_and_in_as_many_parts_as_it_had(self) -> None:
        """Storm row T20."""
        first, *_ = batches(Numbers().as_spout(3))
        restarted = Numbers()
        spout = restarted.as_spout(1)
        recorded = BatchMetadata.from_json(first.to_json())
        assert tuples_of(spout, recorded) == [(0,), (3,), (1,), (2,)]
        assert restarted.asked == []
        following = spout.plan(recorded, replay=False)
        assert following is not None
        assert tuples_of(spout, following) == [(4,), (5,), (6,), (7,)]
        assert restarted.asked == [span(0, 4)]

    def test_more_parts_than_before_go_on_with_the_same_numbers(self) -> None:
        first, *_ = batches(Numbers().as_spout(1))
        spout = Numbers().as_spout(3)
        following = spout.plan(first, replay=False)
        assert following is not None
        assert sorted(tuples_of(spout, following)) == [(4,), (5,), (6,), (7,)]

    def test_nothing_is_asked_for_as_long_as_it_is_not_ready(self) -> None:
        numbers = Numbers(ready=False)
        assert numbers.as_spout(1).plan(EMPTY_BATCH, replay=False) is None
        assert numbers.asked == []

    def test_it_is_told_of_each_batch_once_however_many_parts_that_has(self) -> None:
        """Storm row T9."""
        numbers = Numbers()
        spout = numbers.as_spout(3)
        for batch in batches(spout):
            spout.committed(batch)
        spout.committed(EMPTY_BATCH)
        assert numbers.told == [span(0, 4), span(4, 8), span(8, 10)]


class TestPartitions:
    """Storm rows T10 and T11: where both kinds are alike."""

    @pytest.mark.parametrize("kind", [WordLists, OpaqueWordLists])
    def test_each_partition_goes_on_from_its_own_metadata(self, kind: type[WordLists | OpaqueWordLists]) -> None:
        lists = kind(words())
        spout = lists.as_spout(1)
        first, second = batches(spout)
        assert tuples_of(spout, first) == [("cat",), ("dog",), ("cat",)]
        assert tuples_of(spout, second) == [("chicken",)]
        assert lists.asked[:4] == [("a", None), ("b", None), ("a", span(0, 2)), ("b", span(0, 1))]
        assert second.ranges == {A: step(1, 2), B: step(1, 1)}

    def test_a_partition_with_nothing_keeps_its_metadata(self) -> None:
        """Storm rows T43 and T50: also over batches that have nothing of it."""
        lists = WordLists(words(), take=1)
        spout = lists.as_spout(1)
        *_, third = batches(spout)
        assert third.metadata == {A: span(2, 3), B: span(0, 1)}
        lists.words["b"].append("emu")
        fourth = spout.plan(third, replay=False)
        assert fourth is not None
        assert tuples_of(spout, fourth) == [("emu",)]
        assert fourth.ranges == {A: step(3, 3), B: step(1, 2)}

    def test_a_partition_that_vanishes_goes_on_where_it_was_when_it_comes_back(self) -> None:
        """Storm row T46."""
        lists = WordLists(words())
        spout = lists.as_spout(1)
        first = spout.plan(EMPTY_BATCH, replay=False)
        away = lists.words.pop("a")
        lists.words["b"].append("emu")
        assert first is not None
        second = spout.plan(first, replay=False)
        lists.words["a"] = away
        assert second is not None
        third = spout.plan(second, replay=False)
        assert third is not None
        assert [tuples_of(spout, batch) for batch in (second, third)] == [[("emu",)], [("chicken",)]]

    def test_a_partition_joins_with_the_first_batch_that_has_something_of_it(self) -> None:
        """Storm row T45: a replay of a recorded batch does not have it."""
        lists = WordLists({"a": ["cat"], "b": []})
        spout = lists.as_spout(1)
        first = spout.plan(EMPTY_BATCH, replay=False)
        assert first is not None
        assert set(first.ranges) == {A}
        lists.words["b"].append("emu")
        assert tuples_of(spout, BatchMetadata.from_json(first.to_json())) == [("cat",)]
        second = spout.plan(first, replay=False)
        assert second is not None
        assert second.ranges == {A: step(1, 1), B: step(0, 1)}

    def test_an_opaque_replay_asks_again_from_where_the_batch_before_ends(self) -> None:
        """Storm row T11 and seed 004's story: 1-40 instead of 1-50, and then 41-90."""
        lists = OpaqueWordLists(words())
        spout = lists.as_spout(1)
        lists.take = 1
        lists.words.pop("b")
        replay = spout.plan(EMPTY_BATCH, replay=True)
        assert replay is not None
        assert tuples_of(spout, replay) == [("cat",)]
        following = spout.plan(replay, replay=False)
        assert following is not None
        assert tuples_of(spout, following) == [("dog",)]

    def test_an_opaque_replay_may_be_empty_and_does_not_wait_until_it_is_ready(self) -> None:
        """Storm row T43."""
        lists = OpaqueWordLists(words(), ready=False)
        spout = lists.as_spout(1)
        assert spout.plan(EMPTY_BATCH, replay=False) is None
        first = spout.plan(EMPTY_BATCH, replay=True)
        assert first is not None
        lists.words = {}
        assert spout.plan(first, replay=True) == BatchMetadata({A: step(1, 1), B: step(1, 1)}, metadata=first.metadata)

    def test_it_is_told_of_the_partitions_that_a_batch_has_something_of(self) -> None:
        """Storm row T9."""
        lists = WordLists(words())
        spout = lists.as_spout(1)
        for batch in [*batches(spout), EMPTY_BATCH]:
            spout.committed(batch)
        assert lists.told == [{"a": span(0, 2), "b": span(0, 1)}, {"a": span(2, 3)}]


class Meddling(WordLists):
    """Changes what it is given."""

    def next_batch(self, partition: str, previous: Span | None) -> Span | None:
        found = super().next_batch(partition, dict(previous) if previous else None)
        if previous is None or found is None:
            return found
        previous.update(found)
        return previous

    def emit_partition_batch(self, partition: str, metadata: Span) -> Iterator[Any]:
        emitted = super().emit_partition_batch(partition, dict(metadata))
        metadata["start"] = -1
        return emitted

    def committed(self, metadata: Mapping[str, Span]) -> None:
        for each in metadata.values():
            each["start"] = -1


def test_what_is_recorded_stays_so_whatever_user_code_does_to_what_it_is_given() -> None:
    spout = Meddling(words()).as_spout(1)
    first, second = batches(spout)
    for batch in (first, second):
        tuples_of(spout, batch)
        spout.committed(batch)
    assert first.metadata == {A: span(0, 2), B: span(0, 1)}
    assert second.metadata == {A: span(2, 3), B: span(0, 1)}


class Connected(WordLists):
    """Holds something in the driver that can't be pickled."""

    def open(self) -> None:
        self.connection = threading.Lock()


def test_what_is_opened_in_the_driver_stays_there() -> None:
    contract = Connected(words())
    spout = contract.as_spout(1)
    spout.open()
    copied = pickle.loads(pickle.dumps(spout.reader()))
    assert not hasattr(copied.contract, "connection")
    assert contract.connection is not None


def test_the_identity_has_what_the_contract_adds() -> None:
    class Placed(WordLists):
        def identity(self) -> Mapping[str, str]:
            return {"place": "here"}

    assert Placed({}).as_spout(1).identity() == {"kind": "Placed", "fields": "word string", "place": "here"}


# --- what is emitted ------------------------------------------------------------------------------------------------


class Emits(PartitionedTransactionalSpout[int]):
    """Emits what it is given, whatever that is."""

    output = "word string, count int"

    def __init__(self, emission: Any) -> None:
        self.emission = emission

    def partitions(self) -> list[str]:
        return ["a"]

    def next_batch(self, partition: str, previous: int | None) -> int:
        return 7

    def emit_partition_batch(self, partition: str, metadata: int) -> Any:
        return self.emission() if callable(self.emission) else self.emission


def read(emission: Any) -> list[pa.RecordBatch]:
    return list(Emits(emission).as_spout(1).reader().read(A, step(0, 1), 7))


def arrow(*rows: tuple[str, int]) -> pa.Table:
    return pa.table({"word": [word for word, _ in rows], "count": [count for _, count in rows]})


@pytest.mark.parametrize(
    "emission",
    [
        [("a", 1), ("b", 2), ("c", 3)],
        [["a", 1], arrow(("b", 2), ("c", 3))],
        [arrow(("a", 1)).to_batches()[0], ("b", 2), arrow(("c", 3))],
        arrow(("a", 1), ("b", 2), ("c", 3)),
    ],
)
def test_tuples_and_record_batches_may_be_mixed_and_keep_their_order(emission: Any) -> None:
    found = read(emission)
    assert {batch.schema for batch in found} == {pa.schema([("word", pa.string()), ("count", pa.int32())])}
    assert [row for batch in found for row in batch.to_pylist()] == arrow(("a", 1), ("b", 2), ("c", 3)).to_pylist()


def test_many_tuples_come_in_several_record_batches() -> None:
    found = read([("a", number) for number in range(ROWS_PER_BATCH + 1)])
    assert [batch.num_rows for batch in found] == [ROWS_PER_BATCH, 1]


def test_nothing_may_be_emitted() -> None:
    assert read([]) == []


def raises(error: Exception) -> Any:
    def emission() -> Iterator[tuple[str, int]]:
        yield ("a", 1)
        raise error

    return emission


WHERE = "Emits.emit_partition_batch for partition 'a' "


@pytest.mark.parametrize(
    ("emission", "error", "message"),
    [
        (None, SchemaMismatch, WHERE + "must yield tuples or record batches, it returned None"),
        ("ab", SchemaMismatch, WHERE + "must yield tuples or record batches, it returned 'ab'"),
        (["ab"], SchemaMismatch, WHERE + "must yield tuples or record batches, it yielded 'ab'"),
        ([("a",)], SchemaMismatch, WHERE + r"yielded 1 values, \('a',\), but a tuple has one for each of the 2 fields"),
        ([("a", "b")], SchemaMismatch, "declares field 'count' as int and emitted something else"),
        ([pa.table({"word": ["a"]})], SchemaMismatch, "for partition 'a'.* declares the fields"),
        (raises(KeyError("x")), BoltFailed, WHERE + r"raised KeyError: 'x'\nTraceback"),
        (raises(SourceUnavailable("the disk is away")), SourceUnavailable, "^the disk is away$"),
    ],
)
def test_what_is_emitted_wrongly_is_told(emission: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        read(emission)


def test_a_batch_that_was_recorded_by_something_else_is_refused() -> None:
    reader = WordLists(words()).as_spout(1).reader()
    with pytest.raises(CorruptRecord, match=r"for partition 'a': the recorded batch .* has no metadata"):
        list(reader.read(A, step(0, 1), None))
    with pytest.raises(ReplayMismatch, match="one step"):
        list(reader.read(A, step(0, 2), span(0, 2)))


# --- metadata and other mistakes ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value", [0, False, "", [], {}, {"a": [1, 2.5, None, {"b": "c"}]}, [True, "é"], "x" * (METADATA_CHARACTERS_MAX - 2)]
)
def test_what_json_keeps_is_kept(value: Any) -> None:
    """Storm row T58."""
    assert as_json("Spout.next_batch", value) == value


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ((1, 2), r"returned \(1, 2\), which JSON gives back as \[1, 2\]; return dictionaries with text as keys"),
        ({1: "a"}, r"returned \{1: 'a'\}, which JSON gives back as \{'1': 'a'\}"),
        ({"a": {1, 2}}, "metadata that are not JSON: Object of type set is not JSON serializable"),
        (float("nan"), "metadata that are not JSON: Out of range float"),
        (b"a", "metadata that are not JSON: Object of type bytes"),
        ("x" * METADATA_CHARACTERS_MAX, "metadata of 1000002 characters, at most 1000000 are kept per partition"),
    ],
)
def test_what_json_does_not_keep_is_told(value: Any, message: str) -> None:
    """Storm row T58."""
    with pytest.raises(ConfigError, match=message):
        as_json("Spout.next_batch", value)


class Answers(WordLists):
    """Its driver's side is the test's."""

    def __init__(self, **answers: Any) -> None:
        super().__init__(words())
        self.answers = answers

    def partitions(self) -> Any:
        return self.answers.get("partitions", ["a"])

    def next_batch(self, partition: str, previous: Any) -> Any:
        answer = self.answers.get("next_batch")
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.mark.parametrize(
    ("answers", "error", "message"),
    [
        ({"partitions": 3}, ConfigError, r"Answers.partitions returned 3; it has to return the partitions' names"),
        ({"partitions": [0, 1]}, ConfigError, r"Answers.partitions returned \[0, 1\]"),
        ({"partitions": "abc"}, ConfigError, "Answers.partitions returned 'abc'"),
        ({"next_batch": (1,)}, ConfigError, "Answers.next_batch for partition 'a' returned"),
        ({"next_batch": OSError("gone")}, BoltFailed, "Answers.next_batch for partition 'a' raised OSError: gone\nTra"),
        ({"next_batch": SourceUnavailable("later")}, SourceUnavailable, "^later$"),
    ],
)
def test_what_the_drivers_side_does_wrongly_is_told(
    answers: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        Answers(**answers).as_spout(1).plan(EMPTY_BATCH, replay=False)


def test_an_output_that_is_missing_or_wrong_is_told_by_the_builder() -> None:
    class Forgetful(Numbers):
        output = ""

    class Misspelt(Numbers):
        output = "number lang"

    with pytest.raises(ConfigError, match="spout Forgetful declares no output"):
        TransactionalTopologyBuilder("t", "numbers", Forgetful())
    with pytest.raises(ConfigError, match="the output of spout Misspelt is declared wrongly: unknown type 'lang'"):
        TransactionalTopologyBuilder("t", "numbers", Misspelt())


def test_a_class_instead_of_an_instance_is_told_by_the_builder() -> None:
    with pytest.raises(ConfigError, match=r"is the class Numbers; give an instance: Numbers\(…\)"):
        TransactionalTopologyBuilder("t", "numbers", Numbers)  # type: ignore[arg-type]


def test_a_contract_that_lacks_a_method_can_not_be_made() -> None:
    class Half(TransactionalSpout[int]):
        output = "number long"

    with pytest.raises(TypeError, match="emit_batch"):
        Half()  # type: ignore[abstract]
