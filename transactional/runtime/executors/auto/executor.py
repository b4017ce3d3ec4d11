"""`GearedExecutor`: workers for small batches, Spark for large ones, in one run."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from time import perf_counter
from typing import Protocol

from transactional.core.ports import JobExecutor, Processed
from transactional.model.attempt import TransactionAttempt, TxId
from transactional.model.batch import BatchMetadata
from transactional.model.errors import FatalError, WorkerDied
from transactional.runtime.executors.auto.choice import ExecutorChoice, ExecutorChooser
from transactional.runtime.tasks.step_work import StepAnswer, StepWork

_REMEMBERED = 1_000
"""Number of transactions whose executor is remembered: more than can be in flight."""


class TaskExecutor(JobExecutor, Protocol):
    """Runs processing phases as well as steps of the commit phase."""

    def slots(self) -> int:
        """Return the number of tasks that run at a time."""

    def run_step(self, work: StepWork) -> Sequence[StepAnswer]:
        """Run the tasks of a step, as `StepExecutor.run_step`."""


class GearedExecutor:
    """A `JobExecutor` that processes each transaction in workers or on Spark, whichever is expected to be quicker.

    The workers start with `open`. Spark starts in the background when it is first expected to be quicker, while
    transactions continue in workers. If it can't start, the run ends with that error; committed transactions are not
    affected. `chooser` chooses the executor of each transaction. With `workers_find_tuples`, workers find the tuple of
    which a process has died, so a transaction that has killed a process is processed in workers.
    """

    def __init__(
        self, workers: TaskExecutor, spark: TaskExecutor, chooser: ExecutorChooser, *, workers_find_tuples: bool = False
    ) -> None:
        self.workers, self.spark, self._chooser = workers, spark, chooser
        self._workers_find_tuples = workers_find_tuples
        self._lock = threading.Lock()
        self._starting: threading.Thread | None = None
        self._is_started = self._is_closed = False
        self._error: BaseException | None = None
        self._executors: dict[TransactionAttempt, TaskExecutor] = {}
        self._deadly_txids = set[TxId]()
        self._ended_s = 0.0

    def open(self) -> None:
        """Start the workers. Spark is started when it is first needed."""
        self.workers.open()
        self._chooser.workers = self.workers.slots()

    def run(self, attempt: TransactionAttempt, batch: BatchMetadata) -> Processed:
        """Run a processing phase on the executor that is expected to be quicker."""
        records, began_s = sum(len(offsets) for offsets in batch.ranges.values()), perf_counter()
        choice = self._choose(attempt, records)
        try:
            processed = self._executors[attempt].run(attempt, batch)
        except WorkerDied:
            with self._lock:
                self._deadly_txids.add(attempt.txid)
            raise
        with self._lock:
            self._deadly_txids.discard(attempt.txid)
            ended_s = perf_counter()
            # If several are in flight, one is measured from the end of the one before it.
            elapsed_ms = 1_000 * (ended_s - max(began_s, self._ended_s))
            self._ended_s = ended_s
            self._chooser.record_duration(choice, records, elapsed_ms)
        return replace(processed, executor=str(choice))

    def _choose(self, attempt: TransactionAttempt, records: int) -> ExecutorChoice:
        """Choose the executor of an attempt, and remember it for `cancel`, `progress` and `run_step`."""
        with self._lock:
            if self._error is not None:
                raise FatalError(f"Spark could not be started: {self._error}") from self._error
            choice = self._chooser.choose(records)
            if self._workers_find_tuples and attempt.txid in self._deadly_txids:
                choice = ExecutorChoice(False, "a process has died of this transaction")
            if choice.is_spark and not self._is_started:
                self._start()
                choice = ExecutorChoice(False, "Spark is starting")
            oldest_txid = attempt.txid - _REMEMBERED
            self._executors = {each: used for each, used in self._executors.items() if each.txid >= oldest_txid}
            self._executors[attempt] = self.spark if choice.is_spark else self.workers
        return choice

    def _start(self) -> None:
        if self._starting is None:
            self._starting = threading.Thread(target=self._open_spark, name="spark", daemon=True)
            self._starting.start()

    def _open_spark(self) -> None:
        try:
            self.spark.open()
        except BaseException as error:
            self._error = error
            self.spark.close()
            return
        with self._lock:
            self._is_started = not self._is_closed
            self._chooser.slots = self.spark.slots()
        if self._is_closed:
            self.spark.close()

    def slots(self) -> int:
        """Return the number of tasks of a step that run at a time in workers."""
        return self.workers.slots()

    def run_step(self, work: StepWork) -> Sequence[StepAnswer]:
        """Run a step on the executor that processed its attempt."""
        return self._executor_of(work.attempt).run_step(work)

    def cancel(self, attempt: TransactionAttempt) -> None:
        """Cancel an attempt on its executor."""
        self._executor_of(attempt).cancel(attempt)

    def count_progress(self, attempt: TransactionAttempt) -> int:
        """Return the progress of an attempt on its executor."""
        return self._executor_of(attempt).count_progress(attempt)

    def _executor_of(self, attempt: TransactionAttempt) -> TaskExecutor:
        with self._lock:
            return self._executors.get(attempt, self.workers)

    def close(self) -> None:
        """End the workers and stop Spark. A session that is still starting is stopped as soon as it has started."""
        with self._lock:
            self._is_closed, was_started = True, self._is_started
        self.workers.close()
        if was_started:
            self.spark.close()
