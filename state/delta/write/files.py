"""New data files of a table: rows are written to files that are not yet part of it.

Each thread writes the files of one `Lane`, one after the other: Arrow and Parquet work without Python's lock. A write
that fails leaves no file behind. Nothing is committed here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import pyarrow as pa
from pyarrow.fs import FileSystem

from state.delta.tables.data_files import FILE_ROWS_MAX, DataFile, FileWriter, WrittenFile
from state.delta.tables.storage import delete
from transactional.model.plumbing.pools import DaemonPool

LANE_ROWS = 200_000
"""Number of rows that are worth a thread, and a file, of their own."""
LANES_MAX = 4
"""Largest number of files that a rewritten file may become."""


@dataclass(slots=True)
class Replacement:
    """The files that a Delta commit replaces, and the written files that replace them.

    `unchanged` are the table's other files with their numbers of rows, if they are known. `rows` are all rows of the
    table afterwards, if they are in memory.
    """

    old: Sequence[DataFile] = ()
    new: Sequence[WrittenFile] = ()
    unchanged: Mapping[DataFile, int] | None = None
    rows: pa.Table | None = None


def lanes_for(rows: int | None = None) -> int:
    """Return the number of files that are worth it for a number of rows; None: the largest number of files."""
    most: int = max(1, min(LANES_MAX, pa.cpu_count()))
    return most if rows is None else max(1, min(most, rows // LANE_ROWS))


class Lane:
    """The files that one thread writes, one after the other."""

    def __init__(self, storage: FileSystem, schema: pa.Schema) -> None:
        self._storage, self._schema = storage, schema
        self._writer: FileWriter | None = None
        self.written_files = list[WrittenFile]()

    def write(self, rows: pa.Table) -> None:
        """Write rows, to a new file if there is none or it would be too large."""
        if not rows.num_rows:
            return
        if self._writer is not None and self._writer.rows + rows.num_rows > FILE_ROWS_MAX:
            self.close()
        if self._writer is None:
            self._writer = FileWriter(self._storage, self._schema)
        self._writer.write(rows)

    def close(self) -> None:
        """End the file, if there is one."""
        if self._writer is not None:
            writer, self._writer = self._writer, None
            self.written_files.append(writer.close())

    def undo(self) -> None:
        """Delete the files that were written."""
        if self._writer is not None:
            self._writer.undo()
        delete(self._storage, [file.name for file in self.written_files])


def write_file(
    storage: FileSystem, rows: pa.Table, schema: pa.Schema, folder: str = "", txid: int | None = None
) -> list[WrittenFile]:
    """Write rows to a file, in the order of a schema; without rows to none. `folder` and `txid` as in `FileWriter`.

    Raises `OSError`, and leaves nothing.
    """
    return [FileWriter(storage, schema, folder, txid).write_all(rows)] if rows.num_rows else []


def side_by_side(works: Sequence[Callable[[], None]]) -> None:
    """Do some work in a thread for each function (see `DaemonPool.run_concurrently`)."""
    _threads().run_concurrently(works)


@cache
def _threads() -> DaemonPool:
    return DaemonPool(LANES_MAX - 1, "rewriting")
