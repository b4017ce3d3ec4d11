"""The commit phase of one transaction: committers finish their batch, and bolts behind them run, step by step."""

from __future__ import annotations

import time
from collections import Counter

from transactional.core.machine.report import CommitReport
from transactional.core.ports import Processed, State
from transactional.core.ports.dead_letters import letter_rows
from transactional.model.arrow.zones import naive_times_in
from transactional.model.attempt import TransactionAttempt
from transactional.model.errors import NaiveTime, OperatingError
from transactional.model.plumbing.syncing import sync
from transactional.model.user_code.failures import TaskFailed
from transactional.runtime.commit.bolt_steps import BoltStep
from transactional.runtime.commit.commit_steps import CommitContext, CommitStep, error_of_tasks
from transactional.runtime.commit.exchange import CommitExchange
from transactional.runtime.commit.executor_choice import StepExecutorChoice
from transactional.runtime.commit.sink_step import SinkStep, letter_records
from transactional.runtime.commit.update_steps import update_step
from transactional.runtime.tasks.letter_retries import batch_of_letter, subscription, takes_letters
from transactional.runtime.tasks.program import NoReader, Record, make_program
from transactional.runtime.tasks.step_work import StepExecutor
from transactional.topology.steps import Step, plan_steps
from transactional.topology.topology import Component, Topology, WorkPhase


def recorded_write_facts(state: State, rows: int | None) -> dict[str, int]:
    """Return the recorded facts of a state's write, as far as they are known."""
    recorded = {} if rows is None else {"rows": rows}
    try:
        facts = state.parts.maintenance.last_commit()
    except (OSError, OperatingError):
        facts = None
    if facts is not None:
        named = {"version": facts.version, "bytes": facts.size_bytes, "compacted": facts.compacted_txid}
        recorded |= {name: value for name, value in named.items() if value is not None}
    return recorded


def make_step(plan: Step, component: Component, context: CommitContext) -> CommitStep:
    """Make the step of a component by its kind."""
    if component.sink is not None:
        return SinkStep(plan, component, context)
    return update_step(plan, component, context) if component.is_update else BoltStep(plan, component, context)


class CommitPhase:
    """Runs commit phases: finishes components one after the other, each after the ones that it reads from. A
    committer's table is written before its output is processed.

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
        self.context = CommitContext(topology, self.program, jobs, choice)
        components = [(plan, topology.component(plan.component)) for plan in plan_steps(topology)]
        self.steps: list[CommitStep] = [make_step(plan, component, self.context) for plan, component in components]
        self.states = {
            component.id: component.state for component in topology.committers if component.state is not None
        }

    def run(self, attempt: TransactionAttempt, processed: Processed) -> CommitReport:
        """Run the commit phase of an attempt, and return its report. Every committer writes to its table, even if it
        has nothing to change, so that every table's version shows which transaction it is at.

        Raises `Fenced`, an `OperatingError`, or an exception of a bolt as `BoltFailed`.
        """
        for committer, state in self.states.items():
            state.parts.declared.begin(attempt, processed.facts_of(committer))
        exchange = CommitExchange.from_processed(attempt, processed)
        self._take_letters(exchange)
        states, step_executors = dict[str, dict[str, int]](), dict[str, str]()
        phase_began_s = time.monotonic()
        for step in self.steps:
            component = step.component
            began_s = time.monotonic()
            with naive_times_in(self.topology.naive_times):
                choice = _run_step(step, exchange)
            elapsed_ms = 1_000 * (time.monotonic() - began_s)
            if component.is_committer:
                states[component.id] = {"at": round(1_000 * (began_s - phase_began_s)), "ms": round(elapsed_ms)}
            if not step.plan.driver_reason:
                self.context.executor_chooser.record_duration(
                    step.plan, choice, exchange.rows[component.id], elapsed_ms
                )
                step_executors[component.id] = str(choice)
        if self.topology.dead_letters is not None:
            self.topology.dead_letters.put(attempt, letter_rows(attempt, exchange.letters, processed.tried_again))
        if self.topology.letter_sink is not None and exchange.letters:
            exchange.outbox |= letter_records(
                self.topology.letter_sink, attempt, letter_rows(attempt, exchange.letters)
            )
        self._make_durable()
        for info, operator in exchange.stateful:
            try:
                operator.pre_commit()
            except TaskFailed as failed:
                raise error_of_tasks([(info, failed)]) from failed
        if self.context.scratch is not None:
            self.context.scratch.remove(exchange.scratch_files)
        for component_id, facts in states.items():
            facts |= recorded_write_facts(self.states[component_id], exchange.written_rows.get(component_id))
        edges = Counter(processed.edges) + exchange.sent
        letters = Counter(letter.exclusion.component for letter in exchange.letters)
        late_counts = Counter(processed.late_counts) + exchange.late_counts
        exchange.counted.update(processed.counted)
        executor, counters = processed.executor, exchange.counted
        return CommitReport(
            edges, states, letters, step_executors, late_counts, executor, counters, outbox=exchange.outbox
        )

    def _is_fed_before(self, component: str) -> bool:
        """Return whether a component had all tuples that do not come from steps in the processing phase."""
        plan = self.program.plan
        return component in plan.early or plan.phases[component] is WorkPhase.PROCESSING

    def _make_durable(self) -> None:
        """Sync all tables: the transaction commit that follows is durable, so everything that it refers to must be."""
        paths = {path for state in self.states.values() for path in state.parts.durability.unsynced()}
        try:
            sync(paths)
        except OSError as error:
            raise OperatingError(f"{error.filename or 'a table'} can't be synced to its disk: {error}") from error
        for state in self.states.values():
            state.parts.durability.mark_synced()

    def _take_letters(self, exchange: CommitExchange) -> None:
        for letter in exchange.processed.tried_again:
            batch = batch_of_letter(self.program, letter)
            if isinstance(batch, str) or self._is_fed_before(letter.component):
                continue
            grouping = subscription(self.program, letter)
            for task in range(self.program.bolts[letter.component].parallelism):
                if takes_letters(grouping, task):
                    exchange.put(letter.component, task, ([batch], letter.source, letter.stream), batch.num_rows)


def _run_step(step: CommitStep, exchange: CommitExchange) -> StepExecutorChoice:
    """Run a step. An error of a state gets the name of the component, which the state does not know."""
    try:
        return step.run(exchange)
    except NaiveTime as error:
        named = f"{step.component.id!r}: "
        if named in str(error):
            raise
        raise NaiveTime(f"{named}{error}") from error
