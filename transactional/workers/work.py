"""What a worker process is sent to do: some tasks of a level of an attempt, or of a step of the commit phase."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from transactional.execution.items import Item, TaskTime, ToTask
from transactional.execution.program import AttemptInput, TaskProgram
from transactional.execution.step_work import StepWork
from transactional.phases.staging import staged
from transactional.phases.tasks import run_task


@dataclass(frozen=True, slots=True)
class Work(ABC):
    """What one process does for one attempt, in one piece. Picklable."""

    @abstractmethod
    def run(self, program: TaskProgram, beat: Callable[[], None]) -> list[Any]:
        """In the process: what the tasks send. `beat` is called when one of them has ended."""


@dataclass(frozen=True, slots=True)
class LevelWork(Work):
    """Tasks of one level, with what they receive. So many `processes` share what may go through the driver."""

    inputs: AttemptInput
    level: int
    slots: Sequence[int]
    received: Sequence[ToTask]
    processes: int

    def run(self, program: TaskProgram, beat: Callable[[], None]) -> list[Item]:
        """One task after the other; what is too large for the driver is left in files, as Spark's tasks do."""
        began, sent = perf_counter(), list[Item]()
        for slot in self.slots:
            mine = [item for item in self.received if item.slot == slot]
            sent += run_task(program, self.inputs, self.level, slot, mine)
            beat()
        sent = list(staged(program, self.inputs.attempt, sent, self.processes))
        sent.append(TaskTime((self.level, self.slots[0], 0), (perf_counter() - began) * 1e3))
        return sent


@dataclass(frozen=True, slots=True)
class PartOfStep(Work):
    """Tasks of a step of the commit phase."""

    work: StepWork

    def run(self, program: TaskProgram, beat: Callable[[], None]) -> list[Any]:
        """One task after the other, none of which sees what another one does."""
        answers = []
        for given in self.work.inputs:
            answers.append(self.work.run(program, given))
            beat()
        return answers
