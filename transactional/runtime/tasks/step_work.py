"""What the tasks of a step are given where they run as a Spark job, and what they answer."""

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

Waiting = tuple[Sequence[pa.RecordBatch] | bytes | StagedBytes, str, str]
"""Tuples that wait for a task, with their source and stream: here, as Arrow IPC, or where a task has left them."""


@dataclass(frozen=True, slots=True)
class TaskInput:
    """What one task gets. `instance` is the pickled bolt, if it has begun its batch in the processing phase."""

    task: int
    waiting: tuple[Waiting, ...]
    instance: bytes | StagedBytes | None = None


@dataclass(frozen=True, slots=True)
class StepFailure:
    """Why a task of a step has failed. `driver_reason` says why the step
    has to run on the driver, and is empty if the failure has another cause."""

    code: str
    text: str
    at_fault: tuple[Exclusion, ...] = ()
    is_own: bool = True
    """Whether `text` is of the task; otherwise it is the text of an error of the state."""
    driver_reason: str = ""

    @classmethod
    def of_state(cls, error: TransactionalError) -> StepFailure:
        """An error that the driver raises as it is."""
        driver_reason = error.reason if isinstance(error, NeedsDriver) else ""
        return cls(error.code, str(error), error.at_fault, is_own=False, driver_reason=driver_reason)


@dataclass(frozen=True, slots=True)
class TaskDone:
    """The answer of one task: how many rows it has received, what it sends on, what it has written."""

    task: int
    received: int
    items: tuple[Item, ...] = ()
    written: WrittenPart | None = None
    failure: StepFailure | None = None
    elapsed_ms: float = 0.0
    of: int = 0
    """Of a task that reads its rows itself: how many all tasks together have, as it has read them."""
    late_counts: Mapping[str, int] = field(default_factory=dict)
    """Late tuples, by the component with the windows that have left them out."""
    counted: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """What bolts count themselves, by component and name."""


@dataclass(frozen=True, slots=True)
class StepWork(ABC):
    """One step of one attempt as the work of tasks, and what each of them gets: one class for each kind of step.
    Picklable; runs on executors."""

    counted: ClassVar[str] = "tuples that were sent to them"
    """What `received` is the number of."""

    attempt: TransactionAttempt
    step: Step
    state: TaskState | None
    facts: BatchFacts | None
    inputs: tuple[TaskInput, ...]
    rows: int
    """How many its tasks have to receive together."""

    def run(self, program: TaskProgram, given: TaskInput) -> TaskDone:
        """Run one task. What it answers is all that it leaves behind; what it has staged is nobody's as long as the
        driver does not commit it."""
        began = perf_counter()
        try:
            with naive_times_in(program.naive_times):
                done = self._run(program, given)
        except TransactionalError as error:
            done = TaskDone(given.task, 0, failure=StepFailure.of_state(error))
        return replace(done, elapsed_ms=(perf_counter() - began) * 1e3)

    @abstractmethod
    def _run(self, program: TaskProgram, given: TaskInput) -> TaskDone:
        """What one task does. May raise errors of the state."""

    def rows_of(self, answers: Sequence[TaskDone]) -> int:
        """How many rows tasks with these answers have to have received together."""
        return self.rows


def batches_of(waiting: Waiting, scratch: Scratch | None) -> Sequence[pa.RecordBatch]:
    """The tuples, wherever they are. Raises `OperatingError`."""
    data = waiting[0]
    if isinstance(data, StagedBytes | bytes):
        return from_ipc(bytes_of(data, scratch))
    return data


def bytes_of(data: bytes | StagedBytes, scratch: Scratch | None) -> bytes:
    """The bytes, wherever they are. Raises `OperatingError`."""
    if isinstance(data, bytes):
        return data
    assert scratch is not None, "a task has staged batches, so the topology has scratch storage"
    return scratch.read(data)


@runtime_checkable
class StepExecutor(Protocol):
    """Runs the tasks of a step of the commit phase side by side."""

    def slots(self) -> int:
        """How many tasks run at a time. It has to be open."""

    def run_step(self, work: StepWork) -> Sequence[TaskDone]:
        """Run all tasks of a step; blocks. Called from the commit thread.

        Spark may run a task more than once; the answer is that of one run of each. Raises `OperatingError`.
        """
