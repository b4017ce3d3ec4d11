"""Several spouts of a topology of bolts: each a component of its own for them, all read in the same transactions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spouts.memory import MemoryTransactionalSpout, OpaqueMemoryTransactionalSpout
from state.memory import MemoryMapState, MemoryTable
from tests.examples import examples
from tests.unit.poisoned import letters
from tests.unit.topology.reliable.runs import run
from transactional import TransactionalTopologyBuilder
from transactional.bolts import BasicBolt, OutputCollector, TopologyContext
from transactional.errors import ConfigError, FailedException
from transactional.model.arrow import origin_of
from transactional.model.attempt import AttemptId, TransactionAttempt, TxId
from transactional.model.batch import EMPTY_BATCH
from transactional.model.config import TopologyConfig
from transactional.model.user_code.tuples import Tuple
from transactional.reliable import RichBolt, TopologyBuilder
from transactional.runtime.engine.driver import TopologyDriver
from transactional.runtime.engine.letter_spout import LetterSpout, all_letters
from transactional.runtime.executors.local import LocalExecutor
from transactional.runtime.tasks.program import AttemptInput, make_program
from transactional.testing import MemoryCoordinatorStore, complete_topology
from transactional.topology.topology import Topology

WORD = "word string"
FIRST = TransactionAttempt(TxId(1), AttemptId(1))
rows = st.lists(st.sampled_from(["a", "b", "c"]).map(lambda word: (word,)), max_size=6)
kinds = st.sampled_from([MemoryTransactionalSpout, OpaqueMemoryTransactionalSpout])


class Sides(BasicBolt):
    """Each word with the spout that it comes from; the first attempts at some of them fail."""

    output = "side string, word string"
    left: ClassVar[Counter[Any]] = Counter()

    def prepare(self, context: TopologyContext) -> None:
        """Nothing."""

    def execute(self, tuple: Tuple, collector: OutputCollector) -> None:
        place = f"{tuple.source} {tuple.word}"
        assert tuple.stream == "default"
        if self.left[place] > 0:
            self.left[place] -= 1
            raise FailedException(place)
        collector.emit(tuple.source, tuple.word)


def sides(batch: pa.RecordBatch) -> pa.Table:
    """The same, a batch at a time."""
    source, stream = origin_of(batch)
    assert stream == "default"
    return pa.table({"side": pa.repeat(source, batch.num_rows), "word": batch.column("word")})


def topology(spouts: dict[str, Any], table: MemoryTable, bolt: Any = None, **config: Any) -> Topology:
    (first, spout), *others = spouts.items()
    made = TransactionalTopologyBuilder("sides", first, spout, 2)
    declarer = made.set_bolt("sides", bolt or Sides(), 2, output=None if bolt is None else Sides.output)
    for name, other in others:
        made.set_spout(name, other)
    for name in spouts:
        declarer.shuffle_grouping(name)
    counts = MemoryMapState("side string, word string", table=table).count()
    made.set_committer_bolt("counts", counts).fields_grouping("sides", "side", "word")
    return made.build(strict=True, config=config)


@settings(max_examples=examples(40))
@given(rows, rows, rows, rows, kinds, kinds, st.sets(st.sampled_from(["one a", "two b", "three c"])), st.integers(1, 3))
def test_every_tuple_of_every_spout_counts_once_as_one_of_its_spout(
    one: Any, more: Any, two: Any, three: Any, kind: Any, other: Any, failing: set[str], take: int
) -> None:
    Sides.left = Counter(failing)
    table = MemoryTable("counts")
    spouts = {"one": kind([one, more], WORD, take), "two": other([two], WORD, 1), "three": kind([three], WORD, 2)}
    complete_topology(topology(spouts, table), config=TopologyConfig(attempts_max=99, retry_pause_ms=1))
    read = {"one": [*one, *more], "two": two, "three": three}
    expected = Counter((side, word) for side, words in read.items() for (word,) in words)
    assert {key: row.value[0] for key, row in table.rows.items()} == expected


def test_a_bolt_on_record_batches_sees_whose_they_are() -> None:
    table = MemoryTable("counts")
    spouts = {name: MemoryTransactionalSpout([[(name,)]], WORD, 1) for name in ("one", "two")}
    complete_topology(topology(spouts, table, sides))
    assert set(table.rows) == {("one", "one"), ("two", "two")}


def test_each_spout_has_its_own_parallelism() -> None:
    made = TransactionalTopologyBuilder("both", "one", MemoryTransactionalSpout([[("a",)]] * 3, WORD, 1))
    made.set_spout("two", MemoryTransactionalSpout([[("a",)]] * 5, WORD, 1), 3)
    made.set_committer_bolt("counts", MemoryMapState(WORD).count()).fields_grouping("two", "word")
    made.set_bolt("sides", Sides()).shuffle_grouping("one")
    topology = made.build()
    batch = topology.spout.plan(EMPTY_BATCH, replay=False)
    assert batch is not None
    program = make_program(topology, topology.spout.reader())
    dealt = AttemptInput.of(FIRST, batch, program.spout).portions
    tasks = [Counter(source.partition("/")[0] for (source, *_), _ in task) for task in dealt]
    assert [set(task) for task in tasks] == [{"one", "two"}, {"two"}, {"two"}]
    assert (sum(tasks, Counter()), max(task["two"] for task in tasks)) == (Counter(one=3, two=5), 2)


def spouts_of(**given: str) -> dict[str, Any]:
    """A spout of words of one letter for each."""
    kind = OpaqueMemoryTransactionalSpout
    return {name: kind([[(word,) for word in words]], WORD, 2) for name, words in given.items()}


def counted(table: MemoryTable) -> dict[Any, int]:
    return {f"{side} {word}": row.value[0] for (side, word), row in table.rows.items()}


def test_spouts_come_go_and_change_places_between_two_runs() -> None:
    """Positions go by the id of the spout; a spout that comes back continues where it was."""
    Sides.left = Counter()
    table, store = MemoryTable("counts"), MemoryCoordinatorStore()
    for spouts in (
        spouts_of(one="a"),
        spouts_of(one="ab", two="x"),
        spouts_of(two="xy", one="abc"),
        spouts_of(one="abcd"),
        spouts_of(two="xyz"),
        spouts_of(three="t", two="xyz", one="abcde"),
    ):
        made = topology(spouts, table)
        config = TopologyConfig(stop_when_drained=True, idle_pause_ms=1, tick_ms=1)
        TopologyDriver(made, store, LocalExecutor(made), config, accept_changes=True).run()
    read = {"one": "abcde", "two": "xyz", "three": "t"}
    assert counted(table) == {f"{side} {word}": 1 for side, words in read.items() for word in words}


def test_a_letter_of_the_second_spout_is_replayed_by_its_id() -> None:
    table, set_aside = MemoryTable("counts"), letters()

    def made(bolt: Any) -> Topology:
        made = TransactionalTopologyBuilder("sides", "one", spouts_of(one="ab")["one"])
        made.set_spout("two", spouts_of(two="bc")["two"])
        made.set_bolt("sides", bolt).shuffle_grouping("one").shuffle_grouping("two")
        made.set_committer_bolt(
            "counts", MemoryMapState("side string, word string", table=table).count()
        ).fields_grouping("sides", "side", "word")
        made.set_dead_letters(set_aside)
        return made.build()

    Sides.left = Counter({"two b": 99})
    store = MemoryCoordinatorStore()
    run(made(Sides()), store, attempts_max=2)
    assert counted(table) == {"one a": 1, "one b": 1, "two c": 1}
    [letter] = all_letters(made(Sides()))
    assert (letter["source"], letter["stream"]) == ("two", "default")
    Sides.left = Counter()
    again = made(Sides())
    run(replace(again, spout=LetterSpout(again)), store, attempts_max=1)
    assert counted(table)["two b"] == 1


def both() -> TransactionalTopologyBuilder:
    made = TransactionalTopologyBuilder("both", "one", spouts_of(one="a")["one"])
    made.set_spout("two", spouts_of(two="a")["two"])
    return made


def subscribed(source: str, **of: str) -> Topology:
    made = both()
    made.set_bolt("sides", Sides()).shuffle_grouping(source, **of)
    return made.build()


MISTAKES: dict[str, tuple[Callable[[], object], str]] = {
    "an id twice": (lambda: both().set_spout("one", spouts_of(one="a")["one"]), "component id 'one' is used twice"),
    "the id of a spout": (lambda: both().set_bolt("two", Sides()), "component id 'two' is used twice"),
    "a class": (
        lambda: both().set_spout("three", MemoryTransactionalSpout),  # type: ignore[arg-type]
        "spout 'three' is the class MemoryTransactionalSpout",
    ),
    "the name of a stream": (
        lambda: both().set_spout("default", spouts_of(two="a")["two"]),
        "spout id 'default' is the name of a stream",
    ),
    "no such stream": (
        lambda: subscribed("two", stream="more"),
        "spout 'two' has no stream 'more': it is one of several",
    ),
    "no such spout": (lambda: subscribed("twoo"), "its components are: one, two, sides — did you mean 'two'?"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_reported(name: str) -> None:
    mistake, message = MISTAKES[name]
    with pytest.raises(ConfigError) as raised:
        mistake()
    assert message in str(raised.value)


# --- at least once: Storm's acking, with three spouts -----------------------------------------------------------------


class Branches(RichBolt):
    """Storm's branching bolt: so many tuples for each, anchored to it."""

    output = "n long"

    def __init__(self, number: int) -> None:
        self.number = number

    def prepare(self, context: TopologyContext, collector: Any) -> None:
        self.collector = collector

    def execute(self, tuple: Tuple) -> None:
        for number in range(self.number):
            self.collector.emit(number, anchors=tuple)
        self.collector.ack(tuple)


class Aggregates(Branches):
    """Storm's aggregating bolt: one tuple for so many, anchored to all of them."""

    def prepare(self, context: TopologyContext, collector: Any) -> None:
        super().prepare(context, collector)
        self.held: list[Tuple] = []

    def execute(self, tuple: Tuple) -> None:
        self.held.append(tuple)
        if len(self.held) == self.number:
            self.collector.emit(0, anchors=self.held)
            for each in self.held:
                self.collector.ack(each)
            self.held = []


class Ends(Branches):
    """Storm's acking bolt."""

    def execute(self, tuple: Tuple) -> None:
        self.collector.ack(tuple)


def acking(**fed: int) -> Topology:
    """Storm's topology of `testAcking`: the tuples of three spouts are branched, and brought together by threes."""
    made = TopologyBuilder("acking", guarantee="at-least-once")
    for spout in ("1", "2", "3"):
        numbers = [(number,) for number in range(fed[f"spout_{spout}"])]
        made.set_spout(spout, OpaqueMemoryTransactionalSpout([numbers], "n long", 9))
    for bolt, (spout, number) in {"4": ("1", 2), "5": ("2", 4), "6": ("3", 1)}.items():
        made.set_bolt(bolt, Branches(number)).shuffle_grouping(spout)
    made.set_bolt("7", Aggregates(3)).shuffle_grouping("4").shuffle_grouping("5").shuffle_grouping("6")
    made.set_bolt("8", Branches(2)).shuffle_grouping("7")
    made.set_bolt("9", Ends(0)).shuffle_grouping("8")
    return made.build()


@pytest.mark.parametrize(
    ("fed", "lost"),
    [((1, 0, 0), 1), ((1, 1, 0), 0), ((2, 0, 0), 1), ((2, 1, 1), 0), ((0, 0, 3), 0), ((0, 3, 1), 1)],
)
def test_messages_of_three_spouts_are_acked_once_all_trees_that_they_are_in_are(
    fed: tuple[int, int, int], lost: int
) -> None:
    """The sums of Storm's test, whose bolt waits for what comes later; here what is held when a batch ends has
    failed."""
    given = {f"spout_{number}": count for number, count in enumerate(fed, start=1)}
    store = run(acking(**given), message_retries_max=0)
    [record] = [each for each in store.attempts("acking", limit=9) if each.committed_at_ms is not None]
    assert record.batch is not None
    assert record.batch.lost == lost


class Notes(BasicBolt):
    """Fails the first time on a word of one spout."""

    given: ClassVar[Counter[str]] = Counter()

    def execute(self, tuple: Tuple, collector: OutputCollector) -> None:
        self.given[f"{tuple.source} {tuple.word}"] += 1
        if self.given["two a"] == 1 and tuple.source == "two" and tuple.word == "a":
            raise FailedException("once")


def test_a_message_of_the_second_spout_comes_again_alone() -> None:
    Notes.given.clear()
    made = TopologyBuilder("both", guarantee="at-least-once")
    made.set_bolt("notes", Notes()).shuffle_grouping("one").shuffle_grouping("two")
    for name, spout in spouts_of(one="ab", two="ab").items():
        made.set_spout(name, spout)
    run(made.build())
    assert Notes.given == Counter({"one a": 1, "one b": 1, "two a": 2, "two b": 1})
