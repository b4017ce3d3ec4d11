"""Files of a table that are written side by side, by a thread each: Arrow and Parquet work without Python's lock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache

import pyarrow as pa
from pyarrow import parquet
from pyarrow.fs import FileSystem

from state.delta.tables.data_files import WrittenFile
from state.delta.tables.encoding import table_writer
from state.delta.tables.files import FILE_ROWS_MAX
from state.delta.tables.names import new_data_file
from state.delta.tables.storage import delete
from transactional.plumbing.pools import DaemonPool

GROUP_ROWS = 500_000
"""So many rows of a file are a row group."""
LANE_ROWS = 200_000
"""So many rows are worth a thread, and a file, of their own."""
LANES_MAX = 4
"""Each touched file may become so many."""


def lanes_for(rows: int | None = None) -> int:
    """How many files are worth it for so many rows; None: at the most."""
    most: int = max(1, min(LANES_MAX, pa.cpu_count()))
    return most if rows is None else max(1, min(most, rows // LANE_ROWS))


class Lane:
    """The files that one thread writes, one after the other."""

    def __init__(self, storage: FileSystem, schema: pa.Schema) -> None:
        self._storage, self._schema = storage, schema
        self._writer: parquet.ParquetWriter | None = None
        self._sink: pa.NativeFile | None = None
        self._footers = list[parquet.FileMetaData]()
        self._name, self._rows = "", 0
        self.written = list[WrittenFile]()

    def write(self, rows: pa.Table) -> None:
        """Write rows, to a new file if there is none or it would be too large."""
        if not rows.num_rows:
            return
        if self._rows + rows.num_rows > FILE_ROWS_MAX:
            self.close()
        if self._writer is None:
            self._name = new_data_file()
            self._sink = self._storage.open_output_stream(self._name)
            self._writer = table_writer(self._sink, self._schema, footers=self._footers)
        self._writer.write_table(rows.select(self._schema.names).cast(self._schema), row_group_size=GROUP_ROWS)
        self._rows += rows.num_rows

    def close(self) -> None:
        """End the file, if there is one."""
        if self._writer is not None and self._sink is not None:
            self._writer.close()
            self._writer, self._rows = None, 0
            self.written.append(WrittenFile(self._name, self._sink.tell(), self._footers.pop()))
            self._sink.close()

    def undo(self) -> None:
        """Delete what was written."""
        names = [file.name for file in self.written]
        if self._writer is not None and self._sink is not None:
            with suppress(OSError):
                self._writer.close()
                self._sink.close()
            self._writer = None
            names.append(self._name)
        delete(self._storage, names)


def write_file(storage: FileSystem, rows: pa.Table, schema: pa.Schema) -> list[WrittenFile]:
    """Write rows to a file, in the order of a schema; without rows to none. Raises `OSError`, and leaves nothing."""
    lane = Lane(storage, schema)
    try:
        lane.write(rows)
        lane.close()
    except BaseException:
        lane.undo()
        raise
    return lane.written


def side_by_side(works: Sequence[Callable[[], None]]) -> None:
    """Do all of it, by a thread each (see `DaemonPool.side_by_side`)."""
    _threads().side_by_side(works)


@cache
def _threads() -> DaemonPool:
    return DaemonPool(LANES_MAX - 1, "rewriting")
