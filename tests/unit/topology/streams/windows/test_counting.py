"""Windows by count of a stream: full ones once, over batches and tasks, per key, overlapping, and what they are of."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spouts.memory import MemoryTransactionalSpout
from state.memory import MemoryMapState
from tests.examples import examples
from transactional.core.ports import StateKind
from transactional.errors import ConfigError
from transactional.testing import complete_topology
from transactional.topology.describing import describe_topology
from transactional.trident import (
    Avg,
    Collect,
    Combiner,
    Count,
    First,
    Last,
    Reducer,
    Stream,
    Sum,
    TridentTopology,
    collected,
    count,
)

FIELDS = "user string, n long"
Rows = Sequence[tuple[Any, int]]


def clicks(*partitions: Rows, take: int = 3, parallelism: int = 1) -> tuple[TridentTopology, Stream]:
    topology = TridentTopology("clicks", parallelism=parallelism)
    return topology, topology.new_stream(
        "clicks", MemoryTransactionalSpout([[*rows] for rows in partitions], FIELDS, take)
    )


def run(topology: TridentTopology) -> None:
    complete_topology(topology.build(strict=True))


def rows_of(state: MemoryMapState) -> list[tuple[Any, ...]]:
    return sorted((tuple(row.values()) for row in state.read().to_pylist()), key=repr)


ANN_AND_BOB: Rows = [("ann", 1), ("ann", 2), ("bob", 3), ("ann", 4), ("ann", 5), ("bob", 6), ("ann", 7)]


@pytest.mark.parametrize("take", [1, 2, 3, 99])
def test_a_window_closes_with_its_last_tuple(take: int) -> None:
    topology, stream = clicks(ANN_AND_BOB, take=take)
    opened, closed = MemoryMapState(), MemoryMapState(("user", "window_start"))
    windows = stream.group_by("user").window(count(2))
    counts = windows.persistent_aggregate(opened, n=Sum("n"), first=First("n"), last=Last("n"), avg=Avg("n"))
    counts.closed().persist(closed, name="closed")
    run(topology)
    names = ["user", "window_start", "window_end", "n", "first", "last", "avg"]
    expected = [("ann", 0, 2, 3, 1, 2, 1.5), ("ann", 2, 4, 9, 4, 5, 4.5), ("bob", 0, 2, 9, 3, 6, 4.5)]
    assert sorted(tuple(row[name] for name in names) for row in closed.read().to_pylist()) == expected
    assert [row[:4] for row in rows_of(opened)] == [("ann", 4, 5, 7), ("bob", 0, 2, 9)]


def test_windows_of_all_tuples_and_of_a_key_that_is_null() -> None:
    topology, stream = clicks([(None, 1), ("ann", 2), (None, 4), ("ann", 8), (None, 16)], take=2)
    opened, closed, by_user = MemoryMapState(()), MemoryMapState("window_start"), MemoryMapState()
    stream.window(count(2)).persistent_aggregate(opened, n=Sum("n")).closed().persist(closed, name="closed")
    stream.group_by("user").window(count(2)).persistent_aggregate(by_user, n=Sum("n"), name="by_user")
    run(topology)
    assert rows_of(closed) == [(0, 2, 3), (2, 4, 12)]
    assert rows_of(opened) == [(4, 5, 16)]
    assert rows_of(by_user) == [("ann", 0, 2, 10), (None, 2, 3, 16)]


class Joined(Combiner):
    output = "path string"

    def init(self, row: Any) -> str:
        return str(row.n)

    def combine(self, one: str, other: str) -> str:
        return f"{one} {other}"


def windows_of(numbers: Sequence[int], length: int, every: int) -> dict[int, list[int]]:
    """By end; written out."""
    return {end: list(numbers[max(0, end - length) : end]) for end in range(every, len(numbers) + 1, every)}


@settings(max_examples=examples(25), deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(["ann", "bob"]), st.integers(0, 99)), max_size=25),
    st.integers(1, 6),
    st.integers(1, 6),
    st.integers(1, 9),
)
def test_they_are_what_lists_are(rows: Rows, one: int, other: int, take: int) -> None:
    length, every = max(one, other), min(one, other)
    topology, stream = clicks(rows, take=take)
    closed, ends = MemoryMapState(("user", "window_end")), defaultdict[str, list[int]](list)
    windows = stream.group_by("user").window(count(length, every=every))
    state = windows.persistent_aggregate(MemoryMapState(), Joined(), n=Count(), some=Collect("n"))
    state.closed().group_by("user", "window_end").persistent_aggregate(
        closed, start=Last("window_start"), path=Last("path"), n=Last("n"), some=Last("some"), times=Count()
    )
    run(topology)
    for user, n in rows:
        ends[user].append(n)
    expected = [
        (user, end, max(0, end - length), " ".join(map(str, its)), len(its), its, 1)
        for user, numbers in ends.items()
        for end, its in windows_of(numbers, length, every).items()
    ]
    found = [
        (*row[:5], [each["n"] for each in collected(row[5])], row[6])
        for row in (tuple(row.values()) for row in closed.read().to_pylist())
    ]
    assert sorted(found) == sorted(expected)


def test_tuples_count_task_by_task_and_in_a_task_as_they_come() -> None:
    topology, stream = clicks([("a", 1), ("a", 2)], [("a", 3), ("a", 4)], [("a", 5)], take=2, parallelism=3)
    closed = MemoryMapState("window_start")
    state = stream.window(count(5)).persistent_aggregate(MemoryMapState(()), Collect("n"))
    state.closed().persist(closed, name="closed")
    run(topology)
    [row] = closed.read().to_pylist()
    assert [each["n"] for each in collected(row["collect"])] == [1, 2, 3, 4, 5]


def test_early_results_are_the_newest_window_of_each_key() -> None:
    topology, stream = clicks([("a", 1), ("a", 2), ("a", 3), ("b", 4)], take=3)
    early = MemoryMapState(("user", "window_start", "window_end"))
    windows = stream.group_by("user").window(count(2)).persistent_aggregate(MemoryMapState(), n=Sum("n"))
    windows.new_values().persist(early, name="early")
    run(topology)
    assert rows_of(early) == [("a", 2, 3, 3), ("b", 0, 1, 4)]


def test_describe_shows_them() -> None:
    topology, stream = clicks([])
    windows = stream.group_by("user").window(count(100, every=10)).persistent_aggregate(MemoryMapState(), Count())
    windows.closed().persist(MemoryMapState(("user", "window_end")), name="closed")
    shown = str(describe_topology(topology.build()))
    assert "window(count(100, every=10))" in shown
    assert "its windows depend on one another" in shown


def test_the_tuples_of_a_batch_and_of_a_stream_are_collected() -> None:
    topology, stream = clicks(ANN_AND_BOB, take=4)
    all_, batches = MemoryMapState(), MemoryMapState(("user", "some"))
    stream.group_by("user").persistent_aggregate(all_, Collect())
    by_batch = stream.group_by("user").aggregate(some=Collect("n", limit=4))
    by_batch.group_by("user", "some").persistent_aggregate(batches, Count())
    run(topology)
    found = {row["user"]: collected(row["collect"]) for row in all_.read().to_pylist()}
    assert found["bob"] == [{"user": "bob", "n": 3}, {"user": "bob", "n": 6}]
    assert [each["n"] for each in found["ann"]] == [1, 2, 4, 5, 7]
    assert {(user, text.replace("\n", "")) for user, text, _ in rows_of(batches)} == {
        ("ann", '[{"n": 1},{"n": 2},{"n": 4}]'),
        ("bob", '[{"n": 3}]'),
        ("ann", '[{"n": 5},{"n": 7}]'),
        ("bob", '[{"n": 6}]'),
    }


class Longest(Reducer):
    output = "n long"

    def init(self) -> int:
        return 0

    def reduce(self, value: int, row: Any) -> int:
        return value + 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda s: s.window(count(0)), "count: length is 0; it is a number of tuples"),
        (lambda s: s.window(count(5, every=6)), "one after each 6, leave tuples out"),
        (lambda s: s.window(count(5), on="n"), r"window: on='n' names a time, and count\(5\) goes by none"),
        (lambda s: s.with_columns(window_end=1).window(count(5)), "has a field 'window_end', which windows add"),
        (lambda s: s.with_columns(pane=1).window(count(5, every=1)), "has a field 'pane', which windows add"),
        (
            lambda s: s.window(count(5)).persistent_aggregate(MemoryMapState(()), window_end=Count()),
            "windows have 'window_end'; give the aggregate another name",
        ),
        (
            lambda s: s.window(count(20_000, every=1)).persistent_aggregate(MemoryMapState(), Count()),
            r"windows of count\(20000, every=1\) are made of 20000 parts, more than 10000",
        ),
        (
            lambda s: s.window(count(5)).persistent_aggregate(MemoryMapState(()), Longest()),
            "windows are computed in parts, which a Reducer can't",
        ),
        (lambda s: s.window(count(5)).persistent_aggregate("tables", Count()), "takes a state such as"),
        (lambda s: s.window(count(5)).persistent_aggregate(MemoryMapState("user"), Count()), r"has the key \(user\)"),
        (lambda s: s.window(count(5)).persistent_aggregate(MemoryMapState(()), Count()).late(), "windows by count"),
        (
            lambda s: s.window(count(5)).persistent_aggregate(MemoryMapState(()), Count()).new_values(old=True),
            "old=True has no meaning for windows by count",
        ),
        (lambda s: s.window(100), "window takes a window such as"),
        (lambda s: s.aggregate(Collect("m")), r"Collect\('m', limit=1000\) uses field 'm', which the stream does not"),
        (lambda s: s.aggregate(Collect(limit=0)), "Collect: limit is 0; it is a number of tuples, from 1 to 100,000"),
    ],
)
def test_mistakes_are_reported_at_their_line(make: Any, message: str) -> None:
    _, stream = clicks([])
    with pytest.raises(ConfigError, match=message):
        make(stream)


def test_more_than_may_be_collected_is_refused_by_name() -> None:
    topology, stream = clicks(ANN_AND_BOB, take=2)
    state = MemoryMapState()
    stream.group_by("user").persistent_aggregate(state, some=Collect("n", limit=3))
    with pytest.raises(
        Exception, match=r"column 'some', key \('ann',\): Collect keeps at most 3 tuples, and there are 4"
    ):
        run(topology)
    assert {row["user"]: len(collected(row["some"])) for row in state.read().to_pylist()} == {"ann": 3, "bob": 1}


def test_states_that_keep_what_a_dead_attempt_has_written_are_refused() -> None:
    """Its windows may have had other tuples: a replay by two tasks has another order than one by one."""
    transactional = MemoryMapState(("user", "window_start"), kind=StateKind.TRANSACTIONAL)
    topology, stream = clicks([])
    windows = stream.group_by("user").window(count(5)).persistent_aggregate(MemoryMapState(), Count(), name="open")
    windows.closed().persist(transactional, name="closed")
    with pytest.raises(ConfigError, match=r"'closed' keeps a transactional state, and the windows of 'open' go by the"):
        topology.build()
    topology, stream = clicks([])
    own = MemoryMapState((), kind=StateKind.TRANSACTIONAL)
    stream.window(count(5)).persistent_aggregate(own, Count(), name="open")
    with pytest.raises(ConfigError, match=r"'open' keeps a transactional state.*Use kind=StateKind\.OPAQUE"):
        topology.build()
