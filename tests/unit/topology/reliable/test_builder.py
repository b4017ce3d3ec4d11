"""`TopologyBuilder`: the three guarantees, and one clear line for each mistake."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from sinks import KafkaSink
from spouts.memory import MemoryPartitionReader, MemoryTransactionalSpout
from state.dead_letters import DeadLetterTable
from state.memory import MemoryMapState
from tests.unit.fakes import Total, counts
from transactional.bolts import BasicBolt, OutputCollector
from transactional.core.ports import PartitionReader
from transactional.errors import ConfigError
from transactional.model.groupings import CustomStreamGrouping
from transactional.model.guarantees import Guarantee
from transactional.model.user_code.tuples import Tuple
from transactional.reliable import RichBolt, TopologyBuilder
from transactional.testing import complete_topology
from transactional.topology.bolts.stateful import KeyValueState, StatefulBolt
from transactional.topology.builder import TransactionalTopologyBuilder
from transactional.topology.describing import describe_topology
from transactional.topology.windows.join_bolt import JoinBolt
from transactional.topology.windows.windowed import TupleWindow, WindowedBolt
from transactional.topology.windows.windows import count


class Split(BasicBolt):
    """Words."""

    output = "word string"

    def execute(self, tuple: Tuple, collector: OutputCollector) -> None:
        for word in tuple.line.split():
            collector.emit(word)


class Acks(RichBolt):
    """Acks."""

    def prepare(self, context: Any, collector: Any) -> None:
        self.collector = collector

    def execute(self, tuple: Tuple) -> None:
        self.collector.ack(tuple)


class Last(StatefulBolt):
    """Keeps how often a word came."""

    state = "word string -> count long"

    def init_state(self, state: KeyValueState) -> None:
        pass

    def execute(self, tuple: Tuple) -> None:
        pass


class Sizes(WindowedBolt):
    """Counts the tuples of windows."""

    output = "size long"

    def execute(self, window: TupleWindow) -> None:
        self.collector.emit(len(window.get()))


class Streams(Acks):
    """Has a stream that is taken."""

    streams: ClassVar = {"__ack": "n long"}


class First(CustomStreamGrouping):
    """Always the first task."""

    def choose_tasks(self, values: tuple[Any, ...]) -> Sequence[int]:
        return [0]


class OnlyReads(MemoryTransactionalSpout):
    """Its reader does not know offsets."""

    def reader(self) -> Any:
        return Reads(self._partitions, self.output)


class Reads(PartitionReader):
    """A reader as small as can be."""

    def __init__(self, *of: Any) -> None:
        self._reader = MemoryPartitionReader(*of)

    def read(self, *range: Any) -> Iterator[pa.RecordBatch]:
        return self._reader.read(*range)


def lines() -> MemoryTransactionalSpout:
    return MemoryTransactionalSpout([[("the cat",), ("the dog",)]], "line string", take=1)


def builder(guarantee: Any = "at-least-once", **given: Any) -> TopologyBuilder:
    made = TopologyBuilder("words", guarantee=guarantee, **given)
    made.set_spout("spout", lines())
    return made


def built(guarantee: Any = "at-least-once", **given: Any) -> Any:
    made = builder(guarantee, **given)
    made.set_bolt("split", Split(), 2).shuffle_grouping("spout")
    made.set_bolt("end", lambda row: (row.word.upper(),), output="word string").fields_grouping("split", "word")
    return made


@pytest.mark.parametrize("guarantee", ["at-least-once", "at-most-once"])
@pytest.mark.parametrize("ackers", [0, 1, 3])
def test_basic_bolts_and_functions_run_without_states(guarantee: str, ackers: int) -> None:
    emitted = complete_topology(built(guarantee, ackers=ackers).build())
    assert sorted(row.word for row in emitted["end"]) == ["CAT", "DOG", "THE", "THE"]
    assert emitted["split"][0].fields == ("word",)


def test_with_exactly_once_it_is_the_transactional_builder() -> None:
    made = builder("exactly-once")
    made.set_bolt("split", Split()).shuffle_grouping("spout")
    state: MemoryMapState = counts()
    made.set_committer_bolt("count", state.count()).fields_grouping("split", "word")
    complete_topology(made.build())
    assert sorted(state.read().to_pydict()["count"]) == [1, 1, 2]


def test_the_default_is_exactly_once() -> None:
    assert TopologyBuilder("words").guarantee is Guarantee.EXACTLY_ONCE
    assert TopologyBuilder("words", guarantee="at_most_once").guarantee is Guarantee.AT_MOST_ONCE
    assert TopologyBuilder("words", guarantee=Guarantee.AT_LEAST_ONCE).guarantee is Guarantee.AT_LEAST_ONCE


def test_the_ackers_are_a_component() -> None:
    """Seen wherever components are seen, as in Storm; what tuples carry is not."""
    known = describe_topology(built(ackers=2).build())
    kinds = {each["id"]: (each["kind"], each["parallelism"]) for each in known["components"]}
    assert kinds["__acker"] == ("Acker", 2)
    assert kinds["split"] == ("Split", 2)
    assert kinds["end"] == ("function of a Tuple", 1)
    assert known["guarantee"] == "at-least-once"
    assert [each["streams"] for each in known["components"]] == [
        {"default": "line string"},
        {"default": "word string"},
        {"default": "word string"},
        {},
    ]
    for made in (built(ackers=0), built("at-most-once")):
        assert "__acker" not in [each["id"] for each in describe_topology(made.build())["components"]]


def test_a_change_of_the_guarantee_is_a_change_of_the_topology() -> None:
    assert built().build().fingerprint()["guarantee"] == "at-least-once"
    made = builder("exactly-once")
    made.set_committer_bolt("total", Total(), state=MemoryMapState((), "count long")).global_grouping("spout")
    assert "guarantee" not in made.build().fingerprint(), "older stores have none"


COMPONENTS: dict[str, Callable[[TopologyBuilder], Any]] = {
    "set_spout": lambda made: made.set_spout("another", lines()),
    "set_bolt": lambda made: made.set_bolt("split", Split()).shuffle_grouping("spout"),
    "set_event_time": lambda made: made.set_event_time("at", stream="timed"),
    "set_dead_letters": lambda made: made.set_dead_letters(DeadLetterTable("dead")),
    "set_committer_bolt": lambda made: made.set_committer_bolt(
        "total", Total(), state=MemoryMapState((), "count long")
    ),
    "set_stateful_bolt": lambda made: made.set_stateful_bolt("last", Last(), state=counts()),
    "set_sink": lambda made: made.set_sink("alerts", KafkaSink("host:9092", "alerts")).shuffle_grouping("end"),
    "set_windowed_bolt": lambda made: made.set_windowed_bolt("sizes", Sizes(), window=count(2)),
}
"""What each method adds."""
STATELESS = {"set_spout", "set_bolt", "set_event_time"}


@pytest.mark.parametrize("guarantee", [each.value for each in Guarantee])
@pytest.mark.parametrize("method", [name for name in dir(TopologyBuilder) if name.startswith("set_")])
def test_what_keeps_a_state_needs_exactly_once(method: str, guarantee: str) -> None:
    """A method that the table lacks fails here."""
    made = TopologyBuilder("words", guarantee=guarantee)
    made.set_spout("spout", lines())
    made.set_spout("timed", MemoryTransactionalSpout([[(datetime(2026, 1, 1, tzinfo=UTC),)]], "at timestamp", take=1))
    made.set_bolt("end", Split(), 2).shuffle_grouping("spout")
    is_offered = method in {"set_dead_letters", "set_sink"} and guarantee == "at-least-once"
    if guarantee == "exactly-once" or method in STATELESS or is_offered:
        COMPONENTS[method](made)
        return
    with pytest.raises(ConfigError, match=f"which is {guarantee}|topology 'words' is {guarantee}"):
        COMPONENTS[method](made)
    assert not made.build().committers


def test_a_join_needs_exactly_once() -> None:
    joins = JoinBolt("spout", "line").join("another", "line", "spout").select("line")
    with pytest.raises(ConfigError, match="bolt 'joins' keeps a state"):
        builder().set_windowed_bolt("joins", joins, window=count(2))


def committer(made: TopologyBuilder) -> None:
    made.set_committer_bolt("count", counts().count())


def custom(made: TopologyBuilder) -> None:
    made.set_bolt("acks", Acks()).custom_grouping("spout", First())
    made.build()


def no_bolt(made: TopologyBuilder) -> None:
    made.build()


@pytest.mark.parametrize(
    ("mistake", "expected"),
    [
        (committer, "bolt 'count' keeps a state, in topology 'words', which is at-least-once: states, also those"),
        (lambda made: made.set_bolt("count", counts().count()), "bolt 'count' keeps a state"),
        (lambda made: made.set_bolt("last", Last()), "bolt 'last' keeps a state"),
        (lambda made: made.set_bolt("sizes", Sizes()), "bolt 'sizes' keeps a state"),
        (lambda made: made.set_bolt("total", Total()), "bolt 'total' is a Total, which works on whole batches"),
        (lambda made: made.set_bolt("acks", Acks), "is the class Acks; pass an instance"),
        (lambda made: made.set_bolt("acks", Acks(), output="a long"), "declares its own output"),
        (lambda made: made.set_bolt("__acker", Acks()), "component id '__acker' is that of the ackers"),
        (lambda made: made.set_spout("spout", lines()), "component id 'spout' is used twice"),
        (no_bolt, "topology 'words' has no bolt"),
        (custom, "may give a tuple to several tasks or to none, so it can't be followed"),
    ],
)
def test_a_mistake_is_reported(mistake: Callable[[TopologyBuilder], object], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected.replace("(", r"\(")):
        mistake(builder())


def test_a_taken_stream_is_reported() -> None:
    made = builder()
    made.set_bolt("streams", Streams()).shuffle_grouping("spout")
    with pytest.raises(ConfigError, match="bolt 'streams': stream '__ack' is that of the ackers"):
        made.build()


def test_what_is_no_guarantee_is_reported() -> None:
    with pytest.raises(ConfigError, match=r"guarantee is one of .*; got 'at-least' — did you mean 'at-least-once'"):
        TopologyBuilder("words", guarantee="at-least")
    with pytest.raises(ConfigError, match="ackers is a number of tasks, or 0 for none; got -1"):
        TopologyBuilder("words", guarantee="at-least-once", ackers=-1)


def test_a_rich_bolt_has_no_place_with_exactly_once() -> None:
    with pytest.raises(ConfigError, match=r"bolt 'acks' is a RichBolt, .* with exactly-once batches are processed"):
        builder("exactly-once").set_bolt("acks", Acks())


def test_a_topology_needs_a_spout() -> None:
    with pytest.raises(ConfigError, match="topology 'words' has no spout: add set_spout"):
        TopologyBuilder("words", guarantee="at-least-once").build()


def test_a_spout_whose_records_have_no_offsets_can_not_be_followed() -> None:
    def made(**given: Any) -> TopologyBuilder:
        made = TopologyBuilder("words", guarantee="at-least-once", **given)
        made.set_spout("spout", OnlyReads([[("a",)]], "line string", take=1))
        made.set_bolt("split", Split()).shuffle_grouping("spout")
        return made

    with pytest.raises(ConfigError, match="spout 'spout' does not know the offsets of its records"):
        made().build()
    assert [row.word for row in complete_topology(made(ackers=0).build())["split"]] == ["a"]


def test_it_has_all_that_the_transactional_builder_begins_with() -> None:
    """It begins without a spout, so it does not call that one's `__init__`."""
    transactional = TransactionalTopologyBuilder("words", "spout", lines())
    assert set(vars(transactional)) <= set(vars(builder("exactly-once")))
