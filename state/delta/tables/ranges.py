"""The rows of a table in a range of times, read from its files.

delta-rs is not used, since it plans a query for longer than most such ranges take to be read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyarrow import parquet
from pyarrow.fs import FileSystem

from state.delta.tables.data_files import DataFile, with_all
from state.delta.tables.storage import open_parquet
from state.rows.expiring import select_range


@dataclass(frozen=True, slots=True)
class TimeRange:
    """The rows with `start < column <= end`, in microseconds since 1970. `start` None: from the beginning."""

    column: str
    start: int | None
    end: int

    def select(self, rows: pa.Table) -> pa.Table:
        """Return the rows that are in the range."""
        return select_range(rows, self.column, self.start, self.end)

    def read(self, storage: FileSystem, files: Sequence[DataFile], schema: pa.Schema) -> Iterator[pa.Table]:
        """Yield the rows of files that are in the range. Columns that the table has gained since are NULL.

        Raises `OSError`, `ArrowException`.
        """
        for opened, group, _ in self._groups(storage, files):
            yield self.select(with_all(opened.read_row_group(group, columns=schema.names), schema))

    def count(self, storage: FileSystem, files: Sequence[DataFile]) -> int:
        """Return the number of rows in the range. Raises `OSError`, `ArrowException`."""
        return sum(rows for _, _, rows in self._groups(storage, files))

    def _groups(self, storage: FileSystem, files: Sequence[DataFile]) -> Iterator[tuple[parquet.ParquetFile, int, int]]:
        """Yield the row groups with rows in the range, and the number of these rows."""
        for file in files:
            opened = open_parquet(storage, file.name, file.size_bytes)
            for group in range(opened.num_row_groups):
                if rows := self.select(opened.read_row_group(group, columns=[self.column])).num_rows:
                    yield opened, group, rows
