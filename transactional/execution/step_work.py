"""What the tasks of a step are given where they run as a Spark job, and what they answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import pyarrow as pa

from transactional.arrow import from_ipc
from transactional.attempt import TransactionAttempt
from transactional.execution.items import Item
from transactional.facts import BatchFacts
from transactional.letters import Exclusion
from transactional.ports.split import Closer, TaskState, WrittenPart
from transactional.ports.staged import Scratch, StagedBytes

Waiting = tuple[Sequence[pa.RecordBatch] | bytes | StagedBytes, str, str]
"""Tuples that wait for a task, with their source and stream: here, as Arrow IPC, or where a task has left them."""


@dataclass(frozen=True, slots=True)
class TaskInput:
    """What one task gets. `instance` is the pickled bolt, if it has begun its batch in the processing phase."""

    task: int
    waiting: tuple[Waiting, ...]
    instance: bytes | StagedBytes | None = None


@dataclass(frozen=True, slots=True)
class Closing:
    """What tasks do that close windows: read the rows in a range, and make windows of their part, in an order that
    matters to somebody or, where that is (), in any."""

    column: str
    after: int | None
    until: int
    closer: Closer
    order: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StepWork:
    """One step of one attempt, for so many tasks. `replaces`: an earlier attempt at the transaction has written the
    state. `closing`: the step is a state's update, of which tasks close windows; the driver does the rest. `changes`:
    it is an update that emits what it changes, maybe `in_order`; what waits for its tasks are partial aggregates."""

    attempt: TransactionAttempt
    component: str
    tasks: int
    split_by: tuple[str, ...]
    state: TaskState | None
    inputs: tuple[TaskInput, ...]
    replaces: bool = False
    excluded: tuple[Exclusion, ...] = ()
    facts: BatchFacts | None = None
    closing: Closing | None = None
    changes: bool = False
    in_order: bool = False


@dataclass(frozen=True, slots=True)
class StepFailure:
    """Why a task of a step has failed. `stays`: why the step has to run in the driver, if that is the reason."""

    code: str
    text: str
    at_fault: tuple[Exclusion, ...] = ()
    is_own: bool = True
    """Whether `text` is of the task; otherwise it is the text of an error of the state."""
    stays: str = ""


@dataclass(frozen=True, slots=True)
class TaskDone:
    """The answer of one task: how many tuples it has received, or rows of windows it has closed, what it sends on, what
    it has written."""

    task: int
    received: int
    items: tuple[Item, ...] = ()
    written: WrittenPart | None = None
    failure: StepFailure | None = None
    elapsed_ms: float = 0.0
    of: int = 0
    """Of a task that closes windows: how many rows all tasks together have, as it has read them."""


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
    assert scratch is not None, "a task has left something, so there is a place for it"
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
