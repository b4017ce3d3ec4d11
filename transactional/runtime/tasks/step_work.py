"""The inputs and the answers of a step's tasks when the step runs as a Spark job.

`StepWork` describes one step of one attempt: the driver makes it, and executors run it, one `TaskInput` each. The
answer of a task, `StepAnswer`, is all that the task leaves behind: files that it has staged count for nothing until the
driver commits them. A failure is an answer, too.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import ClassVar, Protocol, runtime_checkable

import pyarrow as pa

from transactional.core.ports.split import NeedsDriver, TaskState, WrittenPart
from transactional.core.ports.staged import Scratch, StagedBytes
from transactional.model.arrow import from_ipc
from transactional.model.arrow.zones import naive_times_in
from transactional.model.attempt import TransactionAttempt
from transactional.model.errors import TransactionalError
from transactional.model.facts import BatchFacts
from transactional.model.letters import Exclusion
from transactional.runtime.tasks.items import Item
from transactional.runtime.tasks.program import TaskProgram
from transactional.topology.steps import Step

WaitingTuples = tuple[Sequence[pa.RecordBatch] | bytes | StagedBytes, str, str]
"""Tuples that wait for a task, with their source and stream: record batches, Arrow IPC, or a staged file with it."""


@dataclass(frozen=True, slots=True)
class TaskInput:
    """The input of one task. `instance` is the pickled bolt, if it has begun its batch in the processing phase."""

    task: int
    waiting: tuple[WaitingTuples, ...]
    instance: bytes | StagedBytes | None = None


@dataclass(frozen=True, slots=True)
class StepFailure:
    """The failure of a task of a step. `driver_reason` says why the step
    has to run on the driver, and is empty if the failure has another cause."""

    code: str
    text: str
    at_fault: tuple[Exclusion, ...] = ()
    is_own: bool = True
    """Whether the task has made `text`. Otherwise it is the text of an error of the state."""
    driver_reason: str = ""

    @classmethod
    def of_state(cls, error: TransactionalError) -> StepFailure:
        """Make the failure for an error of the state, which the driver raises unchanged."""
        driver_reason = error.reason if isinstance(error, NeedsDriver) else ""
        return cls(error.code, str(error), error.at_fault, is_own=False, driver_reason=driver_reason)


@dataclass(frozen=True, slots=True)
class StepAnswer:
    """The answer of one task: the number of rows that it has received, its items for later steps, and what it has
    written."""

    task: int
    received: int
    items: tuple[Item, ...] = ()
    written: WrittenPart | None = None
    failure: StepFailure | None = None
    elapsed_ms: float = 0.0
    rows_in_all: int = 0
    """The number of rows of all tasks together, as a task has read it that reads its rows itself."""
    late_counts: Mapping[str, int] = field(default_factory=dict)
    """Late tuples, by the component with the windows that have left them out."""
    counted: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """The bolts' own counters, by component and name."""


@dataclass(frozen=True, slots=True)
class StepWork(ABC):
    """The work of a step's tasks in one attempt, with the input of each task. There is one class for each kind of step.
    Picklable; runs on executors."""

    counted: ClassVar[str] = "tuples that were sent to them"
    """The rows that `StepAnswer.received` counts, for messages."""

    attempt: TransactionAttempt
    step: Step
    state: TaskState | None
    facts: BatchFacts | None
    inputs: tuple[TaskInput, ...]
    rows: int
    """Number of rows that the tasks have to receive together."""

    def run(self, program: TaskProgram, task_input: TaskInput) -> StepAnswer:
        """Run one task. Files that it has staged belong to no table until the driver commits them."""
        began_s = perf_counter()
        try:
            with naive_times_in(program.naive_times):
                done = self._run(program, task_input)
        except TransactionalError as error:
            done = StepAnswer(task_input.task, 0, failure=StepFailure.of_state(error))
        return replace(done, elapsed_ms=(perf_counter() - began_s) * 1e3)

    @abstractmethod
    def _run(self, program: TaskProgram, task_input: TaskInput) -> StepAnswer:
        """Run one task. May raise errors of the state."""

    def expected_rows(self, answers: Sequence[StepAnswer]) -> int:
        """Return the number of rows that tasks with these answers must have received together."""
        return self.rows


def read_batches(waiting: WaitingTuples, scratch: Scratch | None) -> Sequence[pa.RecordBatch]:
    """Return the record batches of waiting tuples, which may have been staged. Raises `OperatingError`."""
    data = waiting[0]
    if isinstance(data, StagedBytes | bytes):
        return from_ipc(read_bytes(data, scratch))
    return data


def read_bytes(data: bytes | StagedBytes, scratch: Scratch | None) -> bytes:
    """Return bytes that may have been staged. Raises `OperatingError`."""
    if isinstance(data, bytes):
        return data
    assert scratch is not None, "a task has staged batches, so the topology has scratch storage"
    return scratch.read(data)


@runtime_checkable
class StepExecutor(Protocol):
    """Runs the tasks of a step of the commit phase side by side."""

    def slots(self) -> int:
        """Return the number of tasks that run at a time. The executor has to be open."""

    def run_step(self, work: StepWork) -> Sequence[StepAnswer]:
        """Run all tasks of a step; blocks. Called from the commit thread.

        Spark may run a task more than once; the answer is that of one run of each. Raises `OperatingError`.
        """
