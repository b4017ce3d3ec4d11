"""Batches: half-open ranges, positions carried forward, and the round trip through what is stored (row T58)."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transactional.errors import CorruptRecord
from transactional.model.attempt import AttemptId, TransactionAttempt, TxId
from transactional.model.batch import (
    EMPTY_BATCH,
    METADATA_VERSION,
    BatchMetadata,
    Digest,
    Offset,
    OffsetRange,
    PartitionId,
    PendingMessage,
)
from transactional.model.facts import BatchFacts, LastSeen, Listed, Listing
from transactional.model.letters import Exclusion

OFFSETS = st.integers(min_value=0, max_value=2**63 - 1)
PARTITIONS = st.builds(PartitionId, st.text(), st.integers(min_value=0, max_value=2**31 - 1))
RANGES = st.builds(lambda ends: OffsetRange(Offset(min(ends)), Offset(max(ends))), st.tuples(OFFSETS, OFFSETS))
DIGESTS = st.builds(Digest, OFFSETS, st.integers(min_value=0, max_value=2**32 - 1))


@st.composite
def batches(draw: st.DrawFn) -> BatchMetadata:
    """Any batch that a spout may plan, processed, in part or not at all."""
    ranges = draw(st.dictionaries(PARTITIONS, RANGES))
    processed = [partition for partition in ranges if draw(st.booleans())]
    return BatchMetadata(ranges, {partition: draw(DIGESTS) for partition in processed})


def offsets(start: int, until: int) -> OffsetRange:
    return OffsetRange(Offset(start), Offset(until))


A, B = PartitionId("a", 0), PartitionId("b", 0)
BATCH = BatchMetadata({B: offsets(3, 3), A: offsets(10, 12)}, {A: Digest(2, 99)})
FULL = BatchMetadata(
    BATCH.ranges,
    {A: Digest(2, 99, bytes=64)},
    metadata={B: {"file": "x"}},
    split_records=5,
    excluded=(Exclusion("bolt", "0123", "no"),),
)
LATEST = BatchMetadata(
    BATCH.ranges,
    {A: Digest(2, 99, bytes=64, event_us=7_000)},
    facts=BatchFacts(1_000, 5_000, previous_time_ms=900),
    event_times={B: LastSeen(6_000, 900), A: LastSeen(7_000, 1_000)},
    pending=(PendingMessage(A, Offset(11), 2, 1_400, "no"),),
    again=(PendingMessage(B, Offset(1), 1, 900),),
    lost=3,
    static_versions={"prices": "0e5f@7", "users": "12"},
)
LISTED = replace(LATEST, listed={B: Listed(900, Listing.EMPTY, is_awaited=False), A: Listed(1_000, Listing.AWAY)})


# --- values -------------------------------------------------------------------------------------------------------


def test_ids_start_at_one_and_order_by_txid_then_attempt() -> None:
    """Storm row T1."""
    first, second = TransactionAttempt(TxId(2), AttemptId(9)), TransactionAttempt(TxId(3), AttemptId(1))
    assert first < second
    assert str(first) == "2:9"
    for txid, attempt_id in ((0, 1), (1, 0), (-1, 1)):
        with pytest.raises(ValueError, match=f"start at 1, got {txid}:{attempt_id}"):
            TransactionAttempt(TxId(txid), AttemptId(attempt_id))


@pytest.mark.parametrize(("start", "until"), [(-1, 0), (2, 1), (-3, -1)])
def test_a_range_is_not_negative_and_not_backwards(start: int, until: int) -> None:
    with pytest.raises(ValueError, match=r"0 <= start <= until, got \["):
        offsets(start, until)


def test_an_empty_range_is_not_a_range_of_one_record() -> None:
    """Storm row K7b: there both were (N-1, N-1)."""
    assert len(offsets(5, 5)) == 0
    assert len(offsets(5, 6)) == 1
    assert BatchMetadata({A: offsets(5, 5)}).is_empty
    assert not BatchMetadata({A: offsets(5, 6)}).is_empty


def test_what_a_batch_shows_of_itself() -> None:
    assert BATCH.positions() == {A: 12, B: 3}
    assert list(BATCH.non_empty()) == [(A, offsets(10, 12))]
    assert BATCH.offset_count == 2
    assert BATCH.record_count == 2
    assert BatchMetadata(BATCH.ranges).record_count is None
    assert EMPTY_BATCH.is_empty
    assert EMPTY_BATCH.positions() == {}


def test_a_log_with_holes_has_fewer_records_than_offsets() -> None:
    read = BatchMetadata({A: offsets(0, 10)}).with_digests({A: Digest(7, 1)})
    assert (read.offset_count, read.record_count) == (10, 7)


def test_with_digests_leaves_the_original_alone() -> None:
    digests = {A: Digest(2, 1)}
    planned = BatchMetadata({A: offsets(0, 2)})
    read = planned.with_digests(digests)
    digests.clear()
    assert (planned.digests, read.digests) == ({}, {A: Digest(2, 1)})


def test_ranges_and_partitions_are_readable() -> None:
    assert f"{A} {offsets(1, 4)}" == "a[0] [1, 4)"


# --- the round trip -----------------------------------------------------------------------------------------------


@given(batches())
def test_what_is_written_is_what_is_read_back(batch: BatchMetadata) -> None:
    assert BatchMetadata.from_json(batch.to_json()) == batch


@given(batches())
def test_equal_batches_are_written_equally(batch: BatchMetadata) -> None:
    """What is stored does not depend on the order in which partitions were met."""
    backwards = BatchMetadata(dict(reversed(list(batch.ranges.items()))), dict(reversed(list(batch.digests.items()))))
    assert backwards.to_json() == batch.to_json()


def test_the_format_is_pinned() -> None:
    """Stores hold it for weeks: a change needs a new version number. Storm row K3."""
    assert METADATA_VERSION == 4
    assert FULL.to_json() == (
        '{"version": 4, "partitions": [["a", 0, 10, 12, 2, 99, 64], ["b", 0, 3, 3, null, null, null]], '
        '"metadata": [["b", 0, {"file": "x"}]], "split_records": 5, "excluded": [["bolt", "0123", "no"]]}'
    )
    assert LATEST.to_json() == (
        '{"version": 4, "partitions": [["a", 0, 10, 12, 2, 99, 64, 7000], ["b", 0, 3, 3, null, null, null]], '
        '"facts": [1000, 5000, 900, null], "event_times": [["a", 0, 7000, 1000], ["b", 0, 6000, 900]], '
        '"pending": [["a", 0, 11, 2, 1400, "no"]], "again": [["b", 0, 1, 1, 900, ""]], "lost": 3, '
        '"static_versions": {"prices": "0e5f@7", "users": "12"}}'
    )
    assert '"listed": [["a", 0, 1000, "no answer", true], ["b", 0, 900, "empty", false]]' in LISTED.to_json()


@pytest.mark.parametrize("batch", [FULL, LATEST, LISTED])
def test_all_of_a_batch_is_read_back(batch: BatchMetadata) -> None:
    read = BatchMetadata.from_json(batch.to_json())
    assert read == batch
    assert (read.digests[A].bytes, read.digests[A].event_us) == (64, batch.digests[A].event_us)


@pytest.mark.parametrize(
    ("start", "until", "size", "expected"),
    [
        (0, 10, None, [(0, 10)]),
        (0, 10, 4, [(0, 4), (4, 8), (8, 10)]),
        (3, 9, 4, [(3, 4), (4, 8), (8, 9)]),
        (4, 8, 4, [(4, 8)]),
        (5, 7, 4, [(5, 7)]),
        (5, 5, 4, []),
    ],
)
def test_long_ranges_are_cut_at_fixed_places(
    start: int, until: int, size: int | None, expected: list[tuple[int, int]]
) -> None:
    batch = BatchMetadata({A: offsets(start, until)}, split_records=size)
    assert [(part.start, part.until) for _, part in batch.portions()] == expected


def rows(*partitions: object) -> str:
    return json.dumps({"version": METADATA_VERSION, "partitions": list(partitions)})


CORRUPT = {
    "nothing": "",
    "not JSON": "{",
    "cut off": BATCH.to_json()[:-5],
    "null": "null",
    "a list": "[]",
    "a number": "7",
    "no version": '{"partitions": []}',
    "no partitions": '{"version": 4}',
    "partitions as a number": '{"version": 4, "partitions": 5}',
    "a row as a number": rows(5),
    "a short row": rows(["a", 0, 1, 2]),
    "a long row": rows(["a", 0, 1, 2, None, None, None, None, None]),
    "bytes without records": rows(["a", 0, 1, 2, None, None, 3]),
    "metadata as a number": json.dumps({"version": 4, "partitions": [], "metadata": 3}),
    "metadata of nobody": json.dumps({"version": 4, "partitions": [], "metadata": [[None, 0, 1]]}),
    "split at nothing": json.dumps({"version": 4, "partitions": [], "split_records": 0}),
    "split at a word": json.dumps({"version": 4, "partitions": [], "split_records": "ten"}),
    "half an exclusion": json.dumps({"version": 4, "partitions": [], "excluded": [["bolt", "0123"]]}),
    "an exclusion of a number": json.dumps({"version": 4, "partitions": [], "excluded": [["bolt", 1, "no"]]}),
    "half a fact": json.dumps({"version": 4, "partitions": [], "facts": [1]}),
    "a fact in words": json.dumps({"version": 4, "partitions": [], "facts": ["noon", None]}),
    "an event time of nobody": json.dumps({"version": 4, "partitions": [], "event_times": [[None, 0, 1]]}),
    "half of a listed partition": json.dumps({"version": 4, "partitions": [], "listed": [["a", 0, 1, "empty"]]}),
    "an unknown listing": json.dumps({"version": 4, "partitions": [], "listed": [["a", 0, 1, "full", True]]}),
    "a partition that is waited for by number": json.dumps(
        {"version": 4, "partitions": [], "listed": [["a", 0, 1, "empty", 1]]}
    ),
    "half a message": json.dumps({"version": 4, "partitions": [], "pending": [["a", 0, 1]]}),
    "a message without an offset": json.dumps({"version": 4, "partitions": [], "again": [["a", 0, None, 1, 1, ""]]}),
    "a loss in words": json.dumps({"version": 4, "partitions": [], "lost": "some"}),
    "versions in a list": json.dumps({"version": 4, "partitions": [], "static_versions": [["users", 1]]}),
    "half a version": json.dumps({"version": 4, "partitions": [], "static_versions": {"users": 0.5}}),
    "an offset as a word": rows(["a", 0, "one", 2, None, None, None]),
    "an offset that is missing": rows(["a", 0, None, 2, None, None, None]),
    "a range that runs backwards": rows(["a", 0, 2, 1, None, None, None]),
    "a negative offset": rows(["a", 0, -1, 1, None, None, None]),
    "records without checksum": rows(["a", 0, 0, 1, 1, None, 3]),
    "an infinite offset": '{"version": 4, "partitions": [["a", 0, 0, Infinity, null, null, null]]}',
    "half an offset": rows(["a", 0, 0.5, 2, None, None, None]),
    "an offset in quotes": rows(["a", 0, "1", 2, None, None, None]),
    "a partition twice": rows(["a", 0, 0, 2, None, None, None], ["a", 0, 2, 4, None, None, None]),
    "rows as strings": rows("a01234"),
    "checksum without records": rows(["a", 0, 0, 1, None, 5, 3]),
}


@pytest.mark.parametrize("text", CORRUPT.values(), ids=CORRUPT.keys())
def test_what_cannot_have_been_written_is_corrupt(text: str) -> None:
    with pytest.raises(CorruptRecord):
        BatchMetadata.from_json(text)


@given(st.text())
def test_any_text_is_a_batch_or_corrupt(text: str) -> None:
    with pytest.raises(CorruptRecord):
        BatchMetadata.from_json(text)


WRONG = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.just([1])


@given(
    st.integers(min_value=0, max_value=6),
    WRONG,
    st.sampled_from([["a", 0, 1, 2, 3, 4, 5], ["a", 0, 1, 2, None, None, None]]),
)
def test_a_row_with_one_wrong_value_is_read_as_it_stands_or_is_corrupt(
    position: int, value: object, row: list[object]
) -> None:
    text = rows([*row[:position], value, *row[position + 1 :]])
    try:
        batch = BatchMetadata.from_json(text)
    except CorruptRecord:
        return
    assert batch.to_json() == text


@pytest.mark.parametrize("version", [1, 3, 5])
def test_another_format_is_refused_and_both_are_named(version: int) -> None:
    with pytest.raises(CorruptRecord, match=rf"format {version}, and this release reads format 4 only: start with a"):
        BatchMetadata.from_json(FULL.to_json().replace('"version": 4', f'"version": {version}'))


def test_a_row_without_the_size_of_what_was_read_is_corrupt() -> None:
    with pytest.raises(CorruptRecord, match="incomplete"):
        BatchMetadata.from_json(rows(["a", 0, 10, 12, 2, 99]))


def test_the_error_shows_the_beginning_of_what_was_stored() -> None:
    with pytest.raises(CorruptRecord, match="the recorded batch 'garbage' is not readable"):
        BatchMetadata.from_json("garbage")
