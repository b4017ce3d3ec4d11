"""Runs one task of the processing phase: reads its ranges, runs its bolts, and addresses their output.

`run_task` is a pure function of the attempt, the task's slot and the items that reach it. It runs on an executor or in
a thread. It never raises for a failure of a bolt or of the source: a failure is an item like any other and travels to
the driver as data. So Spark does not retry a task that the coordinator is going to replay, and no count is taken twice,
as it would be with accumulators.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial

import pyarrow as pa

from transactional.core.ports import DeadLetter, RefusedRecord
from transactional.core.ports.dead_letters import values_from_json, values_to_json
from transactional.model.arrow import from_ipc, to_ipc
from transactional.model.arrow.zones import naive_times_in
from transactional.model.errors import CorruptRecord
from transactional.model.letters import Exclusion, Letter
from transactional.model.messages import Unfinished
from transactional.model.user_code.failures import TaskFailed
from transactional.runtime.processing.reading import SpoutReading
from transactional.runtime.tasks.emitting import Emitter
from transactional.runtime.tasks.items import (
    DigestRow,
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
from transactional.runtime.tasks.letter_retries import (
    batch_of_letter,
    new_letter,
    refused_letters,
    subscription,
    takes_letters,
    with_current_origin,
)
from transactional.runtime.tasks.operator_factory import TaskInfo
from transactional.runtime.tasks.operators import Operator
from transactional.runtime.tasks.program import AttemptInput, TaskProgram
from transactional.runtime.tasks.task_loop import Received, TaskLoop, run_task_loop
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
    own_items = sorted((item for item in items if is_for_level(item, level)), key=lambda item: item.order)
    stage, task = program.plan.slots(level)[slot]
    tuples = [item for item in own_items if isinstance(item, Tuples)]

    def received() -> Received:
        return ((batch, item.source, item.stream) for item in tuples for batch in from_ipc(item.data))

    def make(*, looks_closer: bool) -> _Task:
        loop = _Task(program, inputs, stage, task, is_complete=len(tuples) == len(own_items), looks_closer=looks_closer)
        loop.watch = None if report is None else partial(run_watched, report, task)
        return loop

    return _sent(*run_task_loop(make, received))


def run_dataframe_task(
    program: TaskProgram, inputs: AttemptInput, stage: Stage, task: int, batches: Iterable[pa.RecordBatch]
) -> Iterator[Item]:
    """Address one partition of the output that Spark has computed for a DataFrame bolt.

    The batches can be read only once. They are kept if a state's update takes them, because it may refuse some tuples,
    and then the task is run again.
    """
    received = ((batch, "", "") for batch in batches)
    if not (program.sets_aside and any(program.plan.aggregated.get(component) for component in stage.components)):
        work = _Task(program, inputs, stage, task)
        return _sent(work, work.run(received))
    batches_read = list(received)

    def make(*, looks_closer: bool) -> _Task:
        return _Task(program, inputs, stage, task, looks_closer=looks_closer)

    return _sent(*run_task_loop(make, lambda: batches_read))


def _sent(work: _Task, failed: TaskFailed | None) -> Iterator[Item]:
    if failed is None:
        return iter(work.sent)
    for_tasks = [item for item in work.sent if is_for_task(item)]
    return iter([*for_tasks, *work.incomplete(), work.failure(failed)])


class _Task(TaskLoop):
    """A task of the processing phase: reads if it belongs to the spout, and addresses the output of its bolts."""

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
        self.digests: list[DigestRow] = []
        self.letters_sent: Counter[Subscription] = Counter()

    def run(self, received: Received) -> TaskFailed | None:
        """Run the task. Times without a zone are taken as the topology declares."""
        with naive_times_in(self.program.naive_times):
            return super().run(received)

    def begin(self) -> None:
        """Retry dead letters, and read."""
        self._try_letters_again()
        if self.stage.index == SPOUT_STAGE:
            self._read()

    def finish(self, operator: Operator) -> None:
        """Finish a bolt, or send its instance to the commit phase."""
        for letter in operator.letters:
            self._send_letter(letter)
        if self.program.plan.phases[operator.component] is WorkPhase.PROCESSING:
            operator.finish()
            self.late_counts.update(operator.late_counts)
            if (unfinished := operator.unfinished()) is not None:
                self.sent.append(NotFinished(self._order(), operator.component, unfinished))
        elif (instance := operator.pickle_for_commit()) is not None:
            self.sent.append(PickledBolt(self._order(), operator.component, instance))
        self.add_counters(operator)

    def send_on(self, component_id: str, emitter: Emitter) -> None:
        """Address the output to other tasks and to the commit phase."""
        for edge, task, batches in emitter.addressed():
            stream = edge.grouping.stream
            data = to_ipc(batches, emitter.streams[stream].schema)
            if edge.target_stage == COMMIT_STAGE:
                rows = sum(batch.num_rows for batch in batches)
                self.sent.append(TuplesToCommit(self._order(), component_id, stream, edge.target, task, data, rows))
            elif self.has_no_failure or self._is_task(edge):
                level, slot = self.program.level_of(edge.target_stage), self.program.slot(edge, task)
                self.sent.append(Tuples(self._order(), level, slot, component_id, stream, data))
        if self.has_no_failure:
            for committer, partial in emitter.partials():
                data = to_ipc(partial.to_batches(), partial.schema)
                self.sent.append(PartialAggregates(self._order(), committer, data))

    def end(self) -> None:
        """Report the counts, or that the input was incomplete."""
        if not self.is_complete:
            self.sent += self.incomplete()
            return
        for gate in self.gates:
            for letter in gate.letters:
                self._send_letter(letter)
        sent = Counter({key: rows for emitter in self.emitters.values() for key, rows in emitter.sent.items()})
        sent.update(self.letters_sent)
        received = {key: rows for operator in self.operators.values() for key, rows in operator.received.items()}
        self.sent.append(TaskReport(self._order(), sent, received, tuple(self.digests), self.late_counts, self.counted))

    def incomplete(self) -> list[Incomplete]:
        """Return notes for all tasks that this one sends tuples to."""
        edges = [edge for component in self.components for edge in self.program.plan.edges.get(component, ())]
        order = (self.stage.index, self.task, 0)
        return [
            Incomplete(order, self.program.level_of(edge.target_stage), self.program.slot(edge, task))
            for edge in edges
            if self._is_task(edge)
            for task in range(edge.task_count)
        ]

    def failure(self, failed: TaskFailed) -> TaskFailure:
        """Return the failure for the driver."""
        order = (self.stage.index, self.task, 0)
        return TaskFailure(order, failed.component, failed.code, f"{self.info}: {failed}", failed.at_fault)

    def _is_task(self, edge: StageEdge) -> bool:
        """Return whether the target is a task of this phase: Spark computes DataFrame bolts, and the commit phase comes
        later."""
        stage = edge.target_stage
        return stage != COMMIT_STAGE and not self.program.plan.stages[stage].is_dataframe

    def _try_letters_again(self) -> None:
        program = self.program
        letters = [with_current_origin(program, letter) for letter in self.inputs.letters]
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
        """Read a record that was set aside once more, with the current reader."""
        emitter = self.emitters[letter.component]
        try:
            values = values_from_json(letter.values)
        except CorruptRecord as error:
            self._send_letter(new_letter(letter, str(error)))
            return
        for part in self.reader.read_again(values, letter.stream):
            if isinstance(part, RefusedRecord):
                self._send_letter(new_letter(letter, part.error))
            else:
                emitter.emit_batch(part, stream=letter.stream)

    def _set_aside(self, record: RefusedRecord, stream: str) -> None:
        spout = self.program.spout.id
        values = values_to_json(record.values)
        self._send_letter(DeadLetter(Exclusion(spout, "", record.error), spout, stream, values))

    def _send_letter(self, letter: DeadLetter) -> None:
        self.sent.append(SetAside(self._order(), letter))

    def _read(self) -> None:
        reading = SpoutReading(
            self.program.spout,
            self.reader,
            self.emitters[self.program.spout.id],
            self.faults,
            self.inputs.facts,
            set_aside=self._set_aside,
            report_loss=self._report_loss,
        )
        self.digests += reading.read(self.inputs.portions[self.task])
        if self.inputs.again:
            reading.read_again(self.inputs.again[self.task])

    def _report_loss(self, offsets: int, reason: str) -> None:
        unfinished = Unfinished(dropped=offsets, reason=reason)
        self.sent.append(NotFinished(self._order(), self.program.spout.id, unfinished))

    def _order(self) -> Order:
        return self.stage.index, self.task, len(self.sent)
