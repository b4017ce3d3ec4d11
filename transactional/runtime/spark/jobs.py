"""Spark jobs of this process: their scheduler pools, the reasons of failures, and jobs that belong to no transaction.

States run work as a job, such as a large compaction, if it would take too much of the driver's memory.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from pyspark import SparkContext
from pyspark.errors import PySparkException

from transactional.model.errors import OperatingError
from transactional.runtime.spark.internals import JvmFailed, SparkJobs, end_quietly, is_stopped, running_context

T = TypeVar("T")
PROCESSING, COMMIT = "processing", "commit"
"""The pools of `fairscheduler.xml`. Jobs of a commit phase have priority over all processing."""
_POOL = "spark.scheduler.pool"
_RAISED = r"^(?:\w[\w.]*)?(?:Error|Exception): .*$"
"""Pattern of the line with a Python exception in a task."""


def use_pool(pool: str, context: SparkContext) -> None:
    """Have the jobs of this thread run in a pool from now on."""
    context.setLocalProperty(_POOL, pool)


def reason_of(error: Exception, pattern: str = _RAISED) -> str:
    """Return the line of Spark's long error that explains why a job has failed: the first that matches `pattern`, or
    else Spark's own summary."""
    text = str(error)
    match = re.search(pattern, text, re.MULTILINE) or re.search(r"Job aborted .*|Job \d+ cancelled.*", text)
    return match[0] if match is not None else text.partition("\n")[0] or type(error).__name__


def has_remote_executors() -> bool | None:
    """Return whether jobs run in other processes than the JVM of the driver, or None if Spark is not running."""
    if (context := running_context()) is None:
        return None
    return not re.fullmatch(r"local(\[.*\])?", context.master or "")


def run_job(work: Callable[[int], T], tasks: int, description: str) -> list[T]:
    """Call `work` with each number below `tasks`, in a Spark task each. Returns the answers in this order.

    A task may be run more than once, and its answer counts once. Transactions are processed meanwhile: the job is in
    their pool. `description` is shown in Spark's pages. Raises `OperatingError` if the job fails, also if `work`
    raises.
    """
    if (context := running_context()) is None:
        raise OperatingError(f"{description}: Spark has been stopped")

    def run(numbers: Iterable[int]) -> Iterator[T]:
        end_quietly()
        # A worker whose input is not exhausted is not used again.
        return map(work, list(numbers))

    try:
        with _describing(context, description):
            calls = context.parallelize(range(tasks), tasks).mapPartitions(run)
            return SparkJobs(context).job(calls)()
    except (PySparkException, JvmFailed) as error:
        raise OperatingError(f"{description} has failed as a Spark job: {reason_of(error)}") from error


@contextmanager
def _describing(context: SparkContext, description: str) -> Iterator[None]:
    """Set the pool and the description of this thread's jobs, and restore the former ones, because the thread may be a
    user's own."""
    properties = {_POOL: PROCESSING, "spark.job.description": description}
    former = {name: context.getLocalProperty(name) for name in properties}
    for name, value in properties.items():
        context.setLocalProperty(name, value)
    try:
        yield
    finally:
        for name, former_value in former.items() if not is_stopped(context) else ():
            context.setLocalProperty(name, former_value)  # type: ignore[arg-type]  # None removes it
