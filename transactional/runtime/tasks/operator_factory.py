"""Creates the operator of a component in one task of one attempt, from a bolt or from its pickled instance.

A class bolt is copied from its prototype for each task and attempt, so that no task sees the changes of another one.
The operator learns what its task needs: its excluded tuples, its context, and its view of a state.
"""

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
from transactional.runtime.tasks.letter_retries import makes_letters
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
from transactional.topology.bolts.bolts import BasicBolt, BatchBolt, BoltMetrics, MapState, TopologyContext
from transactional.topology.bolts.following_bolt import FollowingBolt
from transactional.topology.bolts.functions import BoltFunction, FunctionKind
from transactional.topology.bolts.stateful import StatefulBolt


class UpdateGate(ArrowOperator):
    """Precedes a state's update that reads from the spout directly. It keeps out the tuples that were set aside, and,
    with `looks_closer`, finds those that the state refuses."""

    def __init__(
        self, committer: str, emitter: Emitter, stream: str, aggregator: Aggregator, *, looks_closer: bool
    ) -> None:
        super().__init__(committer, emitter)
        self._pass_on = emitter.gate(self, stream)
        self._aggregator, self._looks_closer = aggregator, looks_closer

    def work(self, batch: pa.RecordBatch) -> None:
        """Pass tuples on to the update, after checking them if it looks closer."""
        if self._looks_closer:
            self._aggregator.partial([batch])
        self._pass_on(batch)


@dataclass(frozen=True, slots=True)
class TaskInfo:
    """The task of one attempt that an operator runs in. In the commit phase it has the committer's `state`."""

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
    """The tables that the bolt looks up."""

    def __str__(self) -> str:
        return f"task {self.task} of {self.task_count}"

    def configure(self, operator: Operator) -> Operator:
        """Pass an operator the exclusions and the origins of its bolt. Returns the operator."""
        operator.excluded = {
            exclusion.fingerprint: exclusion for exclusion in self.excluded if exclusion.component == operator.component
        }
        inputs = self.program.bolts[operator.component].inputs
        operator.silent = [grouping.origin for grouping in inputs if not makes_letters(grouping, self.task)]
        operator.shown_origins = {grouping.origin: grouping.shown_origin for grouping in inputs if grouping.spout}
        return operator

    def context(self, spec: BoltSpec, metrics: BoltMetrics) -> TopologyContext:
        """Return the context that the bolt gets in `prepare`."""
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
    """Create the operator of a component, which is still to be prepared. A class bolt is copied from its prototype."""
    bolt = spec.bolt
    if isinstance(bolt, BoltFunction):
        operator = _of_function(spec.id, bolt, emitter)
        operator.notes_origin = bolt.kind is FunctionKind.ARROW and len(spec.inputs) > 1
        return info.configure(operator)
    operator = _of_instance(info, spec, _copy_of(info.program, spec), emitter, BoltMetrics(spec.id))
    operator.fresh = partial(_recreate, info, spec)
    return operator


def _copy_of(program: TaskProgram, spec: BoltSpec) -> Any:
    """Return a copy of a bolt, so that no other task sees the changes of one."""
    pickled = program.prototypes.get(spec.id)
    if pickled is None:
        pickled = program.prototypes[spec.id] = cloudpickle.dumps(spec.bolt)
    return cloudpickle.loads(pickled)


def make_gates(info: TaskInfo, source: str, emitter: Emitter, *, looks_closer: bool) -> list[UpdateGate]:
    """Create a gate for each state's update that takes the output of `source`."""
    program, gates = info.program, list[UpdateGate]()
    for committer in program.plan.aggregated.get(source, ()):
        [grouping] = program.bolts[committer].inputs
        aggregator = program.aggregators[committer]
        gates.append(UpdateGate(committer, emitter, grouping.stream, aggregator, looks_closer=looks_closer))
        info.configure(gates[-1])
    return gates


def load_operator(info: TaskInfo, spec: BoltSpec, pickled: bytes, emitter: Emitter) -> Operator:
    """Create the operator of a bolt that was prepared in the processing phase (see `Operator.pickle_for_commit`)."""
    metrics = BoltMetrics(spec.id)
    bolt = load_instance(pickled, emitter, info.state, info.lookups, metrics)
    operator = _of_instance(info, spec, bolt, emitter, metrics)
    operator.fresh = partial(load_operator, info, spec, pickled)
    return operator


def _recreate(info: TaskInfo, spec: BoltSpec, emitter: Emitter) -> Operator:
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
    return info.configure(operator)


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
