"""Who writes a large fold: a thread of this process, or Spark, if it is running."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial

from state.delta.segments.folds_apart import FoldTask, WrittenFold

SPARK_ROWS = 20_000_000
"""Folds of so many rows are Spark jobs, where this process has a session for them."""


def writer_of(task: FoldTask) -> Callable[[], WrittenFold]:
    """What writes a fold: Spark a very large one, if it is running with Delta, else a thread of this process."""
    if task.fold.rows < SPARK_ROWS or "pyspark" not in sys.modules:
        return task.write
    from state.delta.segments import spark_folds
    from state.delta.writing import spark

    return partial(spark_folds.write_by_spark, task) if spark.can_fold() else task.write
