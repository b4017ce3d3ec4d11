"""A time without a time zone ends the run, by whatever way it comes from user code, and is never a dead letter."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spouts import MemoryTransactionalSpout
from spouts.contracts import TransactionalSpout
from state.dead_letters import DeadLetterTable
from state.memory import MemoryMapState
from state.store.sql_store import SqlCoordinatorStore
from transactional.bolts import BasicBolt, BatchBolt, OutputCollector, Tuple
from transactional.errors import ConfigError, NaiveTime
from transactional.ports.dead_letters import LETTER_KEY, LETTER_VALUES
from transactional.queries import QueryClient
from transactional.reliable import QueueSpout, SpoutCollector, TopologyBuilder
from transactional.running import run_topology
from transactional.stateful import KeyValueState, StatefulBolt
from transactional.topology.topology import Topology
from transactional.trident import Reducer, TridentTopology

NAIVE = datetime(2026, 7, 1, 12)  # noqa: DTZ001 - that is what this is about
AWARE = NAIVE.replace(tzinfo=UTC)
Build = Callable[[], Topology]


def spout() -> MemoryTransactionalSpout:
    return MemoryTransactionalSpout([[(1, AWARE), (2, AWARE)]], "n long, at timestamp", take=2)


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
        self.collector = collector

    def next_tuple(self) -> None:
        self.collector.emit(1, NAIVE)


def bolts(add: Callable[[TopologyBuilder], object], reads: Any = None, guarantee: str = "exactly-once") -> Build:
    def build() -> Topology:
        builder = TopologyBuilder("zones", guarantee=guarantee)
        builder.set_spout("spout", reads or spout())
        add(builder)
        builder.set_dead_letters(
            DeadLetterTable("dead") if guarantee == "at-least-once" else MemoryMapState(LETTER_KEY, LETTER_VALUES)
        )
        return builder.build()

    return build


def stream(add: Callable[[Any], object]) -> Build:
    def build() -> Topology:
        topology = TridentTopology("zones")
        add(topology.new_stream("s", spout()))
        topology.set_dead_letters(MemoryMapState(LETTER_KEY, LETTER_VALUES))
        return topology.build()

    return build


def committer(name: str, key: str = "at timestamp") -> Callable[[TopologyBuilder], object]:
    state = MemoryMapState(key, "seen timestamp")
    return lambda made: made.set_committer_bolt(name, Puts(), state=state).global_grouping("spout")


def stateful(bolt: StatefulBolt) -> Callable[[TopologyBuilder], object]:
    state = MemoryMapState("at timestamp", "seen timestamp", deletes=True)
    return lambda made: made.set_stateful_bolt("seen", bolt, state=state).global_grouping("spout")


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
        run_topology(build(), store=url, master="none", config=config)
    with closing(SqlCoordinatorStore(url)) as store:
        assert store.status("zones")[0].committed_txid == 0


def test_a_question_without_a_zone_is_refused() -> None:
    topology = TridentTopology("zones")
    topology.query("since", "at timestamp")(lambda stream: stream)
    with QueryClient(topology.build()) as client:
        with pytest.raises(ConfigError, match=r"query 'since': 'question': field 'at' got .* has no time zone"):
            client.execute("since", NAIVE)
        assert list(client.execute("since", AWARE)) == [{"at": AWARE}]
