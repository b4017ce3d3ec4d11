"""The maintenance of a table in the merge layout: small files are compacted, so that a merge stays quick."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pyarrow as pa

from state.delta.log.files import TARGET_BYTES, compact_files
from state.delta.read.table_reader import TableReader
from state.delta.tables.data_files import DataFile
from state.delta.upkeep.table_upkeep import TableUpkeep
from state.delta.write.engine_commits import by_delta_rs
from state.delta.write.merging import MergeWriter, stored_rows
from transactional.model.attempt import TxId

COMPACTION_INTERVAL = 50
"""Transactions between two looks at the number of files."""
FILES_MAX = 32
"""Largest number of files before a compaction, since a merge may read all of them."""
TIME_ROWS = 50_000
"""Smallest target size, in rows, of a compaction of files that hold rows by time."""
TIMES_MAX = 16
"""About the number of files into which such a table is divided."""


class MergedUpkeep(TableUpkeep):
    """Maintains a table in the merge layout."""

    def __init__(self, writer: MergeWriter, reader: TableReader) -> None:
        super().__init__(writer, reader)
        self._footers = writer.footers

    @property
    def has_only_attempts(self) -> bool:
        """True: a transaction's entry has only its attempt and horizons, and a compaction's has no app transaction."""
        return True

    def files_in_memory(self) -> Mapping[DataFile, int]:
        """Return the files of this version with their numbers of rows, without the log."""
        row_counts = self.loaded.current.files
        return super().files_in_memory() if row_counts is None else row_counts

    def find_due_work(self, newest: TxId) -> Callable[[], object] | None:
        """Return a function that compacts small files, or None if that is not due."""
        if self.writer.transactions % COMPACTION_INTERVAL:
            return None
        if (row_counts := self.loaded.current.files) is not None:
            file_count = len(row_counts)
        else:
            file_count = 0 if self.loaded.is_ahead else len(self.loaded.engine.file_uris())
        return self._compact_files if file_count > FILES_MAX else None

    def compact(self, newest: TxId) -> None:
        """Do nothing: every key has one row already."""

    def _compact_files(self) -> None:
        self.loaded.disk.make_durable()
        groups = self._group_by_time()
        with by_delta_rs(self.loaded) as table:
            if compact_files(table, self.loaded.location, self.loaded.owner, groups):
                table.update_incremental()
        self.loaded.version()  # read now, since it can't be once the log is damaged

    def _group_by_time(self) -> list[set[str]] | None:
        """Return the names of the files to combine where files hold rows by time, or None to combine the smallest.

        The rows of a time are then in few files, which are dropped as a whole once they have expired.
        """
        files = self.loaded.rewritable_files() if self.columns.is_by_time else None
        if files is None:
            return None
        rows_max = max(TIME_ROWS, (stored_rows(self.loaded) or 0) // TIMES_MAX)
        try:
            groups = self._footers.adjacent(files, rows_max, TARGET_BYTES)
        except (OSError, pa.ArrowException):
            return None
        return [{file.name for file in group} for group in groups]
