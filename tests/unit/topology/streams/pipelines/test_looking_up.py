"""Looking states up, in the topology that keeps them and in queries: against plain Python (Storm rows R5, R12, R28)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spouts.memory import MemoryTransactionalSpout, OpaqueMemoryTransactionalSpout
from state.memory import MemoryMapState, MemoryTable
from tests.examples import examples
from tests.unit.topology.streams.shapes import PAIRS
from transactional.bolts import ArrowBatchBolt, OutputCollector, TopologyContext
from transactional.errors import ConfigError, FailedException, TransactionalError
from transactional.model.attempt import TransactionAttempt
from transactional.model.config import TopologyConfig
from transactional.queries import QueryClient
from transactional.runtime.engine.driver import TopologyDriver
from transactional.runtime.executors.local import LocalExecutor
from transactional.testing import MemoryCoordinatorStore, complete_topology
from transactional.topology.builder import TransactionalTopologyBuilder
from transactional.topology.stages import plan_stages
from transactional.topology.steps import plan_steps
from transactional.topology.topology import Topology, previous_state
from transactional.trident import Avg, Count, Stream, Sum, TridentState, TridentTopology

Rows = list[tuple[Any, ...]]
pair = st.tuples(st.none() | st.text("ab", max_size=1), st.none() | st.integers(-4, 4))
pairs = st.lists(pair, min_size=1, max_size=8)
KINDS = st.sampled_from([MemoryTransactionalSpout, OpaqueMemoryTransactionalSpout])


class Flaky:
    """Fails an attempt at some tuples, once."""

    failed: set[str] = set()  # noqa: RUF012

    def __call__(self, row: Any) -> bool:
        place = str(tuple(row))
        if place not in self.failed and len(place) % 2:
            self.failed.add(place)
            raise FailedException(place)
        return True


def looked_up(rows: Rows, take: int, kind: Any, tasks: int, when: str) -> tuple[list[Any], Topology]:
    """Every tuple with what its word's state says, as a second state has it; attempts fail behind the look-up."""
    Flaky.failed.clear()
    topology = TridentTopology("pairs", parallelism=tasks)
    stream = topology.new_stream("pairs", kind([rows], PAIRS, take))
    counts = stream.group_by("word").persistent_aggregate(MemoryMapState(), count=Count(), total=Sum("n"))
    seen = MemoryMapState(table=MemoryTable("seen"))
    found = stream.state_query(counts, output=["before", "sum"], when=when).filter(Flaky())
    found.group_by("word", "n", "before", "sum").persistent_aggregate(seen, Count())
    made = topology.build(strict=True)
    complete_topology(made, config=TopologyConfig(attempts_max=99, retry_pause_ms=1))
    rows_seen = [tuple(row.values()) for row in seen.read().to_pylist()]
    return [row[:-1] for row in rows_seen for _ in range(row[-1])], made


@settings(max_examples=examples(40))
@given(pairs, st.integers(1, 4), KINDS, st.integers(1, 2), st.sampled_from(["after", "before"]))
def test_a_state_is_seen_after_its_transaction_or_before_it(
    rows: Rows, take: int, kind: Any, tasks: int, when: str
) -> None:
    """Exactly once, whatever fails."""
    found, topology = looked_up(rows, take, kind, tasks, when)
    expected = []
    for start in range(0, len(rows), take):
        until = start + take if when == "after" else start
        for word, n in rows[start : start + take]:
            known = [m for w, m in rows[:until] if w == word]
            ns = [m for m in known if m is not None]
            expected.append((word, n, len(known) or None, sum(ns) if ns else None))
    assert Counter(found) == Counter(expected)
    [bolt] = [component.id for component in topology.components if component.reads]
    assert plan_stages(topology).phase_text(bolt) == "processing + commit", (
        "it takes its tuples in its tasks, and looks up in the commit phase"
    )
    [driver_reason] = [step.driver_reason for step in plan_steps(topology) if step.component == bolt]
    assert driver_reason == "it looks up states"


def test_a_state_of_one_row() -> None:
    """Its key has no columns; here it is one of another spout's stream."""
    topology = TridentTopology("steps")
    stream = topology.new_stream("steps", MemoryTransactionalSpout([[(n,) for n in (3, 5, 4)]], "n long", 1))
    other = topology.new_stream("others", MemoryTransactionalSpout([[(1,)]], "n long", 1))
    sums = other.persistent_aggregate(MemoryMapState(), total=Sum("n"))
    seen = MemoryMapState(table=MemoryTable("seen"))
    stream.state_query(sums, on=(), when="before").group_by("n", "total").persistent_aggregate(seen, Count())
    complete_topology(topology.build())
    assert seen.read().sort_by("n").to_pylist() == [
        {"n": 3, "total": None, "count": 1},
        {"n": 4, "total": 1, "count": 1},
        {"n": 5, "total": 1, "count": 1},
    ]


def test_an_average_of_a_state_is_looked_up_as_one() -> None:
    """It is computed of what the state keeps."""
    topology = TridentTopology("pairs")
    stream = topology.new_stream("pairs", MemoryTransactionalSpout([[("a", 1), ("a", 2), ("b", None)]], PAIRS, 9))
    means = stream.group_by("word").persistent_aggregate(MemoryMapState(), mean=Avg("n"))
    seen = MemoryMapState(table=MemoryTable("seen"))
    stream.state_query(means).group_by("word").persistent_aggregate(seen, Count(), mean=Sum("mean"))
    complete_topology(topology.build())
    rows = {row["word"]: row["mean"] for row in seen.read().to_pylist()}
    assert rows == {"a": 3.0, "b": None}


def two() -> tuple[TridentTopology, Stream, TridentState]:
    """A topology with a state of words."""
    topology = TridentTopology("pairs")
    stream = topology.new_stream("pairs", MemoryTransactionalSpout([[]], PAIRS, 1))
    return topology, stream, stream.group_by("word").persistent_aggregate(MemoryMapState(), Count())


MISTAKES: dict[str, tuple[Callable[[TridentTopology, Stream, TridentState], Any], str]] = {
    "no state": (
        lambda t, s, c: s.state_query("counts"),  # type: ignore[arg-type]
        "state_query takes a state that persistent_aggregate or the like returned, or a table that was declared by",
    ),
    "another type": (
        lambda t, s, c: s.state_query(c, on="n"),
        "field 'n' is a long, and the key 'word' of state 'memory' is a string",
    ),
    "no such field": (
        lambda t, s, c: s.state_query(c, on="wrod"),
        "state_query uses field 'wrod', which the stream does not have",
    ),
    "another number of fields": (
        lambda t, s, c: s.state_query(c, on=("word", "n")),
        "state 'memory' has the key (word), and on= names 2 fields: word, n",
    ),
    "a field twice": (
        lambda t, s, c: s.with_columns(count=1).state_query(c),
        "the stream has a field 'count' already; name what state 'memory' gives by output=[…]: count",
    ),
    "other names": (
        lambda t, s, c: s.state_query(c, output=["a", "b"]),
        "output= has 2 names for 1 values: count",
    ),
    "when": (lambda t, s, c: s.state_query(c, when="later"), "when='later' is 'after' or 'before' the transaction"),
    "another topology": (
        lambda t, s, c: two()[1].state_query(c),
        "state 'memory' is one of topology 'pairs', not of topology 'pairs'",
    ),
    "a query that persists": (
        lambda t, s, c: t.query("q", "word string")(
            lambda q: q.group_by("word").persistent_aggregate(MemoryMapState(), Count())
        ),
        "persistent_aggregate: query 'q' only reads; keep a state in the topology itself",
    ),
    "a query with a spout's stream": (
        lambda t, s, c: t.query("q", PAIRS)(lambda q: q.merge(s)),
        "merge: a stream of topology 'pairs' is used in query 'q'",
    ),
    "a query joined with a spout's stream": (
        lambda t, s, c: t.query("q", PAIRS)(lambda q: t.join((s, "word"), (q, "word"))),
        "join: a stream of topology 'pairs' is used in query 'q'",
    ),
    "a query that returns another stream": (
        lambda t, s, c: t.query("q", PAIRS)(lambda q: c.new_values()),
        "query 'q' must return a stream that is made of its questions; got Stream(",
    ),
    "a query that returns nothing": (
        lambda t, s, c: t.query("q", PAIRS)(lambda q: None),  # type: ignore[type-var]
        "query 'q' must return a stream that is made of its questions; got None",
    ),
    "a query twice": (
        lambda t, s, c: [t.query("q", PAIRS)(lambda q: q) for _ in range(2)],
        "query: 'q' is declared twice; the queries are: q",
    ),
    "a query without fields": (lambda t, s, c: t.query("q", "")(lambda q: q), "query 'q': output='' "),
    "a query of a bad name": (
        lambda t, s, c: t.query("a/b", PAIRS)(lambda q: q),
        "query id 'a/b' must be made of letters",
    ),
    "no function": (
        lambda t, s, c: t.query("q", PAIRS)(3),  # type: ignore[type-var]
        "query 'q' takes a function of the stream of questions",
    ),
    "before, in a query": (
        lambda t, s, c: t.query("q", PAIRS)(lambda q: q.state_query(c, when="before")),
        "query 'q' is answered between two transactions, so there is no 'before'",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_reported_at_its_line(name: str) -> None:
    make, message = MISTAKES[name]
    with pytest.raises(ConfigError) as raised:
        make(*two())
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


class Looking(ArrowBatchBolt):
    """Looks the words of a batch up by hand."""

    output = "word string, count long"

    def prepare(self, context: TopologyContext, collector: OutputCollector, attempt: TransactionAttempt) -> None:
        self._collector, self._lookups = collector, context.lookups
        self._kept: list[pa.RecordBatch] = []

    def execute_batch(self, batch: pa.RecordBatch) -> None:
        self._kept.append(batch)

    def finish_batch(self) -> None:
        assert self._lookups is not None
        words = pa.Table.from_batches(self._kept).select(["word"])
        self._collector.emit_batch(self._lookups["count"](words))


class TooEarly(Looking):
    """Looks up where nothing is committed."""

    def execute_batch(self, batch: pa.RecordBatch) -> None:
        assert self._lookups is not None
        self._lookups["count"]


def by_hand(bolt: ArrowBatchBolt, *reads: str, behind: str = "spout") -> TransactionalTopologyBuilder:
    """A topology by the builder."""
    spout = MemoryTransactionalSpout([[("a",), ("b",), ("a",)]], "word string", 9)
    builder = TransactionalTopologyBuilder("words", "spout", spout)
    builder.set_committer_bolt("count", MemoryMapState("word").count()).fields_grouping(behind, "word")
    builder.set_bolt("look", bolt).shuffle_grouping("spout").reading(*reads)
    return builder


def test_a_bolt_by_hand_looks_up_what_it_declares() -> None:
    """In `finish_batch`, which is in the commit phase."""
    emitted = complete_topology(by_hand(Looking(), "count").build())["look"]
    assert {tuple(row) for row in emitted} == {("a", 2), ("b", 1)}
    with pytest.raises(TransactionalError, match="'look' looked up the state of 'count' in prepare or execute"):
        complete_topology(by_hand(TooEarly(), "count").build())
    with pytest.raises(ConfigError, match="bolt 'look' looks up the state of 'spout', which is no committer"):
        by_hand(Looking(), "spout").build()
    with pytest.raises(ConfigError, match=r"'count' is updated with what comes of it: look up what was before it"):
        by_hand(Looking(), "count", behind="look").build()
    by_hand(Looking(), previous_state("count"), behind="look").build()


def test_storms_word_count_line_by_line() -> None:
    """TridentWordCount: the hint behind the state, and the look-up of a grouped stream (row E3)."""
    sentences = [("the cow jumped over the moon",), ("the man went to the store and bought some candy",)]
    topology, counted = TridentTopology("wordCounter"), MemoryMapState()
    spout = MemoryTransactionalSpout([sentences], "sentence string", take=3)
    words = topology.new_stream("spout1", spout).parallelism_hint(16).each(words_of("sentence"), "word string")
    counts = words.group_by("word").persistent_aggregate(counted, Count()).parallelism_hint(16)

    @topology.query("words", "args string")
    def of_words(questions: Stream) -> Stream:
        asked = questions.each(words_of("args"), "word string").group_by("word")
        return asked.state_query(counts, "word").filter(lambda row: row["count"] is not None).project("word", "count")

    made, store = topology.build(strict=True), MemoryCoordinatorStore()
    TopologyDriver(made, store, LocalExecutor(made), TopologyConfig(stop_when_drained=True)).run()
    with QueryClient(made, store) as client:
        assert [tuple(row.values()) for row in client.execute("words", "cat the man jumped")] == [
            *(("the", 4), ("man", 1), ("jumped", 1))
        ]
    assert made.component("memory").parallelism == 16


def words_of(field: str) -> Callable[[Any], list[tuple[str]]]:
    return lambda row: [(word,) for word in row[field].split()]


def test_a_grouped_stream_looks_up_what_it_is_grouped_by() -> None:
    topology = TridentTopology("pairs")
    stream = topology.new_stream("pairs", MemoryTransactionalSpout([[("a", 1), ("b", 2), ("a", 3)]], PAIRS, 3))
    counts = stream.group_by("word").persistent_aggregate(MemoryMapState(), Count())
    seen = MemoryMapState(table=MemoryTable("seen"))
    renamed = stream.rename(letter="word")
    renamed.group_by("letter").state_query(counts).group_by("letter", "count").persistent_aggregate(seen, Sum("n"))
    complete_topology(topology.build())
    assert seen.read().sort_by("letter").select(["letter", "count"]).to_pylist() == [
        *({"letter": "a", "count": 2}, {"letter": "b", "count": 1})
    ]
