"""The commit phase of one transaction: committers finish their batch, and bolts behind them run, step by step."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import pyarrow as pa

from transactional.attempt import TransactionAttempt
from transactional.bolts import Bolt
from transactional.core.report import CommitReport
from transactional.errors import OperatingError, SchemaMismatch, TransactionalError
from transactional.execution.emitting import make_emitter
from transactional.execution.failing.failures import TaskFailed, error_of, summed_up
from transactional.execution.map_state import MapStateView
from transactional.execution.placing import TaskInfo
from transactional.execution.program import NoReader, Record, make_program
from transactional.execution.stateful import KeyValues, StatefulOperator, overrides_rollback
from transactional.execution.step_work import StepExecutor, Waiting, batches_of, bytes_of
from transactional.execution.task_loop import Received, run_through
from transactional.execution.trying_again import batch_of_letter, subscription, takes_letters
from transactional.phases.changes import (
    changed_rows,
    closed_rows,
    count_closing,
    kinds_written,
    lookups_of,
    put_merged,
)
from transactional.phases.commit_task import CommitTask
from transactional.phases.passing import Passing
from transactional.phases.received_again import received_again
from transactional.phases.refused_puts import those_at_fault
from transactional.phases.split_rows import in_order_of_tasks, whole
from transactional.phases.staging import scratch_of
from transactional.phases.step_jobs import change_as_job, close_as_job, run_as_job
from transactional.phases.step_places import StepPlace, StepPlaces
from transactional.plumbing.syncing import sync
from transactional.ports import (
    Partials,
    Processed,
    State,
    UpdateKind,
)
from transactional.ports.dead_letters import letter_rows
from transactional.ports.staged import Scratch
from transactional.stateful import StatefulBolt
from transactional.topology.steps import Step, plan_steps
from transactional.topology.topology import CLOSED, Component, Topology, WorkPhase

CLOSING_BYTES = 128
"""About what a window that closes takes: the row that is read, and what is made of it."""


def facts_of_write(state: State, rows: int | None) -> dict[str, int]:
    """What is recorded of a state's write: as far as it is known."""
    recorded = {} if rows is None else {"rows": rows}
    try:
        facts = state.last_commit()
    except (OSError, OperatingError):
        facts = None
    if facts is not None:
        named = {"version": facts.version, "bytes": facts.size_bytes, "folded": facts.folded_txid}
        recorded |= {name: value for name, value in named.items() if value is not None}
    return recorded


class CommitPhase:
    """The commit phase of one attempt: finishes components one after the other, each after those that it reads from. A
    committer's table is written before what it has emitted is processed.

    A crash between two tables does no harm: on the replay the first committer reads its state as it was before the
    transaction, so what it emits matches what it writes then.
    """

    def __init__(
        self,
        topology: Topology,
        *,
        record: Record | None = None,
        jobs: StepExecutor | None = None,
        choice: str = "auto",
    ) -> None:
        self.topology = topology
        self.program = make_program(topology, NoReader(), record=record)
        self.steps = [(step, topology.component(step.component)) for step in plan_steps(topology)]
        self.jobs, self._choice = jobs, choice
        self._places: StepPlaces | None = None
        self._scratch: Scratch | None = None
        self.states = {each.id: each.state for each in topology.committers if each.state is not None}

    def run(self, attempt: TransactionAttempt, processed: Processed) -> CommitReport:
        """Run it, and report what the attempt did. Every committer writes to its table, even if it has nothing to
        change: so every table's version shows which transaction it is at.

        Raises `Fenced`, an `OperatingError`, or an exception of a bolt as `BoltFailed`.
        """
        for committer, state in self.states.items():
            state.begin(attempt, processed.facts_of(committer))
        if self._places is None:
            self._places = StepPlaces(self._choice, None if self.jobs is None else self.jobs.slots())
            self._scratch = scratch_of(self.topology)
        passing = Passing.of(attempt, processed)
        self._take_letters(passing)
        states, places = dict[str, dict[str, int]](), dict[str, str]()
        phase_began_s = time.monotonic()
        for step, component in self.steps:
            began_s = time.monotonic()
            place = self._run_step(step, component, passing, self._places)
            elapsed_ms = 1_000 * (time.monotonic() - began_s)
            if component.is_committer:
                states[component.id] = {"at": round(1_000 * (began_s - phase_began_s)), "ms": round(elapsed_ms)}
            if not step.stays:
                self._places.learn(step, place, passing.rows[component.id], elapsed_ms)
                places[component.id] = str(place)
        if self.topology.dead_letters is not None:
            self.topology.dead_letters.put(attempt, letter_rows(attempt, passing.letters, processed.tried_again))
        self._make_durable()
        for info, operator in passing.stateful:
            try:
                operator.pre_commit()
            except TaskFailed as failed:
                raise self._error([(info, failed)]) from failed
        if self._scratch is not None:
            self._scratch.remove(passing.left)
        for component_id, facts in states.items():
            if (committed := self.states.get(component_id)) is not None:
                facts |= facts_of_write(committed, passing.written.get(component_id))
        edges = Counter(processed.edges) + passing.sent
        letters = Counter(letter.exclusion.component for letter in passing.letters)
        return CommitReport(edges, states, letters, places)

    def _is_fed_before(self, component: str) -> bool:
        """Whether it has had, in the processing phase, whatever does not come from steps."""
        plan = self.program.plan
        return component in plan.early or plan.phases[component] is WorkPhase.PROCESSING

    def _run_step(self, step: Step, component: Component, passing: Passing, places: StepPlaces) -> StepPlace:
        if component.is_update:
            return self._update(step, component, passing, places)
        size_bytes = 0 if step.stays else passing.size_bytes(component.id, component.parallelism)
        place = places.place(step, passing.rows[component.id], size_bytes)
        if place.is_job and self.jobs is not None:
            try:
                is_done = run_as_job(step, component, passing, self.jobs, partial(places.keep_in_driver, step))
            except SchemaMismatch as refused:
                raise self._refused(component, self._given(component, passing)[0], passing, {}, refused) from refused
            if not is_done:
                place = StepPlace(False, "its state can be read in the driver only")
                self._finish(component, passing)
        else:
            used = self._finish(component, passing)
            if isinstance(used, KeyValues) and (why := used.needs_driver):
                places.keep_in_driver(step, why)
        return place

    def _update(self, step: Step, component: Component, passing: Passing, places: StepPlaces) -> StepPlace:
        """Write a state, and emit what the update emits; what changes, or windows that close, may be the work of a
        job."""
        count, size_bytes = (0, 0) if step.stays or not places.has_jobs else self._size(step, component, passing)
        passing.rows[component.id] += count
        place = places.place(step, count, size_bytes)
        if place.is_job and count and self.jobs is not None:
            needs_driver = partial(places.keep_in_driver, step)
            if step.changes:
                is_done = change_as_job(step, component, passing, self.jobs, needs_driver)
            elif is_done := close_as_job(step, component, passing, self.jobs, needs_driver):
                self._merge(step, component, passing, closes=False)
            if is_done:
                return place
            place = StepPlace(False, "its state can be read in the driver only")
        self._merge(step, component, passing)
        return place if count or step.stays else replace(place, is_job=False)

    @staticmethod
    def _size(step: Step, component: Component, passing: Passing) -> tuple[int, int]:
        """How many rows an update has to work on, and about how many bytes."""
        if step.changes:
            return passing.size_of_partials(component.id)
        count = count_closing(component, passing)
        return count, count * CLOSING_BYTES

    def _make_durable(self) -> None:
        """The following transaction commit is durable, so everything it refers to must be."""
        paths = {path for state in self.states.values() for path in state.unsynced()}
        try:
            sync(paths)
        except OSError as error:
            raise OperatingError(f"{error.filename or 'a table'} can't be synced to its disk: {error}") from error
        for state in self.states.values():
            state.synced()

    def _merge(self, step: Step, component: Component, passing: Passing, *, closes: bool = True) -> None:
        assert component.state is not None
        assert component.update is not None
        part, update = passing.processed.parts[component.id], component.update
        assert isinstance(part, Partials)
        aggregator = self.program.aggregators[component.id]
        if late := passing.partials.get(component.id):
            part = replace(part, table=aggregator.combine([part.table, *whole(late, self._scratch)]))
        if staged := passing.staged.get(component.id):
            part = replace(part, staged=[*part.staged, *staged])
        wanted = [stream for stream, schema in component.outputs.items() if schema]
        emitted, facts = dict[str, pa.Table](), passing.processed.facts_of(component.id)
        if closes and CLOSED in wanted:
            closed = closed_rows(update, passing.attempt, facts)
            if step.in_order:
                closed = in_order_of_tasks(closed, step.split_by, step.tasks, update.window_key)
            emitted[CLOSED] = closed
        if update.update_kind is UpdateKind.REPLACED:
            merged = put_merged(update, passing.attempt, part.table, facts)
            passing.written[component.id] = merged.changed.num_rows + merged.gone.num_rows
            emitted |= {stream: merged.changed for stream in wanted if stream != CLOSED}
            if CLOSED in wanted and merged.closed is not None:
                emitted[CLOSED] = merged.closed
            self._pass_on(component, emitted, passing)
            return
        is_known = update.update_kind is UpdateKind.COMBINED
        if not is_known or set(wanted) - {CLOSED}:
            changed = changed_rows(component.state, passing.attempt, part.table, aggregator)
            if step.in_order:
                changed = in_order_of_tasks(changed, step.split_by, step.tasks)
            emitted |= {stream: changed for stream in wanted if stream != CLOSED}
            if not is_known:
                part = Partials(kinds_written(part.combine), changed.select(part.table.column_names))
        component.state.merge(passing.attempt, part)
        passing.written[component.id] = part.table.num_rows + sum(each.rows for each in part.staged)
        if emitted:
            self._pass_on(component, emitted, passing)

    def _pass_on(self, component: Component, emitted: Mapping[str, pa.Table], passing: Passing) -> None:
        """Pass on what an update emits, by stream."""
        emitter = make_emitter(self.program, component.id, 0)
        if self.program.record is not None:
            emitter.record_to(partial(self.program.record, passing.attempt, component.id))
        try:
            for stream, table in emitted.items():
                emitter.emit_batch(table.select(list(component.outputs[stream].names)), stream=stream)
            emitter.flush()
            passing.take_over(component.id, list(emitter.partials()), emitter.addressed())
        except TaskFailed as failed:
            raise self._error([(TaskInfo(self.program, passing.attempt, 0, 1), failed)]) from failed

    def _take_letters(self, passing: Passing) -> None:
        for letter in passing.processed.tried_again:
            batch = batch_of_letter(self.program, letter)
            if isinstance(batch, str) or self._is_fed_before(letter.component):
                continue
            grouping = subscription(self.program, letter)
            for task in range(self.program.bolts[letter.component].parallelism):
                if takes_letters(grouping, task):
                    passing.put(letter.component, task, ([batch], letter.source, letter.stream), batch.num_rows)

    def _finish(self, component: Component, passing: Passing) -> MapStateView | KeyValues | None:
        given, view = self._given(component, passing)
        failures: list[tuple[TaskInfo, TaskFailed]] = []
        kept: dict[int, Callable[[], Received]] = {}
        for task in range(component.parallelism):
            info = replace(given, task=task)
            make = partial(CommitTask, info, component.id, self._instances(component, task, passing.processed))
            received = partial(self._unpacked, passing.inbox.pop((component.id, task), []))
            if self.topology.dead_letters is not None:
                kept[task] = received
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
            try:
                component.state.put(passing.attempt, view.written)
            except SchemaMismatch as refused:
                raise self._refused(component, given, passing, kept, refused) from refused
            passing.written[component.id] = len(view.written)
            view.close()
        return view

    def _refused(
        self,
        component: Component,
        info: TaskInfo,
        passing: Passing,
        kept: Mapping[int, Callable[[], Received]],
        refused: SchemaMismatch,
    ) -> BaseException:
        """The error for what a state has refused to store: with the tuples at fault, where tuples are set aside."""
        if self.topology.dead_letters is None or component.state is None or refused.at_fault:
            return refused
        if component.id in self.program.plan.early:
            kept = received_again(self.topology, component.id, passing.processed, info)
        failures = those_at_fault(component.id, component.state, info, kept)
        return self._error(failures) if failures else refused

    def _given(self, component: Component, passing: Passing) -> tuple[TaskInfo, MapStateView | KeyValues | None]:
        """What all tasks of a component have in common, as that of its first one, with their view of its state."""
        attempt, state = passing.attempt, component.state
        excluded = tuple(passing.processed.excluded)
        facts = passing.processed.facts
        lookups = lookups_of(self.topology, component, attempt)
        info = TaskInfo(
            self.program, attempt, 0, component.parallelism, excluded=excluded, facts=facts, lookups=lookups
        )
        if state is None:
            return info, None
        if not isinstance(component.bolt, StatefulBolt):
            view = MapStateView(component.id, state, attempt)
            return replace(info, state=view), view
        replaces = overrides_rollback(component.bolt) and state.is_replay(attempt)
        values = KeyValues.of(component.id, state, attempt)
        tasks = [passing.inbox.get((component.id, task), []) for task in range(component.parallelism)]
        values.read_ahead(batch for received in tasks for batch, _, _ in self._unpacked(received))
        return replace(info, key_values=values, replaces=replaces), values

    def _instances(self, component: Component, task: int, processed: Processed) -> Mapping[str, bytes]:
        """The bolt as it came out of the processing phase; none if there was nothing to keep."""
        if component.id not in self.program.plan.early or not isinstance(component.bolt, Bolt):
            return {}
        instances = processed.parts[component.id]
        assert not isinstance(instances, Partials)
        return {component.id: bytes_of(instances[task], self._scratch)}

    def _unpacked(self, received: Sequence[Waiting]) -> Received:
        return ((batch, *each[1:]) for each in received for batch in batches_of(each, self._scratch))

    @staticmethod
    def _error(failures: Sequence[tuple[TaskInfo, TaskFailed]]) -> BaseException:
        """An error raised by a state inside a bolt is passed on unchanged."""
        info, failed = failures[-1] if not failures[-1][1].at_fault else failures[0]
        if isinstance(failed.__cause__, TransactionalError) and not failed.at_fault:
            return failed.__cause__
        text = f"{info}, in the commit phase: {failed}"
        return error_of(failed.code, *summed_up(text, [each.at_fault for _, each in failures]))
