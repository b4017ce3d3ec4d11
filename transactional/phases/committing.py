"""The commit phase of one transaction, in the driver: committers finish their batch, and bolts behind them run."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import pyarrow as pa

from transactional.attempt import TransactionAttempt
from transactional.bolts import Bolt
from transactional.dead_letters import letter_rows
from transactional.errors import OperatingError, TransactionalError
from transactional.execution.emitting import Emitter, make_emitter
from transactional.execution.failures import TaskFailed, error_of, summed_up
from transactional.execution.map_state import MapStateView
from transactional.execution.operators import Operator
from transactional.execution.placing import TaskInfo
from transactional.execution.program import NoReader, Record, make_program
from transactional.execution.stateful import KeyValues, StatefulOperator, overrides_rollback
from transactional.execution.task_loop import Received, TaskLoop, run_through
from transactional.execution.trying_again import batch_of_letter, subscription, takes_letters
from transactional.phases.changes import changed_rows
from transactional.ports import COMBINES, DeadLetter, DiskState, ExpiringState, Partials, Processed
from transactional.stateful import StatefulBolt
from transactional.syncing import sync
from transactional.topology.stages import Edge
from transactional.topology.topology import Component, Topology, WorkPhase

Batches = list[tuple[Sequence[pa.RecordBatch], str, str]]
"""Record batches with their source and stream."""
Addressed = Iterable[tuple[Edge, int, list[pa.RecordBatch]]]
"""Record batches for the task of a bolt."""


@dataclass(frozen=True, slots=True)
class CommitTold:
    """What a commit phase did: milliseconds by component, tuples by source, stream and target, dead letters."""

    attempt: TransactionAttempt
    took_ms: Mapping[str, int]
    sent: Mapping[tuple[str, str, str], int]
    letters: int


@dataclass(slots=True)
class Passing:
    """What components pass on to those behind them, in one commit phase."""

    attempt: TransactionAttempt
    processed: Processed
    inbox: dict[tuple[str, int], Batches] = field(default_factory=dict)
    """Tuples for the bolts that follow: by component and task."""
    partials: dict[str, list[pa.Table]] = field(default_factory=dict)
    """Partial aggregates for the states' updates that follow."""
    letters: list[DeadLetter] = field(default_factory=list)
    stateful: list[tuple[TaskInfo, StatefulOperator]] = field(default_factory=list)
    """The stateful bolts that have run, to be notified once all states are written."""
    sent: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    """Tuples by source, stream and target."""

    def put(self, target: str, task: int, batches: Sequence[pa.RecordBatch], source: str, stream: str) -> None:
        """Pass tuples on to a task of a bolt."""
        self.inbox.setdefault((target, task), []).append((batches, source, stream))

    def take_over(self, component_id: str, partials: Iterable[tuple[str, pa.Table]], addressed: Addressed) -> None:
        """Pass on what a component has emitted."""
        for committer, table in partials:
            self.partials.setdefault(committer, []).append(table)
        for edge, task, batches in addressed:
            sent = sum(batch.num_rows for batch in batches)
            self.sent[component_id, edge.grouping.stream, edge.target] += sent
            self.put(edge.target, task, batches, component_id, edge.grouping.stream)


class CommitPhase:
    """The commit phase of one attempt: finishes components one after the other, each after those that it reads from. A
    committer's table is written before what it has emitted is processed.

    A crash between two tables does no harm: on the replay the first committer reads its state as it was before the
    transaction, so what it emits matches what it writes then.
    """

    def __init__(self, topology: Topology, *, record: Record | None = None) -> None:
        self.topology = topology
        self.program = make_program(topology, NoReader(), record=record)
        self.phases = self.program.plan.phases
        self.told: CommitTold | None = None
        """What the last commit phase that has succeeded did."""
        self.components = [c for c in topology.components if self.phases[c.id] is not WorkPhase.PROCESSING]

        states: list[object] = [component.state for component in topology.committers]
        self.disk_states = [state for state in states if isinstance(state, DiskState)]
        self.expiring_states = [state for state in states if isinstance(state, ExpiringState)]

    def run(self, attempt: TransactionAttempt, processed: Processed) -> None:
        """Run it. Every committer writes to its table, even if it has nothing to change: so every table's version shows
        which transaction it is at.

        Raises `Fenced`, an `OperatingError`, or an exception of a bolt as `BoltFailed`.
        """
        for state in self.expiring_states:
            state.begin(attempt, processed.facts)
        passing = Passing(attempt, processed, letters=list(processed.letters))
        for tuples in processed.late:
            passing.put(tuples.target, tuples.task, tuples.batches, tuples.source, tuples.stream)
        self._take_letters(passing)
        took_ms = dict[str, int]()
        for component in self.components:
            began_s = time.monotonic()
            if component.is_update:
                self._merge(component, passing)
            else:
                self._finish(component, passing)
            took_ms[component.id] = round(1_000 * (time.monotonic() - began_s))
        if self.topology.dead_letters is not None:
            self.topology.dead_letters.put(attempt, letter_rows(attempt, passing.letters, processed.tried_again))
        self._make_durable()
        for info, operator in passing.stateful:
            try:
                operator.pre_commit()
            except TaskFailed as failed:
                raise self._error([(info, failed)]) from failed
        self.told = CommitTold(attempt, took_ms, dict(passing.sent), len(passing.letters))

    def _make_durable(self) -> None:
        """The following transaction commit is durable, so everything it refers to must be."""
        paths = {path for state in self.disk_states for path in state.unsynced()}
        try:
            sync(paths)
        except OSError as error:
            raise OperatingError(f"{error.filename or 'a table'} can't be synced to its disk: {error}") from error
        for state in self.disk_states:
            state.synced()

    def _merge(self, component: Component, passing: Passing) -> None:
        assert component.state is not None
        part = passing.processed.parts[component.id]
        assert isinstance(part, Partials)
        aggregator = self.program.aggregators[component.id]
        if late := passing.partials.get(component.id):
            part = replace(part, table=aggregator.combine([part.table, *late]))
        is_known = set(part.combine.values()) <= set(COMBINES)
        if is_known and not any(component.outputs.values()):
            component.state.merge(passing.attempt, part)
            return
        changed = changed_rows(component.state, passing.attempt, part.table, aggregator)
        if not is_known:
            part = Partials(dict.fromkeys(part.combine, "last"), changed.select(part.table.column_names))
        component.state.merge(passing.attempt, part)
        self._pass_on(component, changed, passing)

    def _pass_on(self, component: Component, changed: pa.Table, passing: Passing) -> None:
        """Pass on what has changed in a state."""
        emitter = make_emitter(self.program, component.id, 0)
        if self.program.record is not None:
            emitter.record_to(partial(self.program.record, passing.attempt, component.id))
        try:
            for stream, schema in component.outputs.items():
                if schema:
                    emitter.emit_batch(changed.select(list(schema.names)), stream=stream)
            emitter.flush()
            passing.take_over(component.id, list(emitter.partials()), emitter.addressed())
        except TaskFailed as failed:
            raise self._error([(TaskInfo(self.program, passing.attempt, 0, 1), failed)]) from failed

    def _take_letters(self, passing: Passing) -> None:
        for letter in passing.processed.tried_again:
            batch = batch_of_letter(self.program, letter)
            if isinstance(batch, str) or self.phases[letter.component] is not WorkPhase.COMMIT:
                continue
            grouping = subscription(self.program, letter)
            for task in range(self.program.bolts[letter.component].parallelism):
                if takes_letters(grouping, task):
                    passing.put(letter.component, task, [batch], letter.source, letter.stream)

    def _finish(self, component: Component, passing: Passing) -> None:
        given, view = self._given(component, passing)
        failures: list[tuple[TaskInfo, TaskFailed]] = []
        for task in range(component.parallelism):
            info = replace(given, task=task)
            make = partial(_CommitTask, info, component.id, self._instances(component, task, passing.processed))
            received = partial(_unpacked, passing.inbox.pop((component.id, task), []))
            done, failed = run_through(make, received)
            if failed is None:
                passing.letters += done.letters
                passing.take_over(component.id, done.partials, done.addressed)
                passing.stateful += [
                    (info, each) for each in done.operators.values() if isinstance(each, StatefulOperator)
                ]
                continue
            failures.append((info, failed))
            if not failed.at_fault:
                break
        if failures:
            raise self._error(failures) from failures[-1][1]
        if component.state is not None and view is not None:
            component.state.put(passing.attempt, view.written)
            view.close()

    def _given(self, component: Component, passing: Passing) -> tuple[TaskInfo, MapStateView | KeyValues | None]:
        """What all tasks of a component have in common, as that of its first one, with their view of its state."""
        attempt, state = passing.attempt, component.state
        excluded = tuple(passing.processed.excluded)
        facts = passing.processed.facts
        info = TaskInfo(self.program, attempt, 0, component.parallelism, excluded=excluded, facts=facts)
        if state is None:
            return info, None
        if not isinstance(component.bolt, StatefulBolt):
            view = MapStateView(component.id, state, attempt)
            return replace(info, state=view), view
        replaces = overrides_rollback(component.bolt) and state.is_replay(attempt)
        values = KeyValues.of(component.id, state, attempt)
        tasks = [passing.inbox.get((component.id, task), []) for task in range(component.parallelism)]
        values.read_ahead(batch for received in tasks for batches, _, _ in received for batch in batches)
        return replace(info, key_values=values, replaces=replaces), values

    def _instances(self, component: Component, task: int, processed: Processed) -> Mapping[str, bytes]:
        """The bolt as it came out of the processing phase; none if there was nothing to keep."""
        if self.phases[component.id] is not WorkPhase.BOTH or not isinstance(component.bolt, Bolt):
            return {}
        instances = processed.parts[component.id]
        assert not isinstance(instances, Partials)
        return {component.id: instances[task]}

    @staticmethod
    def _error(failures: Sequence[tuple[TaskInfo, TaskFailed]]) -> BaseException:
        """An error raised by a state inside a bolt is passed on unchanged."""
        info, failed = failures[-1] if not failures[-1][1].at_fault else failures[0]
        if isinstance(failed.__cause__, TransactionalError) and not failed.at_fault:
            return failed.__cause__
        text = f"{info}, in the commit phase: {failed}"
        return error_of(failed.code, *summed_up(text, [each.at_fault for _, each in failures]))


class _CommitTask(TaskLoop):
    """One task of one component in the commit phase: keeps what it emits for later components."""

    def __init__(self, info: TaskInfo, bolt_id: str, instances: Mapping[str, bytes], *, looks_closer: bool) -> None:
        super().__init__(info, [bolt_id], instances=instances, looks_closer=looks_closer)
        self.letters: list[DeadLetter] = []
        self.partials: list[tuple[str, pa.Table]] = []
        self.addressed: list[tuple[Edge, int, list[pa.RecordBatch]]] = []

    def finish(self, operator: Operator) -> None:
        """Finish the batch."""
        self.letters += operator.letters
        operator.finish()

    def send_on(self, component_id: str, emitter: Emitter) -> None:
        """Keep it."""
        self.addressed += emitter.addressed()
        if self.goes_well:
            self.partials += emitter.partials()


def _unpacked(received: Batches) -> Received:
    return ((batch, source, stream) for batches, source, stream in received for batch in batches)
