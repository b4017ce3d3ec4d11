"""What one task does, on an executor or in a thread: read its ranges, run its bolts, address what they emit.

`run_task` is a pure function of the attempt, the task's slot and the items that reach it. It never raises for a
failure of a bolt or of the source: a failure is an item like any other and travels to the driver as data, so Spark
does not retry what the coordinator is going to replay, and no count is taken twice (accumulators would be).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import pyarrow as pa

from transactional.core.ports import DeadLetter, RefusedRecord
from transactional.core.ports.dead_letters import values_from_json, values_to_json
from transactional.model.arrow import RecordDigest, conform, from_ipc, to_ipc
from transactional.model.arrow.zones import naive_times_in
from transactional.model.batch import Digest, OffsetRange, PartitionId
from transactional.model.errors import CorruptRecord
from transactional.model.letters import Exclusion, Letter
from transactional.model.messages import Unfinished
from transactional.model.user_code.failures import TaskFailed, guarded
from transactional.runtime.tasks.emitting import Emitter
from transactional.runtime.tasks.failing.losses import past_losses
from transactional.runtime.tasks.following import followed
from transactional.runtime.tasks.items import (
    Incomplete,
    Item,
    NotFinished,
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
from transactional.runtime.tasks.operator_factory import TaskInfo
from transactional.runtime.tasks.operators import Operator
from transactional.runtime.tasks.program import AttemptInput, TaskProgram
from transactional.runtime.tasks.task_loop import Received, TaskLoop, run_through
from transactional.runtime.tasks.trying_again import (
    batch_of_letter,
    letter_today,
    refused_letters,
    returned,
    subscription,
    takes_letters,
)
from transactional.runtime.tasks.watching import Report, run_watched
from transactional.topology.stages import COMMIT_STAGE, SPOUT_STAGE, Stage, StageEdge
from transactional.topology.topology import WorkPhase


def run_task(
    program: TaskProgram,
    inputs: AttemptInput,
    level: int,
    slot: int,
    items: Iterable[Item],
    report: Report | None = None,
) -> Iterator[Item]:
    """Run one task of one level: yield the items that it sends. With `report`, its bolts are watched."""
    mine = sorted((item for item in items if is_for_level(item, level)), key=lambda item: item.order)
    stage, task = program.plan.slots(level)[slot]
    tuples = [item for item in mine if isinstance(item, Tuples)]

    def received() -> Received:
        return ((batch, item.source, item.stream) for item in tuples for batch in from_ipc(item.data))

    def make(*, looks_closer: bool) -> _Task:
        made = _Task(program, inputs, stage, task, is_complete=len(tuples) == len(mine), looks_closer=looks_closer)
        made.watched = None if report is None else partial(run_watched, report, task)
        return made

    return _sent(*run_through(make, received))


def run_dataframe_task(
    program: TaskProgram, inputs: AttemptInput, stage: Stage, task: int, batches: Iterable[pa.RecordBatch]
) -> Iterator[Item]:
    """Address what Spark has computed for a DataFrame bolt, one partition of it. It arrives only once: it is kept if a
    state's update takes it, which may refuse some of its tuples."""
    received = ((batch, "", "") for batch in batches)
    if not (program.sets_aside and any(program.plan.aggregated.get(each) for each in stage.components)):
        work = _Task(program, inputs, stage, task)
        return _sent(work, work.run(received))
    kept = list(received)

    def make(*, looks_closer: bool) -> _Task:
        return _Task(program, inputs, stage, task, looks_closer=looks_closer)

    return _sent(*run_through(make, lambda: kept))


def _sent(work: _Task, failed: TaskFailed | None) -> Iterator[Item]:
    if failed is None:
        return iter(work.sent)
    handed_on = [item for item in work.sent if is_for_task(item)]
    return iter([*handed_on, *work.incomplete(), work.failure(failed)])


class _Task(TaskLoop):
    """A task of the processing phase: reads, if it is one of the spout, and addresses what its bolts emit."""

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
        info = TaskInfo(
            program,
            inputs.attempt,
            task,
            stage.task_count,
            excluded=inputs.excluded,
            facts=inputs.facts,
            lookups=inputs.lookups,
        )
        super().__init__(info, stage.components, is_complete=is_complete, looks_closer=looks_closer)
        self.inputs, self.stage, self.task = inputs, stage, task
        spout = program.spout
        facts = [exclusion.fingerprint for exclusion in inputs.excluded if exclusion.component == spout.id]
        self.reader = spout.reader.with_facts(facts) if facts else spout.reader
        self.sent: list[Item] = []
        self.digests: dict[tuple[PartitionId, OffsetRange], Digest] = {}
        self.letters_sent: Counter[Subscription] = Counter()

    def run(self, received: Received) -> TaskFailed | None:
        """Run the task; times without a zone are those of the topology's."""
        with naive_times_in(self.program.naive_times):
            return super().run(received)

    def begin(self) -> None:
        """Retry dead letters, and read."""
        self._try_letters_again()
        if self.stage.index == SPOUT_STAGE:
            self._read()

    def finish(self, operator: Operator) -> None:
        """Finish a bolt, or send it to where it is finished."""
        for letter in operator.letters:
            self._send_letter(letter)
        if self.program.plan.phases[operator.component] is WorkPhase.PROCESSING:
            operator.finish()
            self.late_counts.update(operator.late_counts)
            if (what := operator.unfinished()) is not None:
                self.sent.append(NotFinished(self._order(), operator.component, what))
        elif (instance := operator.dump()) is not None:
            self.sent.append(PickledBolt(self._order(), operator.component, instance))
        self.count(operator)

    def send_on(self, component_id: str, emitter: Emitter) -> None:
        """Address it to other tasks and to the commit phase."""
        for edge, task, batches in emitter.addressed():
            stream = edge.grouping.stream
            data = to_ipc(batches, emitter.streams[stream].schema)
            if edge.target_stage == COMMIT_STAGE:
                rows = sum(batch.num_rows for batch in batches)
                self.sent.append(TuplesToCommit(self._order(), component_id, stream, edge.target, task, data, rows))
            elif self.goes_well or self._is_task(edge):
                level, slot = self.program.level_of(edge.target_stage), self.program.slot(edge, task)
                self.sent.append(Tuples(self._order(), level, slot, component_id, stream, data))
        if self.goes_well:
            for committer, partial in emitter.partials():
                data = to_ipc(partial.to_batches(), partial.schema)
                self.sent.append(PartialAggregates(self._order(), committer, data))

    def end(self) -> None:
        """Report what was counted; or that the input was incomplete."""
        if not self.is_complete:
            self.sent += self.incomplete()
            return
        for gate in self.gates:
            for letter in gate.letters:
                self._send_letter(letter)
        sent = Counter({key: rows for emitter in self.emitters.values() for key, rows in emitter.sent.items()})
        sent.update(self.letters_sent)
        received = {key: rows for operator in self.operators.values() for key, rows in operator.received.items()}
        self.sent.append(TaskReport(self._order(), sent, received, self.digests, self.late_counts, self.counted))

    def incomplete(self) -> list[Incomplete]:
        """Notifies the tasks that this one sends tuples to."""
        edges = [edge for component in self.components for edge in self.program.plan.edges.get(component, ())]
        order = (self.stage.index, self.task, 0)
        return [
            Incomplete(order, self.program.level_of(edge.target_stage), self.program.slot(edge, task))
            for edge in edges
            if self._is_task(edge)
            for task in range(edge.task_count)
        ]

    def failure(self, failed: TaskFailed) -> TaskFailure:
        """Notifies the driver."""
        order = (self.stage.index, self.task, 0)
        return TaskFailure(order, failed.component, failed.code, f"{self.info}: {failed}", failed.at_fault)

    def _is_task(self, edge: StageEdge) -> bool:
        """Spark computes a DataFrame bolt, and the commit phase has not started."""
        stage = edge.target_stage
        return stage != COMMIT_STAGE and not self.program.plan.stages[stage].is_dataframe

    def _try_letters_again(self) -> None:
        program = self.program
        letters = [letter_today(program, letter) for letter in self.inputs.letters]
        if self.stage.index == SPOUT_STAGE and self.task == 0:
            for refused in refused_letters(program, letters):
                self._send_letter(refused)
            for letter in letters:
                if letter.component == program.spout.id and not program.spout.is_followed:
                    self._read_again(letter)
        for letter in letters:
            operator = self.operators.get(letter.component)
            grouping = subscription(program, letter)
            if operator is not None and takes_letters(grouping, self.task):
                batch = batch_of_letter(program, letter)
                if isinstance(batch, pa.RecordBatch):
                    operator.receive(batch, letter.source, letter.stream)
                    self.letters_sent[letter.source, letter.stream, letter.component] += 1

    def _read_again(self, letter: Letter) -> None:
        """A record that was set aside is read again, by the current reader."""
        emitter = self.emitters[letter.component]
        try:
            values = values_from_json(letter.values)
        except CorruptRecord as error:
            self._send_letter(returned(letter, str(error)))
            return
        for read in self.reader.read_again(values, letter.stream):
            if isinstance(read, RefusedRecord):
                self._send_letter(returned(letter, read.error))
            else:
                emitter.emit_batch(read, stream=letter.stream)

    def _set_aside(self, record: RefusedRecord, stream: str) -> None:
        spout = self.program.spout.id
        values = values_to_json(record.values)
        self._send_letter(DeadLetter(Exclusion(spout, "", record.error), spout, stream, values))

    def _send_letter(self, letter: DeadLetter) -> None:
        self.sent.append(SetAside(self._order(), letter))

    def _read(self) -> None:
        stream_of = self.reader.stream_of
        with guarded(self.program.spout.id):
            self.reader.expect([portion[:2] for portion in self.inputs.portions[self.task]])
        for partition, offsets, metadata in self.inputs.portions[self.task]:
            stream = stream_of(partition)
            digest = self._digest(stream)
            self._emit_read(digest, stream, partition, offsets, metadata)
            self.digests[partition, offsets] = Digest(digest.records, digest.checksum, digest.bytes, digest.event_us)
        for partition, offsets in self.inputs.again[self.task] if self.inputs.again else ():
            self._emit_read(None, stream_of(partition), partition, offsets)

    def _digest(self, stream: str) -> RecordDigest:
        spout = self.program.spout
        if (of := spout.event_times.get(stream)) is None:
            return RecordDigest(with_checksum=spout.with_checksum)
        latest_us = of.latest_us(self.inputs.facts)
        return RecordDigest(with_checksum=spout.with_checksum, event_time=of.field, latest_us=latest_us)

    def _emit_read(
        self,
        digest: RecordDigest | None,
        stream: str,
        partition: PartitionId,
        offsets: OffsetRange,
        metadata: Any = None,
    ) -> None:
        """Emit what is read of a range, on the partition's stream. What the reader refuses is set aside."""
        reader, emitter = self.reader, self.emitters[self.program.spout.id]
        schema = emitter.streams[stream].schema
        read = followed(reader) if self.program.spout.is_followed else reader.read_or_refuse
        read = past_losses(read, self._note_lost) if self.program.spout.skips_losses else read
        self.faults.reading = f"{partition} {offsets}"
        with guarded(self.program.spout.id):
            for each in read(partition, offsets, metadata):
                if isinstance(each, RefusedRecord):
                    self._set_aside(each, stream)
                    continue
                for batch in conform(each, schema, component=emitter.component):
                    if digest is not None:
                        digest.add(batch)
                    emitter.emit_batch(batch, stream=stream)
        self.faults.reading = ""

    def _note_lost(self, offsets: int, reason: str) -> None:
        what = Unfinished(dropped=offsets, reason=reason)
        self.sent.append(NotFinished(self._order(), self.program.spout.id, what))

    def _order(self) -> Order:
        return self.stage.index, self.task, len(self.sent)
