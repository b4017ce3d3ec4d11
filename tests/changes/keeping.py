"""Every way in which tuples or rows are kept over a transaction, by programs whose fields and streams change.

Two streams, `left` and `right`, have the same fields, two of each type. A program keeps their tuples in one of the
`WAYS`, and shows each later as values by name, so that values that are taken for others differ from the model: the
records themselves.

Rows that tasks stage for a commit are none of these ways: a run processes what none has committed, as
`keeping_staged.py` shows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, ClassVar

from spouts.memory import MemoryTransactionalSpout
from state.memory import MemoryMapState, MemoryTable
from transactional import JoinBolt, TransactionalTopologyBuilder, TupleWindow, WindowedBolt, count, tumbling
from transactional.bolts import BasicBolt
from transactional.core.ports.dead_letters import LETTER_KEY, LETTER_VALUES
from transactional.model.aggregates import Max
from transactional.model.config import TopologyConfig
from transactional.model.user_code.tuples import Tuple
from transactional.runtime.engine.driver import TopologyDriver
from transactional.runtime.engine.letter_spout import LetterSpout
from transactional.runtime.executors.local import LocalExecutor
from transactional.testing import MemoryCoordinatorStore
from transactional.topology.bolts.stateful import KeyValueState, StatefulBolt
from transactional.topology.topology import Topology
from transactional.trident import Collect, TridentTopology, collected, session

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
VALUES: Mapping[str, tuple[Any, ...]] = {
    "map<string,struct<x:decimal(5,2)>>": ({"k": {"x": Decimal("1.50")}}, None, {}, {"a": {"x": None}, "b": None}),
    "struct<a:int,b:array<string>>": ({"a": 1, "b": ["x", None]}, {"a": None, "b": None}, None, {"a": 3, "b": []}),
    "decimal(20,4)": (Decimal("1.5000"), None, Decimal("-9999999999999999.9999"), Decimal("0.0000")),
    "double": (float("nan"), -0.0, None, 0.1),
    "timestamp": (NOON, datetime(1, 1, 1, 0, 0, 0, 1, tzinfo=UTC), None, datetime(9999, 12, 31, tzinfo=UTC)),
}
"""By type, NULL among its values."""
RETYPED = {
    "map<string,struct<x:decimal(5,2)>>": "map<string,struct<x:decimal(7,3)>>",
    "struct<a:int,b:array<string>>": "struct<a:long,b:array<string>>",
    "decimal(20,4)": "decimal(22,4)",
    "double": "string",
    "timestamp": "string",
}
TYPES = tuple(VALUES)
SIDES = "left", "right"
KEPT = 4
"""So many records a stream has in the first run, whose ids are below it, and as many in the second."""
ID = "kept"
ROW = "id long, source string, text string"
"""What is shown of a tuple."""


def _fields() -> dict[str, str]:
    both = {f"{'ab'[n]}{number}": type_ for number, type_ in enumerate(TYPES) for n in range(2)}
    return {"id": "long", "at": "timestamp", **both}


def value_of(side: str, id_: int, name: str, type_: str) -> Any:
    """The value of a record in a field, which differs from those of its other fields of that type."""
    if name == "id":
        return id_
    if name == "at":
        return NOON + (timedelta(seconds=id_) if id_ < KEPT else timedelta(days=id_))
    values = VALUES[TYPES[int(name[1:])]]
    value = values[(id_ + "abcd".index(name[0]) + SIDES.index(side)) % len(values)]
    return str(value) if type_ == "string" and value is not None else value


@dataclass(frozen=True)
class Keeps:
    """A program: its fields, in order, with their types, and in which order streams, inputs and sides are declared."""

    way: str
    fields: Mapping[str, str] = field(default_factory=_fields)
    sides: tuple[str, ...] = SIDES

    def of(self) -> str:
        """The fields as text."""
        return ", ".join(f"{name} {type_}" for name, type_ in self.fields.items())


def text_of(values: Mapping[str, Any]) -> str:
    """Values by name, so that NaN equals itself, and 0.0 not -0.0."""
    return json.dumps({name: shown(value) for name, value in sorted(values.items())})


def shown(value: Any) -> str:
    """The same text for the same value, whether it came as a dict or as pairs."""
    if isinstance(value, dict):
        return shown(list(value.items()))
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(shown, value))}]"
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    if isinstance(value, Decimal):  # the scale is that of today's type
        return repr(value.normalize())
    return repr(value)


class Shaped:
    """Makes a tuple with the fields of today of an id."""

    def __init__(self, side: str, program: Keeps, *, with_source: bool = False) -> None:
        self.side, self.fields, self.with_source = side, dict(program.fields), with_source

    def __call__(self, row: Tuple) -> tuple[Any, ...]:
        values = (value_of(self.side, row["id"], name, type_) for name, type_ in self.fields.items())
        return (self.side, *values) if self.with_source else tuple(values)


class Shows(WindowedBolt):
    """Emits the tuples of a window, by name."""

    output = ROW

    def execute(self, window: TupleWindow) -> None:
        for each in window.get():
            self.collector.emit(each["id"], each.source, text_of(each.as_dict()))


class Remembers(StatefulBolt):
    """Keeps each tuple in its state."""

    def __init__(self, program: Keeps) -> None:
        self.names = tuple(name for name in program.fields if name != "id")
        values = ", ".join(f"{name} {program.fields[name]}" for name in self.names)
        self.state = f"source string, id long -> {values}"  # type: ignore[misc]

    def init_state(self, state: KeyValueState) -> None:
        self.kept = state

    def execute(self, tuple: Tuple) -> None:
        self.kept.put((tuple.source, tuple["id"]), values_of(tuple, self.names))


class Fails(BasicBolt):
    """Fails on every tuple until it is mended."""

    output = ROW
    is_mended: ClassVar[bool] = False

    def execute(self, tuple: Tuple, collector: Any) -> None:
        if not Fails.is_mended:
            raise ValueError("not yet")
        collector.emit(tuple["id"], tuple.source, text_of(tuple.as_dict()))


def values_of(row: Tuple, names: tuple[str, ...]) -> tuple[Any, ...]:
    """The values of some fields."""
    return tuple(row[name] for name in names)


# --- topologies -------------------------------------------------------------------------------------------------------

HOUR = tumbling("1 hour")


@dataclass
class Place:
    """A store and tables in memory, and how many records each stream has."""

    records: int = KEPT
    store: MemoryCoordinatorStore = field(default_factory=MemoryCoordinatorStore)
    tables: dict[str, MemoryTable] = field(default_factory=dict)
    last: Topology | None = None
    build: Callable[[Place, Keeps], Topology] | None = None
    """What builds the topology, if not the way of the program."""

    def state(self, name: str, key: Any = None, values: str = "", **how: Any) -> MemoryMapState:
        """The state of a table."""
        return MemoryMapState(key, values, table=self.tables.setdefault(name, MemoryTable(name)), **how)

    def spout(self) -> MemoryTransactionalSpout:
        """The ids that there are: those of the second run are days later."""
        ids = [id_ if id_ < KEPT else 100 + id_ for id_ in range(self.records)]
        rows = [(id_, value_of("left", id_, "at", "timestamp")) for id_ in ids]
        return MemoryTransactionalSpout([rows], "id long, at timestamp", 2)

    def run(self, program: Keeps, *, accept: bool = False, replays: bool = False) -> None:
        """Run until all is read; with `replays` send the letters that wait to their bolt, which is mended."""
        topology = (self.build or WAYS[program.way])(self, program)
        if replays:
            topology = replace(topology, spout=LetterSpout(topology, None, self.store.runs(ID, limit=100)))
        Fails.is_mended = replays
        config = TopologyConfig(stop_when_drained=True, attempts_max=1, idle_pause_ms=1, retry_pause_ms=1, tick_ms=1)
        TopologyDriver(topology, self.store, LocalExecutor(topology), config, accept_changes=accept).run()
        self.last = topology

    def rows(self) -> dict[tuple[str, int], dict[str, str]]:
        """The values that were kept of each record of the first run, by side and id."""
        assert self.last is not None
        state: Any = self.last.component("shown").state
        rows = state.read().to_pylist()
        values = [
            json.loads(row["text"]) if "text" in row else {name: shown(value) for name, value in row.items()}
            for row in rows
        ]
        return {
            (row["source"].removeprefix("in-"), row["id"]): {
                name: text for name, text in of.items() if name != "source"
            }
            for row, of in zip(rows, values, strict=True)
            if row["id"] < KEPT
        }


def _bolts(place: Place, program: Keeps) -> TransactionalTopologyBuilder:
    """The spouts, and behind each a bolt that makes the fields of today."""
    first, *others = program.sides
    builder = TransactionalTopologyBuilder(ID, first, place.spout())
    for side in others:
        builder.set_spout(side, place.spout())
    builder.set_event_time("at", max_ahead=None)
    for side in program.sides:
        builder.set_bolt(f"in-{side}", Shaped(side, program), output=program.of()).shuffle_grouping(side)
    return builder


def _built(place: Place, builder: TransactionalTopologyBuilder, source: str) -> Topology:
    """A topology that keeps what a bolt shows."""
    update = place.state("shown").aggregate(text=Max("text")).group_by("source", "id")
    builder.set_committer_bolt("shown", update).fields_grouping(source, "id")
    return builder.build(strict=True)


def _windowed(bolt: Callable[[Keeps], WindowedBolt], window: Any, **how: Any) -> Callable[[Place, Keeps], Topology]:
    def build(place: Place, program: Keeps) -> Topology:
        builder, windowed = _bolts(place, program), bolt(program)
        kept = place.state(
            "kept", "window_of string, window_pane long, window_txid long", "tuples binary", deletes=True
        )
        declared = builder.set_windowed_bolt("kept", windowed, window=window, state=kept, **how)
        for side in program.sides:
            declared.global_grouping(f"in-{side}")
        if isinstance(windowed, Shows):
            return _built(place, builder, "kept")
        builder.set_bolt("halves", Halves()).shuffle_grouping("kept")
        return _built(place, builder, "halves")

    return build


def _joined(program: Keeps) -> JoinBolt:
    first, second = program.sides
    names = [f"in-{side}:{name} as {side[0]}_{name}" for side in program.sides for name in program.fields]
    return JoinBolt(f"in-{first}", "id").join(f"in-{second}", "id", f"in-{first}").select(", ".join(names))


def _letters(place: Place, program: Keeps) -> Topology:
    builder = _bolts(place, program)
    bolt = builder.set_bolt("fails", Fails())
    for side in program.sides:
        bolt.shuffle_grouping(f"in-{side}")
    builder.set_dead_letters(place.state("letters", LETTER_KEY, LETTER_VALUES))
    return _built(place, builder, "fails")


def _stateful(place: Place, program: Keeps) -> Topology:
    builder = _bolts(place, program)
    bolt = builder.set_stateful_bolt("shown", Remembers(program), state=place.state("shown"))
    for side in program.sides:
        bolt.global_grouping(f"in-{side}")
    return builder.build(strict=True)


def halves(row: Tuple) -> list[tuple[int, str, str]]:
    """The two sides of a pair, whose fields have prefixes."""
    values = row.as_dict()
    of = {side: {name[2:]: value for name, value in values.items() if name[:2] == f"{side[0]}_"} for side in SIDES}
    return [(of["left"]["id"], side, text_of(its | {"id": of["left"]["id"]})) for side, its in of.items()]


class Halves(BasicBolt):
    """The same as a bolt."""

    output = ROW

    def execute(self, tuple: Tuple, collector: Any) -> None:
        for values in halves(tuple):
            collector.emit(*values)


def _streams(place: Place, program: Keeps, *, with_source: bool) -> tuple[TridentTopology, list[Any]]:
    topology, fields = TridentTopology(ID), f"source string, {program.of()}" if with_source else program.of()
    streams = []
    for side in program.sides:
        stream = topology.new_stream(side, place.spout(), event_time="at", max_ahead=None)
        streams.append(stream.map(Shaped(side, program, with_source=with_source), fields))
    return topology, streams


def _windowed_join(place: Place, program: Keeps) -> Topology:
    topology, streams = _streams(place, program, with_source=False)
    names = [f"{side[0]}_{name}" for side in program.sides for name in program.fields]
    sides = [(stream, "id") for stream in streams]
    joined = topology.join(
        *sides, keep_all=True, output=names, window=HOUR, on=["at", "at"], state=place.state("kept"), name="kept"
    )
    joined.closed().global_().flat_map(halves, ROW).persist(place.state("shown", ("source", "id")), name="shown")
    return topology.build(strict=True)


def _collected(window: Any) -> Callable[[Place, Keeps], Topology]:
    def build(place: Place, program: Keeps) -> Topology:
        topology, streams = _streams(place, program, with_source=True)
        windows = streams[0].merge(*streams[1:]).group_by("id").window(window, on="at")
        kept = windows.persistent_aggregate(place.state("kept", deletes=True), Collect(), name="kept")
        closed = kept.closed().flat_map(_uncollected, ROW)
        closed.persist(place.state("shown", ("source", "id")), name="shown")
        return topology.build(strict=True)

    return build


def _uncollected(row: Tuple) -> list[tuple[int, str, str]]:
    return [(each["id"], each.pop("source"), text_of(each)) for each in collected(row["collect"])]


def _rows(place: Place, program: Keeps) -> Topology:
    topology, streams = _streams(place, program, with_source=True)
    streams[0].merge(*streams[1:]).persist(place.state("shown", ("source", "id")), name="shown")
    return topology.build(strict=True)


WAYS: Mapping[str, Callable[[Place, Keeps], Topology]] = {
    "a windowed bolt": _windowed(lambda _: Shows(), HOUR, time="at"),
    "a windowed bolt that counts": _windowed(lambda _: Shows(), count(4 * KEPT)),
    "a bolt that joins": _windowed(_joined, HOUR, time="at"),
    "streams that are joined": _windowed_join,
    "windows of tuples": _collected(HOUR),
    "sessions of tuples": _collected(session("1 hour", longest="2 hours")),
    "letters": _letters,
    "a stateful bolt": _stateful,
    "rows": _rows,
}
