"""The frozen `Topology` that `TransactionalTopologyBuilder` builds: its components, and how they are connected.

It also says in which phase of a transaction each component runs, and what of it must stay the same between two runs:
the fingerprint, which is stored with the progress. It runs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from transactional.core.ports import PersistentAggregate, Sink, Spout, State, TupleAggregate, Windowed
from transactional.core.ports.dead_letters import LETTER_FIELDS
from transactional.model.arrow.computed import ComputedColumns
from transactional.model.batch import PartitionId
from transactional.model.config import TopologyConfig
from transactional.model.errors import ConfigError
from transactional.model.facts import EventTime
from transactional.model.groupings import DEFAULT_STREAM, Grouping
from transactional.model.guarantees import Guarantee
from transactional.model.names import (
    AGGREGATES,
    COMBINE,
    DEAD_LETTERS,
    EVENT_TIMES,
    JOINED_ON,
    KEPT_FIELDS,
    NAIVE_TIMES,
    SINKS,
    WINDOW_FIELDS,
    WINDOW_TIME,
    WINDOWS,
)
from transactional.model.plumbing.redaction import without_login
from transactional.model.reading import StaticTable
from transactional.model.schema import Schema
from transactional.model.user_code.stored_values import read_identity
from transactional.topology.bolts.bolts import Bolt
from transactional.topology.bolts.following_bolt import FollowingBolt
from transactional.topology.bolts.functions import BoltFunction, FunctionKind
from transactional.topology.bolts.sink_bolt import SinkBolt
from transactional.topology.bolts.stateful import StatefulBolt

AnyBolt = Bolt | BoltFunction | PersistentAggregate

NEW_AND_OLD = "old"
"""The stream of a state's update with the values before and after the transaction."""

CLOSED = "closed"
"""The stream of a state's update with the windows that close."""


def old_name(column: str) -> str:
    """Return the name of the old value of a column in `NEW_AND_OLD`."""
    return f"old_{column}"


_BEFORE = " before"
"""A suffix of look-ups. Its blank keeps them apart from ids."""


def previous_state(committer: str) -> str:
    """Return the name of the look-up of a state as it was before the transaction."""
    return committer + _BEFORE


def split_lookup_name(lookup: str) -> tuple[str, bool]:
    """Return the committer whose state is looked up, and whether the look-up is of the state before the transaction."""
    return lookup.removesuffix(_BEFORE), lookup.endswith(_BEFORE)


HIDDEN = Schema.parse("`$id` long, `$root` long, `$more` array<long>")
"""The hidden fields of tuples that are followed: their id, and the roots that they belong to, one or several in
`$more`."""


def outputs_of(spout: Spout, *, is_followed: bool = False) -> dict[str, Schema]:
    """Return the fields that a spout emits, by stream; with the hidden ones if its messages are followed."""
    outputs = dict(spout.parts.streams.outputs)
    return {stream: with_hidden(schema) for stream, schema in outputs.items()} if is_followed else outputs


def with_hidden(schema: Schema) -> Schema:
    """Add the hidden fields to those of a stream whose tuples are followed."""
    return Schema((*schema.fields, *HIDDEN.fields))


def visible_fields(schema: Schema) -> Schema:
    """Return the fields of a stream that bolts see."""
    return Schema(tuple(field for field in schema if field not in HIDDEN.fields))


def fields_without(schema: Schema, names: Collection[str]) -> Schema:
    """Return the fields of a stream that do not have these names."""
    return Schema(tuple(field for field in schema if field.name not in names))


class WorkPhase(Enum):
    """The phase of a transaction in which a component finishes its batch.

    PROCESSING: in the processing phase, in parallel with other transactions.
    COMMIT: in the commit phase, as one of its steps, in the order of transactions: components with a state, and
        those that read from one. They may begin earlier, with their other input (`Topology.begins_early`).
    """

    PROCESSING = "processing"
    COMMIT = "commit"


@dataclass(frozen=True, slots=True)
class Component:
    """A bolt with its id, inputs and outputs. `state` is set for committers; a `PersistentAggregate` has its own.

    `output` are the fields of the default stream, `streams` those of the others.
    """

    id: str
    bolt: AnyBolt
    parallelism: int
    inputs: tuple[Grouping, ...]
    output: Schema
    state: State | None = None
    streams: Mapping[str, Schema] = field(default_factory=dict)
    reads: tuple[str, ...] = ()
    """The states that it looks up in the commit phase: ids of committers, or their `previous_state`."""

    @property
    def is_committer(self) -> bool:
        """True if the bolt finishes its batch in the commit phase and keeps a state."""
        return self.state is not None

    @property
    def sink(self) -> Sink | None:
        """The sink that publishes the records of the component, or None for any other component."""
        return self.bolt.sink if isinstance(self.bolt, SinkBolt) else None

    @property
    def waits_for_commit(self) -> bool:
        """True if the component finishes in the commit phase, whatever it reads from."""
        return self.is_committer or self.sink is not None or bool(self.reads)

    @property
    def is_stateful(self) -> bool:
        """True if the bolt reads and writes its state while it processes its tuples."""
        return isinstance(self.bolt, StatefulBolt)

    @property
    def is_update(self) -> bool:
        """True for a state's update, which has no user code."""
        return self.update is not None

    @property
    def update(self) -> PersistentAggregate | None:
        """The state's update; None for a bolt."""
        return None if isinstance(self.bolt, Bolt | BoltFunction) else self.bolt

    @property
    def computed(self) -> ComputedColumns:
        """The columns of its state that are computed when rows are read."""
        return ComputedColumns() if self.update is None else self.update.computed

    @property
    def windows(self) -> Windowed | None:
        """The windows of the component. None if it has none."""
        return self.bolt if isinstance(self.bolt, Windowed) else None

    @property
    def is_dataframe(self) -> bool:
        """True if the bolt maps a Spark DataFrame to another."""
        return isinstance(self.bolt, BoltFunction) and self.bolt.kind is FunctionKind.DATAFRAME

    @property
    def outputs(self) -> dict[str, Schema]:
        """The fields by stream, the default stream first."""
        return {DEFAULT_STREAM: self.output, **self.streams}


@dataclass(frozen=True, slots=True, repr=False)
class Topology:
    """A checked topology. `components` are the bolts, each after those that it reads from."""

    id: str
    spout_id: str
    spout: Spout
    spout_parallelism: int
    components: tuple[Component, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    dead_letters: State | None = None
    letter_sink: Sink | None = None
    """The sink that publishes new dead letters, beside their table."""
    state_provider: str | None = None
    """The provider of the states that stateful bolts were not given. None if there are none."""
    guarantee: Guarantee = Guarantee.EXACTLY_ONCE
    follows_messages: bool = False
    """True if tuples carry the messages that they belong to, in columns that bolts do not see."""
    queries: Mapping[str, Query] = field(default_factory=dict)
    """The queries from outside, by name."""
    static_tables: tuple[StaticTable, ...] = ()
    """The static tables that are looked up, each at a version that is recorded with the batch."""
    event_times: Mapping[str, EventTime] = field(default_factory=dict)
    """The event time of each stream of the spout that has one."""
    naive_times: str | None = None
    """The zone of times without one, from user code. None if they are refused."""
    view: Callable[[Topology], Mapping[str, str]] | None = field(default=None, compare=False)
    """A function that makes what notebooks show, by content type. The builder sets it, as it reads topologies
    itself."""

    def event_times_of(self, partitions: Iterable[PartitionId]) -> dict[PartitionId, EventTime]:
        """Return the event times of the partitions whose records have one."""
        if not self.event_times:
            return {}
        stream_of = self.spout.reader().stream_of
        streams = {partition: stream_of(partition) for partition in partitions}
        return {
            partition: self.event_times[stream] for partition, stream in streams.items() if stream in self.event_times
        }

    @property
    def has_queries_alone(self) -> bool:
        """True if there is nothing to run: the topology only answers queries."""
        return bool(self.queries) and not self.components

    @property
    def closes_by_event_time(self) -> bool:
        """True if there are windows that close as event time advances."""
        return any(not bolt.closes_without_input for bolt in self._windowed)

    @property
    def has_windows(self) -> bool:
        """True if there are windows that close as event time or the time of transactions passes."""
        return any(not bolt.depends_on_order for bolt in self._windowed)

    @property
    def _windowed(self) -> list[Windowed]:
        return [component.windows for component in self.components if component.windows is not None]

    def check_provider(self, config: TopologyConfig) -> None:
        """Raise `ConfigError` if a run is configured with another provider than the topology was built with."""
        if self.state_provider not in (None, config.state_provider):
            url = without_login(self.state_provider or "")
            raise ConfigError(
                f"topology {self.id!r} was built with state_provider {url!r}, which a run can't change: set "
                "it in transactional.toml, in the environment, or in build(config=…)"
            )

    def __repr__(self) -> str:
        return f"Topology({self.id!r}: {' → '.join([self.spout_id, *(bolt.id for bolt in self.components)])})"

    def _repr_mimebundle_(self, **_: Any) -> Mapping[str, str]:
        return {"text/plain": repr(self)} if self.view is None else self.view(self)

    @property
    def committers(self) -> tuple[Component, ...]:
        """The bolts with a state, in the order in which they finish; the table of dead letters is the last one."""
        bolts = tuple(component for component in self.components if component.is_committer)
        if self.dead_letters is None:
            return bolts
        return (*bolts, Component(DEAD_LETTERS, Bolt(), 1, (), Schema(()), self.dead_letters))

    @property
    def sinks(self) -> dict[str, Sink]:
        """The sinks by the ids of their components; that of dead letters is the last one."""
        sinks = {component.id: component.sink for component in self.components if component.sink is not None}
        return sinks if self.letter_sink is None else sinks | {DEAD_LETTERS: self.letter_sink}

    @property
    def sending_sinks(self) -> dict[str, Sink]:
        """The sinks of a topology that is at least once, which send in tasks and have no outbox, by their ids."""
        bolts = {component.id: component.bolt for component in self.components}
        return {id_: bolt.sink for id_, bolt in bolts.items() if isinstance(bolt, FollowingBolt) and bolt.sink}

    def sinks_fingerprint(self) -> dict[str, Any]:
        """Return the part of the fingerprint for the sinks, which are prepared."""
        return {name: self._sink_fingerprint(name, sink) for name, sink in self.sinks.items()}

    def component(self, component_id: str) -> Component:
        """Return the bolt with this id."""
        return next(component for component in self.components if component.id == component_id)

    def outputs_of(self, component_id: str) -> dict[str, Schema]:
        """Return the fields that the spout or a bolt emits, by stream."""
        if component_id == self.spout_id:
            return outputs_of(self.spout, is_followed=self.follows_messages)
        return self.component(component_id).outputs

    def output_of(self, component_id: str, stream: str = DEFAULT_STREAM) -> Schema:
        """Return the fields that the spout or a bolt emits on one of its streams."""
        return self.outputs_of(component_id)[stream]

    def subscribers(self, component_id: str) -> tuple[Component, ...]:
        """Return the bolts that subscribe to a stream of this component."""
        return tuple(c for c in self.components if any(grouping.source == component_id for grouping in c.inputs))

    def phases(self) -> dict[str, WorkPhase]:
        """Return the phase in which each component finishes, including the spout."""
        phases = {self.spout_id: WorkPhase.PROCESSING}
        for component in self.components:
            late = any(phases[grouping.source] is WorkPhase.COMMIT for grouping in component.inputs)
            phases[component.id] = WorkPhase.COMMIT if late or component.waits_for_commit else WorkPhase.PROCESSING
        return phases

    def begins_early(self) -> frozenset[str]:
        """Return the components that have work in the processing phase.

        These are all but stateful bolts, which need their state for every tuple, and components whose whole input comes
        from steps of the commit phase.
        """
        phases = self.phases()
        return frozenset(
            component.id
            for component in self.components
            if not component.is_stateful
            and any(phases[grouping.source] is WorkPhase.PROCESSING for grouping in component.inputs)
        )

    def fingerprint(self) -> dict[str, Any]:
        """Return what must stay the same for the stored progress to remain usable. The spout must be open, and sinks
        prepared: see `with_open_spout`."""
        fingerprint: dict[str, Any] = {
            "spout": read_identity(self.spout),
            "committers": self.committers_fingerprint(),
        }
        if sinks := self.sinks_fingerprint():
            fingerprint[SINKS] = sinks
        if self.event_times:
            # Of several streams the one that is declared first has the default stream.
            first = self.spout_id if self.spout.parts.streams.names else DEFAULT_STREAM
            times = {
                first if name == DEFAULT_STREAM else name: event_time.field
                for name, event_time in self.event_times.items()
            }
            fingerprint[EVENT_TIMES] = times
        if self.naive_times not in (None, "UTC"):  # UTC is what they are taken for without a setting
            fingerprint[NAIVE_TIMES] = self.naive_times
        return (
            fingerprint
            if self.guarantee is Guarantee.EXACTLY_ONCE
            else fingerprint | {"guarantee": self.guarantee.value}
        )

    def committers_fingerprint(self) -> dict[str, dict[str, Any]]:
        """Return the part of the fingerprint that needs no source: by committer, its table and the meaning of its
        rows."""
        return {c.id: {**read_identity(c.state), **_meaning(c)} for c in self.committers if c.state is not None}

    def _sink_fingerprint(self, name: str, sink: Sink) -> dict[str, Any]:
        """Return the target and form of a sink's records, and their fields, which every input of the sink has."""
        if name == DEAD_LETTERS:
            fields = LETTER_FIELDS
        else:
            component = self.component(name)
            grouping = component.inputs[0]
            fields = self.output_of(grouping.source, grouping.stream)
            if isinstance(component.bolt, SinkBolt):
                fields = fields_without(fields, component.bolt.hidden_fields)
        return {**read_identity(sink), "fields": str(sink.record_fields(fields))}

    @contextmanager
    def with_open_spout(self, *, prepares_sinks: bool = True) -> Iterator[Topology]:
        """Yield this topology with a copy of its spout, which is open meanwhile, and with prepared sinks.

        It is for callers that examine the source, or need the fingerprint, outside of a run. Raises what `Spout.open`
        and `Sink.prepare` raise.
        """
        copy = replace(self, spout=self.spout.copy_unopened())
        try:
            copy.spout.open()
            for sink in (*copy.sinks.values(), *copy.sending_sinks.values()) if prepares_sinks else ():
                sink.prepare()
            yield copy
        finally:
            copy.spout.close()


def _meaning(component: Component) -> dict[str, Any]:
    """Return the fingerprint of what rows mean: how their values are combined.

    For windows it also has their length and time, and the fields of stored tuples.
    """
    update, windows, entries = component.update, component.windows, dict[str, Any]()
    if update is not None:
        entries |= {COMBINE: dict(update.combine), AGGREGATES: dict(update.aggregates_shown), **_stored_tuples(update)}
    if windows is not None:
        fields = None if windows.tuple_fields is None else str(windows.tuple_fields)
        entries |= {WINDOWS: windows.windows_shown, WINDOW_TIME: windows.time, WINDOW_FIELDS: fields}
    return {name: entry for name, entry in entries.items() if entry is not None}


def _stored_tuples(update: PersistentAggregate) -> dict[str, Any]:
    """Return the fields of tuples that columns of an update hold, and the fields that joined streams are compared
    by."""
    with_tuples = {
        name: aggregate for name, aggregate in update.aggregates.items() if isinstance(aggregate, TupleAggregate)
    }
    fields_by_stream = {
        key: str(fields)
        for name, aggregate in with_tuples.items()
        for key, fields in aggregate.tuple_fields(name).items()
    }
    joined_on = {
        stream: joined_fields
        for aggregate in with_tuples.values()
        for stream, joined_fields in aggregate.joined_on.items()
    }
    return {KEPT_FIELDS: fields_by_stream or None, JOINED_ON: joined_on or None}


@dataclass(frozen=True, slots=True)
class Query:
    """A query from outside: a topology of its own, whose spout emits the questions. It has no states.

    `answers` is the component and the stream with the answers. `reads` are the committers whose states it looks up,
    `static_tables` the static tables.
    """

    name: str
    topology: Topology
    answers: tuple[str, str]
    reads: tuple[str, ...]
    static_tables: tuple[StaticTable, ...] = ()
    is_by_tuple: bool = True
    """True if each answer depends on one question alone, however many are put at once."""

    @property
    def fields(self) -> Schema:
        """The fields of a question."""
        return self.topology.spout.output

    @property
    def returns(self) -> Schema:
        """The fields of an answer."""
        return self.topology.output_of(*self.answers)
