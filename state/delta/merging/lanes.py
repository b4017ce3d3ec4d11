"""Files of a table that are written side by side, by a thread each: Arrow and Parquet work without Python's lock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import pyarrow as pa
from pyarrow import parquet

from state.delta.merging.small import WrittenFile
from state.delta.tables.encoding import table_writer
from state.delta.tables.files import FILE_ROWS_MAX
from state.delta.tables.names import new_data_file
from state.delta.tables.staging import footer_statistics
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

    def __init__(self, folder: Path, schema: pa.Schema) -> None:
        self._folder, self._schema = folder, schema
        self._writer: parquet.ParquetWriter | None = None
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
            self._writer = table_writer(self._folder / self._name, self._schema)
        self._writer.write_table(rows.select(self._schema.names).cast(self._schema), row_group_size=GROUP_ROWS)
        self._rows += rows.num_rows

    def close(self) -> None:
        """End the file, if there is one."""
        if self._writer is not None:
            self._writer.close()
            self._writer, self._rows = None, 0
            path = self._folder / self._name
            footer = parquet.read_metadata(path)
            size_bytes, statistics = path.stat().st_size, footer_statistics(footer)
            self.written.append(WrittenFile(self._name, size_bytes, statistics, footer.num_rows))

    def undo(self) -> None:
        """Delete what was written."""
        names = [file.name for file in self.written]
        if self._writer is not None:
            self._writer.close()
            self._writer = None
            names.append(self._name)
        for name in names:
            (self._folder / name).unlink(missing_ok=True)


def side_by_side(works: Sequence[Callable[[], None]]) -> None:
    """Do all of it, by a thread each (see `DaemonPool.side_by_side`)."""
    _threads().side_by_side(works)


@cache
def _threads() -> DaemonPool:
    return DaemonPool(LANES_MAX - 1, "rewriting")
