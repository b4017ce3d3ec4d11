"""Which operator stands where: made for one task of one attempt, from a bolt or from its pickled instance."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import cloudpickle

from transactional.attempt import TransactionAttempt
from transactional.bolts import BasicBolt, BatchBolt, MapState, TopologyContext
from transactional.execution.emitting import Emitter
from transactional.execution.operators import (
    ArrowBatchOperator,
    ArrowFunction,
    BasicOperator,
    BatchOperator,
    Operator,
    PassOn,
    TupleFunction,
)
from transactional.execution.pickling import DeferredState, load_instance
from transactional.execution.trying_again import makes_letters
from transactional.letters import Exclusion
from transactional.topology.functions import BoltFunction, FunctionKind
from transactional.topology.topology import Component, Topology


@dataclass(frozen=True, slots=True)
class Place:
    """Where an operator works: one task of one attempt. In the commit phase a committer's `state` is at hand."""

    topology: Topology
    attempt: TransactionAttempt
    task: int
    task_count: int
    state: MapState | None = None
    excluded: tuple[Exclusion, ...] = ()

    def put(self, operator: Operator) -> Operator:
        """Tell an operator what is set aside from its bolt."""
        operator.excluded = {e.fingerprint: e for e in self.excluded if e.component == operator.component}
        inputs = self.topology.component(operator.component).inputs
        operator.silent = [g.origin for g in inputs if not makes_letters(g, self.task)]
        return operator

    def context(self, component: Component) -> TopologyContext:
        """What the bolt is told of it."""
        subscribers = {other.id: other.parallelism for other in self.topology.subscribers(component.id)}
        state = DeferredState(component.id) if component.is_committer and self.state is None else self.state
        return TopologyContext(
            self.topology.id, component.id, self.task, self.task_count, self.topology.options, state, subscribers
        )


def make_operator(place: Place, component: Component, emitter: Emitter) -> Operator:
    """The operator for a component, still to be prepared. Class bolts are copied from their prototype, fresh for this
    task and attempt (row T4)."""
    bolt = component.bolt
    if isinstance(bolt, BoltFunction):
        operator = _of_function(component.id, bolt, emitter)
        operator.notes_origin = bolt.kind is FunctionKind.ARROW and len(component.inputs) > 1
        return place.put(operator)
    operator = _of_instance(place, component, cloudpickle.loads(cloudpickle.dumps(bolt)), emitter)
    operator.fresh = partial(_made_again, place, component)
    return operator


def load_operator(place: Place, component: Component, pickled: bytes, emitter: Emitter) -> Operator:
    """The operator for a bolt that comes out of the processing phase (see `Operator.dump`), prepared there."""
    operator = _of_instance(place, component, load_instance(pickled, emitter, place.state), emitter)
    operator.fresh = partial(load_operator, place, component, pickled)
    return operator


def _made_again(place: Place, component: Component, emitter: Emitter) -> Operator:
    operator = make_operator(place, component, emitter)
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


def _of_instance(place: Place, component: Component, bolt: Any, emitter: Emitter) -> Operator:
    context = place.context(component)
    if isinstance(bolt, BasicBolt):
        return place.put(BasicOperator(component.id, emitter, bolt, context))
    if isinstance(bolt, BatchBolt):
        return place.put(BatchOperator(component.id, emitter, bolt, context, place.attempt))
    operator = ArrowBatchOperator(component.id, emitter, bolt, context, place.attempt)
    operator.notes_origin = len(component.inputs) > 1
    return place.put(operator)
