"""Where rows stand in what comes: each row's own place, in the order of the rows, whatever Arrow makes groups of."""

from __future__ import annotations

from random import Random

import pyarrow as pa
import pytest

from state.delta.merging.places import left_over, places_in

ROWS = 3_000


def keys(random: Random, columns: int) -> list[tuple[int | str | None, ...]]:
    """Different ones, so many that their hashes collide; NULL among them."""
    words = [None, *(f"word-{number}" for number in range(2 * ROWS))]
    minutes = [None, *range(3)]
    every = [(word, minute) for word in words for minute in minutes] if columns == 2 else [(word,) for word in words]
    return random.sample(every, min(ROWS, len(every)))


def table(rows: list[tuple[int | str | None, ...]]) -> pa.Table:
    types = (pa.string(), pa.int64())[: len(rows[0])]
    columns = [pa.array(column, type_) for column, type_ in zip(zip(*rows, strict=True), types, strict=True)]
    return pa.table(columns, names=["word", "minute"][: len(types)])


@pytest.mark.parametrize("columns", [1, 2])
@pytest.mark.parametrize("seed", range(3))
def test_each_row_has_its_own_place(columns: int, seed: int) -> None:
    random = Random(seed)
    stored = keys(random, columns)
    coming = random.sample([*random.sample(stored, ROWS // 3), *(("new", *key[1:]) for key in [(0, 0)])], ROWS // 3)
    names = ("word", "minute")[:columns]
    found = places_in(table(stored), table([key[:columns] for key in coming]), names)
    at = {key[:columns]: place for place, key in enumerate(coming)}
    assert found.to_pylist() == [at.get(key) for key in stored]
    rest = left_over(table([key[:columns] for key in coming]), found.drop_null())
    assert rest.num_rows == len(at.keys() - set(stored))
