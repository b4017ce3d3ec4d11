"""The rows of a table in a range of times, read from its files without delta-rs, which plans a query for longer than
most of them take to be read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyarrow import parquet
from pyarrow.fs import FileSystem

from state.delta.tables.data_files import DataFile, with_all
from state.delta.tables.storage import opened_parquet
from state.rows.expiring import select_range


@dataclass(frozen=True, slots=True)
class TimeRange:
    """The rows with `after < column <= until`, in microseconds since 1970; `after` None: from the beginning."""

    column: str
    after: int | None
    until: int

    def of(self, rows: pa.Table) -> pa.Table:
        """Those of some rows."""
        return select_range(rows, self.column, self.after, self.until)

    def read(self, storage: FileSystem, files: Sequence[DataFile], schema: pa.Schema) -> Iterator[pa.Table]:
        """Those of files, columns that the table has gained since included. Raises `OSError`, `ArrowException`."""
        for opened, group, _ in self._groups(storage, files):
            yield self.of(with_all(opened.read_row_group(group, columns=schema.names), schema))

    def count(self, storage: FileSystem, files: Sequence[DataFile]) -> int:
        """How many they are. Raises `OSError`, `ArrowException`."""
        return sum(rows for _, _, rows in self._groups(storage, files))

    def _groups(self, storage: FileSystem, files: Sequence[DataFile]) -> Iterator[tuple[parquet.ParquetFile, int, int]]:
        """Row groups that have some, and how many."""
        for file in files:
            opened = opened_parquet(storage, file.name, file.size_bytes)
            for group in range(opened.num_row_groups):
                if rows := self.of(opened.read_row_group(group, columns=[self.column])).num_rows:
                    yield opened, group, rows
