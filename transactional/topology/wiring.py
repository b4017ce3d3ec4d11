"""From declarations to a topology's components: every mistake in wiring is reported here, before anything runs."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from transactional.core.ports import PersistentAggregate, Sink, Spout, State, StateKind
from transactional.model.errors import ConfigError
from transactional.model.groupings import DEFAULT_STREAM, Grouping, GroupingKind
from transactional.model.guarantees import Guarantee
from transactional.model.plumbing.tracebacks import ends_with_location
from transactional.model.schema import Field, Schema, did_you_mean
from transactional.topology.bolts.bolts import Bolt
from transactional.topology.bolts.following_bolt import FollowingBolt
from transactional.topology.bolts.functions import BoltFunction, parse_output
from transactional.topology.bolts.sink_bolt import SinkBolt
from transactional.topology.locations import check_locations, table_of
from transactional.topology.topology import (
    CLOSED,
    NEW_AND_OLD,
    AnyBolt,
    Component,
    Topology,
    WorkPhase,
    fields_without,
    old_name,
    outputs_of,
    split_lookup_name,
    visible_fields,
)
from transactional.topology.windowing import Windowing


class WeakerGuaranteeWarning(UserWarning):
    """A spout and a state are combined in a way that is not exactly once."""


class Declared(Protocol):
    """A bolt with its subscriptions."""

    id: str
    bolt: AnyBolt
    parallelism: int
    state: State | None
    inputs: list[Grouping]
    reads: list[str]
    place: str | None


@contextmanager
def adding_declaration_place(declared: Declared) -> Iterator[None]:
    """Append the place in the user's code where a bolt was declared to a `ConfigError` that is raised inside.

    The traceback does not show that place, since `build` raises the error.
    """
    try:
        yield
    except ConfigError as error:
        text = str(error)
        if declared.place is None or ends_with_location(text):
            raise
        raise type(error)(f"{text} ({declared.place})") from None


def check_id(kind: str, id_: Any) -> None:
    """Raise `ConfigError` unless an id can be part of the names of tables and Spark jobs."""
    if not isinstance(id_, str) or not id_ or not all(character.isalnum() or character in "-_." for character in id_):
        raise ConfigError(f"{kind} id {id_!r} must be made of letters, digits and - _ .")


def check_parallelism(component_id: str, parallelism: int) -> None:
    """Raise `ConfigError` unless the argument is a number of tasks."""
    if type(parallelism) is not int or parallelism < 1:
        raise ConfigError(f"{component_id!r}: parallelism is a number of tasks, at least 1; got {parallelism!r}")


def check_spout(spout_id: str, spout: Any, parallelism: int) -> Spout:
    """Return the spout, or the one that a spout contract turns itself into. Raises `ConfigError` for anything else."""
    if isinstance(spout, type):
        raise ConfigError(f"spout {spout_id!r} is the class {spout.__name__}; pass an instance: {spout.__name__}(…)")
    if hasattr(spout, "as_spout"):
        spout = spout.as_spout(parallelism)
    if not isinstance(spout, Spout):
        raise ConfigError(
            f"spout {spout_id!r} is a {type(spout).__name__}, which is not a spout such as OpaqueKafkaSpout(…): derive "
            "one of your own from a contract, such as OpaquePartitionedTransactionalSpout, or from PartitionedSpout"
        )
    return spout


def wire(
    spout_id: str, spout: Spout, bolts: Mapping[str, Declared], *, is_followed: bool = False
) -> tuple[Component, ...]:
    """Return the components, each after those that it reads from. Raises `ConfigError`.

    `is_followed` is true if the tuples of the spout carry hidden fields.
    """
    spouts = spout.parts.streams.names or (spout_id,)
    return _Wiring(spout_id, spouts, outputs_of(spout, is_followed=is_followed), bolts).components()


def check_states(topology: Topology, *, strict: bool) -> None:
    """Raise `ConfigError` if states are missing or shared, or with `strict` if they give a weaker guarantee."""
    if topology.spout.parts.messages.is_acked and topology.guarantee is Guarantee.EXACTLY_ONCE:
        raise ConfigError(
            f"spout {topology.spout_id!r} is a queue that hands a message out once, so nothing can be read again: use "
            "TopologyBuilder with guarantee='at-least-once' or 'at-most-once'"
        )
    if not (topology.committers or topology.sinks) and topology.guarantee is Guarantee.EXACTLY_ONCE:
        raise ConfigError(
            f"topology {topology.id!r} has no committer, so it would have no effect: add set_committer_bolt(…)"
        )
    if topology.dead_letters is None and topology.spout.reader().refuses_records:
        raise ConfigError(
            f"spout {topology.spout_id!r} sets records aside (on_error='dead_letter'), and topology "
            f"{topology.id!r} has no table for them: add set_dead_letters(DeadLetterTable('path/of/a/table'))"
        )
    tables: dict[str, str] = {}
    for component in topology.committers:
        assert component.state is not None
        kind = component.state.parts.declared.kind
        if topology.dead_letters is not None and kind is not StateKind.OPAQUE:
            raise ConfigError(
                f"committer {component.id!r} keeps a {kind.value} state; if tuples may be set aside "
                "as dead letters, a replay differs from earlier attempts, so all states must be opaque"
            )
        table = table_of(component.state)
        if table in tables:
            raise ConfigError(
                f"committers {tables[table]!r} and {component.id!r} keep the same table; give each its own"
            )
        tables[table] = component.id
        _check_guarantee(topology, component.id, kind, strict=strict)
        _check_order(topology, component)
    check_locations(topology)


def _check_order(topology: Topology, committer: Component) -> None:
    """Raise `ConfigError` if a replay with another number of tasks might give a state other tuples, which keeps those
    of an earlier attempt."""
    assert committer.state is not None
    kind = committer.state.parts.declared.kind
    if kind is StateKind.OPAQUE:
        return
    components_by_id = {component.id: component for component in topology.components}
    above, todo = set[str](), [committer.id]
    while todo:
        component = components_by_id.get(todo.pop())
        if component is None or component.id in above:
            continue
        above.add(component.id)
        todo += [grouping.source for grouping in component.inputs]
        if component.windows is not None and component.windows.depends_on_order:
            raise ConfigError(
                f"committer {committer.id!r} keeps a {kind.value} state, and the windows of "
                f"{component.id!r} go by the order of tuples: a replay with another number of tasks fills them with "
                "others. Use kind=StateKind.OPAQUE"
            )


def _check_guarantee(topology: Topology, component_id: str, kind: StateKind, *, strict: bool) -> None:
    exact = kind is StateKind.OPAQUE or (kind is StateKind.TRANSACTIONAL and topology.spout.replays_exactly)
    if exact:
        return
    spout_kind = "transactional" if topology.spout.replays_exactly else "opaque"
    weaker = "at least once" if kind is StateKind.NON_TRANSACTIONAL else "not exactly once if a replayed batch differs"
    text = (
        f"committer {component_id!r} keeps a {kind.value} state behind the {spout_kind} spout "
        f"{topology.spout_id!r}: that is {weaker}. Use kind=StateKind.OPAQUE for exactly once"
    )
    if strict:
        raise ConfigError(text)
    warnings.warn(text, WeakerGuaranteeWarning, stacklevel=4)


class _Wiring:
    def __init__(
        self, spout_id: str, spouts: Sequence[str], outputs: dict[str, Schema], bolts: Mapping[str, Declared]
    ) -> None:
        self.spout_id, self.spouts, self.bolts = spout_id, spouts, bolts
        self.outputs: dict[str, dict[str, Schema]] = {spout_id: outputs}
        self.phases = {spout_id: WorkPhase.PROCESSING}

    def components(self) -> tuple[Component, ...]:
        built = list[Component]()
        for declared in self._sorted_bolts():
            with adding_declaration_place(declared):
                built.append(self._build_one(declared))
        self._check_direct()
        return tuple(built)

    def _sorted_bolts(self) -> list[Declared]:
        ordered: dict[str, Declared] = {}
        for bolt_id, declared in self.bolts.items():
            with adding_declaration_place(declared):
                self._visit(bolt_id, ordered, ())
        return list(ordered.values())

    def _visit(self, bolt_id: str, ordered: dict[str, Declared], path: tuple[str, ...]) -> None:
        if bolt_id in path:
            circle = [*path[path.index(bolt_id) :], bolt_id]
            raise ConfigError(f"bolts subscribe to each other in a cycle: {' -> '.join(circle)}")
        if bolt_id in ordered or bolt_id == self.spout_id:
            return
        for grouping in self.bolts[bolt_id].inputs:
            if grouping.source != self.spout_id and grouping.source not in self.bolts:
                names = [*self.spouts, *self.bolts]
                raise ConfigError(
                    f"bolt {bolt_id!r} subscribes to {grouping.source!r}, which is not a component of this topology; "
                    f"its components are: {', '.join(names)}{did_you_mean(grouping.source, names)}"
                )
            if grouping.source in self.bolts:
                with adding_declaration_place(self.bolts[grouping.source]):
                    self._visit(grouping.source, ordered, (*path, bolt_id))
        for read in self.bolts[bolt_id].reads:
            self._visit_read(bolt_id, read, ordered, (*path, bolt_id))
        ordered[bolt_id] = self.bolts[bolt_id]

    def _visit_read(self, bolt_id: str, read: str, ordered: dict[str, Declared], path: tuple[str, ...]) -> None:
        """Visit a committer whose state is looked up: after a transaction, it is written first."""
        committer, is_before = split_lookup_name(read)
        if committer not in self.bolts or self.bolts[committer].state is None:
            raise ConfigError(f"bolt {bolt_id!r} looks up the state of {committer!r}, which is no committer")
        if is_before:
            return
        if committer in path:
            raise ConfigError(
                f"bolt {bolt_id!r} looks up the state of {committer!r} after the transaction, and {committer!r} is "
                "updated with what comes of it: look up what was before it (when='before')"
            )
        self._visit(committer, ordered, path)

    def _build_one(self, declared: Declared) -> Component:
        name = f"bolt {declared.id!r}"
        if not declared.inputs:
            raise ConfigError(
                f"{name} subscribes to nothing: add .shuffle_grouping({self.spout_id!r}) or another grouping"
            )
        inputs = [(grouping, self._input(name, grouping)) for grouping in declared.inputs]
        self._check_bolt(declared, inputs)
        outputs = self._declared_outputs(declared)
        self.outputs[declared.id] = outputs
        component = Component(
            declared.id,
            declared.bolt,
            declared.parallelism,
            tuple(declared.inputs),
            outputs[DEFAULT_STREAM],
            declared.state,
            {stream: schema for stream, schema in outputs.items() if stream != DEFAULT_STREAM},
            tuple(declared.reads),
        )
        self._check_phase(component)
        return component

    def _input(self, name: str, grouping: Grouping) -> Schema:
        outputs = self.outputs[grouping.source]
        if grouping.stream not in outputs:
            raise ConfigError(
                f"{name} subscribes to stream {grouping.stream!r} of {grouping.source!r}, whose streams are: "
                f"{', '.join(outputs)}{did_you_mean(grouping.stream, list(outputs))}"
            )
        schema = outputs[grouping.stream]
        if not schema:
            raise ConfigError(
                f"{name} subscribes to bolt {grouping.source!r}, which declares no output, so it emits nothing"
            )
        schema.require(grouping.fields, of=f"{grouping.source!r}", used_by=name)
        return schema

    def _declared_outputs(self, declared: Declared) -> dict[str, Schema]:
        bolt = declared.bolt
        if isinstance(bolt, BoltFunction):
            return {DEFAULT_STREAM: bolt.output}
        if isinstance(bolt, PersistentAggregate):
            return self._new_values(declared, bolt)
        if DEFAULT_STREAM in bolt.streams:
            raise ConfigError(f"bolt {declared.id!r} declares the stream {DEFAULT_STREAM!r} in streams: use output")
        for stream in bolt.streams:
            check_id(f"bolt {declared.id!r}: stream", stream)
        return {stream: parse_output(declared.id, text) for stream, text in self._texts(bolt).items()}

    def _new_values(self, declared: Declared, update: PersistentAggregate) -> dict[str, Schema]:
        """Return the fields of the changed rows that a state's update emits, if a component subscribes to them."""
        assert declared.state is not None
        key, values = declared.state.key, declared.state.values
        groupings = [grouping for different in self.bolts.values() for grouping in different.inputs]
        streams = {grouping.stream for grouping in groupings if grouping.source == declared.id}
        row, old = Schema((*key, *values)), (Field(old_name(f.name), f.type) for f in values)
        outputs = {DEFAULT_STREAM: update.computed.fields(row) if DEFAULT_STREAM in streams else Schema(())}
        if NEW_AND_OLD in streams:
            outputs[NEW_AND_OLD] = update.computed.fields(Schema((*row, *old)))
        if CLOSED in streams and update.closed_fields:
            outputs[CLOSED] = update.closed_fields
        return outputs

    @staticmethod
    def _texts(bolt: Bolt) -> dict[str, str]:
        return {DEFAULT_STREAM: bolt.output, **bolt.streams}

    def _check_bolt(self, declared: Declared, inputs: Sequence[tuple[Grouping, Schema]]) -> None:
        name, bolt = f"bolt {declared.id!r}", declared.bolt
        if isinstance(bolt, Windowing):
            bolt.check_inputs(name, inputs)
        if isinstance(bolt, SinkBolt | FollowingBolt) and bolt.sink is not None:
            hidden_fields = self._hide_internal_fields(bolt, inputs) if isinstance(bolt, SinkBolt) else frozenset()
            _check_sink(declared.id, bolt.sink, inputs, hidden_fields)
        if isinstance(bolt, Bolt):
            return
        if isinstance(bolt, BoltFunction):
            if bolt.kind.value == "DataFrame" and len(inputs) > 1:
                raise ConfigError(f"{name} maps one DataFrame to another, so it has one input, not {len(inputs)}")
            return
        if len(inputs) > 1:
            raise ConfigError(
                f"{name} updates a state from one input, not {len(inputs)}: merge them in a bolt before it"
            )
        for grouping, schema in inputs:
            if grouping.kind is GroupingKind.DIRECT:
                raise ConfigError(f"{name} updates a state, which has no tasks to emit to directly: group by fields")
            schema.require(bolt.input_fields, of=f"{grouping.source!r}", used_by=name)
            bolt.bind_input(schema, used_by=name)

    def _hide_internal_fields(self, bolt: SinkBolt, inputs: Sequence[tuple[Grouping, Schema]]) -> frozenset[str]:
        """Hide from a sink the columns of aggregates that no user has named, unless it is declared with one of them."""
        internal_names = frozenset[str]().union(*(self._internal_fields(grouping) for grouping, _ in inputs))
        try:
            for grouping, schema in inputs if internal_names else ():
                bolt.sink.check_input(
                    fields_without(visible_fields(schema), internal_names), used_by=repr(grouping.source)
                )
        except ConfigError:
            internal_names = frozenset()
        bolt.hidden_fields = internal_names
        return internal_names

    def _internal_fields(self, grouping: Grouping) -> frozenset[str]:
        """Return the fields of a stream that only exist because a state stores them. A bolt that passes its tuples on
        has those of its input."""
        declared = self.bolts.get(grouping.source)
        if declared is None:
            return frozenset()
        if isinstance(declared.bolt, PersistentAggregate):
            internal_names = declared.bolt.computed.internal_names
            return internal_names | frozenset(map(old_name, internal_names))
        schema = self.outputs[grouping.source].get(grouping.stream)
        inputs = [edge for edge in declared.inputs if self.outputs[edge.source].get(edge.stream) == schema]
        return frozenset[str]().union(*map(self._internal_fields, inputs))

    def _check_phase(self, component: Component) -> None:
        late = any(self.phases[grouping.source] is WorkPhase.COMMIT for grouping in component.inputs)
        self.phases[component.id] = WorkPhase.COMMIT if late or component.waits_for_commit else WorkPhase.PROCESSING
        if component.is_dataframe and late:
            raise ConfigError(
                f"bolt {component.id!r} uses Spark DataFrames and is behind a committer, where bolts run in "
                "the commit phase, in the driver: make it a function of a RecordBatch or a Tuple"
            )

    def _check_direct(self) -> None:
        """Raise `ConfigError` if a stream is both emitted directly to chosen tasks and distributed by groupings."""
        kinds: dict[tuple[str, str], bool] = {}
        for declared in self.bolts.values():
            for grouping in declared.inputs:
                is_direct = grouping.kind is GroupingKind.DIRECT
                if kinds.setdefault(grouping.origin, is_direct) != is_direct:
                    raise ConfigError(
                        f"bolt {declared.id!r}: stream {grouping.stream!r} of {grouping.source!r} has subscribers with "
                        "direct_grouping and others; what is emitted to a chosen task needs a stream of its own"
                    )
                if is_direct and not isinstance(self.bolts.get(grouping.source, declared).bolt, Bolt):
                    raise ConfigError(
                        f"bolt {declared.id!r} subscribes with direct_grouping to {grouping.source!r}, which can't "
                        "emit_direct: only bolts that are classes can"
                    )


def _check_sink(
    name: str, sink: Sink, inputs: Sequence[tuple[Grouping, Schema]], hidden_fields: frozenset[str]
) -> None:
    """Raise `ConfigError` if the records of a sink can't be made of one of its inputs, or differ between them."""
    records = dict[frozenset[Field], tuple[str, Schema]]()
    for grouping, schema in inputs:
        source, visible = f"{grouping.source!r}", fields_without(visible_fields(schema), hidden_fields)
        sink.check_input(visible, used_by=f"sink {name!r} behind {source}")
        fields = sink.record_fields(visible)
        records.setdefault(frozenset(fields), (source, fields))
    if len(records) > 1:
        texts = " and ".join(f"({fields}) of {source}" for source, fields in records.values())
        raise ConfigError(
            f"sink {name!r} would publish different records: {texts}; name the fields that all inputs have, or use a "
            "sink for each of them"
        )
