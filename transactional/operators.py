"""A bolt at work: feeds it tuples or Arrow batches, in a task of the processing phase or in the commit phase."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import cloudpickle
import pyarrow as pa

from transactional.arrow import with_origin
from transactional.attempt import TransactionAttempt
from transactional.bolts import ArrowBatchBolt, BasicBolt, BatchBolt, MapState, TopologyContext, Tuple
from transactional.dead_letters import values_to_json
from transactional.emitting import Emitter, Subscription, TaskFailed, guarded
from transactional.errors import FatalError, OperatingError, SchemaMismatch
from transactional.functions import BoltFunction, FunctionKind
from transactional.pickling import DeferredState, dump_instance, load_instance
from transactional.ports import DeadLetter
from transactional.set_aside import Exclusion
from transactional.topology import Component, Topology


class Operator(ABC):
    """A bolt in one task of one attempt."""

    def __init__(self, component: str, emitter: Emitter) -> None:
        self.component, self.emitter = component, emitter
        self.received: dict[Subscription, int] = {}
        self.excluded: dict[str, Exclusion] = {}
        self.letters: list[DeadLetter] = []

    def receive(self, batch: pa.RecordBatch, source: str, stream: str) -> None:
        """Give the bolt some of its tuples, which `source` has emitted on `stream`."""
        subscription = (source, stream, self.component)
        self.received[subscription] = self.received.get(subscription, 0) + batch.num_rows
        if self.excluded:
            batch = self._without_excluded(batch, source, stream)
        with guarded(self.component, is_of_many=True):
            self.execute(batch, source, stream)

    def _without_excluded(self, batch: pa.RecordBatch, source: str, stream: str) -> pa.RecordBatch:
        kept = []
        for number, row in enumerate(tuples(batch, source, stream)):
            exclusion = self.excluded.get(fingerprint(row))
            if exclusion is None:
                kept.append(number)
            else:
                self.letters.append(DeadLetter(exclusion, source, stream, values_to_json(row.as_dict())))
        return batch if len(kept) == batch.num_rows else batch.take(pa.array(kept, pa.int64()))

    def prepare(self) -> None:  # noqa: B027 - optional
        """Called once before the first tuple."""

    @abstractmethod
    def execute(self, batch: pa.RecordBatch, source: str, stream: str) -> None:
        """Run the bolt over a record batch."""

    def finish(self) -> None:  # noqa: B027 - optional
        """Called once after the last tuple."""

    def dump(self) -> bytes | None:
        """Called instead of `finish` where the bolt goes on in the commit phase: its pickled instance, if any."""
        return None


class TupleOperator(Operator):
    """A bolt that works on one tuple at a time: a failure is laid at the door of the tuple that it was given."""

    def execute(self, batch: pa.RecordBatch, source: str, stream: str) -> None:
        """Give the bolt row by row."""
        work = self.work()
        row: Tuple | None = None
        try:
            with guarded(self.component):
                for row in tuples(batch, source, stream):
                    work(row)
        except TaskFailed as failed:
            is_own = failed.component == self.component and not failed.is_of_many
            if row is not None and is_own and not isinstance(failed.__cause__, OperatingError | FatalError):
                failed.at_fault = (Exclusion(self.component, fingerprint(row), str(failed)),)
            raise

    @abstractmethod
    def work(self) -> Callable[[Tuple], None]:
        """What runs the bolt over one tuple."""


class TupleFunction(TupleOperator):
    """A function from a `Tuple` to tuples."""

    def __init__(self, component: str, emitter: Emitter, function: Callable[[Tuple], Any]) -> None:
        super().__init__(component, emitter)
        self.function = function

    def work(self) -> Callable[[Tuple], None]:
        """Calls the function, and emits what it returns."""
        return self._call

    def _call(self, row: Tuple) -> None:
        returned = self.function(row)
        if isinstance(returned, tuple | Tuple):
            self.emitter.emit(*returned)
        elif returned is not None:
            self._emit_all(returned)

    def _emit_all(self, returned: Any) -> None:
        if isinstance(returned, str | bytes | Mapping) or not isinstance(returned, Iterable):
            raise self._no_tuple(returned)
        for values in returned:
            if not isinstance(values, tuple | list | Tuple):
                raise self._no_tuple(values)
            self.emitter.emit(*values)

    def _no_tuple(self, returned: Any) -> SchemaMismatch:
        return SchemaMismatch(
            f"{self.component!r} must return a tuple, an iterable of tuples, or None; got {repr(returned)[:100]}"
        )


class ArrowFunction(Operator):
    """A function from a record batch to a record batch or table."""

    def __init__(self, component: str, emitter: Emitter, function: Callable[[pa.RecordBatch], Any]) -> None:
        super().__init__(component, emitter)
        self.function = function

    def execute(self, batch: pa.RecordBatch, source: str, stream: str) -> None:
        """Call the function once."""
        self.emitter.emit_batch(self.function(batch))


class PassOn(Operator):
    """Stands for a DataFrame bolt, whose output Spark has computed: emits what it receives."""

    def execute(self, batch: pa.RecordBatch, source: str, stream: str) -> None:
        """Emit the record batch."""
        self.emitter.emit_batch(batch)


class BasicOperator(TupleOperator):
    """A `BasicBolt`."""

    def __init__(self, component: str, emitter: Emitter, bolt: BasicBolt, context: TopologyContext) -> None:
        super().__init__(component, emitter)
        self.bolt, self.context = bolt, context

    def prepare(self) -> None:
        """Prepare the bolt."""
        with guarded(self.component):
            self.bolt.prepare(self.context)

    def work(self) -> Callable[[Tuple], None]:
        """Gives the bolt a tuple."""
        execute, emitter = self.bolt.execute, self.emitter
        return lambda row: execute(row, emitter)

    def dump(self) -> bytes | None:
        """The bolt with what it keeps of this batch."""
        with guarded(self.component):
            return dump_instance(self.bolt, self.emitter)


class BatchOperator(TupleOperator):
    """A `BatchBolt` or `ArrowBatchBolt`."""

    def __init__(
        self,
        component: str,
        emitter: Emitter,
        bolt: BatchBolt | ArrowBatchBolt,
        context: TopologyContext,
        attempt: TransactionAttempt,
    ) -> None:
        super().__init__(component, emitter)
        self.bolt, self.context, self.attempt = bolt, context, attempt

    def prepare(self) -> None:
        """Prepare the bolt."""
        with guarded(self.component):
            self.bolt.prepare(self.context, self.emitter, self.attempt)

    def execute(self, batch: pa.RecordBatch, source: str, stream: str) -> None:
        """Give the bolt the batch, whole or row by row."""
        if isinstance(self.bolt, ArrowBatchBolt):
            self.bolt.execute_batch(batch)
        else:
            super().execute(batch, source, stream)

    def work(self) -> Callable[[Tuple], None]:
        """Gives the bolt a tuple."""
        assert isinstance(self.bolt, BatchBolt)
        return self.bolt.execute

    def finish(self) -> None:
        """Finish the batch."""
        with guarded(self.component):
            self.bolt.finish_batch()

    def dump(self) -> bytes | None:
        """The bolt with what it keeps of this batch."""
        with guarded(self.component):
            return dump_instance(self.bolt, self.emitter)


class ManyInputs(Operator):
    """Around the operator of an Arrow-wise bolt with several inputs: notes in each record batch where it is from."""

    def __init__(self, inner: Operator) -> None:
        super().__init__(inner.component, inner.emitter)
        self.inner = inner

    def prepare(self) -> None:
        """Prepare the bolt."""
        self.inner.prepare()

    def execute(self, batch: pa.RecordBatch, source: str, stream: str) -> None:
        """Give the bolt the batch."""
        self.inner.execute(with_origin(batch, source, stream), source, stream)

    def finish(self) -> None:
        """Finish the batch."""
        self.inner.finish()

    def dump(self) -> bytes | None:
        """The bolt with what it keeps of this batch."""
        return self.inner.dump()


def tuples(batch: pa.RecordBatch, source: str, stream: str) -> Iterator[Tuple]:
    """The rows of a record batch as tuples."""
    names = tuple(batch.schema.names)
    columns = [column.to_pylist() for column in batch.columns]
    return (Tuple(names, values, source, stream) for values in zip(*columns, strict=True))


def fingerprint(row: Tuple) -> str:
    """Stands for a tuple: equal for equal ones of one stream, in every process."""
    return hashlib.sha256(repr((row.source, row.stream, row.values)).encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class Place:
    """Where an operator works: one task of one attempt. In the commit phase a committer's `state` is at hand."""

    topology: Topology
    attempt: TransactionAttempt
    task: int
    task_count: int
    state: MapState | None = None
    excluded: tuple[Exclusion, ...] = ()

    def exclude(self, operator: Operator) -> Operator:
        """Keep what is set aside from an operator."""
        operator.excluded = {e.fingerprint: e for e in self.excluded if e.component == operator.component}
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
        operator = place.exclude(_of_function(component.id, bolt, emitter))
        return ManyInputs(operator) if bolt.kind is FunctionKind.ARROW and len(component.inputs) > 1 else operator
    return _of_instance(place, component, cloudpickle.loads(cloudpickle.dumps(bolt)), emitter)


def load_operator(place: Place, component: Component, pickled: bytes, emitter: Emitter) -> Operator:
    """The operator for a bolt that comes out of the processing phase (see `Operator.dump`), prepared there."""
    return _of_instance(place, component, load_instance(pickled, emitter, place.state), emitter)


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
        return place.exclude(BasicOperator(component.id, emitter, bolt, context))
    operator = place.exclude(BatchOperator(component.id, emitter, bolt, context, place.attempt))
    return ManyInputs(operator) if isinstance(bolt, ArrowBatchBolt) and len(component.inputs) > 1 else operator
