"""Large compactions as Spark jobs: each task writes its share of the keys as a staged file, and the driver commits the
files.

A task does what a thread of the driver would, by the same engine: Spark's SQL took four times as long in warm JVMs, and
five times in cold ones (ADR 017).
"""

from __future__ import annotations

from functools import partial

import pyarrow as pa
from deltalake.exceptions import DeltaError

from state.delta.segments.shares import shares_of
from state.delta.upkeep.background_compaction import CompactionTask, WrittenCompaction
from state.fence import WriteRefused
from transactional.model.errors import OperatingError
from transactional.runtime.spark.jobs import run_job


def write_by_spark(task: CompactionTask) -> WrittenCompaction:
    """Write a compaction as a Spark job. Raises `WriteRefused`, `OperatingError`."""
    shares = shares_of(task.compaction.rows, task.columns.key)
    description = f"compaction of {task.location} up to transaction {task.compaction.end}"
    parts = list[WrittenCompaction]()
    for outcome in run_job(partial(_write_share, task, shares), shares, description):
        if isinstance(outcome, str):
            raise WriteRefused(outcome, is_conflict=False)
        parts.append(outcome)
    if len({part.inputs for part in parts}) > 1:
        raise WriteRefused("another program has rewritten the files that are compacted", is_conflict=True)
    return WrittenCompaction(task.compaction, parts[0].inputs, tuple(file for part in parts for file in part.files))


def _write_share(task: CompactionTask, shares: int, number: int) -> WrittenCompaction | str:
    """Write one share in a Spark task. The reason, in one line, if that fails."""
    try:
        return task.write_share(number, shares)
    except (OperatingError, DeltaError, OSError, pa.ArrowException) as error:
        return task.location.describe_error(error)
