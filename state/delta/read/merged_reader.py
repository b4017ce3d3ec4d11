"""Reading of a table in the merge layout, which has one row per key with its previous values.

Rows of a small table are read from memory, if this process has written them. Rows of a time range are read from the
files that may have some. A large table whose files do not change is copied, sorted by key, once it was searched often.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import pyarrow as pa
from deltalake.exceptions import DeltaError
from pyarrow.fs import FileSystem

from state.delta.read.table_reader import TableReader
from state.delta.tables.data_files import DataFile
from state.delta.tables.lookup import EVERY_TXID, Files, SegmentCopies, with_keys
from state.delta.tables.ranges import TimeRange
from state.delta.tables.sql import DATA_FUSION, Dialect, select_range, select_unexpired_rows, select_visible_rows
from state.delta.tables.table import unreadable_table_error
from state.delta.write.change import visible
from state.delta.write.loaded_table import LoadedTable
from state.delta.write.touched_files import Footers
from transactional.model.attempt import TxId

SEARCHES_BEFORE_COPY = 20
"""Number of scans of a large table for keys after which it is copied, sorted by key. A copy takes as long as those."""

ResultT = TypeVar("ResultT")


class MergedReader(TableReader):
    """Reads a table in the merge layout. `footers` are the bounds of its files, which the writer shares."""

    def __init__(self, loaded: LoadedTable, footers: Footers) -> None:
        super().__init__(loaded)
        self._copies = SegmentCopies(loaded.columns.key.names, self._load_sorted)
        self._searches = (-1, Files(), 0)
        self._footers = footers

    def rows(self, end_txid: TxId | None, select: Callable[[pa.Table], pa.Table] = lambda rows: rows) -> pa.Table:
        """Return key and value columns of the rows (see `TableReader.rows`)."""
        schema = self.columns.row_schema
        if (stored := self.loaded.current.rows) is not None:
            return select(visible(stored, self.columns, end_txid).cast(schema))
        return self._run_query(select_visible_rows(self.columns, end_txid, DATA_FUSION), select)

    def rows_between(self, end_txid: TxId, column: str, start: int | None, end: int) -> pa.Table:
        """Return the rows with `start < column <= end`."""
        if self.loaded.current.rows is not None:
            return super().rows_between(end_txid, column, start, end)
        time_range, schema = TimeRange(column, start, end), self.columns.table_schema

        def read(storage: FileSystem, files: Sequence[DataFile]) -> pa.Table:
            return pa.concat_tables([schema.empty_table(), *time_range.read(storage, files, schema)])

        stored = self._read_range(time_range, read)
        if stored is not None:
            return visible(stored, self.columns, end_txid).cast(self.columns.row_schema)
        query = select_visible_rows(self.columns, end_txid, DATA_FUSION)
        return self._run_query(select_range(query, self.columns, DATA_FUSION, column, start, end))

    def count_between(self, column: str, start: int | None, end: int) -> int:
        """Return the number of stored rows with `start < column <= end`."""
        time_range = TimeRange(column, start, end)
        if (stored := self.loaded.current.rows) is not None:
            return int(time_range.select(stored).num_rows)
        count = self._read_range(time_range, time_range.count)
        return super().count_between(column, start, end) if count is None else count

    def _read_range(
        self, time_range: TimeRange, read: Callable[[FileSystem, Sequence[DataFile]], ResultT]
    ) -> ResultT | None:
        """Call `read` with the files that may have rows of a range.

        None if their footers do not say which files these are, or if only delta-rs can read them.
        """
        # The value of a column that is not in the key may have been another one before the transaction.
        files = self.loaded.rewritable_files() if time_range.column in self.columns.key.names else None
        if files is None:
            return None
        try:
            return read(self.loaded.storage, self._footers.overlapping(files, time_range))
        except OSError as error:
            raise unreadable_table_error(self.loaded.location, error) from None
        except pa.ArrowException:
            return None

    def _run_query(self, query: str, select: Callable[[pa.Table], pa.Table] = lambda rows: rows) -> pa.Table:
        schema = self.columns.row_schema
        try:
            reader = self.loaded.query(query)
            parts = [select(pa.Table.from_batches([batch]).cast(schema)) for batch in reader]
        except (DeltaError, OSError, pa.ArrowException) as error:
            raise unreadable_table_error(self.loaded.location, error) from None
        return pa.concat_tables(parts) if parts else schema.empty_table()

    def search(self, end_txid: TxId, keys: pa.Table) -> pa.Table:
        """Return the rows with these keys. Rows of other keys may be among them.

        After `SEARCHES_BEFORE_COPY` scans the table is copied, sorted by key. Until its files change, the time of a
        search then depends on the number of keys, not on the size of the table.
        """
        if not self.columns.key.names or not self._is_copied():
            return self.rows(end_txid, lambda rows: with_keys(rows, keys))
        _, files, _ = self._searches
        try:
            stored = self._copies.search({EVERY_TXID: (files, self.row_count())}, keys)
        except (DeltaError, OSError, pa.ArrowException) as error:
            raise unreadable_table_error(self.loaded.location, error) from None
        return visible(stored, self.columns, end_txid).cast(self.columns.row_schema)

    def _is_copied(self) -> bool:
        """Count a search of the table's files. True if they have been searched often enough for a copy."""
        delta_version = self.loaded.delta_version
        searched_version, files, count = self._searches
        if searched_version != delta_version:
            current_files = frozenset(self.loaded.engine.file_uris())
            files, count = current_files, count if current_files == files else 0
        self._searches = (delta_version, files, count + 1)
        return count >= SEARCHES_BEFORE_COPY

    def _load_sorted(self, txid: TxId, files: Files, *, is_small: bool) -> pa.RecordBatchReader:
        schema = self.columns.table_schema
        names = ", ".join(map(DATA_FUSION.name, schema.names))
        order = ", ".join(f"{DATA_FUSION.name(name)} NULLS LAST" for name in self.columns.key.names)
        query = f"SELECT {names} FROM t" + ("" if is_small else f" ORDER BY {order}")
        return self.loaded.query(query).cast(schema)

    def make_view_query(self, end_txid: TxId | None, dialect: Dialect, source: str) -> str:
        """Return a query for key and value columns (see `TableReader.make_view_query`)."""
        query = select_visible_rows(self.columns, end_txid, dialect, source)
        return select_unexpired_rows(query, self.columns, dialect, self.horizon_for(end_txid))
