"""Very large folds as Spark jobs: Spark reads the version that is folded and writes files; the driver commits them.

Spark never commits to a state's table. Its files get names of staged files, and are synced, before they are reported.
"""

from __future__ import annotations

import shutil
import uuid
from pathlib import Path

from pyarrow import parquet

from state.delta.segments.folding import SegmentQuery
from state.delta.segments.folds_apart import FoldTask, WrittenFold, in_range
from state.delta.tables.sql import SPARK_SQL
from state.delta.tables.staging import RUNS, footer_statistics, staged_name
from state.delta.tables.version import TableVersion
from state.delta.writing.spark import failing, job_session
from transactional.attempt import TransactionAttempt
from transactional.errors import OperatingError
from transactional.plumbing.syncing import sync
from transactional.ports.staged import StagedFile


def write_by_spark(task: FoldTask) -> WrittenFold:
    """As `FoldTask.write`, as a job. Raises `WriteRefused`, `OperatingError`, `OSError`."""
    table = TableVersion(task.location, task.owner, task.columns)
    version = table.version()
    if version is None:
        raise OperatingError(f"Delta table {task.location} has no version of {task.owner}")
    inputs = frozenset(str(file["path"]) for file in in_range(table, task.fold))
    home, attempt = Path(task.location.uri), TransactionAttempt(task.fold.until, version)
    written = home / RUNS / f"job-{uuid.uuid4()}"
    try:
        with failing():
            _write(task, table, written)
        files = tuple(_named(task, home, attempt, part) for part in sorted(written.glob("*.parquet")))
        sync([*(home / file.path for file in files), home / RUNS])
    finally:
        shutil.rmtree(written, ignore_errors=True)
    return WrittenFold(task.fold, inputs, tuple(file for file in files if file.rows))


def _write(task: FoldTask, table: TableVersion, folder: Path) -> None:
    session = job_session()
    # Transactions are committed meanwhile, and none waits for this.
    session.sparkContext.setLocalProperty("spark.scheduler.pool", "processing")
    rows = session.read.format("delta").option("versionAsOf", table.delta_version).load(task.location.uri)
    source = f"fold_{uuid.uuid4().hex}"
    rows.createTempView(source)
    try:
        folded = session.sql(
            SegmentQuery(task.columns, task.combine, SPARK_SQL, source).fold(task.fold, task.base, task.floor)
        )
        types, name = rows.schema, SPARK_SQL.name
        cast = folded.select(*(folded[name(n)].cast(types[n].dataType).alias(n) for n in task.schema.names))
        cast.write.option("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false").parquet(str(folder))
    finally:
        session.catalog.dropTempView(source)


def _named(task: FoldTask, home: Path, attempt: TransactionAttempt, part: Path) -> StagedFile:
    """A file of the job under a name that no other has."""
    path = staged_name(task.owner, attempt)
    part.rename(home / path)
    footer = parquet.read_metadata(home / path)
    size = (home / path).stat().st_size
    return StagedFile(path, size, footer.num_rows, footer_statistics(footer), {}, is_synced=True)
