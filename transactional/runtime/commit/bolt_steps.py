"""Bolts in the commit phase: a bolt runs over the tuples that wait for it, and its new values are written to its
state."""

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
from transactional.runtime.commit.commit_task import CommitTask, with_state_view
from transactional.runtime.commit.exchange import CommitExchange
from transactional.runtime.commit.fault_finding import Inputs, find_faults
from transactional.runtime.commit.step_tasks import BoltWork
from transactional.runtime.executors.local import LocalExecutor
from transactional.runtime.tasks.map_state import MapStateView
from transactional.runtime.tasks.operator_factory import TaskInfo
from transactional.runtime.tasks.stateful import KeyValues, StatefulOperator, overrides_rollback
from transactional.runtime.tasks.step_work import StepWork, TaskInput, WaitingTuples, read_batches, read_bytes
from transactional.runtime.tasks.task_loop import Received, run_task_loop
from transactional.topology.bolts.bolts import Bolt
from transactional.topology.bolts.stateful import StatefulBolt
from transactional.topology.topology import Topology, split_lookup_name


class BoltStep(CommitStep):
    """The step of a bolt or a function, with a state or without one."""

    def _size(self, exchange: CommitExchange) -> tuple[int, int]:
        component = self.component
        return exchange.rows[component.id], exchange.size_bytes(component.id, component.parallelism)

    def _run_in_driver(self, exchange: CommitExchange) -> None:
        component, state = self.component, self.component.state
        info, view = self._task_info(exchange)
        received = self._run_tasks(info, exchange)
        if state is None or view is None:
            return
        changes = view.changes
        try:
            state.put(exchange.attempt, changes)
        except SchemaMismatch as refusal:
            raise self._find_error(info, exchange, received, refusal) from refusal
        exchange.written_rows[component.id] = len(changes)
        if not self.plan.driver_reason and (reason := view.needs_driver):
            self.context.executor_chooser.require_driver(self.plan, reason)
        view.close()

    def _work(self, exchange: CommitExchange) -> StepWork | None:
        component, processed = self.component, exchange.processed
        part = None if component.state is None else self._state_for_tasks(exchange)
        if part is None and component.state is not None:
            return None
        instances = processed.parts.get(component.id, ())
        assert not isinstance(instances, Partials)
        inputs = tuple(
            TaskInput(task, tuple(exchange.inbox.pop((component.id, task), ())), instances[task] if instances else None)
            for task in range(component.parallelism)
        )
        return BoltWork(
            *(exchange.attempt, self.plan, part, processed.facts, inputs, exchange.rows[component.id]),
            replaces=self._replaces(exchange),
            excluded=tuple(processed.excluded),
        )

    def _run_job(self, work: StepWork, exchange: CommitExchange) -> None:
        try:
            super()._run_job(work, exchange)
        except SchemaMismatch as refusal:
            raise self._find_error(self._task_info(exchange)[0], exchange, {}, refusal) from refusal

    def _write_parts(self, exchange: CommitExchange, written: Sequence[WrittenPart]) -> None:
        if self.component.state is not None:
            self.component.state.parts.tasks.put_parts(exchange.attempt, written)

    def _run_tasks(self, info: TaskInfo, exchange: CommitExchange) -> Inputs:
        """Run all tasks. Returns their tuples if dead letters may have to be found among them."""
        component, sets_aside = self.component, self.context.topology.dead_letters is not None
        failures, inputs = list[tuple[TaskInfo, TaskFailed]](), dict[int, partial[Received]]()
        for task in range(component.parallelism):
            task_info = replace(info, task=task)
            make = partial(CommitTask, task_info, component.id, self._instances(task, exchange.processed))
            received = partial(self._tuples, exchange.inbox.pop((component.id, task), ()))
            if sets_aside:
                inputs[task] = received
            loop, failed = run_task_loop(make, received)
            if failed is None:
                exchange.letters += loop.letters
                exchange.late_counts.update(loop.late_counts)
                exchange.counted.update(loop.counted)
                exchange.pass_on(component.id, loop.partials, loop.addressed)
                self._collect(loop)
                exchange.stateful += [
                    (task_info, operator)
                    for operator in loop.operators.values()
                    if isinstance(operator, StatefulOperator)
                ]
                continue
            failures.append((task_info, failed))
            if not failed.at_fault:
                break
        if failures:
            raise error_of_tasks(failures) from failures[-1][1]
        return inputs

    def _collect(self, task: CommitTask) -> None:
        """Collect the records that the bolt of a task holds. Only the bolt of a sink has some."""

    def _task_info(self, exchange: CommitExchange) -> tuple[TaskInfo, MapStateView | KeyValues | None]:
        """Return the first of the tasks, with the view of the state that all tasks share."""
        context, component, processed = self.context, self.component, exchange.processed
        info = TaskInfo(
            *(context.program, exchange.attempt, 0, component.parallelism),
            excluded=tuple(processed.excluded),
            facts=processed.facts,
            lookups=self._lookups(exchange),
        )
        if component.state is None:
            return info, None
        waiting = (exchange.inbox.get((component.id, task), ()) for task in range(component.parallelism))
        tuples = (batch for received in waiting for batch, _, _ in self._tuples(received))
        rows_before = partial(component.state.parts.lookup.rows_before, exchange.attempt)
        return with_state_view(
            info, component.id, component.state, rows_before, tuples, replaces=self._replaces(exchange)
        )

    def _lookups(self, exchange: CommitExchange) -> Lookups:
        """Return the tables that the bolt looks up: states before this transaction, or after it, once they are written.

        A replay reads the same rows, because it brings the states to this transaction again first.
        """
        lookups = dict[str, Lookup]()
        for read in self.component.reads:
            committer, is_before = split_lookup_name(read)
            read_from = self.context.topology.component(committer)
            assert read_from.state is not None
            lookup = read_from.state.parts.lookup
            rows = partial(lookup.rows_before if is_before else lookup.rows_after, exchange.attempt)
            lookups[read] = read_from.computed.wrap_lookup(rows)
        return lookups

    def _replaces(self, exchange: CommitExchange) -> bool:
        """Return whether an earlier attempt has written the state, if the bolt has a hook for that."""
        bolt, state = self.component.bolt, self.component.state
        if state is None or not isinstance(bolt, StatefulBolt):
            return False
        return overrides_rollback(bolt) and state.parts.lookup.is_replay(exchange.attempt)

    def _instances(self, task: int, processed: Processed) -> Mapping[str, bytes]:
        """Return the pickled bolt that has begun its batch in the processing phase, if there is one."""
        component, context = self.component, self.context
        if component.id not in context.program.plan.early or not isinstance(component.bolt, Bolt):
            return {}
        instances = processed.parts[component.id]
        assert not isinstance(instances, Partials)
        return {component.id: read_bytes(instances[task], context.scratch)}

    def _tuples(self, received: Sequence[WaitingTuples]) -> Received:
        return ((batch, *waiting[1:]) for waiting in received for batch in read_batches(waiting, self.context.scratch))

    def _find_error(
        self, info: TaskInfo, exchange: CommitExchange, inputs: Inputs, refusal: SchemaMismatch
    ) -> BaseException:
        """Return the error for new values that a state refuses. It names the tuples at fault if they can be set
        aside."""
        component, topology = self.component, self.context.topology
        if topology.dead_letters is None or component.state is None or refusal.at_fault:
            return refusal
        if component.id in self.context.program.plan.early:
            inputs = _process_again(topology, component.id, exchange.processed, info)
        failures = find_faults(component.id, component.state, component.state.parts.declared.check_rows, info, inputs)
        return error_of_tasks(failures) if failures else refusal


def _process_again(topology: Topology, component: str, processed: Processed, info: TaskInfo) -> Inputs:
    """Return the tuples that a bolt has had in the processing phase.

    The batch is processed once more in this process, up to that bolt. Returns nothing if that is not possible here.
    """
    if processed.batch is None:
        return {}
    try:
        executor = LocalExecutor(topology, late=frozenset([component]))
        processed_again = executor.run(info.attempt, processed.batch)
    except TransactionalError:
        return {}
    tuples: dict[int, list[tuple[pa.RecordBatch, str, str]]] = {}
    for late in (late for late in processed_again.deferred if late.target == component):
        tuples.setdefault(late.task, []).extend((batch, late.source, late.stream) for batch in late.batches)
    return {task: lambda batches=batches: batches for task, batches in tuples.items()}  # type: ignore[misc]
