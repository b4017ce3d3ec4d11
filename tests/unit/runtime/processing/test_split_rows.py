"""Rows of a step in the order in which its tasks give them."""

from __future__ import annotations

import pyarrow as pa

from transactional.runtime.processing.split_rows import sort_like_job

ROWS = pa.table({"word": ["b", "a", "b"], "n": [1, 2, 0]})


def test_each_task_has_its_rows_in_the_order_of_the_key() -> None:
    found = sort_like_job(ROWS, ("word",), 1, ("word", "n"))
    assert found.to_pylist() == [{"word": "a", "n": 2}, {"word": "b", "n": 0}, {"word": "b", "n": 1}]


def test_rows_without_a_key_stay_as_they_are() -> None:
    assert sort_like_job(ROWS, (), 3) == ROWS
