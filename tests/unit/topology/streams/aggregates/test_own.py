"""Aggregates of one's own beside those of Arrow: rows stay together, whatever the order of Arrow's groups."""

from __future__ import annotations

from collections import defaultdict
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from transactional.model.aggregates import Sum
from transactional.model.aggregates.sums import reduce_rows
from transactional.model.arrow import arrow_schema
from transactional.model.schema import Schema
from transactional.model.user_code.tuples import Tuple
from transactional.topology.streams.aggregates import own
from transactional.topology.streams.aggregates.own import Combiner, OwnAggregator, group_rows

INPUT = Schema.parse("word string, minute double, n long")


class Longest(Combiner):
    """The numbers of a key, one after the other."""

    output = "numbers string"

    def init(self, row: Tuple) -> Any:
        return str(row["n"])

    def combine(self, one: Any, other: Any) -> Any:
        return f"{one},{other}"


def rows(seed: int, many: int) -> list[tuple[Any, ...]]:
    random = Random(seed)
    words, minutes = [None, *(f"word-{number}" for number in range(many // 3))], [None, 0.0, -0.0, float("nan"), 1.0]
    return [(random.choice(words), random.choice(minutes), number) for number in range(many)]


def table(rows: list[tuple[Any, ...]]) -> pa.Table:
    schema = arrow_schema(INPUT)
    arrays = [pa.array(each, field.type) for each, field in zip(zip(*rows, strict=True), schema, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)


def key_of(row: tuple[Any, ...]) -> tuple[Any, str]:
    return row[0], "nan" if row[1] != row[1] else str(row[1]).lstrip("-")


def aggregator() -> OwnAggregator:
    key, values = INPUT.select(("word", "minute")), Schema.parse("total long, numbers string")
    return OwnAggregator(key, values, (("total", Sum("n")), ("numbers", Longest())), INPUT, "numbers")


def expected(rows: list[tuple[Any, ...]]) -> dict[Any, list[int]]:
    found = defaultdict(list)
    for row in rows:
        found[key_of(row)].append(row[2])
    return dict(found)


@pytest.mark.parametrize("order", [slice(None), slice(None, None, -1)], ids=["Arrow's groups", "the other way round"])
@pytest.mark.parametrize("many", [1, 20, 2_000])
def test_what_is_computed_apart_is_put_together_by_key(
    many: int, order: slice, monkeypatch: pytest.MonkeyPatch
) -> None:
    def in_another_order(*given: Any, **more: Any) -> pa.Table:
        found = reduce_rows(*given, **more)
        return found.take(list(range(found.num_rows))[order])

    monkeypatch.setattr(own, "reduce_rows", in_another_order)
    coming = rows(many, many)
    parts = [aggregator().partial(table(coming[at : at + 700]).to_batches()) for at in range(0, many, 700)]
    found = aggregator().combine(parts)
    wanted = expected(coming)
    assert [key_of(row) for row in zip(*(column.to_pylist() for column in found.columns), strict=True)] == list(wanted)
    for row, numbers in zip(found.to_pylist(), wanted.values(), strict=True):
        assert row["total"] == sum(numbers)
        assert row["numbers"] == ",".join(map(str, numbers))


@pytest.mark.parametrize("many", [0, 1, 9, 3_000])
def test_groups_come_in_the_order_of_their_first_rows(many: int) -> None:
    coming = rows(1, many)
    given = table(coming) if coming else arrow_schema(INPUT).empty_table()
    assert group_rows(given, ["word", "minute"]) == list(expected(coming).values())
