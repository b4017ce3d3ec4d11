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
from transactional.runtime.executors.auto.choice import ProcessingPlace, ProcessingPlaces
from transactional.runtime.tasks.step_work import StepWork, TaskDone

_REMEMBERED = 1_000
"""Of so many transactions it is known where they were processed: more than can be in flight."""


class TaskExecutor(JobExecutor, Protocol):
    """Runs processing phases as well as steps of the commit phase."""

    def slots(self) -> int:
        """How many tasks run at a time."""

    def run_step(self, work: StepWork) -> Sequence[TaskDone]:
        """See `StepExecutor`."""


class GearedExecutor:
    """A `JobExecutor` that processes each transaction in workers or on Spark, whichever is expected to be quicker.

    The workers are there at once. Spark starts in the background when it is first expected to be quicker, while
    transactions continue in workers. If it can't start the run
    ends with that error: what was committed stays. `places` chooses, and learns how many tasks run at a time.
    If workers find the tuple of which a process dies, a transaction of which one has died is processed there.
    """

    def __init__(
        self, workers: TaskExecutor, spark: TaskExecutor, places: ProcessingPlaces, *, workers_find_tuples: bool = False
    ) -> None:
        self.workers, self.spark, self._places = workers, spark, places
        self._workers_find_tuples = workers_find_tuples
        self._lock = threading.Lock()
        self._starting: threading.Thread | None = None
        self._is_started = self._is_closed = False
        self._error: BaseException | None = None
        self._at: dict[TransactionAttempt, TaskExecutor] = {}
        self._died = set[TxId]()
        self._ended_s = 0.0

    def open(self) -> None:
        """Start the workers."""
        self.workers.open()
        self._places.workers = self.workers.slots()

    def run(self, attempt: TransactionAttempt, batch: BatchMetadata) -> Processed:
        """Run it where it is expected to be quicker."""
        records, began_s = sum(len(offsets) for offsets in batch.ranges.values()), perf_counter()
        place = self._place(attempt, records)
        try:
            processed = self._at[attempt].run(attempt, batch)
        except WorkerDied:
            with self._lock:
                self._died.add(attempt.txid)
            raise
        with self._lock:
            self._died.discard(attempt.txid)
            ended_s = perf_counter()
            # Of several in flight each takes the time since the one before it had ended.
            took_ms = 1_000 * (ended_s - max(began_s, self._ended_s))
            self._ended_s = ended_s
            self._places.learn(place, records, took_ms)
        return replace(processed, place=str(place))

    def _place(self, attempt: TransactionAttempt, records: int) -> ProcessingPlace:
        """Choose, and note where the attempt is."""
        with self._lock:
            if self._error is not None:
                raise FatalError(f"Spark could not be started: {self._error}") from self._error
            place = self._places.place(records)
            if self._workers_find_tuples and attempt.txid in self._died:
                place = ProcessingPlace(False, "a process has died of this transaction")
            if place.is_spark and not self._is_started:
                self._start()
                place = ProcessingPlace(False, "Spark is starting")
            self._at = {each: at for each, at in self._at.items() if each.txid >= attempt.txid - _REMEMBERED}
            self._at[attempt] = self.spark if place.is_spark else self.workers
        return place

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
            self._places.slots = self.spark.slots()
        if self._is_closed:
            self.spark.close()

    def slots(self) -> int:
        """How many tasks of a step run at a time in workers."""
        return self.workers.slots()

    def run_step(self, work: StepWork) -> Sequence[TaskDone]:
        """Run a step where its attempt was processed."""
        return self._executor_of(work.attempt).run_step(work)

    def cancel(self, attempt: TransactionAttempt) -> None:
        """Cancel it where it runs."""
        self._executor_of(attempt).cancel(attempt)

    def progress(self, attempt: TransactionAttempt) -> int:
        """Its progress where it runs."""
        return self._executor_of(attempt).progress(attempt)

    def _executor_of(self, attempt: TransactionAttempt) -> TaskExecutor:
        with self._lock:
            return self._at.get(attempt, self.workers)

    def close(self) -> None:
        """End the workers, and stop Spark; one that is still starting stops when it has."""
        with self._lock:
            self._is_closed, was_started = True, self._is_started
        self.workers.close()
        if was_started:
            self.spark.close()
