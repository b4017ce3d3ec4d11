"""Who writes a large fold: a thread of this process, or Spark, if it is running."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from functools import partial

from state.delta.segments.folds_apart import FoldTask, WrittenFold
from state.fence import WriteRefused
from transactional.errors import OperatingError

SPARK_ROWS = 20_000_000
"""Folds of so many rows are Spark jobs where executors are threads of the driver's JVM. Where they are processes of
their own, all large ones are: a thread would take memory for them that the driver does not have to have."""

_log = logging.getLogger(__name__)


def writer_of(task: FoldTask, *, executors_write: bool) -> Callable[[], WrittenFold]:
    """What writes a fold: Spark, if it is running with Delta and saves the driver something, else a thread of this
    process. `executors_write`: whether executors write into the table's folder, as far as its layout says."""
    if "pyspark" not in sys.modules:
        return task.write
    from state.delta.writing import spark

    if not spark.can_fold():
        return task.write
    is_job = executors_write if spark.has_executors_apart() else task.fold.rows >= SPARK_ROWS
    return partial(_by_spark, task) if is_job else task.write


def _by_spark(task: FoldTask) -> WrittenFold:
    """By a job. If Spark can't, as where executors do not see the table's folder, by this process."""
    from state.delta.segments import spark_folds

    try:
        return spark_folds.write_by_spark(task)
    except (WriteRefused, OperatingError, OSError) as error:
        _log.warning(
            "Delta table %s: a fold up to transaction %d did not succeed as a Spark job, the driver writes it: %s",
            *(task.location, task.fold.until, error),
        )
        return task.write()
