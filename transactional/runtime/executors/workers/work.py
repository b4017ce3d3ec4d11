"""What a worker process is sent to do: some tasks of a level of an attempt, or of a step of the commit phase."""

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
    """What a process sends to the driver while it works: a `beat` when a task has ended, and what bolts get."""

    beat: Callable[[], None]
    report: Report


@dataclass(frozen=True, slots=True)
class Work(ABC):
    """What one process does for one attempt, in one piece. Picklable."""

    @abstractmethod
    def run(self, program: TaskProgram, line: Line) -> list[Any]:
        """In the process: what the tasks send."""


@dataclass(frozen=True, slots=True)
class LevelWork(Work):
    """Tasks of one level, with what they receive. So many `processes` share what may go through the driver.

    The bolts are watched if `is_watched`.
    """

    inputs: AttemptInput
    level: int
    slots: Sequence[int]
    received: Sequence[ToTask]
    processes: int
    is_watched: bool = False

    def run(self, program: TaskProgram, line: Line) -> list[Item]:
        """One task after the other; what is too large for the driver is left in files, as Spark's tasks do."""
        began, sent = perf_counter(), list[Item]()
        for slot in self.slots:
            mine = [item for item in self.received if item.slot == slot]
            sent += run_task(program, self.inputs, self.level, slot, mine, line.report if self.is_watched else None)
            line.beat()
        sent = list(staged(program, self.inputs.attempt, sent, self.processes))
        sent.append(TaskTime((self.level, self.slots[0], 0), (perf_counter() - began) * 1e3))
        return sent


@dataclass(frozen=True, slots=True)
class PartOfStep(Work):
    """Tasks of a step of the commit phase."""

    work: StepWork

    def run(self, program: TaskProgram, line: Line) -> list[Any]:
        """One task after the other, none of which sees what another one does."""
        answers = []
        for given in self.work.inputs:
            answers.append(self.work.run(program, given))
            line.beat()
        return answers


@dataclass(frozen=True, slots=True)
class BoltAlone(Work):
    """Run a bolt alone over an input: the process dies of it, or it does not."""

    inputs: AttemptInput
    given: BoltInput

    def run(self, program: TaskProgram, line: Line) -> list[Any]:
        """Send nothing."""
        run_alone(program, self.inputs, self.given)
        line.beat()
        return []
