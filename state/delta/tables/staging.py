"""Writes staged files: the rows that a task has aggregated, in the folder of a state's table, before a commit.

A task's second execution need not produce the same bytes, so each execution writes under a new name, and only once.
Only names that come with an execution's result are committed. They lie in a folder whose name begins with an
underscore: vacuums of Spark and delta-rs list no such folder, and both engines read what the table's log names in it.
Nothing here needs delta-rs.
"""

from __future__ import annotations

import os
import re
import socket
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

import pyarrow as pa
from pyarrow import parquet

from state.delta.tables.data_files import footer_statistics, statistics, table_writer
from transactional.core.ports.staged import StagedFile
from transactional.model.aggregates.sums import max_magnitude, type_limits
from transactional.model.arrow import arrow_schema
from transactional.model.attempt import AttemptId, TransactionAttempt, TxId
from transactional.model.errors import OperatingError
from transactional.model.plumbing.syncing import sync
from transactional.model.schema import Schema

STAGED_FOLDER: Final = "_staged"
"""The folder of staged files, in the table's."""
DRIVER_BYTES_MAX: Final = 64 * 1024 * 1024
"""Largest size of the partial aggregates of one transaction that go through the driver, for each committer."""
STAGED_BYTES: Final = 4 * 1024 * 1024
"""Largest size of a task's partial aggregates that go through the driver, since a file would cost more."""
ROWS_OF_GROUP: Final = 500_000
_UNESCAPED_COLUMN = re.compile(r"[\w-]+", re.ASCII)
_STAGED_NAME = re.compile(
    r"[\w.]+-(\d+)-(\d+)-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\.(?:parquet|tuples)", re.ASCII
)


def is_unescaped_column(column: str) -> bool:
    """True if the folders of this partition column have the same names in a table's log and on the disk.

    Engines escape other columns, each in its own way, so that their files can't be removed by their paths.
    """
    return _UNESCAPED_COLUMN.fullmatch(column) is not None


def make_staged_name(owner: str, attempt: TransactionAttempt, ending: str = "parquet") -> str:
    """Return a new name in the table's folder for one execution of a task of this attempt."""
    plain = re.sub(r"[^A-Za-z0-9_.]", "_", owner)
    return f"{STAGED_FOLDER}/{plain}-{int(attempt.txid)}-{int(attempt.attempt_id)}-{uuid.uuid4()}.{ending}"


def parse_staged_attempt(path: str) -> TransactionAttempt | None:
    """Return the attempt whose task has written a staged file, or None if the path is no staged file's."""
    folder, _, name = path.rpartition("/")
    match = _STAGED_NAME.fullmatch(name) if folder == STAGED_FOLDER else None
    return None if match is None else TransactionAttempt(TxId(int(match[1])), AttemptId(int(match[2])))


@dataclass(frozen=True, slots=True)
class FileStager:
    """Writes staged files of a table on a disk that every executor mounts. `columns` are key and values."""

    folder: Path
    owner: str
    columns: Schema
    bytes_min: int = STAGED_BYTES

    def is_large_enough(self, size_bytes: int, tasks: int) -> bool:
        """True above the minimum size, or above a task's share of the bytes that may go through the driver."""
        return size_bytes > min(self.bytes_min, DRIVER_BYTES_MAX // max(1, tasks))

    def stage(self, attempt: TransactionAttempt, rows: pa.Table) -> StagedFile:
        """Write rows, one per key, and sync the file and its name. Raises `OperatingError`."""
        path = self.folder / make_staged_name(self.owner, attempt)
        rows = rows.cast(arrow_schema(self.columns))
        size = self._write(path, pa.RecordBatchReader.from_batches(rows.schema, rows.to_batches()))
        sums = [field.name for field in self.columns if type_limits(field.type) is not None]
        bounds = {name: max_magnitude(rows[name]) for name in sums}
        name, stats, host = f"{STAGED_FOLDER}/{path.name}", statistics(rows), socket.gethostname()
        return StagedFile(name, size, rows.num_rows, stats, bounds, is_synced=True, host=host)

    def stage_batches(self, attempt: TransactionAttempt, rows: pa.RecordBatchReader) -> StagedFile:
        """Write and sync rows, as `stage` does, that come in batches. Their largest values are not known.

        Raises `OperatingError`.
        """
        path = self.folder / make_staged_name(self.owner, attempt)
        size = self._write(path, rows)
        footer = parquet.read_metadata(path)
        return StagedFile(
            f"{STAGED_FOLDER}/{path.name}", size, footer.num_rows, footer_statistics(footer), {}, is_synced=True
        )

    def _write(self, path: Path, rows: pa.RecordBatchReader) -> int:
        try:
            path.parent.mkdir(exist_ok=True)
            with path.open("xb") as file:
                size = _write(file, path, rows)
            sync({path.parent, self.folder})
        except (OSError, pa.ArrowException) as error:
            raise self._failed(error) from error
        return size

    def write_mark(self, *, create: bool = False) -> str:
        """Write an empty file of a new name; `create` the folder before. Raises `OperatingError`."""
        name = f"mark-{uuid.uuid4()}"
        try:
            (self.folder / STAGED_FOLDER).mkdir(exist_ok=True, parents=create)
            (self.folder / STAGED_FOLDER / name).touch(exist_ok=False)
        except OSError as error:
            raise self._failed(error) from error
        return name

    def missing_marks(self, marks: Sequence[str]) -> list[str]:
        """Return the marks that this process does not see in the folder of staged files."""
        return [mark for mark in marks if not (self.folder / STAGED_FOLDER / mark).exists()]

    def remove_marks(self, marks: Sequence[str]) -> None:
        """Delete these marks. One that is already deleted is ignored."""
        for mark in marks:
            (self.folder / STAGED_FOLDER / mark).unlink(missing_ok=True)

    def _failed(self, error: Exception) -> OperatingError:
        return staging_error(self.folder, error, "what a task has aggregated")


def staging_error(folder: Path, error: Exception, content: str) -> OperatingError:
    """Return the error of a task that can't write `content` into a table's folder."""
    reason = (error.strerror if isinstance(error, OSError) else None) or str(error).splitlines()[0]
    if isinstance(error, FileNotFoundError):
        return OperatingError(
            f"the folder of a state's table, {folder}, does not exist on {socket.gethostname()}: every "
            "executor and the driver must see the same folder; put the table on storage that all of them mount"
        )
    return OperatingError(f"{content} can't be written to {folder / STAGED_FOLDER} on {socket.gethostname()}: {reason}")


def _write(file: BinaryIO, path: Path, rows: pa.RecordBatchReader) -> int:
    """Write and sync a file that was just created, and return its size. The file is deleted if that fails."""
    try:
        with table_writer(file, rows.schema, dictionaries=True) as writer:
            for group in _group_rows(rows):
                writer.write_table(group)
        file.flush()
        os.fsync(file.fileno())
    except BaseException:
        path.unlink()
        raise
    return file.tell()


def _group_rows(rows: pa.RecordBatchReader) -> Iterator[pa.Table]:
    """Yield the rows in parts, each of which is large enough for a row group."""
    batches, count = list[pa.RecordBatch](), 0
    for batch in rows:
        batches.append(batch)
        count += batch.num_rows
        if count >= ROWS_OF_GROUP:
            yield pa.Table.from_batches(batches)
            batches, count = [], 0
    if batches:
        yield pa.Table.from_batches(batches)
