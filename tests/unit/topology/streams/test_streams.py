"""Aggregates of batches and of states, and what else ends a stream: each against its plain Python meaning.

Storm rows R7, R9, R10, R11, R18 and R19.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import cmp_to_key
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from spouts.memory import MemoryTransactionalSpout, OpaqueMemoryTransactionalSpout
from state.memory import MemoryMapState, MemoryTable
from tests.examples import examples
from tests.unit.topology.streams.shapes import PAIRS, emitted
from transactional.bolts import MapState, TopologyContext
from transactional.errors import FailedException
from transactional.model.config import TopologyConfig
from transactional.model.user_code.tuples import Tuple
from transactional.testing import complete_topology
from transactional.trident import (
    Avg,
    BatchAggregator,
    Combiner,
    Count,
    First,
    Last,
    Max,
    Min,
    Reducer,
    Stream,
    Sum,
    TridentTopology,
)

Rows = list[tuple[Any, ...]]


class Longest(Combiner):
    """The longest word, the first of several."""

    output = "longest string"

    def init(self, row: Tuple) -> str:
        return row.word or ""

    def combine(self, one: str, other: str) -> str:
        return other if len(other) > len(one) else one

    def zero(self) -> str:
        return ""


class Path(Reducer):
    """All words, one after the other."""

    output = "path string"

    def init(self) -> str:
        return ">"

    def reduce(self, value: str, row: Tuple) -> str:
        return value + (row.word or "-")


class Ends(BatchAggregator):
    """The first and the last n, and nothing of fewer than two tuples."""

    output = "end string, n long"

    def init(self) -> list[Any]:
        return []

    def aggregate(self, kept: list[Any], row: Tuple) -> list[Any]:
        return [*kept, row.n]

    def complete(self, kept: list[Any]) -> Iterable[tuple[Any, ...]]:
        return [("first", kept[0]), ("last", kept[-1])] if len(kept) > 1 else []


def known(rows: Rows) -> list[int]:
    return [n for _, n in rows if n is not None]


def summary(rows: Rows) -> tuple[Any, ...]:
    """count, sum, min, max, average, first, last, longest."""
    ns = known(rows)
    total, average = (sum(ns), sum(ns) / len(ns)) if ns else (None, None)
    longest = max((w or "" for w, _ in rows), key=len, default="")
    first, last = (rows[0][1], rows[-1][1]) if rows else (None, None)
    return len(rows), total, min(ns, default=None), max(ns, default=None), average, first, last, longest


def summarized(stream: Any, method: str) -> Stream:
    made: Stream = getattr(stream, method)(
        Count(),
        sum=Sum("n"),
        min=Min("n"),
        max=Max("n"),
        average=Avg("n"),
        first=First("n"),
        last=Last("n"),
        longest=Longest(),
    )
    return made


def by_word(rows: Rows) -> dict[Any, Rows]:
    groups = defaultdict(list)
    for row in rows:
        groups[row[0]].append(row)
    return dict(groups)


pair = st.tuples(st.none() | st.text("ab", max_size=2), st.none() | st.integers(-4, 4))
pairs = st.lists(pair, min_size=1, max_size=8)


@settings(max_examples=examples(30))
@given(pairs)
def test_aggregates_of_a_batch(rows: Rows) -> None:
    [found] = emitted(lambda s: summarized(s, "aggregate"), rows, PAIRS)
    expected = summary(rows)
    assert found == expected
    groups = [(word, *summary(group)) for word, group in by_word(rows).items()]
    for method in ("aggregate", "partition_aggregate"):
        assert emitted(lambda s, m=method: summarized(s.group_by("word"), m), rows, PAIRS) == groups  # type: ignore[misc]
    assert emitted(lambda s: summarized(s, "partition_aggregate"), rows, PAIRS) == [expected]


@settings(max_examples=examples(30))
@given(pairs)
def test_reducers_and_aggregators_see_the_tuples_in_order(rows: Rows) -> None:
    def path(group: Rows) -> str:
        return ">" + "".join(w or "-" for w, _ in group)

    assert emitted(lambda s: s.aggregate(Path(), n=Count()), rows, PAIRS) == [(path(rows), len(rows))]
    grouped = [(word, path(group)) for word, group in by_word(rows).items()]
    assert emitted(lambda s: s.group_by("word").aggregate(Path()), rows, PAIRS) == grouped
    ends = Ends().complete([n for _, n in rows])
    assert emitted(lambda s: s.aggregate(Ends()), rows, PAIRS) == ends
    of_groups = [(w, *end) for w, of in by_word(rows).items() for end in Ends().complete([n for _, n in of])]
    assert emitted(lambda s: s.group_by("word").aggregate(Ends()), rows, PAIRS) == of_groups


@settings(max_examples=examples(30))
@given(
    st.lists(st.tuples(st.text("ab", max_size=2), st.none() | st.floats(width=32)), min_size=1, max_size=6),
    st.integers(1, 3),
)
def test_tuples_that_come_first(rows: Rows, count: int) -> None:
    def size(row: tuple[Any, ...]) -> tuple[Any, ...]:
        return (row[1] is None, row[1] != row[1], 0 if row[1] != row[1] else row[1])

    def largest(row: tuple[Any, ...]) -> tuple[Any, ...]:
        return (row[1] is None, row[1] == row[1], 0 if row[1] is None or row[1] != row[1] else -row[1])

    fields, values = "word string, x double", [row for row in rows if row[1] is not None]
    shown = list(map(repr, sorted(rows, key=size)))
    assert list(map(repr, emitted(lambda s: s.first_n(count, "x"), rows, fields))) == shown[:count]
    shown = list(map(repr, sorted(rows, key=largest)))
    assert list(map(repr, emitted(lambda s: s.first_n(count, "x", descending=True), rows, fields))) == shown[:count]
    assert list(map(repr, emitted(lambda s: s.first_n(count), rows, fields))) == list(map(repr, rows[:count]))
    smallest = list(map(repr, sorted(values, key=size)[:1]))
    assert list(map(repr, emitted(lambda s: s.min_by("x"), rows, fields))) == smallest
    most = list(map(repr, sorted(values, key=largest)[:1]))
    assert list(map(repr, emitted(lambda s: s.max_by("x"), rows, fields))) == most


def test_an_empty_batch_has_one_row_of_nothing() -> None:
    rows = [("a", 1)]
    nothing = (0, 0, None, None, None, None, None, "")

    def none(stream: Stream) -> Stream:
        return stream.filter(lambda t: t.n > 1)

    assert emitted(lambda s: summarized(none(s), "aggregate"), rows, PAIRS, parallelism=3) == [nothing]
    assert emitted(lambda s: none(s).aggregate(Path()), rows, PAIRS, parallelism=3) == [(">",)]
    assert emitted(lambda s: none(s).group_by("word").aggregate(Path()), rows, PAIRS) == []


class Size(BatchAggregator):
    """The number of tuples."""

    output = "size long"

    def init(self) -> int:
        return 0

    def aggregate(self, kept: int, row: Tuple) -> int:
        return kept + 1

    def complete(self, kept: int) -> Iterable[tuple[Any, ...]]:
        return [(kept,)]


def test_each_task_without_tuples_has_one_row_of_nothing() -> None:
    """For all kinds of aggregates; by key there is no row, and `aggregate` has one of the batch."""
    rows = [("a", 1)]
    nothing = (0, 0, None, None, None, None, None, "")

    def parts(make: Callable[[Stream], Stream]) -> list[Any]:
        return emitted(lambda s: make(s.partition_by("word")), rows, PAIRS, parallelism=3)

    made = parts(lambda s: summarized(s, "partition_aggregate"))
    assert sorted(made, key=repr) == [nothing, nothing, summary(rows)]
    assert sorted(parts(lambda s: s.partition_aggregate(Path()))) == [(">",), (">",), (">a",)]
    assert sorted(parts(lambda s: s.partition_aggregate(Size()))) == [(0,), (0,), (1,)]
    assert parts(lambda s: s.global_().parallelism_hint(3).aggregate(Size())) == [(1,)]
    assert parts(lambda s: s.group_by("word").partition_aggregate(Size())) == [("a", 1)]


class Rank:
    """Ranks words as a list does that it is given before each batch; other words have no rank."""

    def prepare(self, context: TopologyContext) -> None:
        self.words = ["b", "a"]

    def __call__(self, row: Tuple) -> int | None:
        return self.words.index(row.word) if row.word in self.words else None


@settings(max_examples=examples(30))
@given(pairs)
def test_the_tuple_that_a_function_ranks_first_or_last(rows: Rows) -> None:
    ranks = {"b": 0, "a": 1}
    ranked = [row for row in rows if row[0] in ranks]
    first, last = ([pick(ranked, key=lambda row: ranks[row[0]])] if ranked else [] for pick in (min, max))
    assert emitted(lambda s: s.min_by(Rank()), rows, PAIRS) == first
    assert emitted(lambda s: s.max_by(Rank()), rows, PAIRS) == last


def test_the_tuple_that_a_comparator_puts_first() -> None:
    def compare(one: Tuple, other: Tuple) -> int:
        return len(one.word) - len(other.word)

    def by(row: Tuple) -> Any:
        return cmp_to_key(compare)(row)  # which itself can't be pickled

    rows = [("ab", 1), ("a", 2), ("b", 3)]
    assert emitted(lambda s: s.min_by(by), rows, PAIRS) == [("a", 2)]


class Flaky:
    """Fails an attempt at each tuple once, for some."""

    failed: set[str] = set()  # noqa: RUF012

    def __call__(self, row: Tuple) -> bool:
        place = str(tuple(row))
        if place not in self.failed and len(place) % 2:
            self.failed.add(place)
            raise FailedException(place)
        return True


def persisted(make: Callable[[Stream, Any], Any], rows: Rows, take: int, kind: Any) -> list[Any]:
    """What a state holds after batches whose attempts fail."""
    Flaky.failed.clear()
    topology, state = TridentTopology("pairs"), MemoryMapState()
    made = make(topology.new_stream("pairs", kind([rows], PAIRS, take)), state)
    made.new_values().filter(Flaky()).persistent_aggregate(MemoryMapState(), Count())
    complete_topology(topology.build(strict=True), config=TopologyConfig(attempts_max=99, retry_pause_ms=1))
    return sorted((tuple(row.values()) for row in state.read().to_pylist()), key=repr)


KINDS = st.sampled_from([MemoryTransactionalSpout, OpaqueMemoryTransactionalSpout])


@settings(max_examples=examples(30))
@given(pairs, st.integers(1, 4), KINDS)
def test_aggregates_in_a_state(rows: Rows, take: int, kind: Any) -> None:
    def make(stream: Stream, state: Any) -> Any:
        return stream.group_by("word").persistent_aggregate(
            state, Count(), first=First("n"), last=Last("n"), longest=Longest(), average=Avg("n")
        )

    def of(group: Rows) -> tuple[Any, ...]:
        count, total, *_, first, last, longest = summary(group)
        numbers = known(group)
        return count, first, last, longest, total, len(numbers), total / len(numbers) if numbers else None

    expected = sorted(((word, *of(group)) for word, group in by_word(rows).items()), key=repr)
    assert persisted(make, rows, take, kind) == expected


@settings(max_examples=examples(30))
@given(pairs, st.integers(1, 4), KINDS)
def test_reducers_in_a_state(rows: Rows, take: int, kind: Any) -> None:
    found = persisted(lambda s, state: s.group_by("word").persistent_aggregate(state, Path()), rows, take, kind)
    groups = by_word(rows).items()
    assert found == sorted(((word, ">" + "".join(w or "-" for w, _ in group)) for word, group in groups), key=repr)
    found = persisted(lambda s, state: s.persistent_aggregate(state, Path(), again=Path()), rows, take, kind)
    assert found == ([(">" + "".join(w or "-" for w, _ in rows),) * 2] if rows else [])


def test_the_average_is_among_the_new_values() -> None:
    topology = TridentTopology("pairs")
    rows = topology.new_stream("pairs", MemoryTransactionalSpout([[("a", 1), ("a", 2), ("b", None)]], PAIRS, 2))
    averages = rows.group_by("word").persistent_aggregate(MemoryMapState(), Avg("n"))
    averages.new_values(old=True).peek(hash).named("end").persistent_aggregate(MemoryMapState(), Count())
    found = complete_topology(topology.build(strict=True))["b-0-end"]
    assert [row.as_dict() for row in found] == [
        {"word": "a", "sum_n": 3, "count_n": 2, "old_sum_n": None, "old_count_n": None, "avg_n": 1.5},
        {"word": "b", "sum_n": None, "count_n": 0, "old_sum_n": None, "old_count_n": None, "avg_n": None},
    ]


def test_persist_keeps_the_last_tuple_of_a_key() -> None:
    rows = [("a", 1), ("b", 2), ("a", 3), ("b", None), ("c", 4)]

    topology, table = TridentTopology("pairs"), MemoryTable("rows")
    topology.new_stream("pairs", MemoryTransactionalSpout([rows], PAIRS, 3)).persist(
        MemoryMapState("word", table=table)
    )
    complete_topology(topology.build(strict=True))
    assert {key: value.value for key, value in table.rows.items()} == {("a",): (3,), ("b",): (None,), ("c",): (4,)}


def remember(rows: list[Tuple], state: MapState) -> list[tuple[Any, ...]]:
    """Appends the numbers of each word to what is stored."""
    found = []
    for row in rows:
        numbers = [*(state.get(row.word) or []), row.n]
        state.put(row.word, numbers)
        found.append((row.word, len(numbers)))
    return found


def test_partition_persist_calls_a_function_with_rows_and_state() -> None:
    table = MemoryTable("numbers")
    topology = TridentTopology("pairs", parallelism=2)
    rows = [("a", 1), ("b", 2), ("a", 3), ("a", 4)]
    pairs_ = topology.new_stream("pairs", MemoryTransactionalSpout([rows[:2], rows[2:]], PAIRS, 1))
    numbers = MemoryMapState("word string", "numbers array<long>", table=table)
    sizes = pairs_.partition_persist(numbers, remember, "word string, size int")
    sizes.new_values().peek(hash).named("end").persistent_aggregate(MemoryMapState(), Count())
    found = complete_topology(topology.build(strict=True))["b-0-end"]
    assert [tuple(row) for row in found] == [("a", 1), ("a", 2), ("b", 1), ("a", 3)]
    assert {key: value.value for key, value in table.rows.items()} == {("a",): ([1, 3, 4],), ("b",): ([2],)}
