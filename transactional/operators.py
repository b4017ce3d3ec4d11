"""A bolt at work inside a task: feeds it tuples or Arrow batches, and takes what it emits to where it belongs."""

from __future__ import annotations

import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import cloudpickle
import pyarrow as pa

from transactional.arrow import arrow_schema, batch_from_rows, conform, rows_by_task, task_of_rows
from transactional.attempt import TransactionAttempt
from transactional.bolts import ArrowBatchBolt, BasicBolt, BatchBolt, TopologyContext, Tuple
from transactional.errors import BoltFailed, SchemaMismatch, TransactionalError
from transactional.functions import BoltFunction, FunctionKind
from transactional.pickling import DeferredState, dump_committer
from transactional.ports import Aggregator
from transactional.schema import Schema
from transactional.stages import Edge
from transactional.topology import Component, GroupingKind, Topology

ROWS_PER_BATCH = 10_000
"""Tuples emitted one by one are gathered into record batches of so many rows."""


class TaskFailed(BaseException):
    """A task can't go on: carries the component and the code of the error to be raised in the driver.

    No `Exception`: a bolt that catches these around `emit` must not swallow the failure of a bolt behind it.
    """

    def __init__(self, code: str, component: str, text: str) -> None:
        super().__init__(text)
        self.code, self.component = code, component


class guarded:  # noqa: N801 - reads as a statement: `with guarded("parse"):`
    """Turns whatever user code raises into `TaskFailed`, with the component's name and the traceback."""

    def __init__(self, component: str) -> None:
        self.component = component

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        if not isinstance(error, Exception | SystemExit):
            return
        code, text = BoltFailed.code, f"component {self.component!r} raised {type(error).__name__}: {error}"
        if isinstance(error, TransactionalError):
            code, text = error.code, str(error) if repr(self.component) in str(error) else text
        else:
            text += "\n" + "".join(traceback.format_exception(error)).rstrip()
        raise TaskFailed(code, self.component, text) from error


class Emitter:
    """Collects what a component emits and hands it to the bolts in the same task, to edges, to aggregators."""

    def __init__(self, component: str, output: Schema, task: int, edges: Iterable[Edge]) -> None:
        self.component, self.schema, self.task = component, arrow_schema(output), task
        self.inner: list[Operator] = []
        self.aggregators: Mapping[str, Aggregator] = {}
        self.addressed: dict[Edge, dict[int, list[pa.RecordBatch]]] = {edge: {} for edge in edges}
        self.emitted = 0
        self._rows: list[tuple[Any, ...]] = []
        self._pending: dict[str, list[pa.RecordBatch]] = {}
        self._next_task: dict[Edge, int] = {}

    def emit(self, *values: Any) -> None:
        """Take one tuple."""
        if len(values) != len(self.schema):
            with guarded(self.component):
                raise SchemaMismatch(
                    f"{self.component!r} declares the fields {self.schema.names} and emitted {len(values)} values"
                )
        self._rows.append(values)
        if len(self._rows) >= ROWS_PER_BATCH:
            self.flush()

    def emit_batch(self, batch: pa.RecordBatch | pa.Table) -> None:
        """Take many tuples."""
        self.flush()
        with guarded(self.component):
            parts = conform(batch, self.schema, component=self.component)
        for part in parts:
            self._hand_on(part)

    def flush(self) -> None:
        """Hand on the tuples that were emitted one by one."""
        if self._rows:
            rows, self._rows = self._rows, []
            with guarded(self.component):
                batch = batch_from_rows(rows, self.schema, component=self.component)
            self._hand_on(batch)

    def partials(self) -> Iterator[tuple[str, pa.Table]]:
        """For each state's update that takes this component's output: its partial aggregates of this task."""
        for committer, aggregator in self.aggregators.items():
            with guarded(committer):
                partial = aggregator.partial(self._pending.get(committer, []))
            yield committer, partial

    def _hand_on(self, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        self.emitted += batch.num_rows
        for operator in self.inner:
            operator.receive(batch, self.component)
        for committer in self.aggregators:
            self._pending.setdefault(committer, []).append(batch)
        for edge, by_task in self.addressed.items():
            for task, part in self._spread(batch, edge):
                by_task.setdefault(task, []).append(part)

    def _spread(self, batch: pa.RecordBatch, edge: Edge) -> Iterator[tuple[int, pa.RecordBatch]]:
        match edge.grouping.kind:
            case GroupingKind.GLOBAL:
                yield 0, batch
            case GroupingKind.ALL:
                yield from ((task, batch) for task in range(edge.task_count))
            case GroupingKind.FIELDS:
                tasks = task_of_rows(batch, edge.grouping.fields, edge.task_count)
                yield from ((task, batch.take(rows)) for task, rows in rows_by_task(tasks, edge.task_count))
            case GroupingKind.SHUFFLE:
                yield from self._evenly(batch, edge)

    def _evenly(self, batch: pa.RecordBatch, edge: Edge) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Cut into slices of equal size; who gets one row more goes round, so that small batches spread as well."""
        size, larger = divmod(batch.num_rows, edge.task_count)
        first = self._next_task.get(edge, self.task)
        self._next_task[edge] = first + larger
        for number in range(edge.task_count if size else larger):
            start, until = (size * n + min(n, larger) for n in (number, number + 1))
            yield (first + number) % edge.task_count, batch.slice(start, until - start)


class Operator(ABC):
    """A bolt in one task of one attempt."""

    def __init__(self, component: str, emitter: Emitter) -> None:
        self.component, self.emitter, self.received = component, emitter, 0

    def receive(self, batch: pa.RecordBatch, source: str) -> None:
        """Give the bolt some of its tuples; `source` is the component that emitted them."""
        self.received += batch.num_rows
        with guarded(self.component):
            self.execute(batch, source)

    def prepare(self) -> None:  # noqa: B027 - optional
        """Called once before the first tuple."""

    @abstractmethod
    def execute(self, batch: pa.RecordBatch, source: str) -> None:
        """Run the bolt over a record batch."""

    def finish(self) -> bytes | None:
        """Called once after the last tuple; returns the pickled instance of a committer, which finishes later."""
        return None


class TupleFunction(Operator):
    """A function from a `Tuple` to tuples."""

    def __init__(self, component: str, emitter: Emitter, function: Callable[[Tuple], Any]) -> None:
        super().__init__(component, emitter)
        self.function = function

    def execute(self, batch: pa.RecordBatch, source: str) -> None:
        """Call the function for each row."""
        for row in tuples(batch, source):
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

    def execute(self, batch: pa.RecordBatch, source: str) -> None:
        """Call the function once."""
        self.emitter.emit_batch(self.function(batch))


class PassOn(Operator):
    """Stands for a DataFrame bolt, whose output Spark has computed: emits what it receives."""

    def execute(self, batch: pa.RecordBatch, source: str) -> None:
        """Emit the record batch."""
        self.emitter.emit_batch(batch)


class BasicOperator(Operator):
    """A `BasicBolt`."""

    def __init__(self, component: str, emitter: Emitter, bolt: BasicBolt, context: TopologyContext) -> None:
        super().__init__(component, emitter)
        self.bolt, self.context = bolt, context

    def prepare(self) -> None:
        """Prepare the bolt."""
        with guarded(self.component):
            self.bolt.prepare(self.context)

    def execute(self, batch: pa.RecordBatch, source: str) -> None:
        """Give the bolt row by row."""
        for row in tuples(batch, source):
            self.bolt.execute(row, self.emitter)


class BatchOperator(Operator):
    """A `BatchBolt` or `ArrowBatchBolt`; as a committer it is sent to the driver unfinished."""

    def __init__(
        self,
        component: Component,
        emitter: Emitter,
        bolt: BatchBolt | ArrowBatchBolt,
        context: TopologyContext,
        attempt: TransactionAttempt,
    ) -> None:
        super().__init__(component.id, emitter)
        self.bolt, self.context, self.attempt, self.is_committer = bolt, context, attempt, component.is_committer

    def prepare(self) -> None:
        """Prepare the bolt."""
        with guarded(self.component):
            self.bolt.prepare(self.context, self.emitter, self.attempt)

    def execute(self, batch: pa.RecordBatch, source: str) -> None:
        """Give the bolt the batch, whole or row by row."""
        if isinstance(self.bolt, ArrowBatchBolt):
            self.bolt.execute_batch(batch)
        else:
            for row in tuples(batch, source):
                self.bolt.execute(row)

    def finish(self) -> bytes | None:
        """Finish the batch here, or leave that to the commit phase."""
        with guarded(self.component):
            if self.is_committer:
                return dump_committer(self.bolt, self.emitter)
            self.bolt.finish_batch()
            return None


def tuples(batch: pa.RecordBatch, source: str) -> Iterator[Tuple]:
    """The rows of a record batch as tuples."""
    names = tuple(batch.schema.names)
    columns = [column.to_pylist() for column in batch.columns]
    return (Tuple(names, values, source) for values in zip(*columns, strict=True))


def make_operator(
    topology: Topology, component: Component, task: int, task_count: int, attempt: TransactionAttempt, emitter: Emitter
) -> Operator:
    """The operator for a component. Class bolts are copied from their prototype, fresh for this task and attempt."""
    bolt = component.bolt
    if isinstance(bolt, BoltFunction):
        if bolt.kind is FunctionKind.DATAFRAME:
            return PassOn(component.id, emitter)
        kind = TupleFunction if bolt.kind is FunctionKind.TUPLE else ArrowFunction
        return kind(component.id, emitter, bolt.function)
    fresh = cloudpickle.loads(cloudpickle.dumps(bolt))
    state = DeferredState(component.id) if component.is_committer else None
    context = TopologyContext(topology.id, component.id, task, task_count, topology.options, state)
    if isinstance(fresh, BasicBolt):
        return BasicOperator(component.id, emitter, fresh, context)
    return BatchOperator(component, emitter, fresh, context, attempt)
