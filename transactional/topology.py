"""`TransactionalTopologyBuilder` and the frozen `Topology` that it builds. Every mistake in wiring is told here."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from transactional.bolts import ArrowBatchBolt, BasicBolt, BatchBolt, Bolt
from transactional.errors import ConfigError
from transactional.functions import BoltFunction, FunctionKind, parse_output
from transactional.ports import Spout, StateKind, StateUpdate, TransactionState
from transactional.schema import Schema, did_you_mean


class WeakerGuaranteeWarning(UserWarning):
    """A spout and a state are combined in a way that is not exactly once (row T39)."""


class GroupingKind(Enum):
    """How tuples are spread over the tasks of a bolt (row C7)."""

    SHUFFLE = "shuffle"
    FIELDS = "fields"
    ALL = "all"
    GLOBAL = "global"


@dataclass(frozen=True, slots=True)
class Grouping:
    """One input of a bolt: what it subscribes to, and how the tuples are spread over its tasks."""

    kind: GroupingKind
    source: str
    fields: tuple[str, ...] = ()


AnyBolt = Bolt | BoltFunction | StateUpdate


@dataclass(frozen=True, slots=True)
class Component:
    """A bolt in its place. `state` is set for committers; a `StateUpdate` brings its own."""

    id: str
    bolt: AnyBolt
    parallelism: int
    inputs: tuple[Grouping, ...]
    output: Schema
    state: TransactionState | None = None

    @property
    def is_committer(self) -> bool:
        """True when the bolt finishes its batch in the commit phase."""
        return self.state is not None

    @property
    def is_dataframe(self) -> bool:
        """True when the bolt maps a Spark DataFrame to another."""
        return isinstance(self.bolt, BoltFunction) and self.bolt.kind is FunctionKind.DATAFRAME


@dataclass(frozen=True, slots=True)
class Topology:
    """A checked topology. `components` are the bolts, each after those that it reads from."""

    id: str
    spout_id: str
    spout: Spout
    spout_parallelism: int
    components: tuple[Component, ...]
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def committers(self) -> tuple[Component, ...]:
        """The bolts with a state, in the order in which they finish."""
        return tuple(component for component in self.components if component.is_committer)

    def output_of(self, component_id: str) -> Schema:
        """The fields that the spout or a bolt emits."""
        if component_id == self.spout_id:
            return self.spout.output
        return next(component.output for component in self.components if component.id == component_id)

    def fingerprint(self) -> dict[str, Any]:
        """What must stay the same for the stored progress to be of use."""
        committers = {c.id: dict(c.state.identity()) for c in self.committers if c.state is not None}
        return {"spout": dict(self.spout.identity()), "committers": committers}


@dataclass(slots=True)
class BoltDeclarer:
    """Returned by `set_bolt`: says what the bolt subscribes to. Each call adds an input and returns the declarer."""

    id: str
    bolt: AnyBolt
    parallelism: int
    state: TransactionState | None
    inputs: list[Grouping] = field(default_factory=list)

    def shuffle_grouping(self, source: str) -> BoltDeclarer:
        """Tuples are spread evenly; where both sides have the same parallelism they stay in their task."""
        return self._add(Grouping(GroupingKind.SHUFFLE, source))

    def fields_grouping(self, source: str, *fields: str) -> BoltDeclarer:
        """Tuples with equal values in `fields` go to the same task."""
        if not fields:
            raise ConfigError(f"bolt {self.id!r}: fields_grouping({source!r}) names no field")
        for field_ in fields:
            if not isinstance(field_, str):
                raise ConfigError(
                    f"bolt {self.id!r}: fields_grouping({source!r}, …) takes names of fields, each by itself; "
                    f"got {field_!r}"
                )
        return self._add(Grouping(GroupingKind.FIELDS, source, fields))

    def all_grouping(self, source: str) -> BoltDeclarer:
        """Every task gets every tuple."""
        return self._add(Grouping(GroupingKind.ALL, source))

    def global_grouping(self, source: str) -> BoltDeclarer:
        """All tuples go to task 0."""
        return self._add(Grouping(GroupingKind.GLOBAL, source))

    def _add(self, grouping: Grouping) -> BoltDeclarer:
        if any(known.source == grouping.source for known in self.inputs):
            raise ConfigError(f"bolt {self.id!r} subscribes to {grouping.source!r} twice")
        self.inputs.append(grouping)
        return self


class TransactionalTopologyBuilder:
    """Puts a transactional topology together (seed 004, "The basics through example"; row T2).

    `topology_id` is the name under which progress is stored: a topology started again under the same id goes on where
    it ended. `parallelism` is the number of tasks that read the spout's partitions.
    """

    def __init__(self, topology_id: str, spout_id: str, spout: Spout, parallelism: int = 1) -> None:
        self._check_id("topology", topology_id)
        self._check_id("spout", spout_id)
        self._check_parallelism(spout_id, parallelism)
        self._check_spout(spout_id, spout)
        self.topology_id, self.spout_id, self.spout, self.parallelism = topology_id, spout_id, spout, parallelism
        self._bolts: dict[str, BoltDeclarer] = {}

    def set_bolt(
        self, bolt_id: str, bolt: Bolt | Callable[..., Any], parallelism: int = 1, *, output: str | None = None
    ) -> BoltDeclarer:
        """Add a bolt that works in the processing phase.

        `bolt` is a `BasicBolt`, `BatchBolt` or `ArrowBatchBolt`, or a function from a `Tuple`, a
        `pyarrow.RecordBatch` or a Spark `DataFrame`; `output` declares a function's fields in Spark's DDL.
        """
        self._check_new("bolt", bolt_id, bolt)
        if hasattr(bolt, "aggregator"):
            raise ConfigError(f"bolt {bolt_id!r} updates a state: add it with set_committer_bolt")
        return self._declare(bolt_id, self._as_bolt(bolt_id, bolt, output), parallelism, None)

    def set_committer_bolt(
        self,
        bolt_id: str,
        bolt: BatchBolt | ArrowBatchBolt | StateUpdate,
        parallelism: int = 1,
        *,
        state: TransactionState | None = None,
    ) -> BoltDeclarer:
        """Add a bolt whose `finish_batch` runs in the commit phase, one transaction at a time, in txid order.

        `bolt` is a state's update, such as `DeltaMapState(…).count()`, or a batch bolt with its `state`.
        """
        self._check_new("committer bolt", bolt_id, bolt)
        if isinstance(bolt, BatchBolt | ArrowBatchBolt):
            if state is None:
                raise ConfigError(
                    f"committer bolt {bolt_id!r} has no state: give state=…, for example "
                    "state=DeltaMapState('tables/totals', key='name string', values='total long')"
                )
            if not hasattr(state, "fence"):
                raise ConfigError(
                    f"committer bolt {bolt_id!r}: state=… is a {type(state).__name__}, which is no state; give for "
                    "example DeltaMapState('tables/totals', key='name string', values='total long')"
                )
            return self._declare(bolt_id, bolt, parallelism, state)
        if not hasattr(bolt, "aggregator"):
            raise ConfigError(
                f"committer bolt {bolt_id!r} is a {type(bolt).__name__}; a committer is a BatchBolt with state=…, "
                "or a state's update such as DeltaMapState(…).count()"
            )
        if state is not None:
            raise ConfigError(f"committer bolt {bolt_id!r} brings its own state; leave out state=…")
        return self._declare(bolt_id, bolt, parallelism, bolt.state)

    def build(self, *, strict: bool = False, options: Mapping[str, Any] | None = None) -> Topology:
        """Check everything that can be checked without running anything, and freeze it.

        `options` reach every bolt through `TopologyContext.options`. Raises `ConfigError`; a combination of spout and
        state that is not exactly once is a `WeakerGuaranteeWarning`, or with `strict` an error.
        """
        components: dict[str, Component] = {}
        for declarer in self._in_order():
            components[declarer.id] = self._build_one(declarer, components)
        topology = Topology(
            self.topology_id,
            self.spout_id,
            self.spout,
            self.parallelism,
            tuple(components.values()),
            dict(options or {}),
        )
        self._check_states(topology, strict=strict)
        return topology

    # --- checks -------------------------------------------------------------------------------------------------

    @staticmethod
    def _check_id(what: str, value: Any) -> None:
        if (
            not isinstance(value, str)
            or not value
            or not all(character.isalnum() or character in "-_." for character in value)
        ):
            raise ConfigError(f"{what} id {value!r} must be made of letters, digits and - _ .")

    @staticmethod
    def _check_parallelism(component_id: str, parallelism: int) -> None:
        if type(parallelism) is not int or parallelism < 1:
            raise ConfigError(f"{component_id!r}: parallelism is a number of tasks, at least 1; got {parallelism!r}")

    @staticmethod
    def _check_spout(spout_id: str, spout: Any) -> None:
        if isinstance(spout, type):
            raise ConfigError(
                f"spout {spout_id!r} is the class {spout.__name__}; give an instance: {spout.__name__}(…)"
            )
        if not hasattr(spout, "reader"):
            raise ConfigError(
                f"spout {spout_id!r} is a {type(spout).__name__}, which is no spout such as OpaqueKafkaSpout(…)"
            )

    def _check_new(self, what: str, bolt_id: str, bolt: Any) -> None:
        self._check_id(what, bolt_id)
        if isinstance(bolt, type):
            raise ConfigError(f"{what} {bolt_id!r} is the class {bolt.__name__}; give an instance: {bolt.__name__}(…)")

    def _as_bolt(self, bolt_id: str, bolt: Any, output: str | None) -> Bolt | BoltFunction:
        if isinstance(bolt, BasicBolt | BatchBolt | ArrowBatchBolt):
            if output is not None:
                raise ConfigError(
                    f"bolt {bolt_id!r}: {type(bolt).__name__} declares its own output; leave out output=…"
                )
            return bolt
        if not callable(bolt):
            raise ConfigError(
                f"bolt {bolt_id!r} is a {type(bolt).__name__}; it must be a BasicBolt, BatchBolt, ArrowBatchBolt or "
                "a function"
            )
        return BoltFunction.of(bolt_id, bolt, output)

    def _declare(self, bolt_id: str, bolt: AnyBolt, parallelism: int, state: TransactionState | None) -> BoltDeclarer:
        self._check_parallelism(bolt_id, parallelism)
        if bolt_id == self.spout_id or bolt_id in self._bolts:
            raise ConfigError(f"component id {bolt_id!r} is used twice")
        declarer = BoltDeclarer(bolt_id, bolt, parallelism, state)
        self._bolts[bolt_id] = declarer
        return declarer

    def _in_order(self) -> list[BoltDeclarer]:
        ordered: dict[str, BoltDeclarer] = {}
        for bolt_id in self._bolts:
            self._visit(bolt_id, ordered, ())
        return list(ordered.values())

    def _visit(self, bolt_id: str, ordered: dict[str, BoltDeclarer], path: tuple[str, ...]) -> None:
        if bolt_id in path:
            circle = [*path[path.index(bolt_id) :], bolt_id]
            raise ConfigError(f"bolts subscribe to each other in a circle: {' -> '.join(circle)}")
        if bolt_id in ordered or bolt_id == self.spout_id:
            return
        for grouping in self._bolts[bolt_id].inputs:
            if grouping.source != self.spout_id and grouping.source not in self._bolts:
                known = [self.spout_id, *self._bolts]
                raise ConfigError(
                    f"bolt {bolt_id!r} subscribes to {grouping.source!r}, which is no component of this topology; "
                    f"its components are: {', '.join(known)}{did_you_mean(grouping.source, known)}"
                )
            self._visit(grouping.source, ordered, (*path, bolt_id))
        ordered[bolt_id] = self._bolts[bolt_id]

    def _build_one(self, declarer: BoltDeclarer, known: Mapping[str, Component]) -> Component:
        name = f"bolt {declarer.id!r}"
        if not declarer.inputs:
            raise ConfigError(
                f"{name} subscribes to nothing: add .shuffle_grouping({self.spout_id!r}) or another grouping"
            )
        inputs = {g.source: self._output_of(g.source, known) for g in declarer.inputs}
        for grouping in declarer.inputs:
            if grouping.source in known and known[grouping.source].is_committer:
                raise ConfigError(
                    f"{name} subscribes to committer {grouping.source!r}; what stands downstream of a committer would "
                    "have to run in the commit phase, which is not supported yet: read the committer's table instead"
                )
            if not inputs[grouping.source]:
                raise ConfigError(
                    f"{name} subscribes to bolt {grouping.source!r}, which declares no output, so it emits nothing"
                )
            inputs[grouping.source].require(grouping.fields, of=f"{grouping.source!r}", used_by=name)
        output = self._check_bolt(declarer, inputs)
        return Component(
            declarer.id, declarer.bolt, declarer.parallelism, tuple(declarer.inputs), output, declarer.state
        )

    def _output_of(self, component_id: str, known: Mapping[str, Component]) -> Schema:
        return self.spout.output if component_id == self.spout_id else known[component_id].output

    def _check_bolt(self, declarer: BoltDeclarer, inputs: Mapping[str, Schema]) -> Schema:
        name, bolt = f"bolt {declarer.id!r}", declarer.bolt
        if isinstance(bolt, Bolt):
            return parse_output(declarer.id, bolt.output)
        if isinstance(bolt, BoltFunction):
            if bolt.kind is FunctionKind.DATAFRAME and len(inputs) > 1:
                raise ConfigError(f"{name} maps one DataFrame to another, so it has one input, not {len(inputs)}")
            return bolt.output
        if len(inputs) > 1:
            raise ConfigError(
                f"{name} updates a state from one input, not {len(inputs)}: bring them together in a bolt before it"
            )
        for source, schema in inputs.items():
            schema.require(bolt.input_fields, of=f"{source!r}", used_by=name)
            bolt.check_input(schema, used_by=name)
        return Schema(())

    def _check_states(self, topology: Topology, *, strict: bool) -> None:
        if not topology.committers:
            raise ConfigError(
                f"topology {topology.id!r} has no committer, so it would have no effect: add set_committer_bolt(…)"
            )
        tables: dict[str, str] = {}
        for component in topology.committers:
            assert component.state is not None
            identity = component.state.identity()
            table = str(sorted((name, value) for name, value in identity.items() if name != "kind"))
            if table in tables:
                raise ConfigError(
                    f"committers {tables[table]!r} and {component.id!r} keep the same table; give each its own"
                )
            tables[table] = component.id
            self._check_guarantee(topology, component.id, component.state.kind, strict=strict)

    def _check_guarantee(self, topology: Topology, component_id: str, kind: StateKind, *, strict: bool) -> None:
        exact = kind is StateKind.OPAQUE or (kind is StateKind.TRANSACTIONAL and topology.spout.replays_exactly)
        if exact:
            return
        spout_kind = "transactional" if topology.spout.replays_exactly else "opaque"
        weaker = (
            "at least once" if kind is StateKind.NON_TRANSACTIONAL else "not exactly once when a replayed batch differs"
        )
        text = (
            f"committer {component_id!r} keeps a {kind.value} state behind the {spout_kind} spout "
            f"{topology.spout_id!r}: that is {weaker}. Use kind=StateKind.OPAQUE for exactly once"
        )
        if strict:
            raise ConfigError(text)
        warnings.warn(text, WeakerGuaranteeWarning, stacklevel=4)
