"""The merge layout: one row per key, with the transaction that wrote it and what was there before.

A small table is one file, which is rewritten from memory (`SmallTable`). Of a larger table, the files that have a
changed key are rewritten (`state/delta/write/rewriting.py`). A table whose files only delta-rs can replace is written
again as a whole, one part at a time. Small files are compacted between two transactions.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from deltalake.exceptions import DeltaError
from pyarrow.fs import FileSystem

from state.delta.log.files import TARGET_BYTES, compact
from state.delta.tables.data_files import DataFile, WrittenFile, write_file
from state.delta.tables.lookup import EVERY_TXID, Files, SegmentCopies, with_keys
from state.delta.tables.ranges import TimeRange
from state.delta.tables.sql import DATA_FUSION, Dialect, alive_view, in_range, visible_rows
from state.delta.tables.storage import can_create
from state.delta.tables.table import refused, replaceable_files, unreadable
from state.delta.write.change import Change, SmallTable, visible
from state.delta.write.entry import as_attempt, by_delta_rs, commit_overwrite, commit_replaced
from state.delta.write.rewriting import rewrite_files, rewritten_parts
from state.delta.write.snapshot import LoadedTable
from state.delta.write.staged import read_by_driver
from state.delta.write.touched_files import Footers
from state.delta.writing.layout import Layout
from state.fence import TableWrite, WriteRefused
from state.rows.expiring import NO_HORIZONS
from transactional.model.attempt import TransactionAttempt, TxId

_log = logging.getLogger(__name__)
COMPACTION_INTERVAL = 50
"""Writes between two looks at the number of files."""
REMOVAL_INTERVAL = 50
"""Merges between two that remove what has expired: files that have such a row are written again."""
FILES_MAX = 32
"""Largest number of files before a compaction, since a merge may read all of them."""
TIME_ROWS = 50_000
"""Smallest target size, in rows, of a compaction of files that hold rows by time."""
TIMES_MAX = 16
"""About the number of files into which such a table is divided."""
SEARCHES_BEFORE_COPY = 20
"""Number of scans of a large table for keys after which it is copied, sorted by key. A copy takes as long as those."""
MERGED_ROWS_TARGET = 1_000_000
"""Number of rows above which the log layout is recommended."""

ResultT = TypeVar("ResultT")
Turn = Callable[[TableWrite], Layout]
"""Changes the layout of a table before a transaction that is no replay is written, and returns the open table."""


class MergedTable(Layout):
    """The open table of a state in the merge layout. `turn` is called with the first new transaction."""

    def __init__(self, loaded: LoadedTable, state: str, turn: Turn | None = None) -> None:
        super().__init__(loaded, state)
        self._small, self._turn = SmallTable(), turn
        self._copies = SegmentCopies(loaded.columns.key.names, self._load_sorted)
        self._searches = (-1, Files(), 0)
        self._footers = Footers(loaded.storage, loaded.columns)
        self._files: tuple[int, Mapping[DataFile, int]] = (-1, {})
        self._can_create = can_create(loaded.storage)

    def apply(self, write: TableWrite) -> None:
        """Write rows, one per key, and the version. Raises `WriteRefused`, `SumOverflow`, `OperatingError`."""
        if write.staged:
            write = read_by_driver(self.loaded.location, self.columns, write, self._state)
        self.loaded.disk.settle()
        if self._turn is not None and not write.is_replay:
            # While the newest transaction may have to be rolled back, the previous values have to stay.
            self._turn(write).apply(write)
            return
        attempt, horizons = write.attempt, write.horizons or NO_HORIZONS
        self.will_record(attempt.attempt_id, write.horizons)
        try:
            self._apply(attempt, Change(self.columns, attempt.txid, write.rows, write.combine, horizons, self._removes))
        except WriteRefused as error:
            check = self._sum_check(write.combine)
            if check.columns and not error.is_conflict:
                self._check_sums(write, check)
            raise

    # --- writing ----------------------------------------------------------------------------------------------------

    def _apply(self, attempt: TransactionAttempt, change: Change) -> None:
        try:
            files = self._rewritable_files()
            if files is None:
                parts = rewritten_parts(self.loaded.query("SELECT * FROM t"), self.loaded.column_names, change)
                commit_overwrite(self.loaded, parts, as_attempt(self.loaded, attempt.attempt_id, attempt))
            elif not self._as_small(attempt, change, files):
                self._by_files(attempt, change, files)
        except (DeltaError, OSError) as error:
            raise refused(self.loaded.location, error) from None
        except pa.ArrowException as error:
            raise unreadable(self.loaded.location, error) from None

    def _as_small(self, attempt: TransactionAttempt, change: Change, files: Sequence[DataFile]) -> bool:
        """Write all rows to one file, from memory. False if the table is not small."""
        new_rows = self._small.rewrite(change, self.loaded.delta_version, files, self._rows_if_small)
        if new_rows is None:
            return False
        next_version = self.loaded.read_version + 1
        new = write_file(self.loaded.storage, new_rows, change.schema(self.loaded.column_names))
        self._replace(attempt, new, files, {})
        if self.loaded.delta_version == next_version:
            self._small.keep(next_version, new_rows)
        return True

    def _rows_if_small(self, rows_max: int) -> pa.Table | None:
        if (stored := self._stored_rows()) is None or stored > rows_max:
            return None
        schema = self.columns.table_schema
        names = ", ".join(map(DATA_FUSION.name, schema.names))
        return self.loaded.query(f"SELECT {names} FROM t").read_all().cast(schema)

    def _by_files(self, attempt: TransactionAttempt, change: Change, files: Sequence[DataFile]) -> None:
        """Rewrite the files that a change concerns."""
        selection = self._footers.select(files, change)
        names = self.loaded.column_names
        rewritten = rewrite_files(self.loaded.storage, selection.changed, names, change, selection.aging)
        old = [*rewritten.old, *selection.expired]
        unchanged = {file: rows for file, rows in selection.rows.items() if file not in old}
        self._replace(attempt, rewritten.new, old, unchanged)
        self._footers.add(rewritten.new)

    def _replace(
        self,
        attempt: TransactionAttempt,
        new: Sequence[WrittenFile],
        old: Sequence[DataFile],
        unchanged: Mapping[DataFile, int],
    ) -> None:
        """Commit `new` files in place of `old` ones. `unchanged` are the other files with their numbers of rows."""
        next_version = self.loaded.read_version + 1
        commit_replaced(self.loaded, attempt, new, old)
        if self.loaded.delta_version == next_version:
            self._files = (next_version, {**unchanged, **{file.as_part: file.rows for file in new}})

    def _stored_rows(self) -> int | None:
        """Return the number of rows in the files, or None if the log does not say."""
        if (row_counts := self._files_in_memory()) is not None:
            return sum(row_counts.values())
        counts = pa.table(self.loaded.snapshot.get_add_actions())["num_records"]
        total: int | None = pc.sum(counts, min_count=0, skip_nulls=False).as_py()
        return total

    def _rewritable_files(self) -> Sequence[DataFile] | None:
        """Return the files, or None if only delta-rs may replace them."""
        if not self._can_create:
            return None
        if (row_counts := self._files_in_memory()) is not None:
            return list(row_counts)
        return replaceable_files(self.loaded.snapshot)

    def _files_in_memory(self) -> Mapping[DataFile, int] | None:
        """Return the files with their numbers of rows if this process wrote them without delta-rs, else None.

        delta-rs would have to read the log for them.
        """
        is_current = self.loaded.is_ahead and self._files[0] == self.loaded.delta_version
        return self._files[1] if is_current else None

    @property
    def has_only_attempts(self) -> bool:
        """True: a transaction's entry has only its attempt and horizons, and a compaction's has no app transaction."""
        return True

    def remembered_files(self) -> Mapping[DataFile, int]:
        """Return the files of this version with their numbers of rows, without the log."""
        row_counts = self._files_in_memory()
        return super().remembered_files() if row_counts is None else row_counts

    @property
    def _removes(self) -> bool:
        """True if this write removes expired rows from every file that has some."""
        return self._writes % REMOVAL_INTERVAL == 0

    # --- reading ----------------------------------------------------------------------------------------------------

    def rows(self, end_txid: TxId | None, select: Callable[[pa.Table], pa.Table] = lambda rows: rows) -> pa.Table:
        """Return key and value columns of the rows (see `Layout.rows`)."""
        schema = self.columns.row_schema
        if (stored := self._small.rows(self.loaded.delta_version)) is not None:
            return select(visible(stored, self.columns, end_txid).cast(schema))
        return self._run_query(visible_rows(self.columns, end_txid, DATA_FUSION), select)

    def rows_between(self, end_txid: TxId, column: str, start: int | None, end: int) -> pa.Table:
        """Return the rows with `start < column <= end`."""
        if self._small.rows(self.loaded.delta_version) is not None:
            return super().rows_between(end_txid, column, start, end)
        time_range, schema = TimeRange(column, start, end), self.columns.table_schema

        def read(storage: FileSystem, files: Sequence[DataFile]) -> pa.Table:
            return pa.concat_tables([schema.empty_table(), *time_range.read(storage, files, schema)])

        stored = self._read_range(time_range, read)
        if stored is not None:
            return visible(stored, self.columns, end_txid).cast(self.columns.row_schema)
        query = visible_rows(self.columns, end_txid, DATA_FUSION)
        return self._run_query(in_range(query, self.columns, DATA_FUSION, column, start, end))

    def count_between(self, column: str, start: int | None, end: int) -> int:
        """Return the number of stored rows with `start < column <= end`."""
        time_range = TimeRange(column, start, end)
        if (stored := self._small.rows(self.loaded.delta_version)) is not None:
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
        files = self._rewritable_files() if time_range.column in self.columns.key.names else None
        if files is None:
            return None
        try:
            return read(self.loaded.storage, self._footers.overlapping(files, time_range))
        except OSError as error:
            raise unreadable(self.loaded.location, error) from None
        except pa.ArrowException:
            return None

    def _run_query(self, query: str, select: Callable[[pa.Table], pa.Table] = lambda rows: rows) -> pa.Table:
        schema = self.columns.row_schema
        try:
            reader = self.loaded.query(query)
            parts = [select(pa.Table.from_batches([batch]).cast(schema)) for batch in reader]
        except (DeltaError, OSError, pa.ArrowException) as error:
            raise unreadable(self.loaded.location, error) from None
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
            raise unreadable(self.loaded.location, error) from None
        return visible(stored, self.columns, end_txid).cast(self.columns.row_schema)

    def _is_copied(self) -> bool:
        """Count a search of the table's files. True if they have been searched often enough for a copy."""
        delta_version = self.loaded.delta_version
        searched_version, files, count = self._searches
        if searched_version != delta_version:
            current_files = frozenset(self.loaded.snapshot.file_uris())
            files, count = current_files, count if current_files == files else 0
        self._searches = (delta_version, files, count + 1)
        return count >= SEARCHES_BEFORE_COPY

    def _load_sorted(self, txid: TxId, files: Files, *, is_small: bool) -> pa.RecordBatchReader:
        schema = self.columns.table_schema
        names = ", ".join(map(DATA_FUSION.name, schema.names))
        order = ", ".join(f"{DATA_FUSION.name(name)} NULLS LAST" for name in self.columns.key.names)
        query = f"SELECT {names} FROM t" + ("" if is_small else f" ORDER BY {order}")
        return self.loaded.query(query).cast(schema)

    def view(self, end_txid: TxId | None, dialect: Dialect, source: str) -> str:
        """Return a query for key and value columns (see `Layout.view`)."""
        query = visible_rows(self.columns, end_txid, dialect, source)
        return alive_view(query, self.columns, dialect, self.horizon_for(end_txid))

    def row_count(self) -> int:
        """Return the number of rows, including those of a transaction that is not committed. Raises
        `OperatingError`."""
        stored = self._small.rows(self.loaded.delta_version)
        return self.loaded.row_count() if stored is None else int(stored.num_rows)

    def warn_when_large(self) -> None:
        """Log that a large table is better in the log layout."""
        if (rows := self.row_count()) > MERGED_ROWS_TARGET:
            _log.warning(
                "state %s has %d rows, and a merge rewrites every file that has a key of the batch; layout='log' "
                "writes what changes only, and shows readers one row per key through a view",
                *(self._state, rows),
            )

    # --- between two transactions -----------------------------------------------------------------------------------

    def find_due_work(self, newest: TxId) -> Callable[[], object] | None:
        """Return a function that compacts small files, so that a merge stays quick, or None if that is not due."""
        if self._writes % COMPACTION_INTERVAL:
            return None
        if (row_counts := self._files_in_memory()) is not None:
            file_count = len(row_counts)
        else:
            file_count = 0 if self.loaded.is_ahead else len(self.loaded.snapshot.file_uris())
        return self._compact_files if file_count > FILES_MAX else None

    def compact(self, newest: TxId) -> None:
        """Do nothing: every key has one row already."""

    def _compact_files(self) -> None:
        self.loaded.disk.make_durable()
        groups = self._group_by_time()
        with by_delta_rs(self.loaded) as table:
            if compact(table, self.loaded.location, self.loaded.owner, groups):
                table.update_incremental()
        self.loaded.version()  # read now, since it can't be once the log is damaged

    def _group_by_time(self) -> list[set[str]] | None:
        """Return the names of the files to combine where files hold rows by time, or None to combine the smallest.

        The rows of a time are then in few files, which are dropped as a whole once they have expired.
        """
        files = self._rewritable_files() if self.columns.is_by_time else None
        if files is None:
            return None
        rows_max = max(TIME_ROWS, (self._stored_rows() or 0) // TIMES_MAX)
        try:
            groups = self._footers.adjacent(files, rows_max, TARGET_BYTES)
        except (OSError, pa.ArrowException):
            return None
        return [{file.name for file in group} for group in groups]
