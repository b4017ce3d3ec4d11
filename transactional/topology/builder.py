"""`TransactionalTopologyBuilder`: builds a `Topology`. `wiring` checks it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from transactional.core.ports import PersistentAggregate, Sink, Spout, SpoutMaker, State
from transactional.core.ports.dead_letters import check_dead_letters, check_letter_sink
from transactional.model.arrow.zones import check_naive_times
from transactional.model.config import check_options
from transactional.model.config_sources import load_config
from transactional.model.errors import ConfigError
from transactional.model.facts import EventTime
from transactional.model.groupings import DEFAULT_STREAM, CustomStreamGrouping, Grouping, GroupingKind
from transactional.model.names import DEAD_LETTERS
from transactional.model.plumbing.tracebacks import caller_location
from transactional.model.user_code.storm_names import NamesOfBuilders
from transactional.topology.bolts.bolts import ArrowBatchBolt, BasicBolt, BatchBolt, Bolt
from transactional.topology.bolts.functions import BoltFunction
from transactional.topology.bolts.sink_bolt import SinkBolt
from transactional.topology.bolts.stateful import StatefulBolt
from transactional.topology.declared_spouts import DeclaredSpouts
from transactional.topology.declared_state import (
    STATE_EXAMPLE,
    bind_declared,
    check_deletes,
    check_is_state,
    check_is_update,
    refuse_stateful,
    refuse_update,
    state_of_provider,
)
from transactional.topology.topology import AnyBolt, Component, Topology, outputs_of
from transactional.topology.windowing import Windowing, check_windows
from transactional.topology.windows.event_times import event_time, has_time
from transactional.topology.windows.windowed import WindowedBolt
from transactional.topology.windows.windows import CountWindow, Window
from transactional.topology.wiring import check_id, check_parallelism, check_spout, check_states, wire


def _view(topology: Topology) -> Mapping[str, str]:
    """Return what notebooks show of a topology. The import is here, so that nobody else has to load the drawing."""
    from transactional.topology.describing import notebook_view

    return notebook_view(topology)


@dataclass(slots=True)
class BoltDeclarer(NamesOfBuilders):
    """Declares what a bolt subscribes to. `set_bolt` returns it; each call adds an input and returns the declarer.

    `source` is the spout or a bolt, `stream` one of its streams. A call raises `ConfigError` for a stream that the bolt
    subscribes to already; `build` reports all other mistakes.
    """

    id: str
    bolt: AnyBolt
    parallelism: int
    state: State | None
    inputs: list[Grouping] = field(default_factory=list)
    reads: list[str] = field(default_factory=list)
    place: str | None = field(default_factory=caller_location)
    """The place of the declaration as `FILE:LINE`, for messages of `build`."""

    def reading(self, *reads: str) -> BoltDeclarer:
        """Declare the states that the bolt looks up in `finish_batch`, which then runs in the commit phase.

        The id of a committer stands for its values after the transaction, `previous_state(id)` for those before it.
        """
        self.reads += [read for read in reads if read not in self.reads]
        return self

    def shuffle_grouping(self, source: str, *, stream: str = DEFAULT_STREAM) -> BoltDeclarer:
        """Distribute tuples evenly. If both sides have the same parallelism, tuples stay in their task."""
        return self._add(Grouping(GroupingKind.SHUFFLE, source, stream=stream))

    def local_or_shuffle_grouping(self, source: str, *, stream: str = DEFAULT_STREAM) -> BoltDeclarer:
        """Keep tuples in their task if both sides have the same parallelism, else distribute them evenly."""
        return self._add(Grouping(GroupingKind.LOCAL_OR_SHUFFLE, source, stream=stream))

    def none_grouping(self, source: str, *, stream: str = DEFAULT_STREAM) -> BoltDeclarer:
        """Distribute tuples in any way. As in Storm, this is a shuffle."""
        return self._add(Grouping(GroupingKind.NONE, source, stream=stream))

    def fields_grouping(self, source: str, *fields: str, stream: str = DEFAULT_STREAM) -> BoltDeclarer:
        """Send tuples with equal values in `fields` to the same task."""
        return self._add(Grouping(GroupingKind.FIELDS, source, self._names("fields_grouping", source, fields), stream))

    def partial_key_grouping(self, source: str, *fields: str, stream: str = DEFAULT_STREAM) -> BoltDeclarer:
        """Send tuples with equal values in `fields` to one of two tasks, the less loaded one. For skewed keys."""
        names = self._names("partial_key_grouping", source, fields)
        return self._add(Grouping(GroupingKind.PARTIAL_KEY, source, names, stream))

    def all_grouping(self, source: str, *, stream: str = DEFAULT_STREAM) -> BoltDeclarer:
        """Send every tuple to every task."""
        return self._add(Grouping(GroupingKind.ALL, source, stream=stream))

    def global_grouping(self, source: str, *, stream: str = DEFAULT_STREAM) -> BoltDeclarer:
        """Send all tuples of the stream to task 0."""
        return self._add(Grouping(GroupingKind.GLOBAL, source, stream=stream))

    def direct_grouping(self, source: str, *, stream: str = DEFAULT_STREAM) -> BoltDeclarer:
        """Let the emitting bolt choose the task of each tuple, with `collector.emit_direct`."""
        return self._add(Grouping(GroupingKind.DIRECT, source, stream=stream))

    def custom_grouping(
        self, source: str, grouping: CustomStreamGrouping, *, stream: str = DEFAULT_STREAM
    ) -> BoltDeclarer:
        """Let `grouping` choose the tasks of each tuple."""
        if not isinstance(grouping, CustomStreamGrouping):
            raise ConfigError(
                f"bolt {self.id!r}: custom_grouping({source!r}, …) takes an instance of a CustomStreamGrouping; "
                f"got {grouping!r}"
            )
        return self._add(Grouping(GroupingKind.CUSTOM, source, (), stream, grouping))

    def _names(self, method: str, source: str, fields: tuple[str, ...]) -> tuple[str, ...]:
        if not fields:
            raise ConfigError(f"bolt {self.id!r}: {method}({source!r}) names no field")
        for name in fields:
            if not isinstance(name, str):
                raise ConfigError(
                    f"bolt {self.id!r}: {method}({source!r}, …) takes field names as separate arguments; got {name!r}"
                )
        return fields

    def _add(self, grouping: Grouping) -> BoltDeclarer:
        if any(existing.origin == grouping.origin for existing in self.inputs):
            stream = "" if grouping.stream == DEFAULT_STREAM else f"stream {grouping.stream!r} of "
            raise ConfigError(f"bolt {self.id!r} subscribes to {stream}{grouping.source!r} twice")
        self.inputs.append(grouping)
        return self


class TransactionalTopologyBuilder(NamesOfBuilders):
    """Builds a transactional topology.

    `topology_id` is the name under which progress is stored: a topology that starts again under the same id continues
    where it ended. `parallelism` is the number of tasks that read the spout's partitions. `set_spout` adds further
    spouts. Times without a time zone, from your code, are read in the zone `naive_times` ("UTC", "Europe/Berlin").
    Without `naive_times` they end the run with `NaiveTime`.
    """

    def __init__(
        self,
        topology_id: str,
        spout_id: str,
        spout: Spout | SpoutMaker,
        parallelism: int = 1,
        *,
        naive_times: str | None = None,
    ) -> None:
        self._prepare_empty(topology_id, naive_times)
        self.set_spout(spout_id, spout, parallelism)

    def _prepare_empty(self, topology_id: str, naive_times: str | None) -> None:
        """Prepare a builder that has no spout yet."""
        check_id("topology", topology_id)
        check_naive_times(topology_id, naive_times)
        self.naive_times = naive_times
        self.topology_id, self._spouts = topology_id, DeclaredSpouts()
        self._bolts: dict[str, BoltDeclarer] = {}
        self._dead_letters: State | None = None
        self._letter_sink: Sink | None = None
        self._provider: str | None = None
        self.event_times: dict[str, EventTime] = {}
        self._default_time: EventTime | None = None
        """The event time of every stream that has its field and no time of its own."""

    def set_spout(self, spout_id: str, spout: Spout | SpoutMaker, parallelism: int = 1) -> None:
        """Add a spout, whose partitions are read by `parallelism` tasks.

        Bolts subscribe to each spout by its id. All spouts share the transactions: each batch has the new records of
        every spout. Raises `ConfigError` for an object that is not a spout, for an id that is used, and for one of
        several spouts that has several streams.
        """
        check_id("spout", spout_id)
        check_parallelism(spout_id, parallelism)
        self._check_unused(spout_id)
        if self.spout_id and spout_id == DEFAULT_STREAM:
            raise ConfigError(f"spout id {spout_id!r} is the name of a stream; only the first spout may have it")
        self._spouts.add(spout_id, check_spout(spout_id, spout, parallelism), parallelism)

    @property
    def spout_id(self) -> str:
        """The id of the first spout. Empty as long as there is none."""
        return self._spouts.first

    @property
    def spout(self) -> Spout:
        """The spout of the topology, which combines several into one."""
        return self._spouts.combined_spout()

    @property
    def parallelism(self) -> int:
        """The number of tasks that read: of several spouts, the largest."""
        return self._spouts.tasks

    def set_bolt(
        self, bolt_id: str, bolt: Bolt | Callable[..., Any], parallelism: int = 1, *, output: str | None = None
    ) -> BoltDeclarer:
        """Add a bolt. It runs in the processing phase, or behind a committer in the commit phase.

        `bolt` is a `BasicBolt`, `BatchBolt` or `ArrowBatchBolt`, or a function from a `Tuple`, a `pyarrow.RecordBatch`
        or a Spark `DataFrame`; `output` declares a function's fields in Spark's DDL. `parallelism` is its number of
        tasks. Raises `ConfigError` for an object that is not a bolt, and for a duplicate id.
        """
        self._check_new("bolt", bolt_id, bolt)
        refuse_stateful("bolt", bolt_id, bolt)
        refuse_update(bolt_id, bolt)
        return self._declare(bolt_id, self._check_bolt(bolt_id, bolt, output), parallelism, None)

    def set_committer_bolt(
        self,
        bolt_id: str,
        bolt: BatchBolt | ArrowBatchBolt | PersistentAggregate,
        parallelism: int = 1,
        *,
        state: State | None = None,
    ) -> BoltDeclarer:
        """Add a bolt whose `finish_batch` runs in the commit phase, one transaction at a time, in txid order.

        `bolt` is a state's update, such as `DeltaMapState(…).count()`, or a batch bolt with its `state`. Raises
        `ConfigError` for anything else, and for a duplicate id.
        """
        self._check_new("committer bolt", bolt_id, bolt)
        refuse_stateful("committer bolt", bolt_id, bolt)
        if isinstance(bolt, BatchBolt | ArrowBatchBolt):
            return self._declare(bolt_id, bolt, parallelism, self._require_state(bolt_id, state))
        check_is_update(bolt_id, bolt)
        if state is not None:
            raise ConfigError(f"committer bolt {bolt_id!r} has its own state; omit state=…")
        return self._declare(bolt_id, bolt, parallelism, bolt.state)

    def set_stateful_bolt(
        self, bolt_id: str, bolt: StatefulBolt, parallelism: int = 1, *, state: State | None = None
    ) -> BoltDeclarer:
        """Add a bolt that reads and writes its state while it processes its tuples. It runs in the commit phase.

        Columns that `bolt.state` declares are those of the state. Without `state` the option `state_provider` names the
        place of one with these columns. Raises `ConfigError` for anything but a `StatefulBolt`, and for a duplicate id.
        """
        self._check_new("stateful bolt", bolt_id, bolt)
        if not isinstance(bolt, StatefulBolt):
            raise ConfigError(
                f"stateful bolt {bolt_id!r} is a {type(bolt).__name__}, not a StatefulBolt; add a BatchBolt with "
                "set_committer_bolt"
            )
        if state is not None:
            check_is_state("stateful bolt", bolt_id, state)
            if bolt.state:
                bind_declared(bolt_id, bolt.state, state)
        return self._declare(bolt_id, bolt, parallelism, state)

    def set_windowed_bolt(
        self,
        bolt_id: str,
        bolt: WindowedBolt,
        *,
        window: Window | CountWindow,
        key: str | Sequence[str] = (),
        time: str | None = None,
        late: str | None = None,
        state: State | None = None,
    ) -> BoltDeclarer:
        """Add a bolt that is called with windows of tuples, each when it closes, as Storm's `withWindow`.

        `window` is `tumbling(…)`, `sliding(…)` or `count(…)`. Tuples with different values in the fields `key` are in
        separate windows. `time` is the field with the event time, which the spout's stream has too (`set_event_time`).
        `late` is the stream of the bolt, declared by it, for tuples that come when their windows have closed. The bolt
        has one task, in the driver. Its state, or that of the option `state_provider`, keeps the tuples of open
        windows. Raises `ConfigError`.
        """
        self._check_new("windowed bolt", bolt_id, bolt)
        windowing = Windowing.from_declaration(f"windowed bolt {bolt_id!r}", bolt, window, key, time, late)
        if state is not None:
            check_is_state("windowed bolt", bolt_id, state)
            bind_declared(bolt_id, windowing.state, state)
            check_deletes(bolt_id, state)
        return self._declare(bolt_id, windowing, 1, state)

    def set_sink(self, sink_id: str, sink: Sink, parallelism: int = 1) -> BoltDeclarer:
        """Add a sink, such as a `KafkaSink`: what it publishes of a transaction follows the transaction commit, once.

        `parallelism` is the number of tasks that encode its tuples. Raises `ConfigError` for an object that is not a
        sink, and for a duplicate id.
        """
        self._check_new("sink", sink_id, sink)
        if not isinstance(sink, Sink):
            raise ConfigError(
                f"sink {sink_id!r} is a {type(sink).__name__}, which is not a sink such as KafkaSink(…); add a bolt "
                "with set_bolt"
            )
        return self._declare(sink_id, SinkBolt(sink), parallelism, None)

    def set_dead_letters(self, state: State, sink: Sink | None = None) -> None:
        """Set tuples aside if a bolt fails on them `attempts_max` times, instead of ending the run with its error.

        `state` is a `DeadLetterTable`. Such a tuple is skipped from then on, wherever it occurs in the batch, and
        written to the table once, with the transaction commit. An error that can't be attributed to a single tuple (in
        `finish_batch`, in a bolt on DataFrames, in a spout) still ends the run. With `sink` new letters are published,
        too: a `KafkaSink` of the fields that the table has. Raises `ConfigError` for a state of another shape.
        """
        check_dead_letters(state)
        check_letter_sink(sink)
        if DEAD_LETTERS in self._bolts:
            raise ConfigError(f"component id {DEAD_LETTERS!r} is used by a bolt; rename it")
        self._dead_letters, self._letter_sink = state, sink

    def set_event_time(
        self,
        field: str,
        *,
        max_delay: Any = "0 seconds",
        idle_after: Any = None,
        max_ahead: Any = "1 hour",
        stream: str | None = None,
    ) -> None:
        """Name the timestamp field of the spout that says when something happened.

        A tuple may be `max_delay` older than the newest one of its partition without being late. Windows stop waiting
        for a partition that has had no record for `idle_after`. With None they always wait, but for a partition that
        never had a record only a minute. A time that is more than `max_ahead` ahead of the clock makes no other tuple
        late; with None there is no such limit. `stream` is the id of one of several spouts. Without it, the call is for
        all spouts that have the field and no call of their own, even if they are set later. Raises `ConfigError`.
        """
        outputs, arguments = outputs_of(self.spout), (field, max_delay, idle_after, max_ahead)
        if stream is None:
            having = (name for name, fields in outputs.items() if has_time(fields, field))
            example = next(having, DEFAULT_STREAM)
            self._default_time = event_time(self._stream_text(example), outputs[example], *arguments)
            return
        stream = DEFAULT_STREAM if stream == self.spout_id else stream
        if stream not in outputs:
            raise ConfigError(
                f"spout {self.spout_id!r} has no stream {stream!r}; its streams are: {', '.join(outputs)}"
            )
        self.event_times[stream] = event_time(self._stream_text(stream), outputs[stream], *arguments)

    def _stream_text(self, stream: str) -> str:
        return f"spout {self.spout_id!r}" if stream == DEFAULT_STREAM else f"stream {stream!r}"

    def _all_event_times(self) -> dict[str, EventTime]:
        """Return the event time of each stream.

        A call for one stream has priority over a call for all, and this over the spout's own declaration.
        """
        default = self._default_time
        names = (name for name, fields in outputs_of(self.spout).items() if default and has_time(fields, default.field))
        default_times = {name: default for name in names if default}
        return {**self.spout.parts.streams.event_times, **default_times, **self.event_times}

    def build(
        self,
        *,
        strict: bool = False,
        options: Mapping[str, Any] | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> Topology:
        """Check everything that can be checked without running anything, and return the frozen topology.

        `options` are passed to every bolt as `TopologyContext.options`. `config` sets options of `TopologyConfig`; they
        override those of the environment and of the configuration file. Raises `ConfigError`. If spout and state
        together are not exactly once, it warns with `WeakerGuaranteeWarning`, or raises with `strict`.
        """
        provider = self._provide_states(config or {})
        components = wire(self.spout_id, self.spout, self._with_resolved_inputs(self._bolts))
        topology = self._make_topology(components, options, config, state_provider=provider)
        check_states(topology, strict=strict)
        check_windows(topology)
        return topology

    def build_query(self) -> Topology:
        """Return a topology without states, for questions from outside. Raises `ConfigError`."""
        return self._make_topology(wire(self.spout_id, self.spout, self._bolts), None, None)

    def _with_resolved_inputs(self, bolts: Mapping[str, BoltDeclarer]) -> dict[str, BoltDeclarer]:
        """Return the bolts, with subscriptions to the component that reads all spouts."""
        return {
            bolt_id: replace(declarer, inputs=[self._spouts.resolve(grouping) for grouping in declarer.inputs])
            for bolt_id, declarer in bolts.items()
        }

    def _make_topology(
        self,
        components: tuple[Component, ...],
        options: Mapping[str, Any] | None,
        config: Mapping[str, Any] | None,
        **more: Any,
    ) -> Topology:
        return Topology(
            self.topology_id,
            self.spout_id,
            self.spout,
            self.parallelism,
            components,
            dict(options or {}),
            check_options(config or {}),
            self._dead_letters,
            self._letter_sink,
            event_times=self._all_event_times(),
            naive_times=self.naive_times,
            view=_view,
            **more,
        )

    def _provide_states(self, config: Mapping[str, Any]) -> str | None:
        """Give stateful bolts without a state one of the configured provider. Returns the provider, if it was
        needed."""
        declarers = [declarer for declarer in self._bolts.values() if isinstance(declarer.bolt, StatefulBolt)]
        declarers = [declarer for declarer in declarers if declarer.state is None]
        if declarers:
            self._provider = load_config(config).config.state_provider
        for declarer in declarers:
            assert isinstance(declarer.bolt, StatefulBolt)
            declarer.state = state_of_provider(self._provider, self.topology_id, declarer.id, declarer.bolt.state)
            if isinstance(declarer.bolt, Windowing):
                check_deletes(declarer.id, declarer.state)
        return self._provider

    @staticmethod
    def _check_new(kind: str, bolt_id: str, bolt: Any) -> None:
        check_id(kind, bolt_id)
        if isinstance(bolt, type):
            raise ConfigError(f"{kind} {bolt_id!r} is the class {bolt.__name__}; pass an instance: {bolt.__name__}(…)")

    @staticmethod
    def _require_state(bolt_id: str, state: State | None) -> State:
        if state is None:
            raise ConfigError(
                f"committer bolt {bolt_id!r} has no state: pass state=…, for example {STATE_EXAMPLE}. The state is "
                "what distinguishes a committed transaction from an uncommitted one; a committer that only needs the "
                "order keeps a state of one row, with key=()"
            )
        check_is_state("committer bolt", bolt_id, state)
        return state

    @staticmethod
    def _check_bolt(bolt_id: str, bolt: Any, output: str | None) -> Bolt | BoltFunction:
        if isinstance(bolt, WindowedBolt):
            raise ConfigError(f"bolt {bolt_id!r} is a WindowedBolt: add it with set_windowed_bolt")
        if isinstance(bolt, BasicBolt | BatchBolt | ArrowBatchBolt):
            if output is not None:
                raise ConfigError(f"bolt {bolt_id!r}: {type(bolt).__name__} declares its own output; omit output=…")
            return bolt
        if not callable(bolt):
            raise ConfigError(
                f"bolt {bolt_id!r} is a {type(bolt).__name__}; it must be a BasicBolt, BatchBolt, ArrowBatchBolt or "
                "a function"
            )
        return BoltFunction.from_function(bolt_id, bolt, output)

    def _declare(self, bolt_id: str, bolt: AnyBolt, parallelism: int, state: State | None) -> BoltDeclarer:
        check_parallelism(bolt_id, parallelism)
        self._check_unused(bolt_id)
        declarer = BoltDeclarer(bolt_id, bolt, parallelism, state)
        self._bolts[bolt_id] = declarer
        return declarer

    def _check_unused(self, component_id: str) -> None:
        if component_id in self._spouts or component_id in self._bolts:
            raise ConfigError(f"component id {component_id!r} is used twice")
