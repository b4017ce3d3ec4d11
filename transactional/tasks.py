"""What one task does, on an executor or in a thread: read its ranges, run its bolts, address what they emit.

`run_task` is a pure function of the attempt, the task's slot and the items that reach it. It never raises for a
failure of a bolt or of the source: a failure is an item like any other and travels to the driver as data, so Spark
does not retry what the coordinator is going to replay, and no count is taken twice (accumulators would be).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import pyarrow as pa

from transactional.arrow import RecordDigest, conform, from_ipc, to_ipc
from transactional.attempt import TransactionAttempt
from transactional.batch import BatchMetadata, Digest, OffsetRange, PartitionId
from transactional.operators import Emitter, Operator, TaskFailed, guarded, make_operator
from transactional.pickling import check_picklable
from transactional.ports import Aggregator
from transactional.stages import SPOUT_STAGE, Edge, Stage, StagePlan
from transactional.topology import Topology

DRIVER = -1
"""The level of what is meant for the driver."""


@dataclass(frozen=True, slots=True)
class Item:
    """Something that one task sends: Arrow batches of an edge, a committer's part, a report, or a failure.

    `level` and `slot` say where it is for; `order` makes what a task receives the same on every retry.
    """

    level: int
    slot: int
    kind: Literal["tuples", "partial", "committer", "report", "failure"]
    component: str
    order: tuple[int, int, int]
    payload: Any

    @property
    def is_for_driver(self) -> bool:
        """True when no task receives it."""
        return self.level == DRIVER


@dataclass(frozen=True, slots=True)
class Report:
    """What a task has counted: tuples received and emitted per component, and digests of the ranges it has read."""

    received: Mapping[str, int]
    emitted: Mapping[str, int]
    digests: Mapping[PartitionId, Digest]


@dataclass(frozen=True, slots=True)
class AttemptInput:
    """What every task of an attempt is told: the attempt, and for each task of the spout its ranges."""

    attempt: TransactionAttempt
    ranges: tuple[tuple[tuple[PartitionId, OffsetRange], ...], ...]

    @classmethod
    def of(cls, attempt: TransactionAttempt, batch: BatchMetadata, task_count: int) -> AttemptInput:
        """Deal the partitions out: partition i of the sorted list always goes to task i mod `task_count`."""
        ranges: list[list[tuple[PartitionId, OffsetRange]]] = [[] for _ in range(task_count)]
        for position, partition in enumerate(sorted(batch.ranges)):
            if len(batch.ranges[partition]):
                ranges[position % task_count].append((partition, batch.ranges[partition]))
        return cls(attempt, tuple(tuple(part) for part in ranges))


@dataclass(frozen=True)
class TaskProgram:
    """All that tasks need to know of a topology. Sent to executors once."""

    topology: Topology
    plan: StagePlan
    aggregators: Mapping[str, Aggregator]
    reader: Any
    with_checksum: bool
    slot_of: Mapping[tuple[int, int], int] = field(default_factory=dict)

    def slot(self, edge: Edge, task: int) -> int:
        """The slot (partition number in its level) of a task of the edge's target."""
        return self.slot_of[(edge.target_stage, task)]

    def level_of(self, stage: int) -> int:
        """The level of a stage."""
        return self.plan.stages[stage].level


def make_program(topology: Topology, plan: StagePlan) -> TaskProgram:
    """Put a topology's task program together. Reads nothing of the outside.

    Raises `ConfigError` for a bolt that can't be sent to executors.
    """
    aggregators = {c.id: c.bolt.aggregator() for c in topology.components if hasattr(c.bolt, "aggregator")}
    slots = {
        (stage.index, task): number
        for level in range(plan.depth)
        for number, (stage, task) in enumerate(plan.slots(level))
    }
    spout: Any = _SpoutOutput(topology.spout.output)
    components = tuple(_without_state(component) for component in topology.components)
    for what, value in [(f"bolt {c.id!r}", c.bolt) for c in components] + [
        ("options of the topology", topology.options)
    ]:
        check_picklable(what, value)
    # States and the driver's side of the spout stay in the driver.
    stripped = replace(topology, spout=spout, components=components)
    return TaskProgram(stripped, plan, aggregators, topology.spout.reader(), topology.spout.replays_exactly, slots)


@dataclass(frozen=True)
class _SpoutOutput:
    output: Any


def _without_state(component: Any) -> Any:
    is_update = hasattr(component.bolt, "aggregator")
    return replace(
        component, state="committer" if component.is_committer else None, bolt=None if is_update else component.bolt
    )


def run_task(
    program: TaskProgram, inputs: AttemptInput, level: int, slot: int, items: Iterable[Item]
) -> Iterator[Item]:
    """Run one task of one level: yield the items that it sends on."""
    mine = sorted((item for item in items if item.level == level), key=lambda item: item.order)
    stage, task = program.plan.slots(level)[slot]
    received = ((batch, item.component) for item in mine for batch in from_ipc(item.payload))
    return _TaskRun(program, inputs, stage, task).run(received)


def run_dataframe_task(
    program: TaskProgram, inputs: AttemptInput, stage: Stage, task: int, batches: Iterable[pa.RecordBatch]
) -> Iterator[Item]:
    """Address what Spark has computed for a DataFrame bolt, one partition of it."""
    return _TaskRun(program, inputs, stage, task).run((batch, "") for batch in batches)


class _TaskRun:
    def __init__(self, program: TaskProgram, inputs: AttemptInput, stage: Stage, task: int) -> None:
        self.program, self.inputs, self.stage, self.task = program, inputs, stage, task
        self.sent: list[Item] = []
        self.digests: dict[PartitionId, Digest] = {}
        self.emitters: dict[str, Emitter] = {}
        self.operators: dict[str, Operator] = {}

    def _add(self, component_id: str) -> None:
        program, topology = self.program, self.program.topology
        emitter = Emitter(
            component_id, topology.output_of(component_id), self.task, program.plan.edges.get(component_id, ())
        )
        emitter.aggregators = {c: program.aggregators[c] for c in program.plan.aggregated.get(component_id, ())}
        self.emitters[component_id] = emitter
        if component_id == topology.spout_id:
            return
        component = next(c for c in topology.components if c.id == component_id)
        operator = make_operator(topology, component, self.task, self.stage.task_count, self.inputs.attempt, emitter)
        self.operators[component_id] = operator
        if component_id != self.stage.components[0]:
            self.emitters[component.inputs[0].source].inner.append(operator)

    def run(self, received: Iterable[tuple[pa.RecordBatch, str]]) -> Iterator[Item]:
        """Do the task's work on what it has received, pairs of a record batch and the component it is from."""
        try:
            self._work(received)
        except TaskFailed as failed:
            return iter([self._failure(failed)])
        return iter(self.sent)

    def _work(self, received: Iterable[tuple[pa.RecordBatch, str]]) -> None:
        for component_id in self.stage.components:
            with guarded(component_id):
                self._add(component_id)
        for operator in self.operators.values():
            operator.prepare()
        if self.stage.index == SPOUT_STAGE:
            self._read()
        for batch, source in received:
            self.operators[self.stage.components[0]].receive(batch, source)
        self._finish()

    def _read(self) -> None:
        emitter = self.emitters[self.program.topology.spout_id]
        for partition, offsets in self.inputs.ranges[self.task]:
            digest = RecordDigest(with_checksum=self.program.with_checksum)
            with guarded(self.program.topology.spout_id):
                for read in self.program.reader.read(partition, offsets):
                    for batch in conform(read, emitter.schema, component=emitter.component):
                        digest.add(batch)
                        emitter.emit_batch(batch)
            self.digests[partition] = Digest(digest.records, digest.checksum)

    def _finish(self) -> None:
        """Finish component after component, so that each has all its tuples before its own `finish_batch` (row T12)."""
        for component_id in self.stage.components:
            operator, emitter = self.operators.get(component_id), self.emitters[component_id]
            if operator is not None:
                instance = operator.finish()
                if instance is not None:
                    self._send(DRIVER, 0, "committer", component_id, instance)
            with guarded(component_id):
                emitter.flush()
                self._send_on(component_id, emitter)
        received = {c: operator.received for c, operator in self.operators.items()}
        emitted = {c: emitter.emitted for c, emitter in self.emitters.items()}
        self._send(DRIVER, 0, "report", self.stage.components[0], Report(received, emitted, self.digests))

    def _send_on(self, component_id: str, emitter: Emitter) -> None:
        for edge, by_task in emitter.addressed.items():
            for task, batches in sorted(by_task.items()):
                level = self.program.level_of(edge.target_stage)
                self._send(
                    level, self.program.slot(edge, task), "tuples", component_id, to_ipc(batches, emitter.schema)
                )
        for committer, partial in emitter.partials():
            self._send(DRIVER, 0, "partial", committer, to_ipc(partial.to_batches(), partial.schema))

    def _send(self, level: int, slot: int, kind: Any, component: str, payload: Any) -> None:
        self.sent.append(Item(level, slot, kind, component, (self.stage.index, self.task, len(self.sent)), payload))

    def _failure(self, failed: TaskFailed) -> Item:
        where = f"task {self.task} of {self.stage.task_count}"
        return Item(
            DRIVER,
            0,
            "failure",
            failed.component,
            (self.stage.index, self.task, 0),
            (failed.code, f"{where}: {failed}"),
        )
