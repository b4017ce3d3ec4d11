"""Spouts of one's own: what they may emit and keep, and how what they do wrongly is told by name."""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from spouts.contract_reader import ROWS_PER_BATCH
from spouts.contract_spout import METADATA_CHARACTERS_MAX, _store_metadata
from spouts.contracts import PartitionedTransactionalSpout, TransactionalSpout
from tests.unit.own_spouts import Numbers, WordLists, Words, span
from transactional import TransactionalTopologyBuilder
from transactional.errors import (
    BoltFailed,
    ConfigError,
    CorruptRecord,
    ReplayMismatch,
    SchemaMismatch,
    SourceUnavailable,
)
from transactional.model.batch import EMPTY_BATCH, Offset, OffsetRange, PartitionId


def words() -> Words:
    return {"a": ["cat", "dog", "chicken"], "b": ["cat"]}


def step(start: int, until: int) -> OffsetRange:
    return OffsetRange(Offset(start), Offset(until))


A, B = PartitionId("a", 0), PartitionId("b", 0)


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


def raises(error: BaseException) -> Any:
    def emission() -> Iterator[tuple[str, int]]:
        yield ("a", 1)
        raise error

    return emission


WHERE = "Emits.emit_partition_batch for partition 'a' "


@pytest.mark.parametrize(
    ("emission", "error", "message"),
    [
        (None, SchemaMismatch, WHERE + "must yield tuples or record batches, but returned None"),
        ("ab", SchemaMismatch, WHERE + "must yield tuples or record batches, but returned 'ab'"),
        (["ab"], SchemaMismatch, WHERE + "must yield tuples or record batches, but yielded 'ab'"),
        ([("a",)], SchemaMismatch, WHERE + r"yielded 1 values, \('a',\), but a tuple has one for each of the 2 fields"),
        ([("a", "b")], SchemaMismatch, "declares field 'count' as int and emitted something else"),
        ([pa.table({"word": ["a"]})], SchemaMismatch, "for partition 'a'.* declares the fields"),
        (raises(KeyError("x")), BoltFailed, WHERE + r"raised KeyError: 'x' \(.*\)\nTraceback"),
        (raises(CancelledError("late")), BoltFailed, WHERE + r"raised CancelledError: late \(.*\)\nTraceback"),
        (raises(SourceUnavailable("the disk is away")), SourceUnavailable, "^the disk is away$"),
    ],
)
def test_what_is_emitted_wrongly_is_reported(emission: Any, error: type[Exception], message: str) -> None:
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
    assert _store_metadata("Spout.next_batch", value) == value


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ((1, 2), r"returned \(1, 2\), which JSON turns into \[1, 2\]; return dictionaries with text as keys"),
        ({1: "a"}, r"returned \{1: 'a'\}, which JSON turns into \{'1': 'a'\}"),
        ({"a": {1, 2}}, "metadata that are not JSON, .*: Object of type set is not JSON serializable"),
        (float("nan"), "metadata that are not JSON, nan: Out of range float"),
        (b"a", "metadata that are not JSON, b'a': Object of type bytes"),
        ("x" * METADATA_CHARACTERS_MAX, "metadata of 1000002 characters, at most 1000000 are kept per partition"),
    ],
)
def test_what_json_does_not_keep_is_reported(value: Any, message: str) -> None:
    """Storm row T58."""
    with pytest.raises(ConfigError, match=message):
        _store_metadata("Spout.next_batch", value)


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
        ({"partitions": 3}, ConfigError, r"Answers.partitions returned 3; it must return the partitions' names"),
        ({"partitions": [0, 1]}, ConfigError, r"Answers.partitions returned \[0, 1\]"),
        ({"partitions": "abc"}, ConfigError, "Answers.partitions returned 'abc'"),
        ({"next_batch": (1,)}, ConfigError, "Answers.next_batch for partition 'a' returned"),
        ({"next_batch": OSError("gone")}, BoltFailed, r"Answers.next_batch for partition 'a' raised OSError: gone \("),
        ({"next_batch": SourceUnavailable("later")}, SourceUnavailable, "^later$"),
    ],
)
def test_what_the_drivers_side_does_wrongly_is_reported(
    answers: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        Answers(**answers).as_spout(1).plan(EMPTY_BATCH, replay=False)


def test_an_output_that_is_missing_or_wrong_is_reported_by_the_builder() -> None:
    class Forgetful(Numbers):
        output = ""

    class Misspelt(Numbers):
        output = "number lang"

    with pytest.raises(ConfigError, match="spout Forgetful declares no output"):
        TransactionalTopologyBuilder("t", "numbers", Forgetful())
    with pytest.raises(ConfigError, match="the output of spout Misspelt is declared incorrectly: unknown type 'lang'"):
        TransactionalTopologyBuilder("t", "numbers", Misspelt())


def test_a_class_instead_of_an_instance_is_reported_by_the_builder() -> None:
    with pytest.raises(ConfigError, match=r"is the class Numbers; pass an instance: Numbers\(…\)"):
        TransactionalTopologyBuilder("t", "numbers", Numbers)  # type: ignore[arg-type]


def test_a_contract_that_lacks_a_method_can_not_be_made() -> None:
    class Half(TransactionalSpout[int]):
        output = "number long"

    with pytest.raises(TypeError, match="emit_batch"):
        Half()  # type: ignore[abstract]
