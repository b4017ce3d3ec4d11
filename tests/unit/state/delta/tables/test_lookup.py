"""Combining what a look-up has found in the segments of a log."""

from __future__ import annotations

import math
from typing import Any

import pyarrow as pa
import pytest

from state.delta.segments.folding import SegmentColumns
from state.delta.tables.lookup import newest_rows
from state.rows.columns import StateColumns
from transactional.schema import Schema

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
