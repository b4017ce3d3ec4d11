"""The log layout: a transaction writes a segment of its own and changes no other row, whatever the table's size.

The table is partitioned by txid, and the rows of one txid are a segment. A transaction replaces the segment of its
txid, so the rows of a dead attempt are replaced with it, and nothing has to be read. Compactions have an app id of
their own, whose version is the txid up to which the table is compacted. They replace only segments of committed
transactions, by rows of the same content, in one Delta commit: readers see no difference, and a crash leaves the table
either as it was or compacted.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pyarrow as pa
from deltalake import CommitProperties, Transaction

from state.delta.segments.compactor import Compactor
from state.delta.segments.log_layout import (
    LogLayout,
    Segment,
    SegmentQuery,
    check_same_combine,
    join_settings,
    stored_combine,
)
from state.delta.segments.restarts import check_expiry
from state.delta.segments.stored import StoredSegments
from state.delta.tables.lookup import SegmentCopies, measure_bounds, newest_rows, with_keys
from state.delta.tables.sql import DATA_FUSION, Dialect, alive_view
from state.delta.tables.staging import FileStager
from state.delta.upkeep.staged_orphans import StagedOrphans
from state.delta.write.entry import as_attempt, commit_overwrite, commit_properties, settle_feature, under_fence
from state.delta.write.snapshot import LoadedTable
from state.delta.write.staged import check_staged, commit_staged, read_by_driver
from state.delta.writing.layout import Layout
from state.fence import TableWrite, WriteRefused
from state.rows.expiring import TIME, ExpiryHorizons, time_scalar
from state.rows.sums import SumBounds, SumCheck
from transactional.core.ports import CommitFacts
from transactional.core.ports.staged import StagedFile
from transactional.model.aggregates.sums import max_magnitude
from transactional.model.attempt import AttemptId, TxId
from transactional.model.errors import OperatingError
from transactional.model.names import COMBINE_PROPERTY, STAGED_FEATURE, compaction_of
from transactional.model.schema import Field

SWEEP_INTERVAL_S = 60.0
"""Seconds between two searches for orphaned staged files."""


class SegmentsTable(Layout):
    """The open table of a state in the log layout, which is compacted as `compaction` says."""

    def __init__(self, loaded: LoadedTable, state: str, compaction: LogLayout | None = None) -> None:
        super().__init__(loaded, state)
        self._stored = StoredSegments(loaded)
        self.compactor = Compactor(self._stored, compaction or LogLayout())
        self._copies = SegmentCopies(self.columns.key.names, self._stored.load)
        self._orphans = StagedOrphans(loaded.location)
        self._swept_at_s = time.monotonic()
        self._bounds: tuple[TxId, SumBounds] | None = None

    @property
    def compacted_txid(self) -> TxId:
        """The transaction up to which the table is compacted, or 0 if it never was."""
        return self._stored.compacted_txid

    def last_commit(self) -> CommitFacts:
        return replace(super().last_commit(), compacted_txid=self.compacted_txid)

    def can_show(self, txid: TxId) -> bool:
        """True if this version can show the table as of a transaction: its rows, and those that had expired."""
        return txid >= self.compacted_txid and (self.columns.expires is None or txid >= self.horizons().txid - 1)

    def segments(self) -> list[Segment]:
        """Return the segments of this Delta version, oldest first."""
        return self._stored.segments()

    # --- writing ----------------------------------------------------------------------------------------------------

    def apply(self, write: TableWrite) -> None:
        """Replace the segment of the attempt's transaction. Raises `WriteRefused`, `SumOverflow`, `OperatingError`."""
        if write.staged:
            self._apply_staged(write)
            return
        self._prepare(write)
        write = replace(write, rows=self._with_horizon(write.rows, write.horizons))
        attempt, rows, check = write.attempt, write.rows, self._sum_check(write.combine)
        if check.columns and not self.admits(check, {f.name: max_magnitude(rows[f.name]) for _, f in check.columns}):
            # A segment is written without a look at what is stored.
            self._check_sums(write, check)
        try:
            self._replace(attempt.txid, rows, as_attempt(self.loaded, attempt.attempt_id, attempt))
        except WriteRefused as error:
            if check.columns and not error.is_conflict:
                self._check_sums(write, check)
            raise
        self.compactor.count_write(rows.num_rows)

    def _apply_staged(self, write: TableWrite) -> None:
        """Commit staged files as the segment, and a further file for the rows. The commit has metadata only."""
        location, attempt, staged = self.loaded.location, write.attempt, write.staged
        check_staged(location, attempt, staged)
        self._prepare(write)
        if write.rows.num_rows:
            stager = FileStager(Path(location.uri), self.loaded.owner, self.columns.written_columns)
            staged = [*staged, stager.stage(attempt, write.rows)]
        check = self._sum_check(write.combine)
        if check.columns and not self.admits(check, _largest_of(staged, check)):
            self._check_sums(read_by_driver(location, self.columns, write, self._state), check)
        commit_staged(self.loaded, attempt, staged)
        self.compactor.count_write(sum(file.rows for file in staged), staged_files=len(staged))

    def _prepare(self, write: TableWrite) -> None:
        """Record in the table how rows are combined, and the features that a write uses, before the rows come."""
        self.loaded.disk.settle()
        self.settle_combine(write.combine)
        if write.staged:
            settle_feature(self.loaded, STAGED_FEATURE)
        self.will_record(write.attempt.attempt_id, write.horizons)

    def _with_horizon(self, rows: pa.Table, horizons: ExpiryHorizons | None) -> pa.Table:
        """Add the horizon of the transaction to rows, if the table has a column for it."""
        if self.columns.horizon is None:
            return rows
        horizon = None if horizons is None or horizons.current is None else time_scalar(horizons.current)
        column = pa.nulls(rows.num_rows, TIME) if horizon is None else pa.repeat(horizon, rows.num_rows)
        return rows.append_column(self.columns.horizon, column)

    def _replace(self, txid: TxId, rows: pa.Table, properties: CommitProperties) -> None:
        """Replace the segment of one transaction in a Delta commit."""
        schema = self.columns.table_schema
        rows = rows.append_column(self.columns.txid, pa.repeat(pa.scalar(int(txid), pa.int64()), rows.num_rows))
        predicate = f"{DATA_FUSION.name(self.columns.txid)} = {txid}"
        commit_overwrite(self.loaded, rows.select(schema.names).cast(schema), properties, predicate=predicate)

    def settle_combine(self, combine: Mapping[str, str]) -> None:
        """Record in the table how its values are combined, for good, before its first row. Raises `WriteRefused`."""
        stored = stored_combine(self.loaded.properties)
        if stored is not None:
            check_same_combine(stored, combine, self.loaded.location)
        if stored == combine:
            return
        check_expiry(self.columns, combine, str(self.loaded.location))
        commit_properties(self.loaded, {COMBINE_PROPERTY: json.dumps(dict(combine))}, under_fence(self.loaded))

    def adopt_merged(self, version: AttemptId | None, newest: TxId) -> None:
        """Make the rows of a table in the merge layout, as of a committed transaction, the first segment.

        Raises `WriteRefused` if the table is no longer at this version.
        """
        if self.version() != version:
            raise WriteRefused("another writer came between", is_conflict=True)
        txid = DATA_FUSION.name(self.columns.txid)
        names = [DATA_FUSION.name(name) for name in self.columns.row_schema.names]
        alive = ""
        horizon = () if self.columns.horizon is None else (self.columns.horizon,)
        if self.columns.deletes:
            deleted = DATA_FUSION.name(self.columns.deleted)
            names, alive = [*names, deleted], f" WHERE NOT COALESCE({deleted}, false)"
        names += [f"{DATA_FUSION.no_time} AS {DATA_FUSION.name(column)}" for column in horizon]
        reader = self._stored.reader(f"SELECT {', '.join(names)}, CAST({newest} AS BIGINT) AS {txid} FROM t{alive}")
        properties = under_fence(self.loaded, Transaction(compaction_of(self.loaded.owner), newest))
        partition_by = [self.columns.txid]
        commit_overwrite(self.loaded, reader, properties, schema_mode="overwrite", partition_by=partition_by)
        self.loaded.disk.settle()

    # --- sums that fit ----------------------------------------------------------------------------------------------

    def admits(self, check: SumCheck, largest: Mapping[str, int]) -> bool:
        """Count in the largest values of a write. True if all sums fit, whichever keys the rows have."""
        columns = [field for _, field in check.columns]
        compacted = self.compacted_txid
        # Compactions put parts together that cancel out.
        if self._bounds is None or (self._bounds[0] != compacted and not self._bounds[1].admit(largest, columns)):
            self._bounds = (compacted, self._measured(columns))
        fits = self._bounds[1].admit(largest, columns)
        self._bounds[1].add(largest)
        return fits

    def _measured(self, columns: Sequence[Field]) -> SumBounds:
        files = pa.table(self.loaded.snapshot.get_add_actions(flatten=True))
        return SumBounds(measure_bounds(files, self.columns, columns, self._stored.read_all, self._stored.unique_until))

    # --- reading ----------------------------------------------------------------------------------------------------

    def rows(self, end_txid: TxId | None, select: Callable[[pa.Table], pa.Table] = lambda rows: rows) -> pa.Table:
        """Return key and value columns, one row per key (see `Layout.rows`)."""
        self._stored.check_not_compacted(end_txid)
        schema = self.columns.row_schema
        query, segments = self._stored.query(), self._stored.segments()
        if query is None or not segments or (end_txid is not None and segments[0].txid >= end_txid):
            return schema.empty_table()
        parts = self._stored.read_parts(
            query.view_over_base(self._stored.base_txid(), end_txid), join_settings(segments)
        )
        filtered_parts = [select(part.cast(schema)) for part in parts]
        return pa.concat_tables(filtered_parts) if filtered_parts else schema.empty_table()

    def rows_between(self, end_txid: TxId, column: str, start: int | None, end: int) -> pa.Table:
        """Return the rows with `start < column <= end`. For a key column no other rows are read."""
        query, segments = self._stored.query(), self._stored.segments()
        if query is None or not segments or segments[0].txid >= end_txid or column not in self.columns.key.names:
            return super().rows_between(end_txid, column, start, end)
        self._stored.check_not_compacted(end_txid)
        schema = self.columns.row_schema
        sql = query.in_range(column, start, end).view_over_base(self._stored.base_txid(), end_txid)
        parts = [part.cast(schema) for part in self._stored.read_parts(sql, join_settings(segments))]
        return pa.concat_tables(parts) if parts else schema.empty_table()

    def view(self, end_txid: TxId | None, dialect: Dialect, source: str) -> str:
        """Return a query for one row per key (see `Layout.view`). It stays valid while segments are compacted."""
        self._stored.check_not_compacted(end_txid)
        combine = self._stored.combine()
        if combine is None:
            raise OperatingError(
                f"Delta table {self.loaded.location} is empty: how its rows are combined is known with the first one"
            )
        condition = "" if end_txid is None else f"{dialect.name(self.columns.txid)} < {end_txid}"
        query = SegmentQuery(self.columns, combine, dialect, source).view(condition)
        return alive_view(query, self.columns, dialect, self.horizon_for(end_txid))

    def search(self, end_txid: TxId, keys: pa.Table) -> pa.Table:
        """Return the rows of these keys. Every segment is searched, and only matching rows are combined."""
        self._stored.check_not_compacted(end_txid)
        query = self._stored.query()
        segments = {
            segment.txid: (segment.files, segment.rows)
            for segment in self._stored.segments()
            if segment.txid < end_txid
        }
        if query is None or not segments:
            return self.columns.row_schema.empty_table()
        if query.has_restarts:
            return self.rows(end_txid, lambda rows: with_keys(rows, keys))
        rows = self._copies.search(segments, keys)
        return newest_rows(rows, self.columns, query.combine).cast(self.columns.row_schema)

    # --- between two transactions -----------------------------------------------------------------------------------

    def find_due_work(self, newest: TxId) -> Callable[[], object] | None:
        return self.compactor.find_due_work(newest)

    def compact(self, newest: TxId) -> None:
        """Compact every transaction before `newest` into the base. Raises `WriteRefused`."""
        self.compactor.compact(newest)

    def maintain(self, newest: TxId, may_go_on: Callable[[], bool]) -> None:
        """Maintain the table as every layout does, and sometimes search for orphaned staged files."""
        super().maintain(newest, may_go_on)
        # The files of a compaction that is not committed yet look like orphaned ones.
        may_sweep = self.loaded.folder is not None and not self.compactor.background.is_pending
        if may_sweep and time.monotonic() - self._swept_at_s > SWEEP_INTERVAL_S:
            self._swept_at_s = time.monotonic()
            self._try("sweeping staged files", self.sweep, may_go_on)

    def find_unfinished_work(self, may_go_on: Callable[[], bool]) -> Callable[[], object] | None:
        """Return a function that waits for the compaction in the background, or None if there is none."""
        return partial(self.compactor.finish, may_go_on) if self.compactor.background.is_pending else None

    def sweep(self) -> int:
        """Delete the orphaned staged files, and return their number. Raises `OSError`, `OperatingError`."""
        return self._orphans.sweep(self._if_still_own, self.version, self.retained.paths)

    def delete_old_files(self) -> None:
        """Delete the table's old files, and the folders that are empty then."""
        super().delete_old_files()
        if (folder := self.loaded.folder) is not None:
            # Every transaction has a folder, which stays on a disk, so that listing them would take longer and longer.
            remove_empty_folders(folder, self.columns.txid, self.compacted_txid)


def _largest_of(staged: Sequence[StagedFile], check: SumCheck) -> dict[str, int]:
    """Return the largest sum of each column that one key can have in all files, which have one row of a key each."""
    return {field.name: sum(file.largest[field.name] for file in staged) for _, field in check.columns}


def remove_empty_folders(table: Path, column: str, end: TxId) -> None:
    """Remove the empty folders of transactions before `end`, to which no program writes again."""
    for folder in table.glob(f"{column}=*"):
        text = folder.name.removeprefix(f"{column}=")
        if text.isdigit() and int(text) < end and not any(folder.iterdir()):
            folder.rmdir()
