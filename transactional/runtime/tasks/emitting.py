"""Collects the output of a component in one task into record batches, and passes them to their targets.

A target is a bolt in the same task, a state's update, or a task of another stage, which `tuple_routing` chooses. An
emitter is the `OutputCollector` of bolts. It counts every tuple by subscription, so that the driver can compare these
counts with the tuples that have arrived.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, NoReturn, Protocol

import pyarrow as pa

from transactional.core.ports import Aggregator
from transactional.model.arrow import arrow_schema, batch_from_rows, batch_from_values, conform
from transactional.model.errors import ConfigError, SchemaMismatch
from transactional.model.groupings import DEFAULT_STREAM, GroupingKind
from transactional.model.plumbing.tracebacks import caller_location
from transactional.model.schema import Schema, did_you_mean
from transactional.model.user_code.failures import guarding
from transactional.model.user_code.storm_names import StormNames
from transactional.runtime.tasks.items import Subscription
from transactional.runtime.tasks.program import TaskProgram
from transactional.runtime.tasks.tuple_routing import TupleRouter
from transactional.topology.stages import StageEdge

ROWS_PER_BATCH = 10_000
"""Tuples emitted one by one are collected into record batches of this many rows."""


class Receiver(Protocol):
    """A bolt in the same task."""

    component: str

    def receive(self, batch: pa.RecordBatch, source: str, stream: str) -> None:
        """Process a record batch of a stream of `source`."""


class _Stream:
    """One stream of a component in one task."""

    def __init__(self, component: str, name: str, schema: pa.Schema, task: int, edges: Iterable[StageEdge]) -> None:
        self.component, self.name, self.schema, self.width = component, name, schema, len(schema)
        self.inner: list[Receiver] = []
        self.aggregators: dict[str, Aggregator] = {}
        self.gates: dict[str, Receiver] = {}
        self.pending: dict[str, list[pa.RecordBatch]] = {}
        self.routers = [TupleRouter(edge, task) for edge in edges]
        self.is_direct = any(s.edge.grouping.kind is GroupingKind.DIRECT for s in self.routers)
        self.addressed: dict[StageEdge, dict[int, list[pa.RecordBatch]]] = {s.edge: {} for s in self.routers}
        # The values of all collected tuples in one list, until they fill a record batch.
        self.values, self.values_max = list[Any](), ROWS_PER_BATCH * len(schema)
        self.direct_values: dict[tuple[str, int], list[Any]] = {}
        self.sent: dict[Subscription, int] = {}
        self.emitted = 0
        self.record: Callable[[str, pa.RecordBatch], None] | None = None

    def refuse(self, values: tuple[object, ...]) -> NoReturn:
        """Raise `SchemaMismatch` for a tuple with more or fewer values than the stream has fields."""
        with guarding(self.component):
            stream = "" if self.name == DEFAULT_STREAM else f" for stream {self.name!r}"
            place = caller_location()
            raise SchemaMismatch(
                f"{self.component!r} declares the fields {self.schema.names}{stream} and emitted {len(values)} values: "
                f"emit one for each field, or declare others{'' if place is None else f' ({place})'}"
            )

    def flush(self) -> None:
        """Pass on the collected tuples as record batches."""
        if self.values:
            values, self.values = self.values, []
            self.pass_on(self._batch(values))
        direct, self.direct_values = self.direct_values, {}
        for (target, task), values in direct.items():
            router = next(s for s in self.routers if s.edge.target == target)
            batch = self._batch(values)
            self.addressed[router.edge].setdefault(task, []).append(batch)
            self._count(target, batch.num_rows)
            self._record_batch(batch)

    def check(self, values: tuple[object, ...]) -> None:
        """Raise for values that do not match the fields, or that a following state would refuse."""
        with guarding(self.component):
            self.check_batch(batch_from_rows([values], self.schema, component=self.component))

    def check_batch(self, batch: pa.RecordBatch) -> None:
        """Raise the error of a following state that refuses a batch, unless the state has a gate, which does that."""
        for committer, aggregator in self.aggregators.items():
            if committer not in self.gates:
                aggregator.partial([batch])

    def _batch(self, values: list[Any]) -> pa.RecordBatch:
        with guarding(self.component, is_of_many=True):
            return batch_from_values(values, self.schema, component=self.component)

    def pass_on(self, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        if self.is_direct:
            with guarding(self.component):
                raise SchemaMismatch(
                    f"{self.component!r} emitted to nobody in particular on stream {self.name!r}, whose subscribers "
                    "have direct_grouping: use emit_direct"
                )
        self._record_batch(batch)
        for operator in self.inner:
            self._count(operator.component, batch.num_rows)
            operator.receive(batch, self.component, self.name)
        for committer in self.aggregators:
            if committer in self.gates:
                self.gates[committer].receive(batch, self.component, self.name)
            else:
                self.keep(committer, batch)
        for router in self.routers:
            with guarding(self.component):
                parts = list(router.route(batch))
            self._count(router.edge.target, router.expected_tuples(batch.num_rows, parts))
            for task, part in parts:
                self.addressed[router.edge].setdefault(task, []).append(part)

    def keep(self, committer: str, batch: pa.RecordBatch) -> None:
        """Keep tuples for a state's update."""
        self.pending.setdefault(committer, []).append(batch)

    def _record_batch(self, batch: pa.RecordBatch) -> None:
        self.emitted += batch.num_rows
        if self.record is not None:
            self.record(self.name, batch)

    def _count(self, target: str, rows: int) -> None:
        subscription = (self.component, self.name, target)
        self.sent[subscription] = self.sent.get(subscription, 0) + rows


class Emitter(StormNames):
    """Collects what a component emits and passes it to the bolts in the same task, to edges, to aggregators.

    It is the `OutputCollector` that bolts receive.
    """

    def __init__(
        self,
        component: str,
        outputs: Mapping[str, Schema],
        task: int,
        edges: Iterable[StageEdge],
        *,
        looks_closer: bool = False,
    ) -> None:
        self.component = component
        edges = list(edges)
        self._arguments = (component, outputs, task, edges)
        self.streams = {
            name: _Stream(component, name, arrow_schema(schema), task, [e for e in edges if e.grouping.stream == name])
            for name, schema in outputs.items()
        }
        self._default = self.streams[DEFAULT_STREAM]
        if looks_closer:
            self.emit, self.emit_direct = self._emit_checked, self._emit_direct_checked  # type: ignore[method-assign]
            self.emit_batch = self._emit_batch_checked  # type: ignore[method-assign]

    def apart(self) -> Emitter:
        """Return an emitter whose output is never passed on. It checks the values of each tuple."""
        return Emitter(*self._arguments, looks_closer=True)

    def connect(self, operator: Receiver, stream: str) -> None:
        """Connect a bolt in the same task to a stream."""
        self.streams[stream].inner.append(operator)

    def record_to(self, record: Callable[[str, pa.RecordBatch], None]) -> None:
        """Record everything that is emitted, and on which stream."""
        for stream in self.streams.values():
            stream.record = record

    def aggregate(self, committer: str, aggregator: Aggregator, stream: str) -> None:
        """Connect a state's update to a stream."""
        self.streams[stream].aggregators[committer] = aggregator

    def gate(self, operator: Receiver, stream: str) -> Callable[[pa.RecordBatch], None]:
        """Have tuples for a state's update pass through an operator first; returns the function that it calls with
        those that pass."""
        self.streams[stream].gates[operator.component] = operator
        return partial(self.streams[stream].keep, operator.component)

    def emit(self, *values: object, stream: str = DEFAULT_STREAM) -> None:
        """Emit one tuple on a stream."""
        target = self._default if stream is DEFAULT_STREAM else self._stream(stream)
        if len(values) != target.width:
            target.refuse(values)
        collected = target.values
        collected += values
        if len(collected) >= target.values_max:
            target.flush()

    def emit_batch(self, batch: pa.RecordBatch | pa.Table, *, stream: str = DEFAULT_STREAM) -> None:
        """Emit the tuples of a record batch or table on a stream."""
        target = self._stream(stream)
        target.flush()
        with guarding(self.component):
            parts = conform(batch, target.schema, component=self.component)
        for part in parts:
            target.pass_on(part)

    def emit_direct(self, component: str, task: int, *values: object, stream: str = DEFAULT_STREAM) -> None:
        """Emit one tuple to one task of a bolt."""
        target = self._stream(stream)
        if len(values) != target.width:
            target.refuse(values)
        with guarding(self.component):
            router = next((s for s in target.routers if s.edge.target == component), None)
            if router is None or not target.is_direct:
                raise SchemaMismatch(
                    f"{self.component!r} emitted directly to {component!r} on stream {stream!r}; only a bolt that "
                    "subscribes to this stream with direct_grouping can be chosen"
                )
            router.check_task(task)
        target.direct_values.setdefault((component, task), []).extend(values)

    def _emit_checked(self, *values: object, stream: str = DEFAULT_STREAM) -> None:
        """Emit one tuple, after checking its values. Without the check a mismatch shows only when many are combined."""
        target = self._stream(stream)
        if len(values) == target.width:
            target.check(values)
        Emitter.emit(self, *values, stream=stream)

    def _emit_batch_checked(self, batch: pa.RecordBatch | pa.Table, *, stream: str = DEFAULT_STREAM) -> None:
        target = self._stream(stream)
        with guarding(self.component):
            for part in conform(batch, target.schema, component=self.component):
                target.check_batch(part)
        Emitter.emit_batch(self, batch, stream=stream)

    def _emit_direct_checked(self, component: str, task: int, *values: object, stream: str = DEFAULT_STREAM) -> None:
        target = self._stream(stream)
        if len(values) == target.width:
            target.check(values)
        Emitter.emit_direct(self, component, task, *values, stream=stream)

    def flush(self) -> None:
        """Pass on the collected tuples as record batches."""
        for stream in self.streams.values():
            stream.flush()

    def end(self) -> None:
        """Refuse further tuples. All earlier ones have been passed on."""
        self.emit = self.emit_batch = self.emit_direct = self._refuse_late  # type: ignore[method-assign]

    def _refuse_late(self, *_: Any, **__: object) -> NoReturn:
        with guarding(self.component):
            raise ConfigError(
                f"{self.component!r} emitted in pre_commit, when all states were written already: emit in execute or "
                "pre_prepare"
            )

    def addressed(self) -> Iterator[tuple[StageEdge, int, list[pa.RecordBatch]]]:
        """Yield the output for other tasks: edge, task, record batches."""
        for stream in self.streams.values():
            for edge, by_task in stream.addressed.items():
                yield from ((edge, task, by_task[task]) for task in sorted(by_task))

    def partials(self) -> Iterator[tuple[str, pa.Table]]:
        """Yield the partial aggregates of this task for each state's update that takes the component's output."""
        for stream in self.streams.values():
            for committer, aggregator in stream.aggregators.items():
                with guarding(committer, is_of_many=True):
                    rows = aggregator.partial(stream.pending.get(committer, []))
                yield committer, rows

    @property
    def sent(self) -> dict[Subscription, int]:
        """The number of tuples that went to each subscriber of each stream."""
        return {subscription: rows for s in self.streams.values() for subscription, rows in s.sent.items()}

    def _stream(self, name: str) -> _Stream:
        if name not in self.streams:
            with guarding(self.component):
                raise SchemaMismatch(
                    f"{self.component!r} emitted on stream {name!r}; the streams that it declares are: "
                    f"{', '.join(self.streams)}{did_you_mean(str(name), list(self.streams))}"
                )
        return self.streams[name]


def make_emitter(program: TaskProgram, component_id: str, task: int, *, looks_closer: bool = False) -> Emitter:
    """Create the emitter of a component in one task, connected to everything but the bolts in the same task. With
    `looks_closer` it finds the tuple whose values do not match."""
    outputs, edges = program.outputs_of(component_id), program.plan.edges.get(component_id, ())
    emitter = Emitter(component_id, outputs, task, edges, looks_closer=looks_closer)
    for committer in program.plan.aggregated.get(component_id, ()):
        [grouping] = program.bolts[committer].inputs
        emitter.aggregate(committer, program.aggregators[committer], grouping.stream)
    return emitter
