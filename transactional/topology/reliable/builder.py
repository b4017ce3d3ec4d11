"""`TopologyBuilder`: builds a topology with any of the three guarantees."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from transactional.core.ports import PersistentAggregate, Sink, State
from transactional.core.ports.dead_letters import check_dead_letters
from transactional.model.errors import ConfigError
from transactional.model.groupings import DEFAULT_STREAM, Grouping, GroupingKind
from transactional.model.guarantees import Guarantee
from transactional.model.schema import Schema, did_you_mean
from transactional.topology.bolts.bolts import BasicBolt, Bolt
from transactional.topology.bolts.functions import BoltFunction, FunctionKind, parse_output
from transactional.topology.bolts.sink_bolt import SinkBolt
from transactional.topology.bolts.stateful import StatefulBolt
from transactional.topology.builder import BoltDeclarer, TransactionalTopologyBuilder
from transactional.topology.reliable.acker import ACK_STREAM, ACKER, Acker
from transactional.topology.reliable.bolts import RichBolt
from transactional.topology.reliable.running import RunningBolt, UntrackedBolt
from transactional.topology.reliable.sending_bolt import SendingBolt
from transactional.topology.reliable.tracking import Reception, TrackedBolt
from transactional.topology.stages import plan_stages
from transactional.topology.topology import AnyBolt, Component, Topology, visible_fields
from transactional.topology.windows.windowed import WindowedBolt
from transactional.topology.wiring import check_states, wire

_KEEPING_STATES = (PersistentAggregate, StatefulBolt, WindowedBolt)
"""The components that keep a state, however they are added; any other keeps one if it is given one."""


class TopologyBuilder(TransactionalTopologyBuilder):
    """Builds a topology with a `guarantee`: "exactly-once", "at-least-once" or "at-most-once".

    With exactly-once it is a `TransactionalTopologyBuilder` whose spout is declared by `set_spout`. Otherwise there are
    no states and no committers: bolts are `RichBolt`s, `BasicBolt`s and functions of a `Tuple`. `ackers` is the number
    of tasks that find out which messages are finished; with `ackers=0` messages are not followed: what fails in a bolt
    is lost, only a batch whose job fails is processed again. `naive_times` is the time zone of times that have none.
    """

    def __init__(
        self,
        topology_id: str,
        *,
        guarantee: str | Guarantee = "exactly-once",
        ackers: int = 1,
        naive_times: str | None = None,
    ) -> None:
        self._prepare_empty(topology_id, naive_times)
        self.guarantee, self.ackers = _parse_guarantee(guarantee), ackers
        if type(ackers) is not int or ackers < 0:
            raise ConfigError(f"ackers is a number of tasks, or 0 for none; got {ackers!r}")

    @property
    def _follows(self) -> bool:
        return self.guarantee is Guarantee.AT_LEAST_ONCE and self.ackers > 0

    def set_bolt(
        self, bolt_id: str, bolt: Bolt | Callable[..., Any], parallelism: int = 1, *, output: str | None = None
    ) -> BoltDeclarer:
        """Add a bolt: a `RichBolt`, a `BasicBolt` or a function of a `Tuple`.

        A `BasicBolt`, and a function, anchors the tuples that it emits to the one that it has received. That is acked
        once the bolt is done, and failed if it raises. With exactly-once, bolts are as for
        `TransactionalTopologyBuilder`.
        """
        if self.guarantee is Guarantee.EXACTLY_ONCE:
            if isinstance(bolt, RichBolt):
                raise ConfigError(
                    f"bolt {bolt_id!r} is a RichBolt, which acks its tuples; with exactly-once batches are processed "
                    "as a whole: use a BasicBolt or a BatchBolt, or guarantee='at-least-once'"
                )
            return super().set_bolt(bolt_id, bolt, parallelism, output=output)
        self._check_new("bolt", bolt_id, bolt)
        if bolt_id == ACKER:
            raise ConfigError(f"component id {ACKER!r} is that of the ackers; rename the bolt")
        if isinstance(bolt, _KEEPING_STATES):
            return self._declare(bolt_id, bolt, parallelism, None)
        if isinstance(bolt, RichBolt):
            if output is not None:
                raise ConfigError(f"bolt {bolt_id!r}: {type(bolt).__name__} declares its own output; omit output=…")
            return self._declare(bolt_id, bolt, parallelism, None)
        checked_bolt = self._check_bolt(bolt_id, bolt, output)
        is_function = isinstance(checked_bolt, BoltFunction) and checked_bolt.kind is FunctionKind.TUPLE
        if not is_function and not isinstance(checked_bolt, BasicBolt):
            kind = (
                f"function of a {checked_bolt.kind.value}"
                if isinstance(checked_bolt, BoltFunction)
                else type(checked_bolt).__name__
            )
            raise ConfigError(
                f"bolt {bolt_id!r} is a {kind}, which works on whole batches; a topology that is "
                f"{self.guarantee.value} takes a RichBolt, a BasicBolt or a function of a Tuple"
            )
        return self._declare(bolt_id, checked_bolt, parallelism, None)

    def _declare(self, bolt_id: str, bolt: AnyBolt, parallelism: int, state: State | None) -> BoltDeclarer:
        """Add a component, which keeps a state only with exactly once. Raises `ConfigError`."""
        if isinstance(bolt, SinkBolt) and self.guarantee is not Guarantee.EXACTLY_ONCE:
            bolt = self._sending_bolt(bolt_id, bolt.sink)
        keeps_state = state is not None or isinstance(bolt, _KEEPING_STATES)
        if keeps_state and self.guarantee is not Guarantee.EXACTLY_ONCE:
            raise ConfigError(
                f"bolt {bolt_id!r} keeps a state, in topology {self.topology_id!r}, which is {self.guarantee.value}: "
                "states, also those of windows and joins, need guarantee='exactly-once', where a replay does not count "
                "twice; put the bolt into such a topology over the same source"
            )
        return super()._declare(bolt_id, bolt, parallelism, state)

    def _sending_bolt(self, sink_id: str, sink: Sink) -> SendingBolt:
        if self.guarantee is Guarantee.AT_MOST_ONCE or not sink.can_send:
            raise ConfigError(
                f"sink {sink_id!r} is in topology {self.topology_id!r}, which is {self.guarantee.value}; a {sink.kind} "
                f"needs guarantee={'at-least-once' if sink.can_send else 'exactly-once'!r}"
            )
        return SendingBolt(sink)

    def build(
        self,
        *,
        strict: bool = False,
        options: Mapping[str, object] | None = None,
        config: Mapping[str, object] | None = None,
    ) -> Topology:
        """Check everything that can be checked without running anything, and freeze it. Raises `ConfigError`."""
        if not self.spout_id:
            raise ConfigError(f"topology {self.topology_id!r} has no spout: add set_spout(…)")
        if self.guarantee is Guarantee.EXACTLY_ONCE:
            return super().build(strict=strict, options=options, config=config)
        if not self._bolts:
            raise ConfigError(f"topology {self.topology_id!r} has no bolt, so it would have no effect: add set_bolt(…)")
        self._check_spout()
        declared = {
            bolt_id: self._running(declarer) for bolt_id, declarer in self._with_resolved_inputs(self._bolts).items()
        }
        if self._follows:
            inputs = [Grouping(GroupingKind.FIELDS, bolt_id, ("root",), ACK_STREAM) for bolt_id in declared]
            declared[ACKER] = BoltDeclarer(ACKER, Acker(), self.ackers, None, inputs)
        components = wire(self.spout_id, self.spout, declared, is_followed=self._follows)
        followed = {"guarantee": self.guarantee, "follows_messages": self._follows}
        topology = self._make_topology(components, options, config, **followed)
        check_states(topology, strict=strict)
        _connect(topology)
        return topology

    def set_dead_letters(self, state: State, sink: Sink | None = None) -> None:
        """Store messages that have failed more than `message_retries_max` times, which are lost otherwise. For
        at-least-once.

        With exactly-once, it is as for `TransactionalTopologyBuilder`.
        """
        check_dead_letters(state)
        if self.guarantee is not Guarantee.EXACTLY_ONCE and not self._follows:
            raise ConfigError(
                f"topology {self.topology_id!r} is {self.guarantee.value}{', without ackers' * (self.ackers == 0)}: "
                "it does not follow its messages, so none becomes a dead letter"
            )
        if sink is not None and self.guarantee is not Guarantee.EXACTLY_ONCE:
            raise ConfigError(
                f"topology {self.topology_id!r} is {self.guarantee.value}: its dead letters are in their table alone, "
                "without a sink"
            )
        super().set_dead_letters(state, sink)

    def _check_spout(self) -> None:
        if self.spout.reader().refuses_records:
            raise ConfigError(
                f"spout {self.spout_id!r} sets records aside (on_error='dead_letter'), which needs "
                "guarantee='exactly-once'"
            )
        if self._follows and not self.spout.reader().knows_offsets:
            raise ConfigError(
                f"spout {self.spout_id!r} does not know the offsets of its records, so its messages can't be followed: "
                "its reader has no knows_offsets and read_with_offsets; use ackers=0, or guarantee='at-most-once'"
            )
        if self.guarantee is Guarantee.AT_MOST_ONCE:
            self.spout.parts.messages.ack_at_once()

    def _running(self, declared: BoltDeclarer) -> BoltDeclarer:
        bolt: Any = declared.bolt
        if isinstance(bolt, BoltFunction):
            outputs = {DEFAULT_STREAM: bolt.output}
        else:
            texts = {DEFAULT_STREAM: bolt.output, **bolt.streams}
            if ACK_STREAM in bolt.streams:
                raise ConfigError(f"bolt {declared.id!r}: stream {ACK_STREAM!r} is that of the ackers; rename it")
            outputs = {
                stream: parse_output(declared.id, text) if text else Schema(()) for stream, text in texts.items()
            }
        for grouping in declared.inputs:
            if self._follows and grouping.kind is GroupingKind.CUSTOM:
                raise ConfigError(
                    f"bolt {declared.id!r}: custom_grouping({grouping.source!r}, …) may give a tuple to several tasks "
                    "or to none, so it can't be followed: emit to the tasks with emit_direct, or use ackers=0"
                )
        kind: type[RunningBolt] = TrackedBolt if self._follows else UntrackedBolt
        return replace(declared, bolt=kind(declared.id, bolt, outputs))


def _parse_guarantee(argument: str | Guarantee) -> Guarantee:
    if isinstance(argument, Guarantee):
        return argument
    guarantees = {level.value: level for level in Guarantee}
    name = str(argument).replace("_", "-").lower()
    if name not in guarantees:
        raise ConfigError(
            f"guarantee is one of {', '.join(map(repr, guarantees))}; got {argument!r}{did_you_mean(name, guarantees)}"
        )
    return guarantees[name]


def _connect(topology: Topology) -> None:
    """Pass each bolt who receives what it emits, and how it receives what others emit."""
    last = {stage.components[-1] for stage in plan_stages(topology).stages}
    running = [component for component in topology.components if isinstance(component.bolt, RunningBolt)]
    for component in running:
        bolt: Any = component.bolt
        bolt.origins = [grouping.shown_origin for grouping in component.inputs]
        if isinstance(bolt.bolt, SendingBolt):
            bolt.bolt.inputs = {
                grouping.shown_origin: visible_fields(topology.output_of(*grouping.origin))
                for grouping in component.inputs
            }
        bolt.direct = _direct_targets(running, component.id)
    if not topology.follows_messages:
        return
    numbers: dict[tuple[str, str], int] = {}
    for component in running:
        bolt = component.bolt
        bolt.reports = component.id in last
        for grouping in component.inputs:
            is_direct, is_per_task = grouping.kind is GroupingKind.DIRECT, grouping.kind is GroupingKind.ALL
            fields = topology.output_of(*grouping.origin).names
            number = 0 if is_direct else numbers.get(grouping.origin, 0)
            is_of_spout = grouping.source == topology.spout_id
            bolt.receiving[grouping.shown_origin] = Reception(fields, number, is_per_task, is_of_spout)
            numbers[grouping.origin] = 1 if is_direct else number + (component.parallelism if is_per_task else 1)
    for component in running:
        bolt = component.bolt
        bolt.receivers = {stream: numbers.get((component.id, stream), 0) for stream in component.outputs}


def _direct_targets(components: list[Component], source: str) -> dict[str, dict[str, int]]:
    """Return the bolts that a component may emit to directly, with their tasks, by stream."""
    targets: dict[str, dict[str, int]] = {}
    for component in components:
        for grouping in component.inputs:
            if grouping.source == source and grouping.kind is GroupingKind.DIRECT:
                targets.setdefault(grouping.stream, {})[component.id] = component.parallelism
    return targets
