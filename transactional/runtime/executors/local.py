"""Runs processing phases in this process, without Spark: for tests, for trying a topology out, for small things."""

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
from transactional.runtime.processing.staging import scratch_of, staged, stagers_of
from transactional.runtime.processing.tasks import run_task
from transactional.runtime.tasks.items import Item, is_for_level, is_for_task
from transactional.runtime.tasks.program import AttemptInput, Record, check_sendable, make_program
from transactional.runtime.tasks.step_work import StepWork, TaskDone
from transactional.topology.topology import Topology


class LocalExecutor:
    """A `JobExecutor` that runs the tasks of an attempt one after the other in the calling thread.

    A bolt that hangs can't be interrupted; between two tasks an attempt can be cancelled. DataFrame bolts need Spark.
    `record` receives what components emit. Components that are `late` receive nothing before the commit phase.
    """

    def __init__(self, topology: Topology, *, record: Record | None = None, late: frozenset[str] = frozenset()) -> None:
        dataframe = [component.id for component in topology.components if component.is_dataframe]
        if dataframe:
            raise ConfigError(f"bolt {dataframe[0]!r} works on a Spark DataFrame: run the topology with SparkExecutor")
        self._topology = topology
        self.program = make_program(topology, topology.spout.reader(), record, late=late)
        check_sendable(self.program)
        self._lock = threading.Lock()
        self._done: dict[TransactionAttempt, int] = {}
        self._cancelled: set[TransactionAttempt] = set()

    def open(self) -> None:
        """Nothing has to be started; where tasks write staged files is known by now."""
        scratch = scratch_of(self._topology)
        self.program = replace(self.program, stagers=stagers_of(self._topology), scratch=scratch)

    def run(self, attempt: TransactionAttempt, batch: BatchMetadata) -> Processed:
        """Run level after level. Raises `AttemptLost` if cancelled."""
        return self.run_with(attempt, batch, None)

    def run_with(self, attempt: TransactionAttempt, batch: BatchMetadata, lookups: Lookups | None) -> Processed:
        """As `run`; `lookups` are for bolts that look states up from outside of their topology."""
        with self._lock:
            self._done[attempt] = 0
        try:
            return gather(self.program, batch, self._run_levels(attempt, batch, lookups), executor=IN_DRIVER)
        finally:
            with self._lock:
                del self._done[attempt]
                self._cancelled.discard(attempt)

    def _run_levels(self, attempt: TransactionAttempt, batch: BatchMetadata, lookups: Lookups | None) -> list[Item]:
        inputs = replace(AttemptInput.of(attempt, batch, self.program.spout), lookups=lookups)
        items: list[Item] = []
        for level in range(self.program.plan.depth):
            for slot in range(len(self.program.plan.slots(level))):
                self._check_cancelled(attempt)
                reached = [item for item in items if is_for_level(item, level) and item.slot == slot]
                sent = run_task(self.program, inputs, level, slot, reached)
                items += staged(self.program, attempt, sent, len(self.program.plan.slots(level)))
        return [item for item in items if not is_for_task(item)]

    def slots(self) -> int:
        """One task at a time: a job is never quicker here."""
        return 1

    def run_step(self, work: StepWork) -> list[TaskDone]:
        """Run the tasks of a step one after the other, none of which sees what another one does."""
        return [work.run(self.program, given) for given in work.inputs]

    def _check_cancelled(self, attempt: TransactionAttempt) -> None:
        with self._lock:
            if attempt in self._cancelled:
                raise AttemptLost(f"attempt {attempt} was cancelled")
            self._done[attempt] += 1

    def cancel(self, attempt: TransactionAttempt) -> None:
        """Let the attempt end before its next task."""
        with self._lock:
            if attempt in self._done:
                self._cancelled.add(attempt)

    def progress(self, attempt: TransactionAttempt) -> int:
        """Number of tasks started."""
        with self._lock:
            return self._done.get(attempt, 0)

    def close(self) -> None:
        """Nothing has to be released."""
