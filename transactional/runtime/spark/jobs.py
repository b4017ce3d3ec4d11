"""What all Spark jobs of this process share: their pools, why one has failed; and work that belongs to no transaction,
as a job, where it would take the driver's memory."""

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
"""The pools of `fairscheduler.xml`: what a commit phase runs goes before all processing."""
_POOL = "spark.scheduler.pool"
_RAISED = r"^(?:\w[\w.]*)?(?:Error|Exception): .*$"
"""What Python has raised in a task."""


def work_in(pool: str, context: SparkContext) -> None:
    """Have the jobs of this thread run in a pool from now on."""
    context.setLocalProperty(_POOL, pool)


def reason_of(error: Exception, pattern: str = _RAISED) -> str:
    """The one line out of many pages of Spark's that says why a job has failed: what matches `pattern`, or what Spark
    says first."""
    text = str(error)
    found = re.search(pattern, text, re.MULTILINE) or re.search(r"Job aborted .*|Job \d+ cancelled.*", text)
    return found[0] if found is not None else text.partition("\n")[0] or type(error).__name__


def are_executors_apart() -> bool | None:
    """Whether jobs run in other processes than the JVM of the driver. None: Spark is not running, and nobody starts it
    for such work."""
    if (context := running_context()) is None:
        return None
    return not re.fullmatch(r"local(\[.*\])?", context.master or "")


def run_job(work: Callable[[int], T], tasks: int, what: str) -> list[T]:
    """Call `work` with each number below `tasks`, in a Spark task each; the answers in this order.

    A task may be run more than once, and its answer comes once. Transactions are processed meanwhile: the job is in
    their pool. `what` is its description in Spark's pages. Raises `OperatingError` when it fails, also where
    `work` raises anything.
    """
    if (context := running_context()) is None:
        raise OperatingError(f"{what}: Spark has been stopped")

    def run(numbers: Iterable[int]) -> Iterator[T]:
        end_quietly()
        # A worker whose input is not exhausted is not used again.
        return map(work, list(numbers))

    try:
        with _described(context, what):
            calls = context.parallelize(range(tasks), tasks).mapPartitions(run)
            return SparkJobs(context).job(calls)()
    except (PySparkException, JvmFailed) as error:
        raise OperatingError(f"{what} has failed as a Spark job: {reason_of(error)}") from error


@contextmanager
def _described(context: SparkContext, what: str) -> Iterator[None]:
    """What the jobs of this thread are. It may be a user's own, so it gets back what it had."""
    properties = {_POOL: PROCESSING, "spark.job.description": what}
    before = {name: context.getLocalProperty(name) for name in properties}
    for name, value in properties.items():
        context.setLocalProperty(name, value)
    try:
        yield
    finally:
        for name, old in before.items() if not is_stopped(context) else ():
            context.setLocalProperty(name, old)  # type: ignore[arg-type]  # None takes it away
