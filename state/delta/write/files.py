"""New data files of a table: rows are written to files that are not yet part of it.

Each thread writes the files of one `Lane`, one after the other: Arrow and Parquet work without Python's lock. A write
that fails leaves no file behind. Nothing is committed here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache

import pyarrow as pa
from pyarrow import parquet
from pyarrow.fs import FileSystem

from state.delta.tables.data_files import (
    FILE_ROWS_MAX,
    DataFile,
    WrittenFile,
    footer_statistics,
    new_data_file,
    new_digest,
    table_writer,
)
from transactional.model.plumbing.pools import DaemonPool

GROUP_ROWS = 500_000
"""Number of rows in a row group of a file."""
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


class DigestingSink:
    """An output file, and the digest of the bytes that were written to it so far."""

    closed = False

    def __init__(self, sink: pa.NativeFile) -> None:
        self._sink, self._digest = sink, new_digest()

    @property
    def digest(self) -> str:
        """The digest in hexadecimal form."""
        return self._digest.hexdigest()

    def write(self, content: bytes) -> int:
        """Append bytes and return their number."""
        self._digest.update(content)
        self._sink.write(content)
        return len(content)

    @property
    def size_bytes(self) -> int:
        return int(self._sink.tell())

    def flush(self) -> None:
        """Pass on the buffered bytes to the file."""
        self._sink.flush()

    def close(self) -> None:
        """End the file, after which nothing is written."""
        self.closed = True
        self._sink.close()


class Lane:
    """The files that one thread writes, one after the other."""

    def __init__(self, storage: FileSystem, schema: pa.Schema, folder: str = "", txid: int | None = None) -> None:
        """`folder` is that of the files in the table's, with a slash at its end; `txid` as in `DataFile`."""
        self._storage, self._schema, self._folder, self._txid = storage, schema, folder, txid
        self._writer: parquet.ParquetWriter | None = None
        self._sink: DigestingSink | None = None
        self._footers = list[parquet.FileMetaData]()
        self._name, self._rows = "", 0
        self.written_files = list[WrittenFile]()

    def write(self, rows: pa.Table) -> None:
        """Write rows, to a new file if there is none or it would be too large."""
        if not rows.num_rows:
            return
        if self._rows + rows.num_rows > FILE_ROWS_MAX:
            self.close()
        if self._writer is None:
            self._name = self._folder + new_data_file()
            self._sink = DigestingSink(self._storage.open_output_stream(self._name))
            self._writer = table_writer(self._sink, self._schema, footers=self._footers)
        self._writer.write_table(rows.select(self._schema.names).cast(self._schema), row_group_size=GROUP_ROWS)
        self._rows += rows.num_rows

    def close(self) -> None:
        """End the file, if there is one."""
        if self._writer is not None and self._sink is not None:
            self._writer.close()
            self._writer, self._rows = None, 0
            part, footer = DataFile(self._name, self._sink.size_bytes, self._txid), self._footers.pop()
            statistics = footer_statistics(footer)
            self.written_files.append(WrittenFile(part, footer.num_rows, statistics, self._sink.digest, footer))
            self._sink.close()

    def undo(self) -> None:
        """Delete the files that were written."""
        names = [file.name for file in self.written_files]
        if self._writer is not None and self._sink is not None:
            with suppress(OSError):
                self._writer.close()
                self._sink.close()
            self._writer = None
            names.append(self._name)
        for name in names:
            with suppress(FileNotFoundError):
                self._storage.delete_file(name)


def write_file(
    storage: FileSystem, rows: pa.Table, schema: pa.Schema, folder: str = "", txid: int | None = None
) -> list[WrittenFile]:
    """Write rows to a file in a folder of the table, in the order of a schema; without rows to none.

    Raises `OSError`, and leaves nothing.
    """
    lane = Lane(storage, schema, folder, txid)
    try:
        lane.write(rows)
        lane.close()
    except BaseException:
        lane.undo()
        raise
    return lane.written_files


def side_by_side(works: Sequence[Callable[[], None]]) -> None:
    """Do some work in a thread for each function (see `DaemonPool.run_concurrently`)."""
    _threads().run_concurrently(works)


@cache
def _threads() -> DaemonPool:
    return DaemonPool(LANES_MAX - 1, "rewriting")
