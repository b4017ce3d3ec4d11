"""`LocalExecutor` runs processing phases in the driver's process, without Spark, for tests and for trying a topology
out."""

from __future__ import annotations

import threading
from dataclasses import replace

from transactional.core.machine.report import IN_DRIVER
from transactional.core.ports import Processed
from transactional.model.attempt import TransactionAttempt
from transactional.model.batch import BatchMetadata
from transactional.model.errors import AttemptLost, ConfigError
from transactional.model.reading import Lookups
from transactional.runtime.processing.gathering import gather
from transactional.runtime.processing.staging import find_scratch, find_stagers, staged
from transactional.runtime.processing.tasks import run_task
from transactional.runtime.tasks.items import Item, is_for_level, is_for_task
from transactional.runtime.tasks.program import AttemptInput, Record, check_sendable, make_program
from transactional.runtime.tasks.step_work import StepAnswer, StepWork
from transactional.topology.topology import Topology


class LocalExecutor:
    """A `JobExecutor` that runs the tasks of an attempt one after the other in the calling thread.

    A bolt that hangs can't be interrupted; between two tasks an attempt can be cancelled. DataFrame bolts need Spark.
    `record` receives the output of components. Components that are `late` receive nothing before the commit phase.
    """

    def __init__(self, topology: Topology, *, record: Record | None = None, late: frozenset[str] = frozenset()) -> None:
        dataframe = [component.id for component in topology.components if component.is_dataframe]
        if dataframe:
            raise ConfigError(f"bolt {dataframe[0]!r} works on a Spark DataFrame: run the topology with SparkExecutor")
        self._topology = topology
        self.program = make_program(topology, topology.spout.reader(), record, late=late)
        check_sendable(self.program)
        self._lock = threading.Lock()
        self._started_tasks: dict[TransactionAttempt, int] = {}
        self._cancelled: set[TransactionAttempt] = set()

    def open(self) -> None:
        """Prepare the storage of staged files. There is nothing to start."""
        scratch = find_scratch(self._topology)
        self.program = replace(self.program, stagers=find_stagers(self._topology), scratch=scratch)

    def run(self, attempt: TransactionAttempt, batch: BatchMetadata) -> Processed:
        """Run a processing phase level by level. Raises `AttemptLost` if the attempt is cancelled."""
        return self.run_with(attempt, batch, None)

    def run_with(self, attempt: TransactionAttempt, batch: BatchMetadata, lookups: Lookups | None) -> Processed:
        """Run a processing phase with tables that bolts look up from outside of their topology, as for queries."""
        with self._lock:
            self._started_tasks[attempt] = 0
        try:
            return gather(self.program, batch, self._run_levels(attempt, batch, lookups), executor=IN_DRIVER)
        finally:
            with self._lock:
                del self._started_tasks[attempt]
                self._cancelled.discard(attempt)

    def _run_levels(self, attempt: TransactionAttempt, batch: BatchMetadata, lookups: Lookups | None) -> list[Item]:
        inputs = replace(AttemptInput.of(attempt, batch, self.program.spout), lookups=lookups)
        items: list[Item] = []
        for level in range(self.program.plan.depth):
            for slot in range(len(self.program.plan.slots(level))):
                self._check_cancelled(attempt)
                received = [item for item in items if is_for_level(item, level) and item.slot == slot]
                sent = run_task(self.program, inputs, level, slot, received)
                items += staged(self.program, attempt, sent, len(self.program.plan.slots(level)))
        return [item for item in items if not is_for_task(item)]

    def slots(self) -> int:
        """Return 1: tasks run one at a time, so a job is never quicker."""
        return 1

    def run_step(self, work: StepWork) -> list[StepAnswer]:
        """Run the tasks of a step one after the other. No task sees the writes of another one."""
        return [work.run(self.program, task_input) for task_input in work.inputs]

    def _check_cancelled(self, attempt: TransactionAttempt) -> None:
        with self._lock:
            if attempt in self._cancelled:
                raise AttemptLost(f"attempt {attempt} was cancelled")
            self._started_tasks[attempt] += 1

    def cancel(self, attempt: TransactionAttempt) -> None:
        """End the attempt before its next task."""
        with self._lock:
            if attempt in self._started_tasks:
                self._cancelled.add(attempt)

    def count_progress(self, attempt: TransactionAttempt) -> int:
        """Return the number of tasks that were started."""
        with self._lock:
            return self._started_tasks.get(attempt, 0)

    def close(self) -> None:
        """Do nothing: there is nothing to release."""
