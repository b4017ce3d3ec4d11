"""Creates the operator for a component in one task of one attempt, from a bolt or from its pickled instance."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import cloudpickle
import pyarrow as pa

from transactional.core.ports import Aggregator
from transactional.model.attempt import TransactionAttempt
from transactional.model.facts import BatchFacts
from transactional.model.letters import Exclusion
from transactional.model.reading import Lookups
from transactional.runtime.tasks.emitting import Emitter
from transactional.runtime.tasks.map_state import DeferredLookups, DeferredState
from transactional.runtime.tasks.operators import (
    ArrowBatchOperator,
    ArrowFunction,
    ArrowOperator,
    BasicOperator,
    BatchOperator,
    FollowingOperator,
    Operator,
    PassOn,
    TupleFunction,
)
from transactional.runtime.tasks.pickling import load_instance
from transactional.runtime.tasks.program import BoltSpec, TaskProgram
from transactional.runtime.tasks.stateful import KeyValues, StatefulOperator
from transactional.runtime.tasks.trying_again import makes_letters
from transactional.topology.bolts.bolts import BasicBolt, BatchBolt, BoltMetrics, MapState, TopologyContext
from transactional.topology.bolts.following_bolt import FollowingBolt
from transactional.topology.bolts.functions import BoltFunction, FunctionKind
from transactional.topology.bolts.stateful import StatefulBolt


class UpdateGate(ArrowOperator):
    """Stands before a state's update where no bolt does, behind the spout: keeps out the tuples that were set aside,
    and, when it `looks_closer`, finds those that the state refuses."""

    def __init__(
        self, committer: str, emitter: Emitter, stream: str, aggregator: Aggregator, *, looks_closer: bool
    ) -> None:
        super().__init__(committer, emitter)
        self._keep = emitter.gate(self, stream)
        self._aggregator, self._looks_closer = aggregator, looks_closer

    def work(self, batch: pa.RecordBatch) -> None:
        """Pass tuples on to the update."""
        if self._looks_closer:
            self._aggregator.partial([batch])
        self._keep(batch)


@dataclass(frozen=True, slots=True)
class TaskInfo:
    """The task of one attempt that an operator runs in. In the commit phase it has a committer's `state`."""

    program: TaskProgram
    attempt: TransactionAttempt
    task: int
    task_count: int
    state: MapState | None = None
    excluded: tuple[Exclusion, ...] = ()
    facts: BatchFacts | None = None
    key_values: KeyValues | None = None
    """The state of a stateful bolt."""
    replaces: bool = False
    """Whether an earlier attempt has written that state."""
    shared: dict[str, Any] = field(default_factory=dict)
    lookups: Lookups | None = None
    """How a bolt looks states up."""

    def __str__(self) -> str:
        return f"task {self.task} of {self.task_count}"

    def given_to(self, operator: Operator) -> Operator:
        """Pass an operator the exclusions of its bolt."""
        operator.excluded = {e.fingerprint: e for e in self.excluded if e.component == operator.component}
        inputs = self.program.bolts[operator.component].inputs
        operator.silent = [g.origin for g in inputs if not makes_letters(g, self.task)]
        operator.shown = {g.origin: g.shown_origin for g in inputs if g.spout}
        return operator

    def context(self, spec: BoltSpec, metrics: BoltMetrics) -> TopologyContext:
        """What the bolt learns about it."""
        program, subscribers = self.program, self.program.subscribers_of(spec.id)
        state = self.state
        if spec.is_committer and state is None and not isinstance(spec.bolt, StatefulBolt):
            state = DeferredState(spec.id)
        return TopologyContext(
            program.topology_id,
            spec.id,
            self.task,
            self.task_count,
            program.options,
            state,
            subscribers,
            None if self.facts is None else self.facts.for_component(spec.id),
            self.shared,
            DeferredLookups(spec.id) if spec.reads and self.lookups is None else self.lookups,
            metrics,
        )


def make_operator(info: TaskInfo, spec: BoltSpec, emitter: Emitter) -> Operator:
    """The operator for a component, still to be prepared. Class bolts are copied from their prototype, fresh for this
    task and attempt."""
    bolt = spec.bolt
    if isinstance(bolt, BoltFunction):
        operator = _of_function(spec.id, bolt, emitter)
        operator.notes_origin = bolt.kind is FunctionKind.ARROW and len(spec.inputs) > 1
        return info.given_to(operator)
    operator = _of_instance(info, spec, _copy_of(info.program, spec), emitter, BoltMetrics(spec.id))
    operator.fresh = partial(_made_again, info, spec)
    return operator


def _copy_of(program: TaskProgram, spec: BoltSpec) -> Any:
    """What a task changes of it, no other one sees."""
    pickled = program.prototypes.get(spec.id)
    if pickled is None:
        pickled = program.prototypes[spec.id] = cloudpickle.dumps(spec.bolt)
    return cloudpickle.loads(pickled)


def make_gates(info: TaskInfo, source: str, emitter: Emitter, *, looks_closer: bool) -> list[UpdateGate]:
    """One for each state's update that takes the output of `source`."""
    program, gates = info.program, list[UpdateGate]()
    for committer in program.plan.aggregated.get(source, ()):
        [grouping] = program.bolts[committer].inputs
        aggregator = program.aggregators[committer]
        gates.append(UpdateGate(committer, emitter, grouping.stream, aggregator, looks_closer=looks_closer))
        info.given_to(gates[-1])
    return gates


def load_operator(info: TaskInfo, spec: BoltSpec, pickled: bytes, emitter: Emitter) -> Operator:
    """The operator for a bolt that comes out of the processing phase (see `Operator.dump`), prepared there."""
    metrics = BoltMetrics(spec.id)
    bolt = load_instance(pickled, emitter, info.state, info.lookups, metrics)
    operator = _of_instance(info, spec, bolt, emitter, metrics)
    operator.fresh = partial(load_operator, info, spec, pickled)
    return operator


def _made_again(info: TaskInfo, spec: BoltSpec, emitter: Emitter) -> Operator:
    operator = make_operator(info, spec, emitter)
    operator.prepare()
    return operator


def _of_function(component_id: str, bolt: BoltFunction, emitter: Emitter) -> Operator:
    match bolt.kind:
        case FunctionKind.DATAFRAME:
            return PassOn(component_id, emitter)
        case FunctionKind.TUPLE:
            return TupleFunction(component_id, emitter, bolt.function)
        case FunctionKind.ARROW:
            return ArrowFunction(component_id, emitter, bolt.function)


def _of_instance(info: TaskInfo, spec: BoltSpec, bolt: Any, emitter: Emitter, metrics: BoltMetrics) -> Operator:
    operator = _of_kind(info, spec, bolt, emitter, info.context(spec, metrics))
    operator.counts = metrics.counts
    return info.given_to(operator)


def _of_kind(info: TaskInfo, spec: BoltSpec, bolt: Any, emitter: Emitter, context: TopologyContext) -> Operator:
    if isinstance(bolt, BasicBolt):
        return BasicOperator(spec.id, emitter, bolt, context)
    if isinstance(bolt, BatchBolt):
        return BatchOperator(spec.id, emitter, bolt, context, info.attempt)
    if isinstance(bolt, StatefulBolt):
        assert info.key_values is not None
        values = info.key_values
        return StatefulOperator(spec.id, emitter, bolt, context, info.attempt, values, replaces=info.replaces)
    of_batches = FollowingOperator if isinstance(bolt, FollowingBolt) else ArrowBatchOperator
    operator = of_batches(spec.id, emitter, bolt, context, info.attempt)
    operator.notes_origin = len(spec.inputs) > 1
    return operator
