"""A step of the commit phase as a Spark job: its tasks side by side, without an exchange, in the commit pool."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from pyspark import SparkContext

from transactional.model.plumbing.garbage import collect_less_garbage
from transactional.runtime.executors.spark.results import ResultFile, ResultFiles, unpack
from transactional.runtime.spark.internals import SparkJobs, end_quietly
from transactional.runtime.spark.jobs import COMMIT, use_pool
from transactional.runtime.tasks.program import TaskProgram
from transactional.runtime.tasks.step_work import StepAnswer, StepWork, TaskInput


def run_step_job(
    context: SparkContext, jobs: SparkJobs, program: TaskProgram, results: ResultFiles, work: StepWork
) -> list[StepAnswer]:
    """Run the tasks of a step as a Spark job, and return their answers.

    There is one stage, so Spark may repeat a task, but nothing that another task has seen. Inputs are sent as data and
    not as a property of the job, because they may hold the secrets of a storage.
    """
    use_pool(COMMIT, context)
    inputs = context.parallelize(work.inputs, len(work.inputs))
    return unpack(jobs.job(inputs.mapPartitions(step_tasks(program, results, replace(work, inputs=()))))())


def step_tasks(
    program: TaskProgram, results: ResultFiles, work: StepWork
) -> Callable[[Iterable[TaskInput]], Iterator[bytes | ResultFile]]:
    """Return the function of a Spark task, which runs one task of the step."""

    def run(inputs: Iterable[TaskInput]) -> Iterator[bytes | ResultFile]:
        end_quietly()
        answers = [work.run(program, task_input) for task_input in inputs]
        collect_less_garbage()
        return iter([results.pack(work.attempt, answers)])

    return run
