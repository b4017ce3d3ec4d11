"""The work that a worker process is sent: tasks of a level of an attempt, tasks of a step, or a bolt on a single
input."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from transactional.runtime.processing.staging import staged
from transactional.runtime.processing.tasks import run_task
from transactional.runtime.tasks.items import Item, TaskTime, ToTask
from transactional.runtime.tasks.program import AttemptInput, TaskProgram
from transactional.runtime.tasks.step_work import StepWork
from transactional.runtime.tasks.watching import BoltInput, Report, run_alone


@dataclass(frozen=True, slots=True)
class Line:
    """Messages to the driver during the work: a `beat` when a task has ended, and the inputs of watched bolts."""

    beat: Callable[[], None]
    report: Report


@dataclass(frozen=True, slots=True)
class Work(ABC):
    """One piece of work of one process for one attempt. Picklable."""

    @abstractmethod
    def run(self, program: TaskProgram, line: Line) -> list[Any]:
        """Run the work in the process. Returns the items or answers of its tasks."""


@dataclass(frozen=True, slots=True)
class LevelWork(Work):
    """Tasks of one level, with the items that they receive.

    `processes` is the number of processes that share the limit for data through the driver. With `is_watched` the bolts
    are watched.
    """

    inputs: AttemptInput
    level: int
    slots: Sequence[int]
    received: Sequence[ToTask]
    processes: int
    is_watched: bool = False

    def run(self, program: TaskProgram, line: Line) -> list[Item]:
        """Run the tasks one after the other. Data that is too large for the driver is staged, as in Spark's tasks."""
        began_s, sent = perf_counter(), list[Item]()
        for slot in self.slots:
            own_items = [item for item in self.received if item.slot == slot]
            sent += run_task(
                program, self.inputs, self.level, slot, own_items, line.report if self.is_watched else None
            )
            line.beat()
        sent = list(staged(program, self.inputs.attempt, sent, self.processes))
        sent.append(TaskTime((self.level, self.slots[0], 0), (perf_counter() - began_s) * 1e3))
        return sent


@dataclass(frozen=True, slots=True)
class PartOfStep(Work):
    """Tasks of a step of the commit phase."""

    work: StepWork

    def run(self, program: TaskProgram, line: Line) -> list[Any]:
        """Run the tasks one after the other. No task sees the writes of another one."""
        answers = []
        for task_input in self.work.inputs:
            answers.append(self.work.run(program, task_input))
            line.beat()
        return answers


@dataclass(frozen=True, slots=True)
class BoltAlone(Work):
    """A bolt alone on one input, to find out whether the process dies of it."""

    inputs: AttemptInput
    bolt_input: BoltInput

    def run(self, program: TaskProgram, line: Line) -> list[Any]:
        """Run the bolt, and drop its output."""
        run_alone(program, self.inputs, self.bolt_input)
        line.beat()
        return []
