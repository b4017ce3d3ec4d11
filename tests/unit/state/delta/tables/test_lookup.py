"""Looking up the rows of some keys in copies of the segments of a log, and combining them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from state.delta.segments.log_layout import SegmentColumns
from state.delta.tables.lookup import Files, SegmentCopies, newest_rows
from state.rows.columns import StateColumns
from transactional.model.attempt import TxId
from transactional.model.schema import Schema

NAN, TXIDS = float("nan"), [1, 2, 3]


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ([1.0, 2.0, 3.0], {1.0: 1, 2.0: 2, 3.0: 4}),
        ([1.0, 2.0, 1.0], {1.0: 5, 2.0: 2}),
        ([None, 2.0, None], {None: 5, 2.0: 2}),
        ([NAN, 2.0, NAN], {"NaN": 5, 2.0: 2}),
        ([NAN, NAN, NAN], {"NaN": 7}),
    ],
)
def test_rows_of_one_key_are_one_row(keys: list[Any], expected: dict[Any, int]) -> None:
    """Whether or not all keys differ; NaN is one key, as NULL is."""
    columns: StateColumns = SegmentColumns(Schema.parse("key double"), Schema.parse("n long"), {}, False, None)
    rows = pa.table({"key": pa.array(keys, pa.float64()), "n": [1, 2, 4], columns.txid: TXIDS})
    found = newest_rows(rows, columns, {"n": "sum"}).to_pylist()
    named = {"NaN" if isinstance(each["key"], float) and math.isnan(each["key"]) else each["key"] for each in found}
    assert len(found) == len(named)
    assert {
        "NaN" if isinstance(each["key"], float) and math.isnan(each["key"]) else each["key"]: each["n"]
        for each in found
    } == expected


def copies_of(rows: pa.Table, batch_rows: int) -> SegmentCopies:
    """Of one segment, whose rows come in batches."""

    def load(txid: TxId, files: Files, *, is_small: bool) -> pa.RecordBatchReader:
        return rows.to_reader(max_chunksize=batch_rows)

    return SegmentCopies(("key",), load)


def searched(copies: SegmentCopies, rows: int, wanted: list[int | None]) -> pa.Table:
    segments = {TxId(1): (frozenset({"a"}), rows)}
    return copies.search(segments, pa.table({"key": pa.array(wanted, pa.int64())}))


@pytest.mark.parametrize("few_keys", [0, 100])
@pytest.mark.parametrize("piece_rows", [1, 2, 7, 100])
@pytest.mark.parametrize("seed", range(5))
def test_the_rows_of_wanted_keys_are_found_in_all_pieces(
    monkeypatch: pytest.MonkeyPatch, seed: int, piece_rows: int, few_keys: int
) -> None:
    monkeypatch.setattr("state.delta.tables.lookup.SORTED_ROWS_MIN", 0)
    monkeypatch.setattr("state.delta.tables.lookup.PIECE_ROWS", piece_rows)
    monkeypatch.setattr("state.delta.tables.lookup.FEW_KEYS", few_keys)
    random = Random(seed)
    keys: list[int | None] = [*sorted(random.sample(range(60), random.randrange(1, 40)))]
    keys += [None] * random.randrange(2)
    copies = copies_of(pa.table({"key": pa.array(keys, pa.int64()), "n": range(len(keys))}), random.randrange(1, 9))
    for many in (0, 1, 30, 60):
        wanted: list[int | None] = random.sample([*range(-1, 60), None], many)
        found = searched(copies, len(keys), wanted)
        assert dict(zip(found["key"].to_pylist(), found["n"].to_pylist(), strict=True)) == {
            key: number for number, key in enumerate(keys) if key in wanted
        }


def test_wide_rows_are_in_small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also lists of more than 2 GiB together, which Arrow does not put into one piece."""
    monkeypatch.setattr("state.delta.tables.lookup.PIECE_BYTES", 10_000)
    rows = 300_000
    copies = copies_of(pa.table({"key": range(rows), "n": range(rows)}), 1_000)
    assert searched(copies, rows, [5, rows - 1])["n"].to_pylist() == [5, rows - 1]
    [copy] = copies._copies.values()
    assert {len(piece) for piece in copy.rows.to_batches()} == {1_000}


@contextmanager
def counted_memory() -> Iterator[pa.MemoryPool]:
    """Arrow's, counted from here on."""
    before = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(before)
    pa.set_memory_pool(pool)
    try:
        yield pool
    finally:
        pa.set_memory_pool(before)


@pytest.mark.parametrize("wanted", [50, 500])
def test_a_search_takes_memory_for_what_is_wanted(monkeypatch: pytest.MonkeyPatch, wanted: int) -> None:
    monkeypatch.setattr("state.delta.tables.lookup.PIECE_ROWS", 10_000)
    rows = 400_000
    copies = copies_of(pa.table({"key": range(rows), "n": range(rows)}), 10_000)
    searched(copies, rows, [0])
    with counted_memory() as pool:
        assert searched(copies, rows, [*range(0, rows, rows // wanted)]).num_rows == wanted
        assert pool.max_memory() < 1 << 18, "the table has 6.4 million bytes"
