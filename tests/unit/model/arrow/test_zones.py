"""A time without a time zone ends the run, or is taken for the zone that the topology names, by whatever way it comes
from user code; it is never a dead letter."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest

from spouts import MemoryTransactionalSpout
from spouts.contracts import TransactionalSpout
from state.dead_letters import DeadLetterTable
from state.memory import MemoryMapState
from transactional.bolts import BasicBolt, BatchBolt, OutputCollector
from transactional.core.ports.dead_letters import LETTER_KEY, LETTER_VALUES
from transactional.core.store.sql.sql_store import SqlCoordinatorStore
from transactional.errors import ConfigError, NaiveTime, TopologyChanged
from transactional.model.arrow import arrow_schema, batch_from_rows, conform
from transactional.model.arrow.zones import naive_times_in
from transactional.model.attempt import TxId
from transactional.model.config import TopologyConfig
from transactional.model.schema import Schema
from transactional.model.user_code.tuples import Tuple
from transactional.operations.launch.running import run_topology
from transactional.operations.queries.texts import parse_values
from transactional.queries import QueryClient
from transactional.reliable import QueueSpout, SpoutCollector, TopologyBuilder
from transactional.testing import complete_topology
from transactional.topology.bolts.stateful import KeyValueState, StatefulBolt
from transactional.topology.builder import TransactionalTopologyBuilder
from transactional.topology.topology import Topology
from transactional.trident import Reducer, TridentTopology

NAIVE = datetime(2026, 7, 1, 12)  # noqa: DTZ001 - that is what this is about
AWARE = NAIVE.replace(tzinfo=UTC)
PLACED = NAIVE.replace(tzinfo=ZoneInfo("Europe/Berlin"))
Build = Callable[[str | None], Topology]


def spout() -> MemoryTransactionalSpout:
    return MemoryTransactionalSpout([[(1, AWARE), (2, AWARE)]], "n long, at timestamp", take=2)


def naive_spout() -> MemoryTransactionalSpout:
    return MemoryTransactionalSpout([[(1, NAIVE)]], "n long, at timestamp", take=2)


def last() -> MemoryMapState:
    return MemoryMapState("n long", "at timestamp")


class Emits(BasicBolt):
    output = "n long, at timestamp"

    def execute(self, tuple: Tuple, collector: OutputCollector) -> None:
        collector.emit(tuple.n, NAIVE if tuple.n == 2 else AWARE)


class Nested(BasicBolt):
    output = "n long, at array<struct<first: timestamp>>"

    def execute(self, tuple: Tuple, collector: OutputCollector) -> None:
        collector.emit(tuple.n, [{"first": AWARE}, {"first": NAIVE}])


def column(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"n": batch.column("n"), "at": pa.array([NAIVE] * batch.num_rows)})


class Puts(BatchBolt):
    def prepare(self, context: Any, collector: Any, attempt: Any) -> None:
        self.state, self.row = context.state, {"key": (NAIVE, AWARE), "value": (AWARE, NAIVE)}[context.component_id]

    def execute(self, tuple: Tuple) -> None:
        pass

    def finish_batch(self) -> None:
        self.state.put(*self.row)


class Remembers(StatefulBolt):
    state = "at timestamp -> seen timestamp"

    def init_state(self, state: KeyValueState) -> None:
        self.kept = state

    def execute(self, tuple: Tuple) -> None:
        self.kept.put(NAIVE, AWARE)


class RemembersWhen(Remembers):
    def execute(self, tuple: Tuple) -> None:
        self.kept.put(AWARE, NAIVE)


class Newest(Reducer):
    output = "newest timestamp"

    def init(self) -> Any:
        return NAIVE

    def reduce(self, value: Any, row: Tuple) -> Any:
        return value


class Numbers(TransactionalSpout[int]):
    output = "n long, at timestamp"

    def is_ready(self) -> bool:
        return True

    def initialize_transaction(self, previous: int | None) -> int | None:
        return 1 if previous is None else None

    def emit_batch(self, metadata: int, part: int, parts: int) -> Iterator[Any]:
        yield metadata, NAIVE


class Queue(QueueSpout):
    output = "n long, at timestamp"

    def open(self, instance: int, instances: int, collector: SpoutCollector) -> None:
        collector.emit(1, NAIVE)

    def next_tuple(self) -> None:
        pass


def bolts(add: Callable[[TopologyBuilder], object], reads: Any = None, guarantee: str = "exactly-once") -> Build:
    def build(naive_times: str | None) -> Topology:
        builder = TopologyBuilder("zones", guarantee=guarantee, naive_times=naive_times)
        builder.set_spout("spout", reads or spout())
        add(builder)
        builder.set_dead_letters(
            DeadLetterTable("dead") if guarantee == "at-least-once" else MemoryMapState(LETTER_KEY, LETTER_VALUES)
        )
        return builder.build()

    return build


def stream(add: Callable[[Any], object]) -> Build:
    def build(naive_times: str | None) -> Topology:
        topology = TridentTopology("zones", naive_times=naive_times)
        add(topology.new_stream("s", spout()))
        topology.set_dead_letters(MemoryMapState(LETTER_KEY, LETTER_VALUES))
        return topology.build()

    return build


def committer(name: str, key: str = "at timestamp") -> Callable[[TopologyBuilder], object]:
    def add(made: TopologyBuilder) -> None:
        state = MemoryMapState(key, "seen timestamp")
        made.set_committer_bolt(name, Puts(), state=state).global_grouping("spout")

    return add


def stateful(bolt: StatefulBolt) -> Callable[[TopologyBuilder], object]:
    def add(made: TopologyBuilder) -> None:
        state = MemoryMapState("at timestamp", "seen timestamp", deletes=True)
        made.set_stateful_bolt("seen", bolt, state=state).global_grouping("spout")

    return add


def emitting(bolt: Any, **given: Any) -> Callable[[TopologyBuilder], object]:
    def add(made: TopologyBuilder) -> None:
        made.set_bolt("it", bolt, **given).shuffle_grouping("spout")
        if made.guarantee.value == "exactly-once":
            made.set_committer_bolt("n", MemoryMapState("n long").count()).fields_grouping("it", "n")

    return add


def as_arrow(batch: pa.RecordBatch) -> pa.RecordBatch:
    return column(batch)


WAYS: Mapping[str, tuple[Build, str]] = {
    "a bolt": (bolts(emitting(Emits())), "'it': field 'at' got"),
    "a nested value": (bolts(emitting(Nested())), r"'it': field 'at\[\].first' got"),
    "a function": (bolts(emitting(lambda row: (row.n, NAIVE), output=Emits.output)), "'it': field 'at' got"),
    "an Arrow column": (bolts(emitting(as_arrow, output=Emits.output)), "'it': field 'at' is a column of timestamp"),
    "a state's key": (bolts(committer("key")), "'key': field 'at' got"),
    "a state's value": (bolts(committer("value")), "'value'.*field 'seen' got"),
    "a stateful bolt's key": (bolts(stateful(Remembers())), "'seen': field 'at' got"),
    "a stateful bolt's value": (bolts(stateful(RemembersWhen())), "'seen'.*field 'seen' got"),
    "a spout of a contract": (
        bolts(emitting(Emits()), Numbers()),
        "field 'at' got",
    ),
    "map": (stream(lambda s: s.map(lambda row: (row.n, NAIVE), Emits.output).persist(last())), "map': field 'at' got"),
    "each": (
        stream(lambda s: s.each(lambda row: NAIVE, "then timestamp").persist(MemoryMapState("n long"))),
        "'then' got",
    ),
    "a reducer": (
        stream(lambda s: s.group_by("n").aggregate(newest=Newest()).persist(MemoryMapState("n long"))),
        "field 'newest' got",
    ),
    "a reducer without tuples": (
        stream(
            lambda s: (
                s.filter(lambda row: False)
                .aggregate(newest=Newest())
                .each(lambda row: 1, "n long")
                .persist(MemoryMapState("n long"))
            )
        ),
        "field 'newest' got",
    ),
    "a memory spout": (bolts(emitting(lambda row: row, output=Emits.output), naive_spout()), "field 'at' got"),
    "at least once": (bolts(emitting(Emits()), guarantee="at-least-once"), "'it': field 'at' got"),
    "a queue": (bolts(emitting(Emits()), Queue(), guarantee="at-least-once"), "field 'at' got"),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_time_without_a_zone_ends_the_run(way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    build, message = WAYS[way]
    config = {"stop_when_drained": True, "attempts_max": 3, "message_retries_max": 1, "retry_pause_ms": 1}
    url = f"sqlite://?name=zones {way}"
    with pytest.raises(NaiveTime, match=f"(?s){message}.*has no time zone"):
        run_topology(build(None), store=url, master="none", config=config)
    with closing(SqlCoordinatorStore(url)) as store:
        assert store.status("zones")[0].committed_txid == 0


@pytest.mark.parametrize("way", WAYS)
def test_a_time_without_a_zone_is_taken_for_the_topologys(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    topology = WAYS[way][0]("Europe/Berlin")
    emitted = complete_topology(topology, config=TopologyConfig(attempts_max=1, message_retries_max=1))
    rows: list[Any] = list(emitted.values())
    for committer in topology.committers:
        if isinstance(committer.state, MemoryMapState):
            reader = committer.state.reader(f"zones/{committer.id}")
            reader.pin()
            rows += reader.rows(TxId(9)).to_pylist()
    assert PLACED in set(times(rows)) <= {PLACED, AWARE}


def times(values: Any) -> Iterator[datetime]:
    """All times in a value, at any depth."""
    if isinstance(values, datetime):
        assert values.tzinfo is not None
        yield values
    elif isinstance(values, Mapping):
        yield from times([*values.keys(), *values.values()])
    elif isinstance(values, list | tuple):
        for value in values:
            yield from times(value)


class ReadsBack(StatefulBolt):
    state = "at timestamp -> seen timestamp"
    output = "is_there boolean, seen timestamp"

    def init_state(self, state: KeyValueState) -> None:
        self.kept = state

    def execute(self, tuple: Tuple) -> None:
        self.kept.put(NAIVE, NAIVE)
        self.collector.emit(PLACED in self.kept, max(AWARE, self.kept.get(PLACED)))

    def prepare(self, context: Any, collector: OutputCollector) -> None:
        self.collector = collector


def test_what_was_put_is_read_back_with_its_zone() -> None:
    assert set(complete_topology(bolts(stateful(ReadsBack()))("Europe/Berlin"))["seen"]) == {(True, AWARE)}


@pytest.mark.parametrize("local", [(3, 29, 2, 30), (10, 25, 2, 30), (7, 1, 12, 0)])
@pytest.mark.parametrize("year", [2026, 2070])
@pytest.mark.parametrize("fold", [0, 1])
def test_fold_says_which_local_time_is_meant(local: tuple[int, int, int, int], year: int, fold: int) -> None:
    schema, berlin = arrow_schema(Schema.parse("at timestamp, nested array<timestamp>")), ZoneInfo("Europe/Berlin")
    given = datetime(year, *local, fold=fold)  # noqa: DTZ001
    with naive_times_in("Europe/Berlin"):
        made = batch_from_rows([(given, [given])], schema, component="it")
        column = pa.table({"at": pa.array([given, None]), "nested": pa.array([[given], [None]])})
        [of_columns] = conform(column, schema, component="it")
    instant = given.replace(tzinfo=berlin).astimezone(UTC)
    assert made.to_pylist() == [{"at": instant, "nested": [instant]}]
    first = given.replace(tzinfo=berlin, fold=0).astimezone(UTC)
    assert of_columns.to_pylist() == [{"at": first, "nested": [first]}, {"at": None, "nested": [None]}]


@pytest.mark.parametrize(
    ("zone", "message"),
    [
        ("local", r"naive_times='local' is refused: .* a replay would differ"),
        ("Europe/Berlon", r"'Europe/Berlon' is no time zone; .*did you mean 'Europe/Berlin'"),
        ("Europe", "'Europe' is no time zone"),
        ("", "'' is no time zone"),
        (2, "2 is no time zone"),
    ],
)
@pytest.mark.parametrize(
    "make",
    [
        lambda zone: TransactionalTopologyBuilder("zones", "spout", spout(), naive_times=zone),
        lambda zone: TopologyBuilder("zones", naive_times=zone),
        lambda zone: TridentTopology("zones", naive_times=zone),
    ],
)
def test_what_is_no_zone_is_refused_by_the_builder(make: Callable[[Any], Any], zone: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make(zone)


def test_another_zone_is_another_topology(tmp_path: Path) -> None:
    topology, url = bolts(emitting(lambda row: row, output=Emits.output))(None), f"sqlite:///{tmp_path}/store.db"
    config = {"stop_when_drained": True, "attempts_max": 1}
    for zone in ("UTC", None, "UTC"):  # one is as good as the other: earlier releases have taken such times for UTC
        run_topology(replace(topology, naive_times=zone), store=url, master="none", config=config)
    changed = replace(topology, naive_times="Europe/Berlin")
    with pytest.raises(TopologyChanged, match=r'naive_times: stored nothing, given "Europe/Berlin"'):
        run_topology(changed, store=url, master="none", config=config)
    run_topology(changed, store=url, master="none", config=config, accept_changes=True)


def test_a_question_without_a_zone_is_refused() -> None:
    topology = TridentTopology("zones")
    topology.query("since", "at timestamp")(lambda stream: stream)
    with QueryClient(topology.build()) as client:
        with pytest.raises(ConfigError, match=r"query 'since': 'question': field 'at' got .* has no time zone"):
            client.execute("since", NAIVE)
        assert list(client.execute("since", AWARE)) == [{"at": AWARE}]


def test_a_question_without_a_zone_is_taken_for_the_topologys() -> None:
    topology = TridentTopology("zones", naive_times="Europe/Berlin")
    topology.query("since", "at timestamp")(lambda stream: stream.each(lambda row: NAIVE, "then timestamp"))
    with QueryClient(topology.build()) as client:
        assert list(client.execute("since", NAIVE)) == [{"at": PLACED, "then": PLACED}]
        assert list(client.execute("since", *parse_values(client.queries["since"], ["2026-07-01T12:00:00"]))) == [
            {"at": PLACED, "then": PLACED}
        ]
