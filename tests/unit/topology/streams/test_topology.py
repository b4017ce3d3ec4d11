"""Mistakes are told at the line that makes them, in one line, with the names there are (Storm row R5)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from spouts.memory import MemoryTransactionalSpout, OpaqueMemoryTransactionalSpout
from state.memory import MemoryMapState, MemoryTable
from tests.unit.topology.streams.shapes import PAIR_ROWS, PAIRS, Word, lines
from tests.unit.topology.streams.test_streams import Ends, Longest, Path
from transactional.core.ports import StateKind
from transactional.errors import ConfigError
from transactional.model.user_code.tuples import Tuple
from transactional.trident import Avg, Combiner, Count, Max, Min, Stream, Sum, TridentTopology, field

LOCK = threading.Lock()


class Undeclared(Combiner):
    def init(self, row: Tuple) -> int:
        return 1

    def combine(self, one: int, other: int) -> int:
        return one + other


class Locked(Undeclared):
    output = "n int"

    def __init__(self) -> None:
        self.lock = LOCK


def pairs(topology: TridentTopology | None = None) -> Stream:
    return lines(topology or TridentTopology("pairs"), PAIR_ROWS, PAIRS)


def undeclared(row: Tuple) -> Any:
    return [(1,)]


async def asynchronous(row: Tuple) -> bool:
    return False


def generating(row: Tuple) -> Iterator[bool]:
    yield False


def odd(row: Tuple) -> list[complex]:
    return []


def needs_two(row: Tuple, other: int) -> Word:
    return Word("")


def state(name: str = "table") -> MemoryMapState:
    return MemoryMapState(table=MemoryTable(name))


def twice(stream: Stream, *names: str | None) -> None:
    for name in names:
        stream.group_by("word").persistent_aggregate(state("same"), Count(), name=name)


def same_table(stream: Stream) -> None:
    table = MemoryTable("same")
    for _ in "12":
        stream.group_by("word").persistent_aggregate(MemoryMapState(table=table), Count())


MISTAKES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "filter, unknown field": (
        lambda s: s.filter(field("wrod") == "the"),
        "filter uses field 'wrod', which the stream does not have; its fields are: word, n — did you mean 'word'?",
    ),
    "filter by a number": (lambda s: s.filter(field("n") + 1), "filter: add_checked(n, 1) is a long, not a condition"),
    "filter, other types": (
        lambda s: s.filter(field("word") > 1),
        "filter: (word > 1) can't be computed from 'word string, n long': ",
    ),
    "filter by text": (
        lambda s: s.filter("n > 1"),
        "filter takes a function of a row, or an expression such as field('n') > 1; got 'n > 1'",
    ),
    "with_columns, unknown": (
        lambda s: s.with_columns(m=field("m") * 2),
        "with_columns(m=…) uses field 'm', which the stream does not have",
    ),
    "with_columns, no type": (
        lambda s: s.with_columns(m=field("n").cast("uint8")),
        "Arrow type uint8 has no counterpart among the supported types; use .cast(…)",
    ),
    "with_columns, nothing": (lambda s: s.with_columns(), "with_columns() needs a field"),
    "project, unknown": (
        lambda s: s.project("word", "m"),
        "project uses field 'm', which the stream does not have; its fields are: word, n",
    ),
    "project, nothing": (lambda s: s.project(), "project() names no field; the stream's fields are: word, n"),
    "project, no name": (
        lambda s: s.project(field("n")),
        "project takes names of fields; got <pyarrow.compute.Expression n>",
    ),
    "project, twice": (lambda s: s.project("n", "n"), "field n is declared more than once in 'n long, n long'"),
    "rename, unknown": (lambda s: s.rename(new="m"), "rename uses field 'm'"),
    "rename, twice": (lambda s: s.rename(a="word", b="word"), "rename: field 'word' is given two names"),
    "with_columns of a function": (
        lambda s: s.with_columns(m=lambda t: t.n),
        "with_columns(m=…) takes an expression such as field('n') * 2, or a constant; got function",
    ),
    "with_columns of all rows": (
        lambda s: s.with_columns(m=pc.cumulative_sum(field("n"))),
        "with_columns(m=…): cumulative_sum(n) can't be computed from 'word string, n long'",
    ),
    "a time without a zone": (
        lambda s: s.with_columns(at=datetime(2025, 1, 1, tzinfo=UTC)).filter(field("at") > datetime(2025, 1, 1)),  # noqa: DTZ001
        "can't be computed from 'word string, n long, at timestamp': Cannot compare timestamp with timezone",
    ),
    "filter, asynchronous": (
        lambda s: s.filter(asynchronous),
        "filter(asynchronous): the function is asynchronous, so it would never run",
    ),
    "filter, a generator": (lambda s: s.filter(generating), "filter(generating): the function yields, and must return"),
    "group_by of a list": (
        lambda s: s.each(lambda t: [], "l array<int>").group_by("l"),
        "group_by: field 'l' is a array<int>, which can't be compared: use its parts",
    ),
    "rename, taken": (lambda s: s.rename(n="word"), "field n is declared more than once"),
    "each, not declared": (
        lambda s: s.each(undeclared),
        "each(undeclared): the fields that it makes are not declared; pass output='name type, …', or annotate",
    ),
    "flat_map, two arguments": (
        lambda s: s.flat_map(needs_two),
        "flat_map(needs_two): the function is called with one argument, a row: missing a required argument: 'other'",
    ),
    "map, wrong output": (
        lambda s: s.map(lambda t: t, "word strin"),
        "map(lambda): output='word strin' is declared incorrectly: unknown type 'strin' — did you mean 'string'?",
    ),
    "map, empty output": (lambda s: s.map(lambda t: t, ""), "map(lambda): output='' declares no field"),
    "each, taken": (
        lambda s: s.each(lambda t: 1, "n int"),
        "each(lambda): the stream has a field 'n' already; its fields are: word, n",
    ),
    "a lambda that can't be pickled": (
        lambda s: s.map(lambda t: (LOCK, t)),
        "sent to other processes: cannot pickle '_thread.lock' object: it is `LOCK`; create what it needs inside",
    ),
    "arrow on an empty batch": (
        lambda s: s.arrow(lambda b: b.select(["m"])),
        "arrow(lambda) fails on an empty batch of 'word string, n long': KeyError: ",
    ),
    "arrow to a type of its own": (
        lambda s: s.arrow(lambda b: pa.table({"x": pa.nulls(0)})),
        "arrow(lambda) fails on an empty batch",
    ),
    "partition_by, unknown": (lambda s: s.partition_by("m"), "partition_by uses field 'm'"),
    "partition_by, nothing": (
        lambda s: s.partition_by(),
        "partition_by() names no field; the stream's fields are: word, n",
    ),
    "partition by something": (
        lambda s: s.partition("n"),
        "partition takes an instance of a CustomStreamGrouping; got 'n'",
    ),
    "no tasks": (
        lambda s: s.parallelism_hint(0),
        "'parallelism_hint': parallelism is a number of tasks, at least 1; got 0",
    ),
    "group_by, unknown": (lambda s: s.group_by("m"), "group_by uses field 'm'"),
    "group_by, nothing": (lambda s: s.group_by(), "group_by() names no field; the stream's fields are: word, n"),
    "nothing to aggregate": (lambda s: s.aggregate(), "there is nothing to aggregate: pass Count()"),
    "an aggregate's class": (lambda s: s.aggregate(n=Count), "n=Count is a class; pass an instance: Count(…)"),
    "an aggregate's class, alone": (lambda s: s.aggregate(Count), "Count is a class; pass an instance: Count(…)"),
    "map without output": (
        lambda s: s.map(lambda row: (row.n,)).project("m"),
        "word, n; map(lambda) declares no fields of its own, so it keeps those of its rows: pass output=",
    ),
    "persist, grouped": (
        lambda s: s.group_by("word").persist(MemoryMapState("word")),
        "GroupedStream has no 'persist'; here it is `persist` of the stream, without group_by",
    ),
    "no aggregate": (lambda s: s.aggregate(n=len), "n=<built-in function len> is no aggregate such as Count()"),
    "aggregate, unknown": (
        lambda s: s.aggregate(m=Sum("m")),
        "partition_aggregate: m=Sum(field='m') uses field 'm', which the stream does not have",
    ),
    "a sum of text": (
        lambda s: s.aggregate(m=Sum("word")),
        "partition_aggregate: field 'word' is a string, which has no sum; use a number",
    ),
    "a minimum of a list": (
        lambda s: s.each(lambda t: [], "l array<int>").aggregate(m=Min("l")),
        "field 'l' is a array<int>, which has no order",
    ),
    "an aggregate called like its key": (
        lambda s: s.group_by("n").aggregate(n=Count()),
        "partition_aggregate: 'n' is a field that is grouped by; give the aggregate another name",
    ),
    "a state's sum of text": (
        lambda s: s.persistent_aggregate(state(), Sum("word")),
        "persistent_aggregate: field 'word' is a string, which has no sum",
    ),
    "a state's unknown field": (
        lambda s: s.persistent_aggregate(state(), Max("m")),
        "persistent_aggregate uses field 'm', which its input does not have; its fields are: word, n",
    ),
    "a state with another key": (
        lambda s: s.group_by("word").persistent_aggregate(MemoryMapState("n"), Count()),
        "has the key (n), and its update groups by (word)",
    ),
    "no state": (
        lambda s: s.persistent_aggregate("tables/words", Count()),
        "persistent_aggregate takes a state such as DeltaMapState('tables/words'); got 'tables/words'",
    ),
    "a state's class": (lambda s: s.persistent_aggregate(MemoryMapState, Count()), "got the class MemoryMapState"),
    "one table twice": (
        same_table,
        "persistent_aggregate: the state of 'same' keeps the same table; give each",
    ),
    "one name twice": (lambda s: twice(s, "a", "a"), "the state of 'a' keeps the same table"),
    "a name that is none": (lambda s: twice(s, "a b"), "state id 'a b' must be made of letters, digits and - _ ."),
    "an average's column": (
        lambda s: s.aggregate(sum_n=Count(), a=Avg("n")),
        "a=Avg(field='n') needs the column 'sum_n'; give yours another name",
    ),
    "an average of text": (
        lambda s: s.aggregate(Avg("word")),
        "partition_aggregate: field 'word' is a string, which has no sum; use a number",
    ),
    "a state that has the average": (
        lambda s: s.group_by("n").persistent_aggregate(state("other"), n=Avg("n")),
        "persistent_aggregate: the state has a column 'n'; give the one that is computed another name",
    ),
    "a reducer among others": (
        lambda s: s.persistent_aggregate(state(), Count(), path=Path()),
        "persistent_aggregate: reducers are computed apart from other aggregates; give count another state",
    ),
    "an aggregator that makes tuples": (
        lambda s: s.persistent_aggregate(state(), n=Ends()),
        "n=Ends() makes tuples of its own: pass it alone, without a name, to aggregate",
    ),
    "a combiner without output": (lambda s: s.aggregate(n=Undeclared()), "Undeclared(): output='' declares no field"),
    "a combiner with a lock": (
        lambda s: s.aggregate(Locked()),
        "sent to other processes: cannot pickle '_thread.lock' object: it is `self.lock`; create what it needs in its",
    ),
    "own aggregates for another key": (
        lambda s: s.group_by("n").persistent_aggregate(MemoryMapState("word"), Longest()),
        "has the key (word), and its update groups by (n): make them agree, or leave out the state's key",
    ),
    "first_n of nothing": (lambda s: s.first_n(0), "first_n takes a number of tuples, at least 1; got 0"),
    "first_n by what is unknown": (lambda s: s.first_n(1, "m"), "first_n uses field 'm', which the stream does not"),
    "min_by without an order": (
        lambda s: s.each(lambda t: [], "l array<int>").min_by("l"),
        "min_by: field 'l' is a array<int>, which has no order; it needs one",
    ),
    "persist without a key": (lambda s: s.persist(MemoryMapState()), "persist: the state has no key: declare it"),
    "persist with an unknown key": (lambda s: s.persist(MemoryMapState("m")), "persist uses field 'm', which the"),
    "persist of a key alone": (
        lambda s: s.persist(MemoryMapState(["word", "n"])),
        "persist: all fields of the stream are the key of the state; there must be another one",
    ),
    "persist into something": (
        lambda s: s.persist("rows"),
        "persist takes a state such as DeltaMapState('tables/words')",
    ),
    "partition_persist with something": (
        lambda s: s.partition_persist(state(), "update"),
        "partition_persist takes a function of rows and a state; got 'update'",
    ),
    "new values of what emits none": (
        lambda s: s.partition_persist(MemoryMapState("a int", "b int"), max).new_values(),
        "new_values: state 'memory' is updated by code of yours, which emits no values, because no output=",
    ),
    "old values of a reducer": (
        lambda s: s.persistent_aggregate(state(), Path()).new_values(old=True),
        "new_values: state 'table' is updated by code of yours, which emits no old values",
    ),
    "a state called like a stream": (
        lambda s: s.persistent_aggregate(state("lines"), Count()),
        "the state would be called 'lines', as its table is, and that is the name of another state, or of a stream",
    ),
    "merge of other fields": (
        lambda s: s.merge(s.project("n")),
        "merge: the streams have different fields: 'word string, n long' and 'n long'; use project",
    ),
    "merge with itself": (lambda s: s.merge(s), "merge: a stream is given twice"),
    "merge of nothing": (lambda s: s.merge(), "merge takes several streams, not 1"),
    "merge of a state": (
        lambda s: s.merge(s.persistent_aggregate(state(), Count())),
        "merge takes streams; got TridentState(",
    ),
    "streams of two topologies": (
        lambda s: s.merge(pairs(TridentTopology("other"))),
        "merge: a stream of topology 'other' is used in topology 'pairs': the streams of a topology, and those of",
    ),
    "a wrong name": (lambda s: s.named("a b"), "stream id 'a b' must be made of letters"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_reported_at_its_line(name: str) -> None:
    make, message = MISTAKES[name]
    with pytest.raises(ConfigError) as raised:
        make(pairs())
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_what_only_build_can_know() -> None:
    with pytest.raises(ConfigError, match="topology 'empty' has no stream: begin with new_stream"):
        TridentTopology("empty").build()
    topology = TridentTopology("words")
    stream = pairs(topology)
    with pytest.raises(ConfigError, match="topology 'words' keeps nothing, so it would have no effect"):
        topology.build()
    with pytest.raises(ConfigError, match="new_stream: 'lines' is taken; the streams of the topology are: lines"):
        topology.new_stream("lines", MemoryTransactionalSpout([[]], PAIRS, 1))
    stream.persistent_aggregate(MemoryMapState(kind=StateKind.TRANSACTIONAL), Count())
    assert topology.build(strict=True).id == "words"


def test_new_values_of_a_transactional_state_behind_an_opaque_spout_are_refused_if_strict() -> None:
    topology = TridentTopology("words")
    words = topology.new_stream("words", OpaqueMemoryTransactionalSpout([[]], "word string", 1))
    counts = words.group_by("word").persistent_aggregate(state(), Count())
    counts.new_values().persistent_aggregate(MemoryMapState(kind=StateKind.TRANSACTIONAL), Count())
    with pytest.raises(ConfigError, match="committer 'memory' keeps a transactional state behind the opaque spout"):
        topology.build(strict=True)


def test_names_of_states() -> None:
    stream = pairs()
    named = [stream.persistent_aggregate(MemoryMapState(), Count()).name for _ in range(3)]
    assert named == ["memory", "memory-2", "memory-3"]
    assert stream.persistent_aggregate(state("my table/s"), Count()).name == "s"
    counts = stream.group_by("word").persistent_aggregate(state("words"), Count(), name="other")
    assert (counts.name, str(counts.fields)) == ("other", "word string, count long")
    assert str(counts.new_values(old=True).fields) == "word string, count long, old_count long"
    assert repr(stream.with_columns(size=pc.utf8_length(field("word")))) == "Stream(word string, n long, size int)"
