"""The merge layout: one row per key, with the transaction that wrote it and what was there before.

A small table is one file, rewritten from memory (`SmallTable`); of a larger one every file that has a touched key is
rewritten (`state/delta/merging/rewriting.py`). A table whose files delta-rs alone can replace is written
again as a whole, a part at a time.
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
from state.delta.log.version import TableVersion
from state.delta.merging.change import Change, SmallTable, visible
from state.delta.merging.overlapping_files import Footers
from state.delta.merging.ranges import TimeRange
from state.delta.merging.rewriting import rewrite_files, rewritten_parts
from state.delta.tables.data_files import DataFile, WrittenFile, write_file
from state.delta.tables.lookup import EVERY_TXID, Files, SegmentCopies, with_keys
from state.delta.tables.sql import DATA_FUSION, Dialect, alive_view, in_range, visible_rows
from state.delta.tables.storage import can_create
from state.delta.tables.table import refused, replaceable_files, unreadable
from state.delta.writing.commit import as_attempt, by_delta_rs, commit_overwrite, commit_replaced
from state.delta.writing.layout import Layout
from state.delta.writing.staged import read_by_driver
from state.fence import TableWrite, WriteRefused
from state.rows.expiring import NO_HORIZONS
from transactional.model.attempt import TransactionAttempt, TxId

_log = logging.getLogger(__name__)
COMPACTION_INTERVAL = 50
"""Writes between two looks at the number of files."""
REMOVAL_INTERVAL = 50
"""Merges between two that remove what has expired: files that have such a row are written again."""
FILES_MAX = 32
"""So many files a table may have; a merge reads them all."""
TIME_ROWS = 50_000
"""Where rows lie by time, files are combined up to so many rows, or a part of the table's."""
TIMES_MAX = 16
"""Such a table is divided into about so many parts."""
SEARCHES_BEFORE_COPY = 20
"""So many times a large table is read through for keys before it is copied, sorted by key: that takes as long."""
MERGED_ROWS_TARGET = 1_000_000
"""A table of more rows is better off with the log layout."""

FoundT = TypeVar("FoundT")
Turn = Callable[[TableWrite], Layout]
"""Gives the table another layout, before a transaction that is not a replay is written: the table from then on."""


class MergedTable(Layout):
    """A table of a state in the merge layout. `turn` is called with the first new transaction."""

    def __init__(self, loaded: TableVersion, state: str, turn: Turn | None = None) -> None:
        super().__init__(loaded, state)
        self._small, self._turn = SmallTable(), turn
        self._copies = SegmentCopies(loaded.columns.key.names, self._load_sorted)
        self._searched = (-1, Files(), 0)
        self._footers = Footers(loaded.storage, loaded.columns)
        self._files: tuple[int, Mapping[DataFile, int]] = (-1, {})
        self._can_create = can_create(loaded.storage)

    def apply(self, write: TableWrite) -> None:
        """Write rows, one per key, and the version. Raises `WriteRefused`, `SumOverflow`, `OperatingError`."""
        if write.staged:
            write = read_by_driver(self.loaded.location, self.columns, write, self._state)
        self.loaded.disk.settle()
        if self._turn is not None and not write.is_replay:
            # While the newest transaction may have to be rolled back, what was before it has to stay.
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
        """Write all rows to one file, from memory; False: the table is not small."""
        after = self._small.after(change, self.loaded.delta_version, files, self._rows_if_small)
        if after is None:
            return False
        written = self.loaded.read_version + 1
        new = write_file(self.loaded.storage, after, change.schema(self.loaded.column_names))
        self._replace(attempt, new, files, {})
        if self.loaded.delta_version == written:
            self._small.keep(written, after)
        return True

    def _rows_if_small(self, rows_max: int) -> pa.Table | None:
        if (stored := self._stored_rows()) is None or stored > rows_max:
            return None
        schema = self.columns.table_schema
        names = ", ".join(map(DATA_FUSION.name, schema.names))
        return self.loaded.query(f"SELECT {names} FROM t").read_all().cast(schema)

    def _by_files(self, attempt: TransactionAttempt, change: Change, files: Sequence[DataFile]) -> None:
        """Rewrite the files that are touched."""
        reached = self._footers.reached(files, change)
        names = self.loaded.column_names
        rewritten = rewrite_files(self.loaded.storage, reached.touched, names, change, reached.aging)
        old = [*rewritten.old, *reached.past]
        left = {file: rows for file, rows in reached.rows.items() if file not in old}
        self._replace(attempt, rewritten.new, old, left)
        self._footers.add(rewritten.new)

    def _replace(
        self,
        attempt: TransactionAttempt,
        new: Sequence[WrittenFile],
        old: Sequence[DataFile],
        left: Mapping[DataFile, int],
    ) -> None:
        """Commit files in place of others; `left` are those that stay, with their numbers of rows."""
        written = self.loaded.read_version + 1
        commit_replaced(self.loaded, attempt, new, old)
        if self.loaded.delta_version == written:
            self._files = (written, {**left, **{file.as_part: file.rows for file in new}})

    def _stored_rows(self) -> int | None:
        """How many rows the files have, as far as it is known."""
        if (known := self._known_files()) is not None:
            return sum(known.values())
        counts = pa.table(self.loaded.snapshot.get_add_actions())["num_records"]
        found: int | None = pc.sum(counts, min_count=0, skip_nulls=False).as_py()
        return found

    def _rewritable_files(self) -> Sequence[DataFile] | None:
        """The files, where they may be replaced without delta-rs."""
        if not self._can_create:
            return None
        if (known := self._known_files()) is not None:
            return list(known)
        return replaceable_files(self.loaded.snapshot)

    def _known_files(self) -> Mapping[DataFile, int] | None:
        """The files with their numbers of rows, where they were written without delta-rs, which would have to read the
        log for them."""
        known = self.loaded.is_ahead and self._files[0] == self.loaded.delta_version
        return self._files[1] if known else None

    @property
    def wrote_all(self) -> bool:
        """A transaction's entry has its attempt and horizons alone; compactions have none."""
        return True

    def remembered_files(self) -> Mapping[DataFile, int]:
        """The files of this version with their numbers of rows, without the log."""
        known = self._known_files()
        return super().remembered_files() if known is None else known

    @property
    def _removes(self) -> bool:
        """Whether what has expired is removed from every file that has some."""
        return self._writes % REMOVAL_INTERVAL == 0

    # --- reading ----------------------------------------------------------------------------------------------------

    def rows(self, before: TxId | None, keep: Callable[[pa.Table], pa.Table] = lambda rows: rows) -> pa.Table:
        """Key and value columns of the rows, as they were before transaction `before`, that `keep` leaves over."""
        schema = self.columns.row_schema
        if (known := self._small.rows(self.loaded.delta_version)) is not None:
            return keep(visible(known, self.columns, before).cast(schema))
        return self._found(visible_rows(self.columns, before, DATA_FUSION), keep)

    def rows_between(self, before: TxId, column: str, after: int | None, until: int) -> pa.Table:
        """As `rows`, of those whose column lies in a range."""
        if self._small.rows(self.loaded.delta_version) is not None:
            return super().rows_between(before, column, after, until)
        wanted, schema = TimeRange(column, after, until), self.columns.table_schema

        def read(storage: FileSystem, files: Sequence[DataFile]) -> pa.Table:
            return pa.concat_tables([schema.empty_table(), *wanted.read(storage, files, schema)])

        found = self._in_files(wanted, read)
        if found is not None:
            return visible(found, self.columns, before).cast(self.columns.row_schema)
        query = visible_rows(self.columns, before, DATA_FUSION)
        return self._found(in_range(query, self.columns, DATA_FUSION, column, after, until))

    def count_between(self, column: str, after: int | None, until: int) -> int:
        """How many rows as they are stored lie in a range."""
        wanted = TimeRange(column, after, until)
        if (known := self._small.rows(self.loaded.delta_version)) is not None:
            return int(wanted.of(known).num_rows)
        found = self._in_files(wanted, wanted.count)
        return super().count_between(column, after, until) if found is None else found

    def _in_files(self, wanted: TimeRange, look: Callable[[FileSystem, Sequence[DataFile]], FoundT]) -> FoundT | None:
        """Look into the files that may have rows of a range; None: it can't be seen which they are, or how to read
        them."""
        # A value may be another one before the transaction.
        files = self._rewritable_files() if wanted.column in self.columns.key.names else None
        if files is None:
            return None
        try:
            return look(self.loaded.storage, self._footers.between(files, wanted))
        except OSError as error:
            raise unreadable(self.loaded.location, error) from None
        except pa.ArrowException:
            return None

    def _found(self, query: str, keep: Callable[[pa.Table], pa.Table] = lambda rows: rows) -> pa.Table:
        schema = self.columns.row_schema
        try:
            reader = self.loaded.query(query)
            parts = [keep(pa.Table.from_batches([batch]).cast(schema)) for batch in reader]
        except (DeltaError, OSError, pa.ArrowException) as error:
            raise unreadable(self.loaded.location, error) from None
        return pa.concat_tables(parts) if parts else schema.empty_table()

    def search(self, before: TxId, wanted: pa.Table) -> pa.Table:
        """The rows with a wanted key, maybe more.

        A table through which so many queries have gone as a sorted copy costs is copied: until its files change, a
        query costs what the wanted keys cost then.
        """
        if not self.columns.key.names or not self._is_copied():
            return self.rows(before, lambda rows: with_keys(rows, wanted))
        _, files, _ = self._searched
        try:
            found = self._copies.search({EVERY_TXID: (files, self.row_count())}, wanted)
        except (DeltaError, OSError, pa.ArrowException) as error:
            raise unreadable(self.loaded.location, error) from None
        return visible(found, self.columns, before).cast(self.columns.row_schema)

    def _is_copied(self) -> bool:
        """Count a query of this Delta version's files; whether they have been queried often enough for a copy."""
        at = self.loaded.delta_version
        known, files, times = self._searched
        if known != at:
            now = frozenset(self.loaded.snapshot.file_uris())
            files, times = now, times if now == files else 0
        self._searched = (at, files, times + 1)
        return times >= SEARCHES_BEFORE_COPY

    def _load_sorted(self, txid: TxId, files: Files, *, is_small: bool) -> pa.RecordBatchReader:
        schema = self.columns.table_schema
        names = ", ".join(map(DATA_FUSION.name, schema.names))
        order = ", ".join(f"{DATA_FUSION.name(name)} NULLS LAST" for name in self.columns.key.names)
        query = f"SELECT {names} FROM t" + ("" if is_small else f" ORDER BY {order}")
        return self.loaded.query(query).cast(schema)

    def view(self, before: TxId | None, dialect: Dialect, source: str) -> str:
        """A query on the table, called `source`, for key and value columns as they were before a transaction."""
        query = visible_rows(self.columns, before, dialect, source)
        return alive_view(query, self.columns, dialect, self.horizon_for(before))

    def row_count(self) -> int:
        """The number of rows, keys that are not yet committed included. Raises `OperatingError`."""
        known = self._small.rows(self.loaded.delta_version)
        return self.loaded.row_count() if known is None else int(known.num_rows)

    def warn_when_large(self) -> None:
        """Say that there is another layout, where it would be better."""
        if (rows := self.row_count()) > MERGED_ROWS_TARGET:
            _log.warning(
                "state %s has %d rows, and a merge rewrites every file that has a key of the batch; layout='log' "
                "writes what changes only, and shows readers one row per key through a view",
                *(self._state, rows),
            )

    # --- between two transactions -----------------------------------------------------------------------------------

    def due(self, newest: TxId) -> Callable[[], object] | None:
        """Putting small files together, so that a merge stays quick."""
        if self._writes % COMPACTION_INTERVAL:
            return None
        if (known := self._known_files()) is not None:
            many = len(known)
        else:
            many = 0 if self.loaded.is_ahead else len(self.loaded.snapshot.file_uris())
        return self._compact if many > FILES_MAX else None

    def compact(self, newest: TxId) -> None:
        """There is one row per key as it is."""

    def _compact(self) -> None:
        self.loaded.disk.make_durable()
        runs = self._runs()
        with by_delta_rs(self.loaded) as table:
            if compact(table, self.loaded.location, self.loaded.owner, runs):
                table.update_incremental()
        self.loaded.version()  # read now, since it can't be once the log is damaged

    def _runs(self) -> list[set[str]] | None:
        """The files to combine, by name, where rows lie by time: so that what closes is in few of them, and a file goes
        as a whole. None: the smallest."""
        files = self._rewritable_files() if self.columns.is_by_time else None
        if files is None:
            return None
        rows_max = max(TIME_ROWS, (self._stored_rows() or 0) // TIMES_MAX)
        try:
            runs = self._footers.adjacent(files, rows_max, TARGET_BYTES)
        except (OSError, pa.ArrowException):
            return None
        return [{file.name for file in run} for run in runs]
