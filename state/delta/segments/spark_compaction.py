"""Large compactions as Spark jobs: each task writes its share of the keys as a staged file, and the driver commits the
files.

A task does what a thread of the driver would, by the same engine: Spark's SQL took four times as long in warm JVMs, and
five times in cold ones (ADR 017).
"""

from __future__ import annotations

from functools import partial

import pyarrow as pa
from deltalake.exceptions import DeltaError

from state.delta.segments.background_compaction import CompactionTask, WrittenCompaction
from state.delta.segments.shares import shares_of
from state.fence import WriteRefused
from transactional.model.errors import OperatingError
from transactional.runtime.spark.jobs import run_job


def write_by_spark(task: CompactionTask) -> WrittenCompaction:
    """As `CompactionTask.write`, as a job. Raises `WriteRefused`, `OperatingError`."""
    shares = shares_of(task.compaction.rows, task.columns.key)
    what = f"compaction of {task.location} up to transaction {task.compaction.until}"
    written = list[WrittenCompaction]()
    for told in run_job(partial(_write_share, task, shares), shares, what):
        if isinstance(told, str):
            raise WriteRefused(told, is_conflict=False)
        written.append(told)
    if len({each.inputs for each in written}) > 1:
        raise WriteRefused("somebody has rewritten what it is made of", is_conflict=True)
    return WrittenCompaction(task.compaction, written[0].inputs, tuple(file for each in written for file in each.files))


def _write_share(task: CompactionTask, shares: int, number: int) -> WrittenCompaction | str:
    """In a Spark task: one share, or what has come in the way, in one line."""
    try:
        return task.write_share(number, shares)
    except (OperatingError, DeltaError, OSError, pa.ArrowException) as error:
        return task.location.reason(error)
