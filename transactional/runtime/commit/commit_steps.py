"""A step of the commit phase: one component finishes its batch, in the driver or as a Spark job over its tasks.

What the kinds of components do is in `bolt_steps` and `update_steps`; how they run is the same for all.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property

from transactional.core.ports.split import TaskState, WrittenPart
from transactional.core.ports.staged import Scratch
from transactional.model.errors import TransactionalError, TuplesLost, WorkerDied, by_code
from transactional.model.user_code.failures import TaskFailed, error_of, rank_failure, summed_up
from transactional.runtime.commit.executor_choice import StepExecutorChoice, StepExecutorChooser
from transactional.runtime.commit.passing import Passing
from transactional.runtime.processing.staging import scratch_of
from transactional.runtime.tasks.operator_factory import TaskInfo
from transactional.runtime.tasks.program import TaskProgram
from transactional.runtime.tasks.step_work import StepExecutor, StepFailure, StepWork, TaskDone
from transactional.topology.steps import Step
from transactional.topology.topology import Component, Topology


class CommitContext:
    """What the steps of a topology's commit phase have in common. `choice` says which executors they
    use, as for `StepExecutorChooser`."""

    def __init__(self, topology: Topology, program: TaskProgram, jobs: StepExecutor | None, choice: str) -> None:
        self.topology, self.program, self.jobs, self._choice = topology, program, jobs, choice

    @cached_property
    def executor_chooser(self) -> StepExecutorChooser:
        """Chooses the executors of steps. The executor of jobs has to be open when this is first read."""
        return StepExecutorChooser(self._choice, None if self.jobs is None else self.jobs.slots())

    @cached_property
    def scratch(self) -> Scratch | None:
        """Where tasks have left what was too large for the driver."""
        return scratch_of(self.topology)


class CommitStep(ABC):
    """One component in the commit phase of a topology, made once for all transactions."""

    def __init__(self, plan: Step, component: Component, context: CommitContext) -> None:
        self.plan, self.component, self.context = plan, component, context

    def run(self, passing: Passing) -> StepExecutorChoice:
        """Finish the component: write its state, and pass on what it emits. Returns the executor, and why it was
        chosen.

        Raises `Fenced`, an `OperatingError`, or an exception of a bolt as `BoltFailed`.
        """
        choice = self._choose_executor(passing)
        if choice.is_job:
            if (work := self._work(passing)) is not None:
                self._run_job(work, passing)
                return choice
            choice = StepExecutorChoice(False, "its state can be read in the driver only")
        self._run_in_driver(passing)
        return choice

    def _choose_executor(self, passing: Passing) -> StepExecutorChoice:
        chooser, plan = self.context.executor_chooser, self.plan
        if plan.driver_reason or not chooser.has_jobs:
            return chooser.choose(plan, 0, 0)
        rows, size_bytes = self._size(passing)
        choice = chooser.choose(plan, rows, size_bytes)
        # Without rows a bolt still finishes its batch, but an update has nothing to do for tasks.
        return choice if rows or not self.component.is_update else StepExecutorChoice(False, choice.reason)

    @abstractmethod
    def _run_in_driver(self, passing: Passing) -> None:
        """Finish the component on the driver."""

    def _size(self, passing: Passing) -> tuple[int, int]:
        """How many rows its tasks would have to work on, and about how many bytes."""
        return 0, 0

    def _work(self, passing: Passing) -> StepWork | None:
        """What its tasks do as a job; None, and nothing is done, if only the driver can read the state."""
        return None

    def _take(self, passing: Passing, written: Sequence[WrittenPart]) -> None:  # noqa: B027 - optional
        """Write what the tasks of a job have kept, once all that they send is passed on."""

    def _run_job(self, work: StepWork, passing: Passing) -> None:
        jobs = self.context.jobs
        assert jobs is not None, "without an executor of jobs no step runs as one"
        try:
            answers = sorted(jobs.run_step(work), key=lambda answer: answer.task)
        except WorkerDied:
            self.context.executor_chooser.require_job(self.plan)
            raise
        self._check(work, answers)
        for answer in answers:
            passing.take_items(answer.items)
            passing.late_counts.update(answer.late_counts)
            passing.counted.update(answer.counted)
        self._take(passing, [answer.written for answer in answers if answer.written is not None])

    def _for_tasks(self, passing: Passing) -> TaskState | None:
        """What tasks read of the state; None: only the driver can."""
        assert self.component.state is not None
        return self.component.state.for_tasks(passing.attempt)

    def _check(self, work: StepWork, answers: Sequence[TaskDone]) -> None:
        """Every task has answered once, none has failed, and nothing was lost on the way."""
        if failures := [answer.failure for answer in answers if answer.failure is not None]:
            for reason in (failure.driver_reason for failure in failures if failure.driver_reason):
                self.context.executor_chooser.require_driver(self.plan, reason)
            raise _error_of_job(failures)
        state, given = self.component.state, [each.task for each in work.inputs]
        step = f"step {self.component.id!r}" + ("" if state is None else f", which writes the state {state.table}")
        if [answer.task for answer in answers] != given:
            raise TuplesLost(f"{len(given)} tasks of {step} were to answer once each, {len(answers)} have answered")
        received, expected = sum(answer.received for answer in answers), work.rows_of(answers)
        if received != expected:
            raise TuplesLost(f"the tasks of {step} have received {received} of {expected} {work.counted}")


def error_of_tasks(failures: Sequence[tuple[TaskInfo, TaskFailed]]) -> BaseException:
    """How tasks in the driver have failed. An error raised by a state inside a bolt is passed on unchanged; tuples are
    at fault only if all failures can be attributed to some."""
    info, failed = min(failures, key=lambda each: rank_failure(each[1]))
    if isinstance(failed.__cause__, TransactionalError) and not failed.at_fault:
        return failed.__cause__
    text = f"{info}, in the commit phase: {failed}"
    return error_of(failed.code, *summed_up(text, [each.at_fault for _, each in failures]))


def _error_of_job(failures: Sequence[StepFailure]) -> TransactionalError:
    """The same of tasks of a job."""
    first = min(failures, key=rank_failure)
    raised = None if first.is_own else by_code(first.code)
    if raised is not None:
        return raised(first.text)
    return error_of(first.code, *summed_up(first.text, [failure.at_fault for failure in failures]))
