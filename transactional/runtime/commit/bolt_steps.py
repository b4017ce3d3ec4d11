"""Bolts in the commit phase: they are run over the tuples that have waited for them, and what they put is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import pyarrow as pa

from transactional.core.ports import Partials, Processed
from transactional.core.ports.split import WrittenPart
from transactional.model.errors import SchemaMismatch, TransactionalError
from transactional.model.reading import Lookup, Lookups
from transactional.model.user_code.failures import TaskFailed
from transactional.runtime.commit.commit_steps import CommitStep, error_of_tasks
from transactional.runtime.commit.commit_task import CommitTask, with_state
from transactional.runtime.commit.fault_finding import Inputs, find_faults
from transactional.runtime.commit.passing import Passing
from transactional.runtime.commit.step_tasks import BoltWork
from transactional.runtime.executors.local import LocalExecutor
from transactional.runtime.tasks.map_state import MapStateView
from transactional.runtime.tasks.operator_factory import TaskInfo
from transactional.runtime.tasks.stateful import KeyValues, StatefulOperator, overrides_rollback
from transactional.runtime.tasks.step_work import StepWork, TaskInput, Waiting, batches_of, bytes_of
from transactional.runtime.tasks.task_loop import Received, run_through
from transactional.topology.bolts.bolts import Bolt
from transactional.topology.bolts.stateful import StatefulBolt
from transactional.topology.topology import Topology, committer_of


class BoltStep(CommitStep):
    """A bolt, or a function, with a state or without one."""

    def _size(self, passing: Passing) -> tuple[int, int]:
        component = self.component
        return passing.rows[component.id], passing.size_bytes(component.id, component.parallelism)

    def _run_in_driver(self, passing: Passing) -> None:
        component, state = self.component, self.component.state
        info, view = self._task_info(passing)
        received = self._run_tasks(info, passing)
        if state is None or view is None:
            return
        written = view.written
        try:
            state.put(passing.attempt, written)
        except SchemaMismatch as refused:
            raise self._error_of_refused(info, passing, received, refused) from refused
        passing.written[component.id] = len(written)
        if not self.plan.driver_reason and (why := view.needs_driver):
            self.context.executor_chooser.require_driver(self.plan, why)
        view.close()

    def _work(self, passing: Passing) -> StepWork | None:
        component, processed = self.component, passing.processed
        part = None if component.state is None else self._for_tasks(passing)
        if part is None and component.state is not None:
            return None
        instances = processed.parts.get(component.id, ())
        assert not isinstance(instances, Partials)
        inputs = tuple(
            TaskInput(task, tuple(passing.inbox.pop((component.id, task), ())), instances[task] if instances else None)
            for task in range(component.parallelism)
        )
        return BoltWork(
            *(passing.attempt, self.plan, part, processed.facts, inputs, passing.rows[component.id]),
            replaces=self._replaces(passing),
            excluded=tuple(processed.excluded),
        )

    def _run_job(self, work: StepWork, passing: Passing) -> None:
        try:
            super()._run_job(work, passing)
        except SchemaMismatch as refused:
            raise self._error_of_refused(self._task_info(passing)[0], passing, {}, refused) from refused

    def _take(self, passing: Passing, written: Sequence[WrittenPart]) -> None:
        if self.component.state is not None:
            self.component.state.put_parts(passing.attempt, written)

    def _run_tasks(self, info: TaskInfo, passing: Passing) -> Inputs:
        """Run all tasks; returns what they have received, if it may be needed once more."""
        component, sets_aside = self.component, self.context.topology.dead_letters is not None
        failures, kept = list[tuple[TaskInfo, TaskFailed]](), dict[int, partial[Received]]()
        for task in range(component.parallelism):
            of_task = replace(info, task=task)
            make = partial(CommitTask, of_task, component.id, self._instances(task, passing.processed))
            received = partial(self._tuples, passing.inbox.pop((component.id, task), ()))
            if sets_aside:
                kept[task] = received
            done, failed = run_through(make, received)
            if failed is None:
                passing.letters += done.letters
                passing.late_counts.update(done.late_counts)
                passing.counted.update(done.counted)
                passing.take_over(component.id, done.partials, done.addressed)
                operators = done.operators.values()
                passing.stateful += [(of_task, each) for each in operators if isinstance(each, StatefulOperator)]
                continue
            failures.append((of_task, failed))
            if not failed.at_fault:
                break
        if failures:
            raise error_of_tasks(failures) from failures[-1][1]
        return kept

    def _task_info(self, passing: Passing) -> tuple[TaskInfo, MapStateView | KeyValues | None]:
        """The first of all tasks, with the view of the state that they share."""
        context, component, processed = self.context, self.component, passing.processed
        info = TaskInfo(
            *(context.program, passing.attempt, 0, component.parallelism),
            excluded=tuple(processed.excluded),
            facts=processed.facts,
            lookups=self._lookups(passing),
        )
        if component.state is None:
            return info, None
        waiting = (passing.inbox.get((component.id, task), ()) for task in range(component.parallelism))
        tuples = (batch for received in waiting for batch, _, _ in self._tuples(received))
        return with_state(info, component.id, component.state, tuples, replaces=self._replaces(passing))

    def _lookups(self, passing: Passing) -> Lookups:
        """How the bolt looks up the states that it reads: before this transaction, or after it, once they are written.

        A replay gives the same: by then the states have been brought to this transaction again.
        """
        lookups = dict[str, Lookup]()
        for read in self.component.reads:
            committer, is_before = committer_of(read)
            read_from = self.context.topology.component(committer)
            state = read_from.state
            assert state is not None
            rows = partial(state.rows_before if is_before else state.rows_after, passing.attempt)
            lookups[read] = read_from.computed.wrap_lookup(rows)
        return lookups

    def _replaces(self, passing: Passing) -> bool:
        """Whether an earlier attempt has written the state, where the bolt has to know it."""
        bolt, state = self.component.bolt, self.component.state
        if state is None or not isinstance(bolt, StatefulBolt):
            return False
        return overrides_rollback(bolt) and state.is_replay(passing.attempt)

    def _instances(self, task: int, processed: Processed) -> Mapping[str, bytes]:
        """The bolt as it came out of the processing phase; none if there was nothing to keep."""
        component, context = self.component, self.context
        if component.id not in context.program.plan.early or not isinstance(component.bolt, Bolt):
            return {}
        instances = processed.parts[component.id]
        assert not isinstance(instances, Partials)
        return {component.id: bytes_of(instances[task], context.scratch)}

    def _tuples(self, received: Sequence[Waiting]) -> Received:
        return ((batch, *each[1:]) for each in received for batch in batches_of(each, self.context.scratch))

    def _error_of_refused(
        self, info: TaskInfo, passing: Passing, received: Inputs, refused: SchemaMismatch
    ) -> BaseException:
        """The error for what a state has refused to store: with the tuples at fault, where tuples are set aside."""
        component, topology = self.component, self.context.topology
        if topology.dead_letters is None or component.state is None or refused.at_fault:
            return refused
        if component.id in self.context.program.plan.early:
            received = _received_before(topology, component.id, passing.processed, info)
        failures = find_faults(component.id, component.state, info, received)
        return error_of_tasks(failures) if failures else refused


def _received_before(topology: Topology, component: str, processed: Processed, info: TaskInfo) -> Inputs:
    """The tuples of a bolt that were consumed in the processing phase: all is processed once more in this process, up
    to that bolt. Nothing if that is not possible here."""
    if processed.batch is None:
        return {}
    try:
        executor = LocalExecutor(topology, late=frozenset([component]))
        again = executor.run(info.attempt, processed.batch)
    except TransactionalError:
        return {}
    tuples: dict[int, list[tuple[pa.RecordBatch, str, str]]] = {}
    for late in (late for late in again.deferred if late.target == component):
        tuples.setdefault(late.task, []).extend((batch, late.source, late.stream) for batch in late.batches)
    return {task: lambda of=of_task: of for task, of_task in tuples.items()}  # type: ignore[misc]
