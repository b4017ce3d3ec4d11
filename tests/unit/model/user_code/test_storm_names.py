"""Names of Storm's: those that are other here are errors of one line, which `hasattr` takes for what they are."""

from __future__ import annotations

import copy
import pickle
import re
from collections.abc import Callable
from inspect import signature
from typing import Any

import pytest

import transactional
from spouts import MemoryTransactionalSpout
from spouts.contracts import TransactionalSpout
from state import DeadLetterTable, DeltaMapState, Last, MemoryMapState
from tests.unit.fakes import builder, words
from transactional import BasicBolt, BatchBolt, TopologyContext, Tuple
from transactional.errors import ConfigError
from transactional.model.user_code.storm_names import (
    ARGUMENTS_OF_STATES,
    IN_BOLTS,
    OF_BUILDERS,
    OF_STATES,
    OF_STREAMS,
    STORM_CLASSES,
    NoSuchName,
    to_snake_case,
)
from transactional.reliable import QueueSpout
from transactional.testing import complete_topology
from transactional.topology.streams.windowed import WindowedState, WindowedStream
from transactional.trident import Count, GroupedStream, Stream, TridentState, TridentTopology, tumbling

TOPOLOGY = TridentTopology("words")
STREAM = TOPOLOGY.new_stream("words", MemoryTransactionalSpout([[("a",)]], "word string", take=1))
GROUPED = STREAM.group_by("word")
STATE = GROUPED.persistent_aggregate(MemoryMapState(), Count())
WINDOWED = GROUPED.window(tumbling("1 minute", time="transaction"))
BUILDER = builder(words())
TABLE = MemoryMapState("word")
CONTEXT = TopologyContext("words", "count", 0, 1, {})


@pytest.mark.parametrize(
    ("of", "name", "said"),
    [
        (STREAM, "partitionBy", "Stream has no 'partitionBy'; here it is 'partition_by'"),
        (STREAM, "flatMap", "Stream has no 'flatMap'; here it is 'flat_map'"),
        (STREAM, "parallelismHint", "Stream has no 'parallelismHint'; here it is 'parallelism_hint'"),
        (STREAM, "name", "Stream has no 'name'; here it is `named(\"x\")`"),
        (STREAM, "filtre", "Stream has no 'filtre' — did you mean 'filter'?"),
        (STREAM, "xyz", "Stream has no 'xyz'"),
        (GROUPED, "stateQuery", "GroupedStream has no 'stateQuery'; here it is 'state_query'"),
        (GROUPED, "partitionAggregate", "GroupedStream has no 'partitionAggregate'; here it is 'partition_aggregate'"),
        (STATE, "newValuesStream", "TridentState has no 'newValuesStream'; here it is `new_values()`"),
        (STATE, "parallelismHint", "TridentState has no 'parallelismHint'; here it is 'parallelism_hint'"),
        (STREAM, "agg", f"Stream has no 'agg'; here it is {OF_STREAMS['agg']}"),
        (GROUPED, "count", f"GroupedStream has no 'count'; here it is {OF_STREAMS['count']}"),
        (WINDOWED, "agg", f"WindowedStream has no 'agg'; here it is {OF_STREAMS['agg']}"),
        (TABLE, "agg", f"MemoryMapState has no 'agg'; here it is {OF_STATES['agg']}"),
        (TABLE, "last", f"MemoryMapState has no 'last'; here it is {OF_STATES['last']}"),
        (TABLE, "summ", "MemoryMapState has no 'summ' — did you mean 'sum'?"),
        (TOPOLOGY, "newStream", "TridentTopology has no 'newStream'; here it is 'new_stream'"),
        (BUILDER, "setBolt", "TransactionalTopologyBuilder has no 'setBolt'; here it is 'set_bolt'"),
        (BUILDER, "buildTopology", "TransactionalTopologyBuilder has no 'buildTopology'; here it is `build()`"),
        (CONTEXT, "getThisTaskIndex", "TopologyContext has no 'getThisTaskIndex'; here it is 'task_index'"),
    ],
)
def test_a_name_is_answered_with_ours(of: Any, name: str, said: str) -> None:
    with pytest.raises(NoSuchName) as error:
        getattr(of, name)
    assert str(error.value) == said
    assert isinstance(error.value, ConfigError)
    assert not hasattr(of, name)
    assert getattr(of, name, 3) == 3


def test_a_declarer_has_our_groupings() -> None:
    declarer = builder(words()).set_bolt("b", lambda row: row, output="word string")
    with pytest.raises(NoSuchName, match=r"^BoltDeclarer has no 'shuffleGrouping'; here it is 'shuffle_grouping'$"):
        declarer.shuffleGrouping("spout")  # type: ignore[attr-defined]


def test_a_tuple_is_read_by_its_fields() -> None:
    row = Tuple(("word",), ("a",), "words")
    with pytest.raises(AttributeError, match=r"no field 'getString'; its fields are word; here it is `t\[0\]`$"):
        row.getString(0)
    with pytest.raises(AttributeError, match=r"no field 'name'; its fields are word$"):
        row.name  # noqa: B018


@pytest.mark.parametrize("of", [STREAM, GROUPED, STATE, WINDOWED, CONTEXT, TOPOLOGY, BUILDER])
def test_what_python_itself_asks_for_is_no_name_of_storms(of: Any) -> None:
    assert not hasattr(of, "__deepcopy__")
    assert not hasattr(of, "_repr_html_")
    copy.copy(of)


def test_a_context_is_pickled() -> None:
    assert pickle.loads(pickle.dumps(CONTEXT)) == CONTEXT


def test_no_name_that_is_here_is_said_to_be_elsewhere() -> None:
    kinds = (Stream, GroupedStream, TridentTopology, WindowedStream)
    assert [(kind, name) for kind in kinds for name in OF_STREAMS if hasattr(kind, name)] == []
    states = (TridentState, WindowedState)
    assert {name for kind in states for name in OF_STREAMS if hasattr(kind, name)} == {"name"}, "theirs can be read"
    assert [name for name in OF_BUILDERS if hasattr(type(builder(words())), name)] == []
    assert [name for name in IN_BOLTS if hasattr(TopologyContext, name)] == []
    assert [name for name in OF_STATES if hasattr(DeltaMapState, name)] == []
    assert ARGUMENTS_OF_STATES.keys() & signature(DeltaMapState).parameters.keys() == set()


@pytest.mark.parametrize(
    ("declare", "said"),
    [
        (
            lambda: DeltaMapState("tables/words", key="word", partition_by="day"),  # type: ignore[call-arg]
            (
                "DeltaMapState takes no argument 'partition_by'; here it is nothing: rows are located by their key, in "
                "Delta by the bounds of it that each file has. To keep days apart, let the day be a column of the key: "
                "`key='day date, word string'`; who reads by partitions reads a copy of the table"
            ),
        ),
        (
            lambda: DeadLetterTable("tables/letters", partition_by=["day"]),  # type: ignore[call-arg]
            "DeadLetterTable takes no argument 'partition_by'; here it is nothing: rows are located by",
        ),
        (lambda: MemoryMapState("word", valeus="n long"), "MemoryMapState takes no argument 'valeus' — did you mean"),  # type: ignore[call-arg]
        (
            lambda: builder(words()).set_bolt("last", TABLE),  # type: ignore[arg-type]
            "bolt 'last' is a state: add an update of it with set_committer_bolt, such as `MemoryMapState(…).count()",
        ),
        (
            lambda: builder(words()).set_committer_bolt("last", Count()),  # type: ignore[arg-type]
            (
                "committer bolt 'last' is a Count; a committer is a BatchBolt with state=…, or a state's update such "
                "as DeltaMapState(…).count(); an aggregate belongs to a state: `DeltaMapState(…).aggregate("
                "name=Count(…))`"
            ),
        ),
    ],
)
def test_a_state_that_is_declared_as_elsewhere_is_answered(declare: Callable[[], Any], said: str) -> None:
    with pytest.raises(ConfigError) as error:
        declare()
    assert str(error.value).startswith(said)


def test_the_newest_value_of_a_field_is_an_update() -> None:
    topology = builder(
        MemoryTransactionalSpout([[("a", 1), ("b", 2), ("a", 5), ("a", 3)]], "word string, n long", take=2)
    )
    state = MemoryMapState("word")
    topology.set_committer_bolt("last", state.aggregate(n=Last("n"))).fields_grouping("spout", "word")
    complete_topology(topology.build())
    assert state.read().to_pylist() == [{"word": "a", "n": 3}, {"word": "b", "n": 2}]


def finish_batch() -> None:
    class Counting(BatchBolt):
        def finishBatch(self) -> None:  # noqa: N802
            """As in Storm."""


def declares_fields() -> None:
    class Counting(BasicBolt):
        def declareOutputFields(self, declarer: Any) -> None:  # noqa: N802
            """As in Storm."""


def takes_a_configuration() -> None:
    class Counting(BatchBolt):
        def prepare(self, conf: Any, context: Any, collector: Any) -> None:  # type: ignore[override]
            """As in Storm."""


def next_tuple() -> None:
    class Queue(QueueSpout):
        def nextTuple(self) -> None:  # noqa: N802
            """As in Storm."""


def emits_a_batch() -> None:
    class Source(TransactionalSpout[int]):
        def emitBatch(self) -> None:  # noqa: N802
            """As in Storm."""


@pytest.mark.parametrize(
    ("define", "said"),
    [
        (finish_batch, "Counting defines 'finishBatch', which is never called; here it is 'finish_batch'"),
        (declares_fields, "Counting defines 'declareOutputFields'; here it is an attribute of the class: `output = "),
        (
            takes_a_configuration,
            "Counting.prepare takes 'conf' first, as in Storm; here it is `prepare(self, context, collector, attempt)`",
        ),
        (next_tuple, "Queue defines 'nextTuple', which is never called; here it is 'next_tuple'"),
        (emits_a_batch, "Source defines 'emitBatch', which is never called; here it is 'emit_batch'"),
    ],
)
def test_a_class_with_names_of_storms_is_refused_where_it_is_defined(define: Callable[[], None], said: str) -> None:
    with pytest.raises(ConfigError) as error:
        define()
    assert str(error.value).startswith(said)


def test_a_name_in_lower_case() -> None:
    assert [to_snake_case(name) for name in ("partitionBy", "newDRPCStream", "build")] == [
        *("partition_by", "new_drpcstream", "build")
    ]


@pytest.mark.parametrize("name", [name for name in STORM_CLASSES if name not in transactional.__all__])
def test_a_class_of_storms_is_answered_in_an_import(name: str) -> None:
    with pytest.raises(
        ImportError, match=f"^transactional has no {name!r}: Storm's class of that name is .* here$"
    ) as no:
        exec(f"from transactional import {name}")
    for imported in re.findall(r"`(from \S+ import [^`]+)`", str(no.value)):
        exec(imported)


def test_another_name_is_an_attribute_error() -> None:
    assert not hasattr(transactional, "Topologie")
    with pytest.raises(ImportError, match="cannot import name 'Topologie'"):
        exec("from transactional import Topologie")


@pytest.mark.parametrize("name", ["registerGauge", "registerTimer", "registerHistogram"])
def test_there_are_counters_only(name: str) -> None:
    with pytest.raises(NoSuchName, match=r"here it is `metrics\.counter\(\"parsed\"\)`; there are no gauges, timers"):
        getattr(CONTEXT, name)
    kind = name.removeprefix("register").lower()
    with pytest.raises(NoSuchName, match=f"BoltMetrics has no {kind!r}; here it is .*there are no gauges, timers"):
        getattr(CONTEXT.metrics, kind)


class Keep:
    def isKeep(self, tuple: Any) -> bool:  # noqa: N802 - Storm's
        return True


class Doubles:
    def execute(self, tuple: Any, collector: Any) -> None: ...


@pytest.mark.parametrize(
    ("operation", "given", "method"), [("filter", Keep(), "isKeep"), ("flat_map", Doubles(), "execute")]
)
def test_an_object_with_storms_method_is_answered(operation: str, given: Any, method: str) -> None:
    with pytest.raises(ConfigError, match=f"{operation} takes a function of a row.*Storm calls its method {method!r}"):
        getattr(STREAM, operation)(given)
