"""A step of the commit phase: one component finishes its batch, on the driver or as a Spark job over its tasks.

This module chooses the executor of a step, runs its tasks and checks their answers. `bolt_steps` and `update_steps`
have the work of each kind of component.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property

from transactional.core.ports.split import TaskState, WrittenPart
from transactional.core.ports.staged import Scratch
from transactional.model.errors import TransactionalError, TuplesLost, WorkerDied, error_class_of
from transactional.model.user_code.failures import TaskFailed, make_error, rank_failure, sum_up_failures
from transactional.runtime.commit.exchange import CommitExchange
from transactional.runtime.commit.executor_choice import StepExecutorChoice, StepExecutorChooser
from transactional.runtime.processing.staging import find_scratch
from transactional.runtime.tasks.operator_factory import TaskInfo
from transactional.runtime.tasks.program import TaskProgram
from transactional.runtime.tasks.step_work import StepAnswer, StepExecutor, StepFailure, StepWork
from transactional.topology.steps import Step
from transactional.topology.topology import Component, Topology


class CommitContext:
    """The common parts of the steps of a topology's commit phase. `choice` says which executors they
    use, as for `StepExecutorChooser`."""

    def __init__(self, topology: Topology, program: TaskProgram, jobs: StepExecutor | None, choice: str) -> None:
        self.topology, self.program, self.jobs, self._choice = topology, program, jobs, choice

    @cached_property
    def executor_chooser(self) -> StepExecutorChooser:
        """Chooses the executors of steps. The executor of jobs has to be open when this is first read."""
        return StepExecutorChooser(self._choice, None if self.jobs is None else self.jobs.slots())

    @cached_property
    def scratch(self) -> Scratch | None:
        """The storage for data of steps that is too large for the driver."""
        return find_scratch(self.topology)


class CommitStep(ABC):
    """One component in the commit phase of a topology, made once for all transactions."""

    def __init__(self, plan: Step, component: Component, context: CommitContext) -> None:
        self.plan, self.component, self.context = plan, component, context

    def run(self, exchange: CommitExchange) -> StepExecutorChoice:
        """Finish the component: write its state, and pass on what it emits. Returns the executor, and why it was
        chosen.

        Raises `Fenced`, an `OperatingError`, or an exception of a bolt as `BoltFailed`.
        """
        choice = self._choose_executor(exchange)
        if choice.is_job:
            if (work := self._work(exchange)) is not None:
                self._run_job(work, exchange)
                return choice
            choice = StepExecutorChoice(False, "its state can be read in the driver only")
        self._run_in_driver(exchange)
        return choice

    def _choose_executor(self, exchange: CommitExchange) -> StepExecutorChoice:
        chooser, plan = self.context.executor_chooser, self.plan
        if plan.driver_reason or not chooser.has_jobs:
            return chooser.choose(plan, 0, 0)
        rows, size_bytes = self._size(exchange)
        choice = chooser.choose(plan, rows, size_bytes)
        # Without rows a bolt still finishes its batch, but an update has nothing to do for tasks.
        return choice if rows or not self.component.is_update else StepExecutorChoice(False, choice.reason)

    @abstractmethod
    def _run_in_driver(self, exchange: CommitExchange) -> None:
        """Finish the component on the driver."""

    def _size(self, exchange: CommitExchange) -> tuple[int, int]:
        """Return the number of rows that the tasks would work on, and about their size in bytes."""
        return 0, 0

    def _work(self, exchange: CommitExchange) -> StepWork | None:
        """Return the work of a job, or None if only the driver can read the state."""
        return None

    def _write_parts(self, exchange: CommitExchange, written: Sequence[WrittenPart]) -> None:  # noqa: B027 - optional
        """Write the parts that the tasks of a job have kept, once all their items are passed on."""

    def _run_job(self, work: StepWork, exchange: CommitExchange) -> None:
        jobs = self.context.jobs
        assert jobs is not None, "without an executor of jobs no step runs as one"
        try:
            answers = sorted(jobs.run_step(work), key=lambda answer: answer.task)
        except WorkerDied:
            self.context.executor_chooser.require_job(self.plan)
            raise
        self._check(work, answers)
        for answer in answers:
            exchange.take_items(answer.items)
            exchange.late_counts.update(answer.late_counts)
            exchange.counted.update(answer.counted)
        self._write_parts(exchange, [answer.written for answer in answers if answer.written is not None])

    def _state_for_tasks(self, exchange: CommitExchange) -> TaskState | None:
        """Return the state that tasks read, or None if only the driver can read it."""
        assert self.component.state is not None
        return self.component.state.parts.tasks.for_tasks(exchange.attempt)

    def _check(self, work: StepWork, answers: Sequence[StepAnswer]) -> None:
        """Raise if a task has not answered exactly once, has failed, or has not received all its rows."""
        if failures := [answer.failure for answer in answers if answer.failure is not None]:
            for reason in (failure.driver_reason for failure in failures if failure.driver_reason):
                self.context.executor_chooser.require_driver(self.plan, reason)
            raise _error_of_job(failures)
        state, tasks = self.component.state, [task_input.task for task_input in work.inputs]
        writes = "" if state is None else f", which writes the state {state.parts.declared.table}"
        step = f"step {self.component.id!r}{writes}"
        if [answer.task for answer in answers] != tasks:
            raise TuplesLost(f"{len(tasks)} tasks of {step} were to answer once each, {len(answers)} have answered")
        received, expected = sum(answer.received for answer in answers), work.expected_rows(answers)
        if received != expected:
            raise TuplesLost(f"the tasks of {step} have received {received} of {expected} {work.counted}")


def error_of_tasks(failures: Sequence[tuple[TaskInfo, TaskFailed]]) -> BaseException:
    """Return the error for failures of tasks on the driver.

    An error that a state has raised inside a bolt is passed on unchanged. Tuples are at fault only if every failure can
    be attributed to a tuple.
    """
    info, failed = min(failures, key=lambda failure: rank_failure(failure[1]))
    if isinstance(failed.__cause__, TransactionalError) and not failed.at_fault:
        return failed.__cause__
    text = f"{info}, in the commit phase: {failed}"
    return make_error(failed.code, *sum_up_failures(text, [failure.at_fault for _, failure in failures]))


def _error_of_job(failures: Sequence[StepFailure]) -> TransactionalError:
    """Return the error for failures of tasks of a job, as `error_of_tasks`."""
    first = min(failures, key=rank_failure)
    error_class = None if first.is_own else error_class_of(first.code)
    if error_class is not None:
        return error_class(first.text)
    return make_error(first.code, *sum_up_failures(first.text, [failure.at_fault for failure in failures]))
