"""Runs processing phases as Spark jobs: one job per attempt, with a job tag, in the processing pool.

The first level's RDDs, one for each number of Spark tasks, are cached and run again for every attempt, since for small
batches planning costs more than running. The input of an attempt reaches the tasks as a local property of the job.
Later levels follow by exchanges. If Spark runs part of a stage again after an exchange was lost, the attempt fails.
"""

from __future__ import annotations

import base64
import contextlib
import pickle
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from pyspark import RDD, SparkContext, TaskContext
from pyspark.sql import SparkSession

from transactional.core.machine.report import ON_SPARK
from transactional.core.ports import Processed
from transactional.model.attempt import TransactionAttempt
from transactional.model.batch import BatchMetadata
from transactional.model.errors import AttemptLost, SparkStopped, TransactionalError, WorkerDied
from transactional.model.plumbing.garbage import collect_less_garbage, exclude_survivors
from transactional.runtime.executors.spark.cluster_check import check_executors, check_folders, check_program
from transactional.runtime.executors.spark.dataframes import run_dataframe_bolt
from transactional.runtime.executors.spark.results import ResultFile, ResultFiles, unpack
from transactional.runtime.executors.spark.run_once import check_stage_attempts, needed_settings, refuse_repetition
from transactional.runtime.executors.spark.shared_session import using_spark
from transactional.runtime.executors.spark.step_jobs import run_step_job
from transactional.runtime.processing.gathering import gather
from transactional.runtime.processing.staging import find_scratch, find_stagers, find_step_stagers, staged
from transactional.runtime.processing.tasks import run_task
from transactional.runtime.sending.by_value import sending_by_value
from transactional.runtime.sending.packing import Packing
from transactional.runtime.spark.internals import SparkJobs, end_quietly, is_stopped, temporary_folder
from transactional.runtime.spark.jobs import PROCESSING, has_remote_executors, use_pool
from transactional.runtime.spark.session import require_classic, spark_session
from transactional.runtime.tasks.items import Item, TaskTime, is_for_level
from transactional.runtime.tasks.program import AttemptInput, TaskProgram, check_sendable, make_program
from transactional.runtime.tasks.step_work import StepAnswer, StepWork
from transactional.topology.topology import Topology

INPUT_PROPERTY = "transactional.attempt"
DEATHS = ("Python worker exited unexpectedly", "exited caused by one of the running tasks")
"""Spark's messages for a process that has died of a task, after all tries that `spark.task.maxFailures` allows."""
DEAD_WITHIN_S = 10.0
"""Time to wait until the tasks of a cancelled job have ended. Tasks that still run afterwards can't change anything."""


@dataclass(frozen=True, slots=True)
class FirstLevel:
    """The first level of a topology in some number of Spark tasks. `run` collects their items."""

    rdd: RDD[Item]
    run: Callable[[], list[Item]]


class SparkExecutor:
    """A `JobExecutor` on Spark. Without a `session`, one is created with the defaults of `spark_session`."""

    def __init__(
        self,
        topology: Topology,
        session: SparkSession | None = None,
        *,
        master: str = "local[*]",
        log: Path | None = None,
    ) -> None:
        self.topology, self.master, self._log = topology, master, log
        self._user_session = require_classic(session) if session is not None else None
        self.session = self._user_session
        self._lock = threading.Lock()
        self._running: dict[TransactionAttempt, str] = {}
        self._cancelled: set[TransactionAttempt] = set()
        self._open = contextlib.ExitStack()

    def open(self) -> None:
        """Start Spark if no session was passed and none is running, and check the executors."""
        self.session = self._open.enter_context(using_spark(self._user_session, self._start_session))
        self.context: SparkContext = self.session.sparkContext
        check_executors(self.context)
        self._jobs = SparkJobs(self.context)
        storage = find_stagers(self.topology), find_scratch(self.topology)
        self.program = make_program(self.topology, self.topology.spout.reader(), None, *storage)
        check_sendable(self.program)
        check_stage_attempts(self.context, self.program)
        # Spark pickles the program again whenever it packs tasks differently, so modules are sent by value until
        # the end.
        self._open.enter_context(sending_by_value(self.program))
        check_program(self.context, self.program)
        check_folders(self.context, {**self.program.stagers, **find_step_stagers(self.topology)})
        self._packing, self._first_levels = Packing(len(self.program.plan.slots(0))), dict[int, FirstLevel]()
        self._results = ResultFiles(None if has_remote_executors() else self._result_folder())

    def _start_session(self) -> SparkSession:
        name, tasks = f"transactional {self.topology.id}", self.topology.spout_parallelism
        conf = needed_settings(self.topology)
        with keeping_ctrl_c():
            return spark_session(name, master=self.master, parallelism=tasks, conf=conf, log=self._log)

    def _result_folder(self) -> Path:
        """Create a folder for this executor alone: others of the same session have attempts with the same numbers."""
        folder = tempfile.mkdtemp(prefix="results-", dir=temporary_folder(self.context))
        self._open.callback(shutil.rmtree, folder, ignore_errors=True)
        return Path(folder)

    def run(self, attempt: TransactionAttempt, batch: BatchMetadata) -> Processed:
        """Run an attempt's job, and wait for it. Raises `AttemptLost` if it was cancelled or Spark lost it."""
        records = sum(len(offsets) for offsets in batch.ranges.values())
        with self._registered(attempt, f"attempt {attempt}") as tag, self._job(attempt, tag, batch):
            items = self._run_levels(self._first_level(records))
            self._refuse_repeated_stages(attempt, tag)
        with self._lock:
            self._packing.learn(records, sum(item.elapsed_ms for item in items if isinstance(item, TaskTime)))
        return gather(self.program, batch, items, executor=ON_SPARK)

    def slots(self) -> int:
        """Return the number of tasks that Spark runs at a time."""
        return self.context.defaultParallelism

    def run_step(self, work: StepWork) -> list[StepAnswer]:
        """Run a step of the commit phase as a job (see `StepExecutor`). It can be cancelled like a processing phase."""
        attempt = work.attempt
        description = f"step {work.step.component!r} of transaction {attempt.txid}, attempt {attempt.attempt_id}"
        with self._registered(attempt, description) as tag, self._tagged(tag, description):
            return run_step_job(self.context, self._jobs, self.program, self._results, work)

    @contextlib.contextmanager
    def _registered(self, attempt: TransactionAttempt, description: str) -> Iterator[str]:
        """Register a job of an attempt while it runs, so that it can be cancelled by the tag that is returned.

        Raises `AttemptLost` if it was cancelled or Spark has lost it, `SparkStopped` if Spark was stopped.
        """
        tag = f"transactional-{self.topology.id}-{attempt.txid}-{attempt.attempt_id}"
        with self._lock:
            self._running[attempt] = tag
        try:
            yield tag
        except TransactionalError:
            raise
        except Exception as error:
            if is_stopped(self.context):
                raise SparkStopped(
                    f"the Spark of this process was stopped while topology {self.topology.id!r} ran on it, in "
                    f"{description}: by session.stop() somewhere in the process, or because its JVM has ended. Nothing "
                    "of the attempt is committed: start the run again, after a crash of the JVM in a new process"
                ) from error
            self._give_tasks_time_to_end(tag)
            self._results.delete(attempt)
            raise _error_class(error)(
                f"the Spark job of {description} did not succeed: {_first_lines(error)}"
            ) from error
        finally:
            with self._lock:
                del self._running[attempt]
                was_cancelled = attempt in self._cancelled
                self._cancelled.discard(attempt)
        if was_cancelled:
            raise AttemptLost(f"attempt {attempt} was cancelled")

    @contextlib.contextmanager
    def _tagged(self, tag: str, description: str) -> Iterator[None]:
        self.context.setJobGroup(tag, f"{self.topology.id}: {description}")
        self.context.addJobTag(tag)
        try:
            yield
        finally:
            self.context.removeJobTag(tag)

    @contextlib.contextmanager
    def _job(self, attempt: TransactionAttempt, tag: str, batch: BatchMetadata) -> Iterator[None]:
        inputs = AttemptInput.of(attempt, batch, self.program.spout)
        with self._tagged(tag, f"transaction {attempt.txid}, attempt {attempt.attempt_id}"):
            use_pool(PROCESSING, self.context)
            self.context.setLocalProperty(INPUT_PROPERTY, base64.b64encode(pickle.dumps(inputs)).decode())
            yield

    def _first_level(self, records: int) -> FirstLevel:
        """Return the first level in the number of Spark tasks for a batch of this many records."""
        with self._lock:
            spark_tasks = self._packing.tasks(records)
            if spark_tasks not in self._first_levels:
                numbers = self.context.parallelize(range(spark_tasks), spark_tasks)
                rdd = numbers.mapPartitionsWithIndex(first_level(self.program, spark_tasks))
                self._first_levels[spark_tasks] = FirstLevel(rdd, self._collecting(rdd))
            return self._first_levels[spark_tasks]

    def _run_levels(self, first: FirstLevel) -> list[Item]:
        if self.program.plan.depth == 1:
            return first.run()
        rdd, checkpoints = first.rdd, []
        try:
            collecting = self._collecting
            for level in range(1, self.program.plan.depth):
                if any(stage.is_dataframe for stage in self.program.plan.level(level)):
                    checkpoints.append(rdd := checkpointed(rdd))
                    rdd = self.context.union([*self._dataframe_stages(rdd, level), self._python_stages(rdd, level)])
                    collecting = self._jobs.job  # packing the output of Spark's SQL would take another Python task
                else:
                    rdd, collecting = self._python_stages(rdd, level), self._collecting
            return collecting(rdd)()
        finally:
            for checkpoint in checkpoints:
                checkpoint.unpersist()

    def _collecting(self, rdd: RDD[Item]) -> Callable[[], list[Item]]:
        """Return a function that collects the items of the last level by a job."""
        job = self._jobs.job(rdd.mapPartitions(packing(self._results)))
        return lambda: unpack(job())

    def _python_stages(self, rdd: RDD[Item], level: int) -> RDD[Item]:
        slots = len(self.program.plan.slots(level))
        addressed = rdd.mapPartitionsWithIndex(address(level, slots)).partitionBy(slots, int)
        return addressed.mapPartitionsWithIndex(next_level(self.program, level))

    def _dataframe_stages(self, rdd: RDD[Item], level: int) -> list[RDD[Item]]:
        assert self.session is not None
        stages = [stage for stage in self.program.plan.level(level) if stage.is_dataframe]
        return [run_dataframe_bolt(self.session, self.program, stage, rdd, task_input) for stage in stages]

    def _refuse_repeated_stages(self, attempt: TransactionAttempt, tag: str) -> None:
        """Raise `AttemptLost` if Spark has run a stage again, as after a lost exchange.

        Bolts may emit other tuples in the second execution than other tasks have received already, so an attempt that
        mixes two executions fails.
        """
        if self.program.plan.depth == 1:
            return
        self._jobs.wait_for_status()
        if any(stage.currentAttemptId > 0 for stage in self._stages(tag)):
            raise AttemptLost(f"an executor was lost with exchanged tuples of attempt {attempt}")

    def cancel(self, attempt: TransactionAttempt) -> None:
        """Cancel the attempt's jobs by their tag."""
        with self._lock:
            tag = self._running.get(attempt)
            if tag is not None:
                self._cancelled.add(attempt)
        if tag is not None and not is_stopped(self.context):
            self.context.cancelJobsWithTag(tag)

    def count_progress(self, attempt: TransactionAttempt) -> int:
        """Return the number of tasks that have ended."""
        with self._lock:
            tag = self._running.get(attempt)
        return 0 if tag is None else sum(stage.numCompletedTasks for stage in self._stages(tag))

    def _stages(self, tag: str) -> list[Any]:
        if is_stopped(self.context):
            return []
        tracker = self.context.statusTracker()
        jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(tag)]
        stages = [tracker.getStageInfo(stage) for job in jobs if job is not None for stage in job.stageIds]
        return [stage for stage in stages if stage is not None]

    def _give_tasks_time_to_end(self, tag: str) -> None:
        """Wait until the jobs with this tag have no active task, but return after `DEAD_WITHIN_S` in any case."""
        pause = threading.Event()
        for _ in range(int(DEAD_WITHIN_S / 0.05)):
            if not any(stage.numActiveTasks for stage in self._stages(tag)):
                return
            pause.wait(0.05)

    def close(self) -> None:
        """Stop Spark, if a run of this process has started it and no other one uses it."""
        self._open.close()
        self.session = self._user_session


@contextlib.contextmanager
def keeping_ctrl_c() -> Iterator[None]:
    """PySpark takes over SIGINT when it starts, to cancel all jobs; this restores the previous handler."""
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if handler is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, handler)


def task_input() -> AttemptInput:
    """Return the input of this task's attempt. Runs on an executor."""
    context = TaskContext.get()
    assert context is not None
    text = context.getLocalProperty(INPUT_PROPERTY)
    assert text is not None
    inputs: AttemptInput = pickle.loads(base64.b64decode(text))
    return inputs


def checkpointed(rdd: RDD[Item]) -> RDD[Item]:
    """Compute an RDD once, and return its contents without lineage, so that losing any of it fails the job.

    The result is a new RDD, because the argument may be shared with other attempts.
    """
    checkpoint = rdd.mapPartitions(iter).persist()  # otherwise PySpark fuses later steps with earlier ones
    checkpoint.localCheckpoint()
    checkpoint.count()
    return checkpoint


def first_level(program: TaskProgram, spark_tasks: int) -> Callable[[int, Iterable[int]], Iterator[Item]]:
    """Return the function of the Spark tasks of level 0. A Spark task always runs the same of our tasks."""
    slots = len(program.plan.slots(0))

    def run(number: int, numbers: Iterable[int]) -> Iterator[Item]:
        end_quietly()
        exclude_survivors()
        # Spark ends a worker whose input is not exhausted, and with it everything that readers cache there.
        for _ in numbers:
            pass
        if (refusal := refuse_repetition(program, 0, number)) is not None:
            return iter([refusal])
        inputs, began_s = task_input(), perf_counter()
        own_slots = range(number, slots, spark_tasks)
        items = (item for slot in own_slots for item in run_task(program, inputs, 0, slot, ()))
        sent = list(staged(program, inputs.attempt, items, spark_tasks))
        sent.append(TaskTime((0, number, 0), (perf_counter() - began_s) * 1e3))
        collect_less_garbage()
        return iter(sent)

    return run


def packing(results: ResultFiles) -> Callable[[Iterable[Item]], Iterator[bytes | ResultFile]]:
    """Return the function that packs the items of a Spark task of the last level."""

    def run(items: Iterable[Item]) -> Iterator[bytes | ResultFile]:
        return iter([results.pack(task_input().attempt, items)])

    return run


def address(level: int, slots: int) -> Callable[[int, Iterable[Item]], Iterator[tuple[int, Item]]]:
    """Return the function that gives each item its slot in the next level. Items for other levels pass through any
    slot."""

    def run(slot: int, items: Iterable[Item]) -> Iterator[tuple[int, Item]]:
        return ((item.slot if is_for_level(item, level) else slot % slots, item) for item in items)

    return run


def next_level(program: TaskProgram, level: int) -> Callable[[int, Iterable[tuple[int, Item]]], Iterator[Item]]:
    """Return the function of the tasks of a level after an exchange."""

    def run(slot: int, addressed: Iterable[tuple[int, Item]]) -> Iterator[Item]:
        end_quietly()
        items = [item for _, item in addressed]
        if (refusal := refuse_repetition(program, level, slot)) is not None:
            yield refusal
            return
        yield from (item for item in items if not is_for_level(item, level))
        if not program.plan.slots(level)[slot][0].is_dataframe:
            inputs = task_input()
            sent = run_task(program, inputs, level, slot, items)
            yield from staged(program, inputs.attempt, sent, len(program.plan.slots(level)))

    return run


def _error_class(error: Exception) -> type[AttemptLost]:
    """Return the class of error for a job that did not succeed, by Spark's message."""
    return WorkerDied if any(sign in str(error) for sign in DEATHS) else AttemptLost


def _first_lines(error: Exception, count: int = 12) -> str:
    """Return the first lines of an error, without Java's stack and without Py4J's line about the called method, because
    a log shows one line."""
    lines = [line for line in str(error).splitlines() if line.strip() and not line.lstrip().startswith("at ")]
    if len(lines) > 1 and lines[0].startswith("An error occurred while calling "):
        lines = [lines[1].removeprefix(": "), *lines[2:]]
    return "\n".join(lines[:count])
