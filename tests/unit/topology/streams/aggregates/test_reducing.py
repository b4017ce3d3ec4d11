"""`multi_reduce` of two and three streams, against plain Python; Storm row R2."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spouts.memory import MemoryTransactionalSpout
from state.memory import MemoryMapState
from tests.examples import examples
from tests.unit.topology.streams.shapes import PAIRS
from transactional.errors import ConfigError
from transactional.model.user_code.tuples import Tuple
from transactional.testing import complete_topology
from transactional.trident import Count, MultiReducer, Stream, TridentTopology, field

Rows = list[tuple[Any, ...]]
FIELDS = "side int, k string, l int, n long"


class Told(MultiReducer):
    """What it has seen, in order; and in a second tuple how much, if it was anything."""

    output = "told string, size int"

    def init(self) -> list[str]:
        return []

    def reduce(self, kept: list[str], stream: int, row: Tuple) -> list[str]:
        return [*kept, f"{stream}:{row[2]}"]

    def complete(self, kept: list[str]) -> Iterable[tuple[Any, ...]]:
        return [(" ".join(kept), 0), *([("", len(kept))] if kept else [])]


def reduced(rows: Rows, count: int, names: tuple[str, ...], parallelism: int = 1) -> Rows:
    """What is made of streams of the rows that are for each side."""
    topology = TridentTopology("reducing", parallelism=parallelism)
    all_ = topology.new_stream("rows", MemoryTransactionalSpout([[], []], FIELDS, 1))
    sides = [
        all_.filter(field("side") == at).project("k", "l", "n").rename(**{f"{name}{at}": name for name in "kln"})
        for at in range(count)
    ]
    given_ = [(side, *(f"{name}{at}" for name in names)) for at, side in enumerate(sides)]
    topology.multi_reduce(*given_, reducer=Told()).named("end").persistent_aggregate(MemoryMapState(), Count())
    made = topology.build(strict=True)
    [end] = [component.id for component in made.components if component.id.endswith("-multi_reduce")]
    return [tuple(row) for row in complete_topology(made, rows)[end]]


def meaning(rows: Rows, count: int, width: int) -> Rows:
    """By a dictionary."""
    groups: dict[Any, list[str]] = {} if width else {(): []}
    for at in range(count):
        for side, *key, n in rows:
            if side == at:
                groups.setdefault(tuple(key[:width]), []).append(f"{at}:{n}")
    return [(*key, *each) for key, seen in groups.items() for each in Told().complete(seen)]


row_of_side = st.tuples(
    st.integers(0, 2), st.none() | st.sampled_from("ab"), st.none() | st.integers(0, 1), st.integers(0, 9)
)


@settings(max_examples=examples(40))
@given(st.lists(row_of_side, min_size=1, max_size=9), st.integers(2, 3), st.sampled_from([(), ("k",), ("k", "l")]))
def test_the_tuples_of_a_key_come_stream_by_stream(rows: Rows, count: int, names: tuple[str, ...]) -> None:
    assert reduced(rows, count, names) == meaning(rows, count, len(names))
    if names:
        found = reduced(rows, count, names, parallelism=2)
        assert sorted(found, key=repr) == sorted(meaning(rows, count, len(names)), key=repr)


def test_each_task_reduces_what_it_has() -> None:
    """Without keys; also where it has nothing."""
    assert sorted(reduced([(0, "a", 1, 5)], 2, (), parallelism=3)) == [("", 0), ("", 0), ("", 1), ("0:5", 0)]


def test_keys_that_group_by_takes_for_one_are_reduced_together() -> None:
    """0.0 and -0.0, NaN and NaN, NULL and NULL."""
    topology = TridentTopology("reducing")
    a = topology.new_stream("a", MemoryTransactionalSpout([[(0.0, 1, 1), (math.nan, 1, 2), (None, 1, 3)]], REALS, 9))
    b = topology.new_stream("b", MemoryTransactionalSpout([[(None, 1, 4), (-0.0, 1, 5), (math.nan, 1, 6)]], REALS, 9))
    reduced = topology.multi_reduce((a, "k"), (b.rename(q="k"), "q"), reducer=Told()).project("told").named("end")
    reduced.persistent_aggregate(MemoryMapState(), Count())
    made = topology.build(strict=True)
    [end] = [component.id for component in made.components if component.id.endswith("-end")]
    told = [row.told for row in complete_topology(made)[end]]
    assert [each for each in told if each] == ["0:1 1:5", "0:2 1:6", "0:3 1:4"]


REALS = "k double, l int, n long"
MISTAKES: dict[str, tuple[Callable[[TridentTopology, Stream, Stream], Any], str]] = {
    "one stream": (
        lambda t, a, b: t.multi_reduce(a, reducer=Told()),
        "multi_reduce takes several streams, not 1: multi_reduce((orders, 'customer'), (payments, 'payer'), reducer=…)",
    ),
    "a class": (
        lambda t, a, b: t.multi_reduce(a, b, reducer=Told),  # type: ignore[arg-type]
        "multi_reduce takes an instance of a MultiReducer as reducer=; got <class ",
    ),
    "other numbers of fields": (
        lambda t, a, b: t.multi_reduce((a, "word"), b, reducer=Told()),
        "multi_reduce: each stream must be given as many fields to compare: (word) and ()",
    ),
    "other types": (
        lambda t, a, b: t.multi_reduce((a, "word"), (b, "m"), reducer=Told()),
        "multi_reduce: word string and m long can't be compared",
    ),
    "no stream": (
        lambda t, a, b: t.multi_reduce(a, "word", reducer=Told()),  # type: ignore[arg-type]
        "multi_reduce takes streams with their fields: multi_reduce((orders, 'customer'), (payments, 'payer'), reducer",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_refused_where_they_are_made(name: str) -> None:
    make, message = MISTAKES[name]
    topology = TridentTopology("mine")
    pairs = topology.new_stream("pairs", MemoryTransactionalSpout([[]], PAIRS, 1))
    with pytest.raises(ConfigError) as error:
        make(topology, pairs, pairs.rename(other="word", m="n"))
    assert message in str(error.value)
