"""What one task does, on an executor or in a thread: read its ranges, run its bolts, address what they emit.

`run_task` is a pure function of the attempt, the task's slot and the items that reach it. It never raises for a
failure of a bolt or of the source: a failure is an item like any other and travels to the driver as data, so Spark
does not retry what the coordinator is going to replay, and no count is taken twice (accumulators would be).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa

from transactional.arrow import RecordDigest, conform, from_ipc, to_ipc
from transactional.batch import Digest, OffsetRange, PartitionId
from transactional.dead_letters import values_from_json, values_to_json
from transactional.errors import CorruptRecord
from transactional.execution.emitting import Emitter, TaskFailed, guarded, make_emitter
from transactional.execution.faults import Faults
from transactional.execution.items import (
    Incomplete,
    Item,
    Order,
    PartialAggregates,
    PickledBolt,
    SetAside,
    Subscription,
    TaskFailure,
    TaskReport,
    Tuples,
    TuplesToCommit,
    is_for_level,
    is_for_task,
)
from transactional.execution.operators import Operator
from transactional.execution.placing import TaskInfo, make_operator
from transactional.execution.program import AttemptInput, TaskProgram
from transactional.execution.trying_again import batch_of_letter, refused_letters, returned, subscription, takes_letters
from transactional.groupings import DEFAULT_STREAM
from transactional.letters import Exclusion, Letter
from transactional.ports import DeadLetter, PartitionReader, RefusedRecord, RefusingReader
from transactional.topology.stages import COMMIT_STAGE, SPOUT_STAGE, Edge, Stage
from transactional.topology.topology import WorkPhase


def run_task(
    program: TaskProgram, inputs: AttemptInput, level: int, slot: int, items: Iterable[Item]
) -> Iterator[Item]:
    """Run one task of one level: yield the items that it sends on."""
    mine = sorted((item for item in items if is_for_level(item, level)), key=lambda item: item.order)
    stage, task = program.plan.slots(level)[slot]
    tuples = [item for item in mine if isinstance(item, Tuples)]
    is_complete = len(tuples) == len(mine)

    def received() -> Received:
        return ((batch, item.source, item.stream) for item in tuples for batch in from_ipc(item.data))

    return _TaskRun(program, inputs, stage, task, is_complete=is_complete).run(received)


def run_dataframe_task(
    program: TaskProgram, inputs: AttemptInput, stage: Stage, task: int, batches: Iterable[pa.RecordBatch]
) -> Iterator[Item]:
    """Address what Spark has computed for a DataFrame bolt, one partition of it."""
    return _TaskRun(program, inputs, stage, task).run(lambda: ((batch, "", "") for batch in batches))


def read_of(reader: PartitionReader) -> Callable[..., Iterator[pa.RecordBatch | RefusedRecord]]:
    """What reads ranges; where it can, it sets records aside."""
    return reader.read_or_refuse if isinstance(reader, RefusingReader) else reader.read


Received = Iterable[tuple[pa.RecordBatch, str, str]]
"""Record batches with the component and stream they are from."""


class _TaskRun:
    """A task at work. Where it received less than there is, because a task before it failed, it looks for tuples that
    its bolts fail on as well, and finishes nothing. One that `looks_closer` looks at what is emitted value by value."""

    def __init__(
        self,
        program: TaskProgram,
        inputs: AttemptInput,
        stage: Stage,
        task: int,
        *,
        is_complete: bool = True,
        looks_closer: bool = False,
    ) -> None:
        self.program, self.inputs, self.stage, self.task = program, inputs, stage, task
        self.is_complete, self.looks_closer = is_complete, looks_closer
        self.sent: list[Item] = []
        self.digests: dict[tuple[PartitionId, OffsetRange], Digest] = {}
        self.letters_sent: Counter[Subscription] = Counter()
        self.emitters: dict[str, Emitter] = {}
        self.operators: dict[str, Operator] = {}
        self.faults = Faults()

    def _add(self, component_id: str) -> None:
        emitter = make_emitter(self.program, component_id, self.task, looks_closer=self.looks_closer)
        self.emitters[component_id] = emitter
        if component_id == self.program.spout.id:
            return
        bolt, inputs = self.program.bolts[component_id], self.inputs
        info = TaskInfo(self.program, inputs.attempt, self.task, self.stage.task_count, excluded=inputs.excluded)
        operator = self.operators[component_id] = make_operator(info, bolt, emitter)
        operator.faults = self.faults
        if component_id != self.stage.components[0]:
            [grouping] = bolt.inputs
            self.emitters[grouping.source].connect(operator, grouping.stream)

    def run(self, received: Callable[[], Received]) -> Iterator[Item]:
        """Do the task's work on what it has received."""
        try:
            self._work(received())
        except TaskFailed as failed:
            handed_on = [item for item in self.sent if is_for_task(item)]
            return iter(self._closer(failed, received) or [*handed_on, *self._incomplete(), self._failure(failed)])
        return iter(self.sent)

    def _closer(self, failed: TaskFailed, received: Callable[[], Received]) -> list[Item]:
        """Where many tuples don't fit, the task is run once more to find out which. Nothing where that finds none."""
        if not failed.is_of_many or self.looks_closer or self.stage.is_dataframe:
            return []
        again = _TaskRun(
            self.program, self.inputs, self.stage, self.task, is_complete=self.is_complete, looks_closer=True
        )
        items = list(again.run(received))
        return items if again.faults else []

    def _work(self, received: Received) -> None:
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

    def _incomplete(self) -> list[Item]:
        """Tells the tasks that this one sends tuples to."""
        edges = [edge for component in self.stage.components for edge in self.program.plan.edges.get(component, ())]
        order = (self.stage.index, self.task, 0)
        return [
            Incomplete(order, self.program.level_of(edge.target_stage), self.program.slot(edge, task))
            for edge in edges
            if self._is_task(edge)
            for task in range(edge.task_count)
        ]

    def _is_task(self, edge: Edge) -> bool:
        """Spark computes a DataFrame bolt, and the commit phase is not begun."""
        stage = edge.target_stage
        return stage != COMMIT_STAGE and not self.program.plan.stages[stage].is_dataframe

    def _try_letters_again(self) -> None:
        program = self.program
        if self.stage.index == SPOUT_STAGE and self.task == 0:
            for refused in refused_letters(program, self.inputs.letters):
                self._send_letter(refused)
            for letter in self.inputs.letters:
                if letter.component == program.spout.id:
                    self._read_again(letter)
        for letter in self.inputs.letters:
            operator = self.operators.get(letter.component)
            grouping = subscription(program, letter)
            if operator is not None and takes_letters(grouping, self.task):
                batch = batch_of_letter(program, letter)
                if isinstance(batch, pa.RecordBatch):
                    operator.receive(batch, letter.source, letter.stream)
                    self.letters_sent[letter.source, letter.stream, letter.component] += 1

    def _read_again(self, letter: Letter) -> None:
        """A record that was set aside is read once more, by what reads them today."""
        emitter, reader = self.emitters[letter.component], self.program.spout.reader
        if not isinstance(reader, RefusingReader):
            self._send_letter(returned(letter, f"spout {letter.component!r} reads no such records any more"))
            return
        try:
            values = values_from_json(letter.values)
        except CorruptRecord as error:
            self._send_letter(returned(letter, str(error)))
            return
        for read in reader.read_again(values):
            if isinstance(read, RefusedRecord):
                self._send_letter(returned(letter, read.error))
            else:
                emitter.emit_batch(read)

    def _set_aside(self, record: RefusedRecord) -> None:
        spout = self.program.spout.id
        values = values_to_json(record.values)
        self._send_letter(DeadLetter(Exclusion(spout, "", record.error), spout, DEFAULT_STREAM, values))

    def _send_letter(self, letter: DeadLetter) -> None:
        self.sent.append(SetAside(self._order(), letter))

    def _read(self) -> None:
        emitter = self.emitters[self.program.spout.id]
        schema = emitter.streams[DEFAULT_STREAM].schema
        for partition, offsets, metadata in self.inputs.portions[self.task]:
            digest = RecordDigest(with_checksum=self.program.spout.with_checksum)
            self.faults.reading = f"{partition} {offsets}"
            with guarded(self.program.spout.id):
                for read in read_of(self.program.spout.reader)(partition, offsets, metadata):
                    if isinstance(read, RefusedRecord):
                        self._set_aside(read)
                        continue
                    for batch in conform(read, schema, component=emitter.component):
                        digest.add(batch)
                        emitter.emit_batch(batch)
            self.digests[partition, offsets] = Digest(digest.records, digest.checksum, digest.bytes)
        self.faults.reading = ""

    def _finish(self) -> None:
        """Finish component after component, so that each has all its tuples before its own `finish_batch` (row T12).

        Where the attempt fails, what has been emitted goes on: it may show more that bolts fail on."""
        for component_id in self.stage.components:
            operator, emitter = self.operators.get(component_id), self.emitters[component_id]
            if operator is not None and self._goes_well:
                self._finish_one(operator)
            with guarded(component_id):
                emitter.flush()
                self._send_on(component_id, emitter)
        self.faults.fail()
        if self.is_complete:
            self._report()
        else:
            self.sent += self._incomplete()

    @property
    def _goes_well(self) -> bool:
        return self.is_complete and not self.faults

    def _report(self) -> None:
        sent = Counter({key: rows for emitter in self.emitters.values() for key, rows in emitter.sent.items()})
        sent.update(self.letters_sent)
        received = {key: rows for operator in self.operators.values() for key, rows in operator.received.items()}
        self.sent.append(TaskReport(self._order(), sent, received, self.digests))

    def _finish_one(self, operator: Operator) -> None:
        for letter in operator.letters:
            self._send_letter(letter)
        if self.program.plan.phases[operator.component] is WorkPhase.PROCESSING:
            operator.finish()
        elif (instance := operator.dump()) is not None:
            self.sent.append(PickledBolt(self._order(), operator.component, instance))

    def _send_on(self, component_id: str, emitter: Emitter) -> None:
        for edge, task, batches in emitter.addressed():
            stream = edge.grouping.stream
            data = to_ipc(batches, emitter.streams[stream].schema)
            if edge.target_stage == COMMIT_STAGE:
                self.sent.append(TuplesToCommit(self._order(), component_id, stream, edge.target, task, data))
            elif self._goes_well or self._is_task(edge):
                level, slot = self.program.level_of(edge.target_stage), self.program.slot(edge, task)
                self.sent.append(Tuples(self._order(), level, slot, component_id, stream, data))
        if self._goes_well:
            for committer, partial in emitter.partials():
                data = to_ipc(partial.to_batches(), partial.schema)
                self.sent.append(PartialAggregates(self._order(), committer, data))

    def _order(self) -> Order:
        return self.stage.index, self.task, len(self.sent)

    def _failure(self, failed: TaskFailed) -> Item:
        order = (self.stage.index, self.task, 0)
        text = f"task {self.task} of {self.stage.task_count}: {failed}"
        return TaskFailure(order, failed.component, failed.code, text, failed.at_fault)
