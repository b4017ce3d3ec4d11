"""What one task does, on an executor or in a thread: read its ranges, run its bolts, address what they emit.

`run_task` is a pure function of the attempt, the task's slot and the items that reach it. It never raises for a
failure of a bolt or of the source: a failure is an item like any other and travels to the driver as data, so Spark
does not retry what the coordinator is going to replay, and no count is taken twice (accumulators would be).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import pyarrow as pa

from transactional.arrow import RecordDigest, conform, from_ipc, to_ipc
from transactional.attempt import TransactionAttempt
from transactional.batch import BatchMetadata, Digest, OffsetRange, PartitionId
from transactional.emitting import (
    Emitter,
    Subscription,
    TaskFailed,
    batch_of_letter,
    guarded,
    make_aggregators,
    make_emitter,
)
from transactional.groupings import DEFAULT_STREAM
from transactional.operators import Operator, Place, make_operator
from transactional.pickling import check_picklable
from transactional.ports import Aggregator
from transactional.set_aside import Exclusion, Letter
from transactional.stages import COMMIT_STAGE, SPOUT_STAGE, Edge, Stage, StagePlan
from transactional.topology import Topology, WorkPhase

DRIVER = -1
"""The level of what is meant for the driver."""


@dataclass(frozen=True, slots=True)
class Item:
    """Something that one task sends: Arrow batches of an edge, what the commit phase goes on with, a report, a failure;
    or the milliseconds that a Spark task has taken.

    `level` and `slot` say where it is for; `order` makes what a task receives the same on every retry. `stream` is
    the stream of tuples, `target` the bolt that late ones are for, whose task is `slot`.
    """

    level: int
    slot: int
    kind: Literal["tuples", "late", "letter", "partial", "instance", "report", "failure", "time"]
    component: str
    order: tuple[int, int, int]
    payload: Any
    stream: str = DEFAULT_STREAM
    target: str = ""

    @property
    def is_for_driver(self) -> bool:
        """True when no task receives it."""
        return self.level == DRIVER


@dataclass(frozen=True, slots=True)
class Report:
    """What a task has counted: tuples sent and received per subscription, and digests of the portions it has read."""

    sent: Mapping[Subscription, int]
    received: Mapping[Subscription, int]
    digests: Mapping[tuple[PartitionId, OffsetRange], Digest]


@dataclass(frozen=True, slots=True)
class AttemptInput:
    """What every task of an attempt is told: the attempt, and for each task of the spout what it reads.

    A portion is a partition, a range of its offsets, and the metadata that the batch keeps of the partition.
    """

    attempt: TransactionAttempt
    portions: tuple[tuple[tuple[PartitionId, OffsetRange, Any], ...], ...]
    excluded: tuple[Exclusion, ...] = ()
    letters: tuple[Letter, ...] = ()

    @classmethod
    def of(cls, attempt: TransactionAttempt, batch: BatchMetadata, task_count: int) -> AttemptInput:
        """Deal the partitions out: partition i of the sorted list always goes to task i mod `task_count`, so that its
        reader goes on where it stopped. The portions of one that is split go to this task and those after it."""
        portions: list[list[tuple[PartitionId, OffsetRange, Any]]] = [[] for _ in range(task_count)]
        first_task = {partition: position for position, partition in enumerate(sorted(batch.ranges))}
        for partition, offsets in batch.portions():
            number = offsets.start // batch.split_records if batch.split_records else 0
            task = (first_task[partition] + number) % task_count
            portions[task].append((partition, offsets, batch.metadata.get(partition)))
        return cls(attempt, tuple(tuple(part) for part in portions), batch.excluded, batch.letters)


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
    aggregators = make_aggregators(topology)
    slots = {
        (stage.index, task): number
        for level in range(plan.depth)
        for number, (stage, task) in enumerate(plan.slots(level))
    }
    spout: Any = _SpoutOutput(topology.spout.output)
    components = tuple(_without_state(component) for component in topology.components)
    reader = topology.spout.reader()
    sent: list[tuple[str, Any]] = [(f"bolt {c.id!r}", c.bolt) for c in components]
    sent += [("options of the topology", topology.options), (f"spout {topology.spout_id!r}", reader)]
    for what, value in sent:
        check_picklable(what, value)
    # States and the driver's side of the spout stay in the driver.
    stripped = replace(topology, spout=spout, components=components, dead_letters=None)
    return TaskProgram(stripped, plan, aggregators, reader, topology.spout.replays_exactly, slots)


@dataclass(frozen=True)
class _SpoutOutput:
    output: Any


def _without_state(component: Any) -> Any:
    bolt = None if component.is_update else component.bolt
    return replace(component, state="committer" if component.is_committer else None, bolt=bolt)


def run_task(
    program: TaskProgram, inputs: AttemptInput, level: int, slot: int, items: Iterable[Item]
) -> Iterator[Item]:
    """Run one task of one level: yield the items that it sends on."""
    mine = sorted((item for item in items if item.level == level), key=lambda item: item.order)
    stage, task = program.plan.slots(level)[slot]
    received = ((batch, item.component, item.stream) for item in mine for batch in from_ipc(item.payload))
    return _TaskRun(program, inputs, stage, task).run(received)


def run_dataframe_task(
    program: TaskProgram, inputs: AttemptInput, stage: Stage, task: int, batches: Iterable[pa.RecordBatch]
) -> Iterator[Item]:
    """Address what Spark has computed for a DataFrame bolt, one partition of it."""
    return _TaskRun(program, inputs, stage, task).run((batch, "", "") for batch in batches)


class _TaskRun:
    def __init__(self, program: TaskProgram, inputs: AttemptInput, stage: Stage, task: int) -> None:
        self.program, self.inputs, self.stage, self.task = program, inputs, stage, task
        self.sent: list[Item] = []
        self.digests: dict[tuple[PartitionId, OffsetRange], Digest] = {}
        self.letters_sent: Counter[Subscription] = Counter()
        self.emitters: dict[str, Emitter] = {}
        self.operators: dict[str, Operator] = {}

    def _add(self, component_id: str) -> None:
        topology = self.program.topology
        emitter = self.emitters[component_id] = make_emitter(
            topology, self.program.plan, self.program.aggregators, component_id, self.task
        )
        if component_id == topology.spout_id:
            return
        component = topology.component(component_id)
        place = Place(topology, self.inputs.attempt, self.task, self.stage.task_count, excluded=self.inputs.excluded)
        operator = self.operators[component_id] = make_operator(place, component, emitter)
        if component_id != self.stage.components[0]:
            [grouping] = component.inputs
            self.emitters[grouping.source].connect(operator, grouping.stream)

    def run(self, received: Iterable[tuple[pa.RecordBatch, str, str]]) -> Iterator[Item]:
        """Do the task's work on what it has received: record batches with the component and stream they are from."""
        try:
            self._work(received)
        except TaskFailed as failed:
            return iter([self._failure(failed)])
        return iter(self.sent)

    def _work(self, received: Iterable[tuple[pa.RecordBatch, str, str]]) -> None:
        for component_id in self.stage.components:
            with guarded(component_id):
                self._add(component_id)
        for operator in self.operators.values():
            operator.prepare()
        self._try_letters_again()
        if self.stage.index == SPOUT_STAGE:
            self._read()
        for batch, source, stream in received:
            self.operators[self.stage.components[0]].receive(batch, source, stream)
        self._finish()

    def _try_letters_again(self) -> None:
        """Some task of the bolt takes them: by which one they were set aside is not known."""
        for letter in self.inputs.letters if self.task == 0 else ():
            if letter.component in self.operators:
                with guarded(letter.component):
                    batch = batch_of_letter(self.program.topology, letter)
                self.operators[letter.component].receive(batch, letter.source, letter.stream)
                self.letters_sent[letter.source, letter.stream, letter.component] += 1

    def _read(self) -> None:
        emitter = self.emitters[self.program.topology.spout_id]
        schema = emitter.streams[DEFAULT_STREAM].schema
        for partition, offsets, metadata in self.inputs.portions[self.task]:
            digest = RecordDigest(with_checksum=self.program.with_checksum)
            with guarded(self.program.topology.spout_id):
                for read in self.program.reader.read(partition, offsets, metadata):
                    for batch in conform(read, schema, component=emitter.component):
                        digest.add(batch)
                        emitter.emit_batch(batch)
            self.digests[partition, offsets] = Digest(digest.records, digest.checksum, digest.bytes)

    def _finish(self) -> None:
        """Finish component after component, so that each has all its tuples before its own `finish_batch` (row T12)."""
        for component_id in self.stage.components:
            operator, emitter = self.operators.get(component_id), self.emitters[component_id]
            if operator is not None:
                self._finish_one(operator)
            with guarded(component_id):
                emitter.flush()
                self._send_on(component_id, emitter)
        sent = Counter({key: rows for emitter in self.emitters.values() for key, rows in emitter.sent.items()})
        sent.update(self.letters_sent)
        received = {key: rows for operator in self.operators.values() for key, rows in operator.received.items()}
        self._send(DRIVER, 0, "report", self.stage.components[0], Report(sent, received, self.digests))

    def _finish_one(self, operator: Operator) -> None:
        for letter in operator.letters:
            self._send(DRIVER, 0, "letter", operator.component, letter)
        if self.program.plan.phases[operator.component] is WorkPhase.PROCESSING:
            operator.finish()
        elif (instance := operator.dump()) is not None:
            self._send(DRIVER, 0, "instance", operator.component, instance)

    def _send_on(self, component_id: str, emitter: Emitter) -> None:
        for edge, task, batches in emitter.addressed():
            stream = edge.grouping.stream
            data = to_ipc(batches, emitter.streams[stream].schema)
            if edge.target_stage == COMMIT_STAGE:
                self._send(DRIVER, task, "late", component_id, data, stream, edge.target)
            else:
                slot = self.program.slot(edge, task)
                self._send(self.program.level_of(edge.target_stage), slot, "tuples", component_id, data, stream)
        for committer, partial in emitter.partials():
            self._send(DRIVER, 0, "partial", committer, to_ipc(partial.to_batches(), partial.schema))

    def _send(
        self,
        level: int,
        slot: int,
        kind: Any,
        component: str,
        payload: Any,
        stream: str = DEFAULT_STREAM,
        target: str = "",
    ) -> None:
        order = (self.stage.index, self.task, len(self.sent))
        self.sent.append(Item(level, slot, kind, component, order, payload, stream, target))

    def _failure(self, failed: TaskFailed) -> Item:
        order = (self.stage.index, self.task, 0)
        text = f"task {self.task} of {self.stage.task_count}: {failed}"
        return Item(DRIVER, 0, "failure", failed.component, order, (failed.code, text, failed.at_fault))
