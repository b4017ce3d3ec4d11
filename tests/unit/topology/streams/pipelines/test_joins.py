"""Joins of the tuples of a batch, of two and three streams, against plain Python; Storm row R3."""

from __future__ import annotations

import math
import struct
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spouts.memory import MemoryTransactionalSpout
from state.memory import MemoryMapState
from tests.examples import examples
from tests.unit.topology.streams.shapes import PAIRS
from transactional.errors import ConfigError
from transactional.testing import complete_topology
from transactional.trident import Count, Stream, TridentTopology, field

Rows = list[tuple[Any, ...]]
FIELDS = "side int, k string, l int, v array<int>"


def sides(topology: TridentTopology, count: int) -> list[Stream]:
    """Streams of the rows that are for each side."""
    rows = topology.new_stream("rows", MemoryTransactionalSpout([[], []], FIELDS, 1))
    return [
        rows.filter(field("side") == at).project("k", "l", "v").rename(**{f"{name}{at}": name for name in "klv"})
        for at in range(count)
    ]


def joined(rows: Rows, count: int, how: Any, *, keep_all: bool, parallelism: int) -> Rows:
    topology = TridentTopology("joins", parallelism=parallelism)
    made = sides(topology, count)
    join = topology.join(*((s, f"k{at}", f"l{at}") for at, s in enumerate(made)), how=how, keep_all=keep_all)
    join.named("end").persistent_aggregate(MemoryMapState(), Count())
    topology_ = topology.build(strict=True)
    [end] = [c.id for c in topology_.components if c.id.endswith("-join")]
    return [tuple(row) for row in complete_topology(topology_, rows)[end]]


def meaning(rows: Rows, hows: list[str], *, keep_all: bool) -> Rows:
    """Nested loops."""
    tables = [[row[1:] for row in rows if row[0] == at] for at in range(len(hows) + 1)]
    found: list[tuple[Any, list[Any]]] = [(row[:2], [row]) for row in tables[0]]
    for before, (table, how) in enumerate(zip(tables[1:], hows, strict=True), 1):
        pairs, seen = list[tuple[Any, list[Any]]](), set[int]()
        for key, parts in found:
            matches = [at for at, row in enumerate(table) if None not in key and row[:2] == key]
            pairs += [(key, [*parts, table[at]]) for at in matches]
            seen.update(matches)
            if not matches and how in ("left", "outer"):
                pairs.append((key, [*parts, None]))
        if how in ("right", "outer"):
            pairs += [(row[:2], [*[None] * before, row]) for at, row in enumerate(table) if at not in seen]
        found = pairs
    nothing = (None, None, None)
    if keep_all:
        return [tuple(v for part in parts for v in part or nothing) for _, parts in found]
    return [(*key, *((part or nothing)[2] for part in parts)) for key, parts in found]


row_of_join = st.tuples(
    st.integers(0, 2),
    st.none() | st.sampled_from("ab"),
    st.none() | st.integers(0, 1),
    st.none() | st.lists(st.integers(0, 3), max_size=2),
)
hows = st.sampled_from(["inner", "left", "right", "outer"])


@settings(max_examples=examples(60))
@given(
    st.lists(row_of_join, min_size=1, max_size=9),
    st.lists(hows, min_size=1, max_size=2),
    st.booleans(),
    st.sampled_from([1, 2]),
)
def test_a_join_is_what_nested_loops_find(rows: Rows, how: list[str], keep_all: bool, parallelism: int) -> None:  # noqa: FBT001
    rows = [row for row in rows if row[0] <= len(how)] or [(0, "a", 1, [1])]
    found = joined(rows, len(how) + 1, how, keep_all=keep_all, parallelism=parallelism)
    assert sorted(map(repr, found)) == sorted(map(repr, meaning(rows, how, keep_all=keep_all)))


def test_rows_are_in_the_order_of_the_first_stream_then_of_the_others() -> None:
    """A hash join has an order of its own, which changes from one attempt to the next."""
    rows: Rows = [(at, "abc"[n * n % 3], n % 2, [n]) for n in range(60) for at in range(3)]
    for how in ("inner", "left"):
        found = joined(rows, 3, [how, how], keep_all=True, parallelism=1)
        assert found == meaning(rows, [how, how], keep_all=True)


def test_a_replay_has_the_same_order() -> None:
    rows: Rows = [(at % 2, "ab"[n % 2], n % 3, [n]) for n in range(40) for at in range(2)]
    assert joined(rows, 2, "outer", keep_all=True, parallelism=2) == joined(
        rows, 2, "outer", keep_all=True, parallelism=2
    )


@pytest.mark.parametrize("keep_all", [False, True])
@pytest.mark.parametrize(("how", "matched"), [("inner", 6), ("left", 7), ("outer", 8)])
def test_keys_that_group_by_takes_for_one_are_joined(how: str, matched: int, keep_all: bool) -> None:  # noqa: FBT001
    """0.0 and -0.0 are one key, and so are all NaNs; NULL is none."""
    other_nan = struct.unpack("<d", struct.pack("<Q", 0xFFF8000000000001))[0]
    topology = TridentTopology("joins", parallelism=2)
    left = [(0.0, 1), (-0.0, 2), (math.nan, 3), (None, 4)]
    right = [(-0.0, 10), (0.0, 20), (math.nan, 30), (other_nan, 40), (None, 50)]
    a = topology.new_stream("a", MemoryTransactionalSpout([left], "k double, n long", 9))
    b = topology.new_stream("b", MemoryTransactionalSpout([right], "q double, m long", 9))
    join = topology.join((a, "k"), (b, "q"), how=how, keep_all=keep_all).named("end")
    join.persistent_aggregate(MemoryMapState(), Count())
    topology_ = topology.build(strict=True)
    [end] = [c.id for c in topology_.components if c.id.endswith("-join")]
    found = complete_topology(topology_)[end]
    expected = {(1, 10), (1, 20), (2, 10), (2, 20), (3, 30), (3, 40)}
    assert {(row.n, row.m) for row in found if row.n and row.m} == expected
    assert len(found) == matched


def pairs(topology: TridentTopology) -> tuple[Stream, Stream]:
    pairs_ = topology.new_stream("pairs", MemoryTransactionalSpout([[]], PAIRS, 1))
    return pairs_, pairs_.rename(other="word", m="n")


MISTAKES: dict[str, tuple[Any, str]] = {
    "one stream": (lambda t, a, b: t.join((a, "n")), "join takes several streams, not 1"),
    "no fields": (
        lambda t, a, b: t.join(a, b),
        "join takes each stream with its fields, such as (orders, 'customer'); got Stream(word string, n long)",
    ),
    "an unknown field": (
        lambda t, a, b: t.join((a, "word"), (b, "word")),
        "join uses field 'word', which the stream does not have; its fields are: other, m",
    ),
    "other numbers of fields": (
        lambda t, a, b: t.join((a, "word", "n"), (b, "other")),
        "join: each stream must be given as many fields to compare: (word, n) and (other)",
    ),
    "other types": (
        lambda t, a, b: t.join((a, "word"), (b, "m")),
        "join: word string and m long can't be compared; make the types equal, for example by with_columns(m=field('m'",
    ),
    "itself": (lambda t, a, b: t.join((a, "word"), (a, "word")), "join: a stream is given twice"),
    "another kind": (
        lambda t, a, b: t.join((a, "n"), (b, "m"), how="full"),
        "join: how='full' must be one of inner, left, right, outer, or a list with one for each",
    ),
    "no kind": (lambda t, a, b: t.join((a, "n"), (b, "m"), how=None), "join: how=None must be one of inner, left,"),
    "a list of lists": (
        lambda t, a, b: t.join((a, "n"), (b, "m"), how=[["inner"]]),
        "join: how=[['inner']] must be one of inner, left,",
    ),
    "output as text": (
        lambda t, a, b: t.join((a, "n"), (b, "m"), output="abc"),
        "join: output is a list of names; got 'abc'",
    ),
    "lists": (
        lambda t, a, b: t.join((a.with_columns(v=pa.scalar([1])), "v"), (b.with_columns(w=pa.scalar([1])), "w")),
        "join: field 'v' is a array<long>, which can't be compared: use its parts",
    ),
    "too many kinds": (
        lambda t, a, b: t.join((a, "n"), (b, "m"), how=["inner", "left"]),
        "join: how=['inner', 'left'] must be one of",
    ),
    "equal names": (
        lambda t, a, b: t.join((a, "n"), (b.rename(word="other"), "m")),
        "join: several streams have a field word; rename it, or name all of them by output=: n, word, word",
    ),
    "too few names": (
        lambda t, a, b: t.join((a, "n"), (b, "m"), output=["n"]),
        "join: output has 1 names for 3 fields: n, word, other",
    ),
    "another topology": (
        lambda t, a, b: TridentTopology("other").join((a, "n"), (b, "m")),
        "join: a stream of topology 'mine' is used in topology 'other'",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_told_at_its_line(name: str) -> None:
    make, message = MISTAKES[name]
    topology = TridentTopology("mine")
    with pytest.raises(ConfigError) as raised:
        make(topology, *pairs(topology))
    assert message in str(raised.value)


def test_other_names() -> None:
    topology = TridentTopology("mine")
    first, second = pairs(topology)
    join = topology.join((first, "n"), (second.rename(word="other"), "m"), output=["n", "left", "right"])
    assert str(join.fields) == "n long, left string, right string"
