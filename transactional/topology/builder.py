"""`TransactionalTopologyBuilder`: builds a `Topology`. `wiring` checks it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from transactional.core.ports import PersistentAggregate, Spout, SpoutMaker, State
from transactional.core.ports.dead_letters import check_dead_letters
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
from transactional.topology.wiring import check_id, check_parallelism, check_states, checked_spout, wire


def _view(topology: Topology) -> Mapping[str, str]:
    """What notebooks show of a topology; nobody else has to load what draws it."""
    from transactional.topology.describing import notebook_view

    return notebook_view(topology)


@dataclass(slots=True)
class BoltDeclarer(NamesOfBuilders):
    """Returned by `set_bolt`: declares what the bolt subscribes to. Each call adds an input and returns the declarer.

    `source` is the spout or a bolt, `stream` one of its streams. Raises `ConfigError` for a stream that is already
    subscribed to; `build` reports all other mistakes.
    """

    id: str
    bolt: AnyBolt
    parallelism: int
    state: State | None
    inputs: list[Grouping] = field(default_factory=list)
    reads: list[str] = field(default_factory=list)
    place: str | None = field(default_factory=caller_location)
    """Where the user declares it, as `FILE:LINE`: messages of `build` name it."""

    def reading(self, *reads: str) -> BoltDeclarer:
        """Declare whose states the bolt looks up in `finish_batch`, which then runs in the commit phase: ids of
        committers, for the values after the transaction; `before(id)` for those before it."""
        self.reads += [read for read in reads if read not in self.reads]
        return self

    def shuffle_grouping(self, source: str, *, stream: str = DEFAULT_STREAM) -> BoltDeclarer:
        """Tuples are distributed evenly; if both sides have the same parallelism they stay in their task."""
        return self._add(Grouping(GroupingKind.SHUFFLE, source, stream=stream))

    def local_or_shuffle_grouping(self, source: str, *, stream: str = DEFAULT_STREAM) -> BoltDeclarer:
        """Tuples stay in their task if both sides have the same parallelism, otherwise they are distributed evenly."""
        return self._add(Grouping(GroupingKind.LOCAL_OR_SHUFFLE, source, stream=stream))

    def none_grouping(self, source: str, *, stream: str = DEFAULT_STREAM) -> BoltDeclarer:
        """It does not matter how tuples are distributed. As in Storm, that is a shuffle."""
        return self._add(Grouping(GroupingKind.NONE, source, stream=stream))

    def fields_grouping(self, source: str, *fields: str, stream: str = DEFAULT_STREAM) -> BoltDeclarer:
        """Tuples with equal values in `fields` go to the same task."""
        return self._add(Grouping(GroupingKind.FIELDS, source, self._names("fields_grouping", source, fields), stream))

    def partial_key_grouping(self, source: str, *fields: str, stream: str = DEFAULT_STREAM) -> BoltDeclarer:
        """Tuples with equal values in `fields` go to one of two tasks, the less loaded one: for skewed keys."""
        names = self._names("partial_key_grouping", source, fields)
        return self._add(Grouping(GroupingKind.PARTIAL_KEY, source, names, stream))

    def all_grouping(self, source: str, *, stream: str = DEFAULT_STREAM) -> BoltDeclarer:
        """Every task gets every tuple."""
        return self._add(Grouping(GroupingKind.ALL, source, stream=stream))

    def global_grouping(self, source: str, *, stream: str = DEFAULT_STREAM) -> BoltDeclarer:
        """All tuples go to task 0."""
        return self._add(Grouping(GroupingKind.GLOBAL, source, stream=stream))

    def direct_grouping(self, source: str, *, stream: str = DEFAULT_STREAM) -> BoltDeclarer:
        """The emitting bolt chooses the task of each tuple, with `collector.emit_direct`."""
        return self._add(Grouping(GroupingKind.DIRECT, source, stream=stream))

    def custom_grouping(
        self, source: str, grouping: CustomStreamGrouping, *, stream: str = DEFAULT_STREAM
    ) -> BoltDeclarer:
        """`grouping` chooses the tasks of each tuple."""
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
        if any(known.origin == grouping.origin for known in self.inputs):
            stream = "" if grouping.stream == DEFAULT_STREAM else f"stream {grouping.stream!r} of "
            raise ConfigError(f"bolt {self.id!r} subscribes to {stream}{grouping.source!r} twice")
        self.inputs.append(grouping)
        return self


class TransactionalTopologyBuilder(NamesOfBuilders):
    """Builds a transactional topology.

    `topology_id` is the name under which progress is stored: a topology started again under the same id continues where
    it ended. `parallelism` is the number of tasks that read the spout's partitions. `set_spout` adds further spouts.
    Times without a time zone, from your code, are taken for times in the zone `naive_times` ("UTC", "Europe/Berlin");
    without it they end the run with `NaiveTime`.
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
        self._begin(topology_id, naive_times)
        self.set_spout(spout_id, spout, parallelism)

    def _begin(self, topology_id: str, naive_times: str | None) -> None:
        """Without a spout."""
        check_id("topology", topology_id)
        check_naive_times(topology_id, naive_times)
        self.naive_times = naive_times
        self.topology_id, self._spouts = topology_id, DeclaredSpouts()
        self._bolts: dict[str, BoltDeclarer] = {}
        self._dead_letters: State | None = None
        self._provider: str | None = None
        self.event_times: dict[str, EventTime] = {}
        self._default_time: EventTime | None = None
        """Of every stream with its field that has no time of its own."""

    def set_spout(self, spout_id: str, spout: Spout | SpoutMaker, parallelism: int = 1) -> None:
        """Add a spout, whose partitions `parallelism` tasks read.

        Bolts subscribe to each spout by its id. Several are read in the same transactions: each has a batch of every
        spout that has something new. Raises `ConfigError` for an object that is not a spout, for an id that is used,
        and for one of several spouts that has several streams.
        """
        check_id("spout", spout_id)
        check_parallelism(spout_id, parallelism)
        self._check_unused(spout_id)
        if self.spout_id and spout_id == DEFAULT_STREAM:
            raise ConfigError(f"spout id {spout_id!r} is the name of a stream; only the first spout may have it")
        self._spouts.add(spout_id, checked_spout(spout_id, spout, parallelism), parallelism)

    @property
    def spout_id(self) -> str:
        """The id of the first spout; "" as long as there is none."""
        return self._spouts.first

    @property
    def spout(self) -> Spout:
        """The spout; several as one."""
        return self._spouts.as_one()

    @property
    def parallelism(self) -> int:
        """The number of tasks that read; of several spouts the largest."""
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
        return self._declare(bolt_id, self._as_bolt(bolt_id, bolt, output), parallelism, None)

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
            return self._declare(bolt_id, bolt, parallelism, self._given_state(bolt_id, state))
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
        """Add a bolt that is called with windows of tuples, each when it closes (Storm's `withWindow`).

        `window` is `tumbling(…)`, `sliding(…)` or `count(…)`; tuples with other values in the fields `key` are in
        windows apart. `time` is the field with the event time, which the spout's stream has too (`set_event_time`), and
        `late` the stream of the bolt, which it declares, for tuples that come when their windows have closed. It has
        one task, in the driver. Its state, or that of the option `state_provider`, keeps the tuples of open windows.
        Raises `ConfigError`.
        """
        self._check_new("windowed bolt", bolt_id, bolt)
        windowing = Windowing.from_declaration(f"windowed bolt {bolt_id!r}", bolt, window, key, time, late)
        if state is not None:
            check_is_state("windowed bolt", bolt_id, state)
            bind_declared(bolt_id, windowing.state, state)
            check_deletes(bolt_id, state)
        return self._declare(bolt_id, windowing, 1, state)

    def set_dead_letters(self, state: State) -> None:
        """Set tuples aside on which a bolt fails `attempts_max` times, instead of stopping with its error.

        `state` is a `DeadLetterTable`. Such a tuple is skipped from then on, wherever it occurs in this batch, and
        written to the table with the transaction commit, once. An error that can't be attributed to a single tuple (in
        `finish_batch`, in a bolt on DataFrames, in a spout) stops the topology anyway. Raises `ConfigError` for a state
        of another shape.
        """
        check_dead_letters(state)
        if DEAD_LETTERS in self._bolts:
            raise ConfigError(f"component id {DEAD_LETTERS!r} is used by a bolt; rename it")
        self._dead_letters = state

    def set_event_time(
        self,
        field: str,
        *,
        max_delay: Any = "0 seconds",
        idle_after: Any = None,
        max_ahead: Any = "1 hour",
        stream: str | None = None,
    ) -> None:
        """Name the field of the spout, a timestamp, that says when something happened.

        A tuple may be older than the newest one of its partition by `max_delay` without being late. A partition without
        a record for `idle_after` is waited for no longer (None: it always is; but for a minute only as long as it has
        had none). A time further ahead of the clock than `max_ahead` (None: no limit) makes nothing else late. Of
        several spouts `stream` is the id of one; without it, the call is for all that have the field and are not named
        in a call of their own, also for those that are set later. Raises `ConfigError`.
        """
        outputs, how = outputs_of(self.spout), (field, max_delay, idle_after, max_ahead)
        if stream is None:
            having = (name for name, fields in outputs.items() if has_time(fields, field))
            example = next(having, DEFAULT_STREAM)
            self._default_time = event_time(self._stream_shown(example), outputs[example], *how)
            return
        stream = DEFAULT_STREAM if stream == self.spout_id else stream
        if stream not in outputs:
            raise ConfigError(
                f"spout {self.spout_id!r} has no stream {stream!r}; its streams are: {', '.join(outputs)}"
            )
        self.event_times[stream] = event_time(self._stream_shown(stream), outputs[stream], *how)

    def _stream_shown(self, stream: str) -> str:
        return f"spout {self.spout_id!r}" if stream == DEFAULT_STREAM else f"stream {stream!r}"

    def _all_event_times(self) -> dict[str, EventTime]:
        """By stream; a call of its own goes before that for all, and this before what the spout says itself."""
        default = self._default_time
        having = (
            name for name, fields in outputs_of(self.spout).items() if default and has_time(fields, default.field)
        )
        of_all = {name: default for name in having if default}
        return {**self.spout.event_times, **of_all, **self.event_times}

    def build(
        self,
        *,
        strict: bool = False,
        options: Mapping[str, Any] | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> Topology:
        """Check everything that can be checked without running anything, and freeze it.

        `options` are passed to every bolt as `TopologyContext.options`. `config` sets options of `TopologyConfig`; they
        override those of the environment and of the configuration file. Raises `ConfigError`; a combination of spout
        and state that is not exactly once is a `WeakerGuaranteeWarning`, or with `strict` an error.
        """
        provider = self._provide_states(config or {})
        components = wire(self.spout_id, self.spout, self._wired(self._bolts))
        topology = self._frozen(components, options, config, state_provider=provider)
        check_states(topology, strict=strict)
        check_windows(topology)
        return topology

    def build_query(self) -> Topology:
        """A topology without states, for questions from outside. Raises `ConfigError`."""
        return self._frozen(wire(self.spout_id, self.spout, self._bolts), None, None)

    def _wired(self, bolts: Mapping[str, BoltDeclarer]) -> dict[str, BoltDeclarer]:
        """The bolts, with subscriptions to the component that reads all spouts."""
        return {
            bolt_id: replace(each, inputs=[self._spouts.resolved(grouping) for grouping in each.inputs])
            for bolt_id, each in bolts.items()
        }

    def _frozen(
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
            event_times=self._all_event_times(),
            naive_times=self.naive_times,
            view=_view,
            **more,
        )

    def _provide_states(self, config: Mapping[str, Any]) -> str | None:
        """Give stateful bolts that were given no state one of the configured provider, which is returned if needed."""
        without = [declarer for declarer in self._bolts.values() if isinstance(declarer.bolt, StatefulBolt)]
        without = [declarer for declarer in without if declarer.state is None]
        if without:
            self._provider = load_config(config).config.state_provider
        for declarer in without:
            assert isinstance(declarer.bolt, StatefulBolt)
            declarer.state = state_of_provider(self._provider, self.topology_id, declarer.id, declarer.bolt.state)
            if isinstance(declarer.bolt, Windowing):
                check_deletes(declarer.id, declarer.state)
        return self._provider

    @staticmethod
    def _check_new(what: str, bolt_id: str, bolt: Any) -> None:
        check_id(what, bolt_id)
        if isinstance(bolt, type):
            raise ConfigError(f"{what} {bolt_id!r} is the class {bolt.__name__}; pass an instance: {bolt.__name__}(…)")

    @staticmethod
    def _given_state(bolt_id: str, state: State | None) -> State:
        if state is None:
            raise ConfigError(
                f"committer bolt {bolt_id!r} has no state: pass state=…, for example {STATE_EXAMPLE}. The state is "
                "what distinguishes a committed transaction from an uncommitted one; a committer that only needs the "
                "order keeps a state of one row, with key=()"
            )
        check_is_state("committer bolt", bolt_id, state)
        return state

    @staticmethod
    def _as_bolt(bolt_id: str, bolt: Any, output: str | None) -> Bolt | BoltFunction:
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
        return BoltFunction.of(bolt_id, bolt, output)

    def _declare(self, bolt_id: str, bolt: AnyBolt, parallelism: int, state: State | None) -> BoltDeclarer:
        check_parallelism(bolt_id, parallelism)
        self._check_unused(bolt_id)
        declarer = BoltDeclarer(bolt_id, bolt, parallelism, state)
        self._bolts[bolt_id] = declarer
        return declarer

    def _check_unused(self, component_id: str) -> None:
        if component_id in self._spouts or component_id in self._bolts:
            raise ConfigError(f"component id {component_id!r} is used twice")
