"""The choice of who writes a large compaction: a thread of this process, or Spark if it is running."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from functools import partial
from typing import Final

from state.delta.upkeep.background_compaction import CompactionTask, WrittenCompaction
from state.fence import WriteRefused
from transactional.model.errors import OperatingError

SPARK_ROWS = 20_000_000
"""Smallest number of rows of a compaction that is a Spark job where executors are threads of the driver's JVM. Where
they are processes of their own, all large compactions are jobs, which spares the driver's memory."""

PAUSE_COMPACTIONS_MAX: Final = 64
"""Largest number of compactions that the driver writes before it tries a job again. After each further failure in a row
it writes twice as many: 1, 2, 4, …"""

_log = logging.getLogger(__name__)


def is_job(task: CompactionTask, *, executors_write: bool) -> bool:
    """True if Spark is to write a compaction: it runs, and that saves the driver memory or time.

    `executors_write` is true if the table's layout lets executors write into its folder.
    """
    if "pyspark" not in sys.modules:
        return False
    from transactional.runtime.spark import jobs as spark_jobs

    if (is_apart := spark_jobs.has_remote_executors()) is None:
        return False
    return executors_write if is_apart else task.compaction.rows >= SPARK_ROWS


class CompactionWriters:
    """Chooses who writes the large compactions of one table.

    A job fails, for example, where executors do not see the table's folder. The driver then writes the next
    compactions, and jobs are tried again less and less often.
    """

    def __init__(self) -> None:
        self._failed, self._left_to_driver = 0, 0

    def writer_of(self, task: CompactionTask, *, executors_write: bool) -> Callable[[], WrittenCompaction]:
        """Return the function that writes a compaction: by a Spark job, or in the calling thread."""
        if not is_job(task, executors_write=executors_write):
            return task.write
        if self._left_to_driver:
            self._left_to_driver -= 1
            return task.write
        return partial(self._by_spark, task)

    def _by_spark(self, task: CompactionTask) -> WrittenCompaction:
        from state.delta.upkeep import spark_compaction

        try:
            finished = spark_compaction.write_by_spark(task)
        except (WriteRefused, OperatingError, OSError) as error:
            if not (isinstance(error, WriteRefused) and error.is_conflict):
                self._pause_jobs(task, error)
            return task.write()
        if self._failed:
            _log.info("Delta table %s: large compactions succeed as Spark jobs again", task.location)
        self._failed = 0
        return finished

    def _pause_jobs(self, task: CompactionTask, error: Exception) -> None:
        self._left_to_driver = min(2**self._failed, PAUSE_COMPACTIONS_MAX)
        self._failed += 1
        _log.warning(
            "Delta table %s: a compaction up to transaction %d did not succeed as a Spark job, the driver writes it "
            "and takes memory for it; jobs are tried again less and less often: %s",
            *(task.location, task.compaction.end, error),
        )
