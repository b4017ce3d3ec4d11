"""Files of rows in a table's folder `_runs`, written before the decision; a Delta commit makes them part of the table.

A name holds the transaction and the attempt, and is never used again: a second execution of a task need not make the
same bytes. The name of the folder begins with an underscore, so vacuums of Spark and delta-rs list nothing in it, and
both read what the log names there. The outbox holds the names, in the columns of `FILES`.
"""

from __future__ import annotations

import json
import os
import re
import socket
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeVar

import pyarrow as pa

from sinks.delta.partitioning import Values
from state.delta.tables.data_files import statistics, table_writer
from state.delta.tables.table import DeltaLocation, open_storage
from transactional.model.attempt import AttemptId, TransactionAttempt, TxId
from transactional.model.errors import OperatingError
from transactional.model.plumbing.syncing import sync

T = TypeVar("T")
RUNS_FOLDER: Final = "_runs"
FILES: Final = pa.schema(
    [
        ("path", pa.string()),
        ("size_bytes", pa.int64()),
        ("rows", pa.int64()),
        ("partition", pa.string()),
        ("statistics", pa.string()),
        ("modified_ms", pa.int64()),
    ]
)
"""The columns of files in the outbox. `partition` is a JSON object of texts, `statistics` those of the table's log."""
_GROUP_ROWS: Final = 100_000
"""The number of rows after which the size of a file is compared with the target."""
_NAME: Final = re.compile(
    rf"{RUNS_FOLDER}/(\d+)-(\d+)-[0-9a-f]{{8}}(?:-[0-9a-f]{{4}}){{3}}-[0-9a-f]{{12}}\.parquet", re.ASCII
)


def attempt_of(path: str) -> TransactionAttempt | None:
    """The attempt that has written a file, or None if the name is not that of a run file."""
    match = _NAME.fullmatch(path)
    return None if match is None else TransactionAttempt(TxId(int(match[1])), AttemptId(int(match[2])))


class RunFiles:
    """Writes and checks the files of a table. Picklable; works in tasks and in the leader."""

    def __init__(self, location: DeltaLocation, target_bytes: int) -> None:
        self.location, self.target_bytes = location, target_bytes

    @property
    def _folder(self) -> Path | None:
        return Path(self.location.uri) if self.location.scheme == "file" else None

    def write(self, attempt: TransactionAttempt, partition: Values, rows: pa.Table) -> Iterator[dict[str, Any]]:
        """Write the rows of one partition to files of about the target size, and yield a row of `FILES` for each.

        The files and their names are synced on a disk. Raises `OperatingError`.
        """
        start = 0
        while start < rows.num_rows:
            path = f"{RUNS_FOLDER}/{int(attempt.txid)}-{int(attempt.attempt_id)}-{uuid.uuid4()}.parquet"
            try:
                size_bytes, end = self.write_file(path, partial(self._write_groups, rows=rows, start=start))
                modified_ms = self.modified_ms(path)
            except (OSError, pa.ArrowException) as error:
                raise OperatingError(
                    f"rows of a sink can't be written to {self.location}/{path} on {socket.gethostname()}: "
                    f"{self.location.describe_error(error)}"
                ) from None
            part = rows.slice(start, end - start)
            yield {
                "path": path,
                "size_bytes": size_bytes,
                "rows": part.num_rows,
                "partition": json.dumps(partition),
                "statistics": statistics(part),
                "modified_ms": modified_ms,
            }
            start = end

    def write_file(self, path: str, write: Callable[[BinaryIO | pa.NativeFile], T]) -> tuple[int, T]:
        """Write a new file, and return its size and what `write` returns. It is synced with its name on a disk.

        Raises `OSError`, `ArrowException`.
        """
        if (folder := self._folder) is None:
            with open_storage(self.location).open_output_stream(path) as file:
                outcome = write(file)
                return file.tell(), outcome
        place = folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        try:
            with place.open("xb") as file:
                outcome = write(file)
                file.flush()
                os.fsync(file.fileno())
                size_bytes = file.tell()
        except BaseException:
            place.unlink(missing_ok=True)
            raise
        sync([place.parent, folder])
        return size_bytes, outcome

    def _write_groups(self, file: BinaryIO | pa.NativeFile, *, rows: pa.Table, start: int) -> int:
        """Write rows from a number on, and return the number of the row at which the file is large enough."""
        with table_writer(file, rows.schema, dictionaries=True) as writer:
            while start < rows.num_rows:
                group = rows.slice(start, _GROUP_ROWS)
                writer.write_table(group)
                start += group.num_rows
                if file.tell() >= self.target_bytes:
                    break
        return start

    def modified_ms(self, path: str) -> int:
        """Return the time at which a file was written, by the storage's own clock."""
        if (folder := self._folder) is not None:
            return (folder / path).stat().st_mtime_ns // 1_000_000
        [file_info] = open_storage(self.location).get_file_info([path])
        return int(file_info.mtime_ns) // 1_000_000

    def find_missing(self, files: pa.Table) -> str:
        """Return what is wrong with the first file that is not there as it was written; an empty text if all are."""
        paths, sizes = files["path"].to_pylist(), files["size_bytes"].to_pylist()
        try:
            infos = open_storage(self.location).get_file_info(paths)
        except OSError as error:
            raise OperatingError(
                f"files of {self.location} can't be read: {self.location.describe_error(error)}"
            ) from None
        for path, size_bytes, file_info in zip(paths, sizes, infos, strict=True):
            if not file_info.is_file:
                return f"{path} is not there"
            if file_info.size != size_bytes:
                return f"{path} has {file_info.size} bytes instead of {size_bytes}"
        return ""
