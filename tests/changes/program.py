"""Programs as plain descriptions: what is changed between two runs, and the topologies that are built of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, ClassVar
from zoneinfo import ZoneInfo

import pyarrow as pa

from spouts.memory import MemoryPartitionReader, MemoryTransactionalSpout, OpaqueMemoryTransactionalSpout
from spouts.planning import Logs
from tests.changes.topics import Publishing
from transactional import TransactionalTopologyBuilder, TupleWindow, WindowedBolt
from transactional.core.ports import PartitionReader, Sink, State, StateKind
from transactional.model.batch import BatchMetadata, OffsetRange, PartitionId
from transactional.model.user_code.tuples import Tuple
from transactional.topology.topology import Topology
from transactional.topology.windows.windows import count, session, sliding, tumbling
from transactional.trident import Count, Max, Min, Sum, TridentTopology

ID = "changed"
TYPES = {
    "id": "long",
    "word": "string",
    "place": "string",
    "n": "long",
    "m": "long",
    "at": "timestamp",
    "seen": "timestamp",
}
"""What a record consists of."""
AGGREGATES: Mapping[str, Callable[..., Any]] = {"count": Count, "sum": Sum, "min": Min, "max": Max}
WINDOWS: Mapping[str, Any] = {
    "tumbling": tumbling("10 seconds"),
    "longer": tumbling("20 seconds"),
    "sliding": sliding("10 seconds", every="5 seconds"),
    "session": session("3 seconds", longest="1 hour"),
    "count": count(3),
    "more": count(5),
}

Column = tuple[str, str, str]
"""A column of a table: its name, how it is aggregated, and of which field ("" for a count)."""


@dataclass(frozen=True)
class Source:
    """A stream of some data. `fields` are names and types; `holds` says which value of a record a field of another name
    has."""

    name: str
    data: str
    fields: tuple[tuple[str, str], ...] = tuple(TYPES.items())
    holds: Mapping[str, str] = field(default_factory=dict)
    topic: str = "memory"

    def data_of(self, topic: str) -> str:
        """What a topic has."""
        return self.data if topic == "memory" else topic

    def row(self, record: Mapping[str, Any]) -> dict[str, Any]:
        """A record by the names of today."""
        return {name: _of_type(type_, record[self.holds.get(name, name)]) for name, type_ in self.fields}


def _of_type(type_: str, value: Any) -> Any:
    return {"string": str, "double": float}.get(type_, lambda each: each)(value)


@dataclass(frozen=True)
class Branch:
    """What becomes of some streams: a step that lets tuples through, and a table of aggregates, maybe by windows.

    `name` is the committer's id. `outputs` are the fields behind the step. On tuples whose `id` is divisible by
    `fails_on` the step fails.
    """

    name: str
    reads: tuple[str, ...]
    key: tuple[str, ...]
    columns: tuple[Column, ...]
    lets: str = "all"
    outputs: tuple[str, ...] = tuple(TYPES)
    window: str = ""
    by: tuple[str, ...] = ()
    time: str = "at"
    table: str = ""
    fails_on: int = 0

    @property
    def table_name(self) -> str:
        """The name of its table; another branch may have had it before."""
        return self.table or self.name


@dataclass(frozen=True)
class Program:
    """Several streams of Trident, or one spout and bolts, which go through the branches."""

    sources: tuple[Source, ...]
    branches: tuple[Branch, ...]
    is_trident: bool = True
    is_opaque: bool = False
    kind: StateKind = StateKind.OPAQUE
    parallelism: int = 1
    take: int = 2
    pending: int = 1
    max_delay_s: int = 4
    event_time: str = "at"
    has_letters: bool = False
    naive_times: str | None = None
    prefix: str = "in"
    """What bolts are called that are no committers."""
    sinks: tuple[Publishing, ...] = ()
    """What becomes of the tuples of the branch `second`, besides."""

    def mended(self) -> Program:
        """The same, whose steps don't fail."""
        return replace(self, branches=tuple(replace(each, fails_on=0) for each in self.branches))

    @property
    def first(self) -> Branch:
        """The branch that is changed, wherever it is declared."""
        return next(branch for branch in self.branches if branch.name not in ("second", "more"))

    def with_first(self, **changed: Any) -> Program:
        """With another branch in its place."""
        return replace(
            self, branches=tuple(replace(each, **changed) if each is self.first else each for each in self.branches)
        )

    def with_source(self, **changed: Any) -> Program:
        """With another source in the place of the one that is declared first."""
        return replace(self, sources=(replace(self.sources[0], **changed), *self.sources[1:]))


Records = Mapping[str, Mapping[int, list[dict[str, Any]]]]
"""By data and partition."""
States = Callable[[str, Any, StateKind], State]
"""Makes the state of a table, with a key or None."""
Sinks = Callable[[Publishing], Sink]
PUBLISHED = "second"
"""The branch whose tuples are published."""


class Lets:
    """The step: which tuples it lets through. The first time that it sees one on which it fails, it does."""

    parities: ClassVar[Mapping[str, tuple[int, ...]]] = {"all": (0, 1), "even": (0,), "odd": (1,)}
    breaks: ClassVar[bool] = False

    def __init__(self, what: str, fails_on: int) -> None:
        self.what, self.fails_on = what, fails_on

    def __call__(self, row: Tuple) -> bool:
        if Lets.breaks and row["id"] >= 0:
            raise OSError("broken")
        if self.fails_on and row["id"] > 0 and row["id"] % self.fails_on == 0:
            raise ValueError("no tuple for this one")
        return int(row["n"]) % 2 in self.parities[self.what]


@dataclass(frozen=True)
class TopicReader(PartitionReader):
    """Reads any topic."""

    topics: Mapping[str, MemoryPartitionReader]

    def read(self, partition: PartitionId, offsets: OffsetRange, metadata: object = None) -> Iterator[pa.RecordBatch]:
        """The rows of the range."""
        return self.topics[partition.source].read(partition, offsets)


class _OfTopic:
    """A spout that reads one topic, of those that there are."""

    topic: str
    topics: Mapping[str, MemoryPartitionReader]

    def logs(self, after: BatchMetadata) -> Logs:
        found: Logs = super().logs(after)  # type: ignore[misc]
        return {PartitionId(self.topic, partition.index): log for partition, log in found.items()}

    def check_replay(self, batch: BatchMetadata) -> None:
        """As the spout over Kafka has it."""
        ranges = {at: offsets for at, offsets in batch.ranges.items() if at.source == self.topic}
        super().check_replay(replace(batch, ranges=ranges))  # type: ignore[misc]

    def identity(self) -> Mapping[str, str]:
        return {**super().identity(), "topics": self.topic}  # type: ignore[misc]

    def reader(self) -> TopicReader:
        return TopicReader(self.topics)


class Exact(_OfTopic, MemoryTransactionalSpout):  # type: ignore[misc]
    """Transactional."""


class Loose(_OfTopic, OpaqueMemoryTransactionalSpout):  # type: ignore[misc]
    """Opaque."""


def spout_of(program: Program, source: Source, records: Records) -> Any:
    """The spout of a stream over what there is."""
    fields = ", ".join(map(" ".join, source.fields))
    rows = {
        topic: {
            number: [tuple(source.row(each).values()) for each in partition]
            for number, partition in records[source.data_of(topic)].items()
        }
        for topic in {"memory", source.topic}
    }
    made = (Loose if program.is_opaque else Exact)(rows[source.topic], fields, program.take)
    made.topic, made.topics = source.topic, {at: MemoryPartitionReader(of, made.output) for at, of in rows.items()}
    return made


def built(program: Program, records: Records, states: States, sinks: Sinks) -> Topology:
    """The topology."""
    return (_trident if program.is_trident else _bolts)(program, records, states, sinks)


def _trident(program: Program, records: Records, states: States, sinks: Sinks) -> Topology:
    topology = TridentTopology(ID, parallelism=program.parallelism, naive_times=program.naive_times)
    times: dict[str, Any] = {"max_delay": f"{program.max_delay_s} seconds", "max_ahead": None}
    streams = {
        source.name: topology.new_stream(
            source.name, spout_of(program, source, records), event_time=program.event_time, **times
        )
        for source in program.sources
    }
    for branch in program.branches:
        first, *others = [streams[name].project(*branch.outputs) for name in branch.reads]
        stream: Any = first.merge(*others) if others else first
        stream = stream.filter(Lets(branch.lets, branch.fails_on))
        for publishing in program.sinks if branch.name == PUBLISHED else ():
            stream.partition_by(publishing.key).sink_to(sinks(publishing), name=publishing.name)
        stream = stream.group_by(*branch.key) if branch.key else stream
        columns = {name: AGGREGATES[how](*([of] if of else [])) for name, how, of in branch.columns}
        state = states(branch.table_name, None, program.kind)
        if not branch.window:
            stream.persistent_aggregate(state, name=branch.name, **columns)
            continue
        by_time = {"on": branch.time} if branch.window not in ("count", "more") else {}
        windows = stream.window(WINDOWS[branch.window], **by_time)
        opened = windows.persistent_aggregate(state, name=branch.name, **columns)
        closed = opened.closed().group_by(*branch.key, "window_start")
        sums = {name: Sum(name) if how in ("count", "sum") else Max(name) for name, how, _ in branch.columns}
        kept = states(f"{branch.table_name}-closed", None, program.kind)
        closed.persistent_aggregate(kept, name=f"{branch.name}-closed", times=Count(), **sums)
    if program.has_letters:
        topology.set_dead_letters(states("letters", "letters", program.kind))
    return topology.build(strict=True)


def _bolts(program: Program, records: Records, states: States, sinks: Sinks) -> Topology:
    [source] = program.sources
    spout = spout_of(program, source, records)
    builder = TransactionalTopologyBuilder(ID, source.name, spout, program.parallelism, naive_times=program.naive_times)
    builder.set_event_time(program.event_time, max_delay=f"{program.max_delay_s} seconds", max_ahead=None)
    types = dict(source.fields)
    for branch in program.branches:
        output = ", ".join(f"{name} {types[name]}" for name in branch.outputs)
        before = f"{program.prefix}-{branch.name}"
        step = Step(Lets(branch.lets, branch.fails_on), branch.outputs, program.naive_times)
        builder.set_bolt(before, step, program.parallelism, output=output).shuffle_grouping(source.name)
        for publishing in program.sinks if branch.name == PUBLISHED else ():
            builder.set_sink(publishing.name, sinks(publishing), 2).fields_grouping(before, publishing.key)
        columns = {name: AGGREGATES[how](*([of] if of else [])) for name, how, of in branch.columns}
        state: Any = states(branch.table_name, "window" if branch.window else None, program.kind)
        if not branch.window:
            update = state.aggregate(**columns).group_by(*branch.key)
            builder.set_committer_bolt(branch.name, update, program.parallelism).fields_grouping(before, *branch.key)
            continue
        by_time = {"time": branch.time} if branch.window not in ("count", "more") else {}
        window = WINDOWS[branch.window]
        bolt = builder.set_windowed_bolt(branch.name, Shown(), window=window, key=branch.key, state=state, **by_time)
        bolt.global_grouping(before)
        seen: Any = states(f"{branch.table_name}-closed", None, program.kind)
        update = seen.aggregate(times=Count()).group_by("word", "start", "tuples")
        builder.set_committer_bolt(f"{branch.name}-closed", update).fields_grouping(branch.name, "word")
    if program.has_letters:
        builder.set_dead_letters(states("letters", "letters", program.kind))
    return builder.build(strict=True)


class Step:
    """The same as a function of a bolt, whose times are local ones if the program names a zone."""

    def __init__(self, lets: Lets, outputs: tuple[str, ...], zone: str | None) -> None:
        self.lets, self.outputs, self.zone = lets, outputs, zone

    def __call__(self, row: Tuple) -> tuple[Any, ...] | None:
        return tuple(self.local(row[name]) for name in self.outputs) if self.lets(row) else None

    def local(self, value: Any) -> Any:
        """A time as it is on clocks in the zone."""
        if self.zone is None or not isinstance(value, datetime):
            return value
        return value.astimezone(ZoneInfo(self.zone)).replace(tzinfo=None)


class Shown(WindowedBolt):
    """Emits what is in each window, by name."""

    output = "word string, start timestamp, tuples string"

    def execute(self, window: TupleWindow) -> None:
        """One tuple."""
        self.collector.emit(window.get()[0]["word"], window.start, shown((t["id"], t["n"]) for t in window.get()))


def shown(tuples: Any) -> str:
    """Ids and numbers, sorted."""
    return " ".join(f"{id_}:{n}" for id_, n in sorted(tuples))
