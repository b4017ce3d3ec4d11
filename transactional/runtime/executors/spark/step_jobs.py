"""A step of the commit phase as a Spark job: its tasks side by side, without an exchange, in the commit pool."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from pyspark import SparkContext

from transactional.model.plumbing.garbage import collect_less_garbage
from transactional.runtime.executors.spark.results import InFile, ResultFiles, unpacked
from transactional.runtime.spark.internals import SparkJobs, end_quietly
from transactional.runtime.spark.jobs import COMMIT, work_in
from transactional.runtime.tasks.program import TaskProgram
from transactional.runtime.tasks.step_work import StepWork, TaskDone, TaskInput


def run_step_job(
    context: SparkContext, jobs: SparkJobs, program: TaskProgram, results: ResultFiles, work: StepWork
) -> list[TaskDone]:
    """The answers of all tasks. There is one stage, so Spark may repeat a task, but never what another one has seen.

    What a task is given goes as data and not as a property of the job: it may hold the secrets of a storage.
    """
    work_in(COMMIT, context)
    inputs = context.parallelize(work.inputs, len(work.inputs))
    return unpacked(jobs.job(inputs.mapPartitions(step_tasks(program, results, replace(work, inputs=()))))())


def step_tasks(
    program: TaskProgram, results: ResultFiles, work: StepWork
) -> Callable[[Iterable[TaskInput]], Iterator[bytes | InFile]]:
    """What a Spark task runs: one task of the step."""

    def run(inputs: Iterable[TaskInput]) -> Iterator[bytes | InFile]:
        end_quietly()
        done = [work.run(program, given) for given in inputs]
        collect_less_garbage()
        return iter([results.pack(work.attempt, done)])

    return run
