"""The log layout: a transaction writes a segment of its own and touches no other row, whatever the table's size.

The table is partitioned by txid; the rows of one txid are a segment. A transaction replaces the segment of its txid:
what a dead attempt has left goes with it, and nothing has to be read. Compactions go by an app id of their own, whose
version is the txid up to which the table is compacted. They replace segments of committed transactions only, by rows
that say the same, in one Delta commit: so readers see no difference, and a crash leaves the table as it was, or
compacted.
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

from state.delta.log.version import TableVersion
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
from state.delta.tables.lookup import SegmentCopies, measured, newest_rows, with_keys
from state.delta.tables.sql import DATA_FUSION, Dialect, alive_view
from state.delta.tables.staging import FileStager
from state.delta.writing.commit import as_attempt, commit_overwrite, commit_properties, settle_feature, under_fence
from state.delta.writing.layout import Layout
from state.delta.writing.staged import StagedOrphans, check_staged, commit_staged, read_by_driver
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
"""How long after each other staged files are looked for that nobody commits any more."""


class SegmentsTable(Layout):
    """A table of a state in the log layout. `compaction` says what is compacted when."""

    def __init__(self, loaded: TableVersion, state: str, compaction: LogLayout | None = None) -> None:
        super().__init__(loaded, state)
        self._stored = StoredSegments(loaded)
        self.compactor = Compactor(self._stored, compaction or LogLayout())
        self._copies = SegmentCopies(self.columns.key.names, self._stored.load)
        self._orphans = StagedOrphans(loaded.location)
        self._swept_at_s = time.monotonic()
        self._bounds: tuple[TxId, SumBounds] | None = None

    @property
    def compacted_txid(self) -> TxId:
        """The transaction up to which the table was compacted, 0: it never was."""
        return self._stored.compacted_txid

    def last_commit(self) -> CommitFacts:
        """What the last write made."""
        return replace(super().last_commit(), compacted_txid=self.compacted_txid)

    def knows(self, txid: TxId) -> bool:
        """Whether this version says what was there after a transaction: its rows, and which of them had expired."""
        return txid >= self.compacted_txid and (self.columns.expires is None or txid >= self.horizons().txid - 1)

    def segments(self) -> list[Segment]:
        """The segments of this Delta version, oldest first."""
        return self._stored.all()

    # --- writing ----------------------------------------------------------------------------------------------------

    def apply(self, write: TableWrite) -> None:
        """Replace the segment of the attempt's transaction. Raises `WriteRefused`, `SumOverflow`, `OperatingError`."""
        if write.staged:
            self._apply_staged(write)
            return
        self._begin(write)
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
        self.compactor.note_write(rows.num_rows)

    def _apply_staged(self, write: TableWrite) -> None:
        """Let the segment be the staged files, with a further one for the rows: a Delta commit of metadata only."""
        location, attempt, staged = self.loaded.location, write.attempt, write.staged
        check_staged(location, attempt, staged)
        self._begin(write)
        if write.rows.num_rows:
            stager = FileStager(Path(location.uri), self.loaded.owner, self.columns.written)
            staged = [*staged, stager.stage(attempt, write.rows)]
        check = self._sum_check(write.combine)
        if check.columns and not self.admits(check, _largest_of(staged, check)):
            self._check_sums(read_by_driver(location, self.columns, write, self._state), check)
        commit_staged(self.loaded, attempt, staged)
        self.compactor.note_write(sum(file.rows for file in staged), staged_files=len(staged))

    def _begin(self, write: TableWrite) -> None:
        """What the table has to say before the first rows of a kind."""
        self.loaded.disk.settle()
        self.settle_combine(write.combine)
        if write.staged:
            settle_feature(self.loaded, STAGED_FEATURE)
        self.will_record(write.attempt.attempt_id, write.horizons)

    def _with_horizon(self, rows: pa.Table, horizons: ExpiryHorizons | None) -> pa.Table:
        """With the horizon of their transaction, where the table has a column for it."""
        if self.columns.horizon is None:
            return rows
        horizon = None if horizons is None or horizons.current is None else time_scalar(horizons.current)
        column = pa.nulls(rows.num_rows, TIME) if horizon is None else pa.repeat(horizon, rows.num_rows)
        return rows.append_column(self.columns.horizon, column)

    def _replace(self, txid: TxId, rows: pa.Table, properties: CommitProperties) -> None:
        """Replace one segment."""
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
        """Turn a table of the merge layout, which stands at a committed transaction, into the first segment.

        Raises `WriteRefused` when the table is no longer the one of this version.
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
        names += [f"{DATA_FUSION.no_time} AS {DATA_FUSION.name(each)}" for each in horizon]
        reader = self._stored.reader(f"SELECT {', '.join(names)}, CAST({newest} AS BIGINT) AS {txid} FROM t{alive}")
        properties = under_fence(self.loaded, Transaction(compaction_of(self.loaded.owner), newest))
        partition_by = [self.columns.txid]
        commit_overwrite(self.loaded, reader, properties, schema_mode="overwrite", partition_by=partition_by)
        self.loaded.disk.settle()

    # --- sums that fit ----------------------------------------------------------------------------------------------

    def admits(self, check: SumCheck, largest: Mapping[str, int]) -> bool:
        """Whether all sums fit, whichever keys are equal, and take them in: by the largest value of each column."""
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
        return SumBounds(measured(files, self.columns, columns, self._stored.answer, self._stored.unique_until))

    # --- reading ----------------------------------------------------------------------------------------------------

    def rows(self, before: TxId | None, keep: Callable[[pa.Table], pa.Table] = lambda rows: rows) -> pa.Table:
        """Key and value columns, one row per key, as they were before transaction `before`, that `keep` leaves over."""
        self._stored.check_not_compacted(before)
        schema = self.columns.row_schema
        query, segments = self._stored.query(), self._stored.all()
        if query is None or not segments or (before is not None and segments[0].txid >= before):
            return schema.empty_table()
        parts = self._stored.parts(query.view_over_base(self._stored.base(), before), join_settings(segments))
        kept = [keep(part.cast(schema)) for part in parts]
        return pa.concat_tables(kept) if kept else schema.empty_table()

    def rows_between(self, before: TxId, column: str, after: int | None, until: int) -> pa.Table:
        """As `rows`, of those whose column lies in a range. A range of a key column reads no other rows."""
        query, segments = self._stored.query(), self._stored.all()
        if query is None or not segments or segments[0].txid >= before or column not in self.columns.key.names:
            return super().rows_between(before, column, after, until)
        self._stored.check_not_compacted(before)
        schema = self.columns.row_schema
        sql = query.between(column, after, until).view_over_base(self._stored.base(), before)
        parts = [part.cast(schema) for part in self._stored.parts(sql, join_settings(segments))]
        return pa.concat_tables(parts) if parts else schema.empty_table()

    def view(self, before: TxId | None, dialect: Dialect, source: str) -> str:
        """A query on the table, called `source`, for one row per key; right whatever is compacted meanwhile."""
        self._stored.check_not_compacted(before)
        combine = self._stored.combine()
        if combine is None:
            raise OperatingError(
                f"Delta table {self.loaded.location} is empty: how its rows are combined is known with the first one"
            )
        where = "" if before is None else f"{dialect.name(self.columns.txid)} < {before}"
        query = SegmentQuery(self.columns, combine, dialect, source).view(where)
        return alive_view(query, self.columns, dialect, self.horizon_for(before))

    def search(self, before: TxId, wanted: pa.Table) -> pa.Table:
        """The rows of wanted keys: each segment is searched, and only what is found is combined."""
        self._stored.check_not_compacted(before)
        query = self._stored.query()
        segments = {each.txid: (each.files, each.rows) for each in self._stored.all() if each.txid < before}
        if query is None or not segments:
            return self.columns.row_schema.empty_table()
        if query.has_restarts:
            return self.rows(before, lambda rows: with_keys(rows, wanted))
        rows = self._copies.search(segments, wanted)
        return newest_rows(rows, self.columns, query.combine).cast(self.columns.row_schema)

    # --- between two transactions -----------------------------------------------------------------------------------

    def due(self, newest: TxId) -> Callable[[], object] | None:
        """Compaction."""
        return self.compactor.due(newest)

    def compact(self, newest: TxId) -> None:
        """Compact every transaction before `newest` into the base. Raises `WriteRefused`."""
        self.compactor.compact(newest)

    def maintain(self, newest: TxId, may_go_on: Callable[[], bool]) -> None:
        """As every layout's; and staged files that nobody commits any more are looked for every now and then."""
        super().maintain(newest, may_go_on)
        # What a compaction has written and not committed yet looks like what nobody commits.
        may_sweep = self.loaded.folder is not None and not self.compactor.background.is_pending
        if may_sweep and time.monotonic() - self._swept_at_s > SWEEP_INTERVAL_S:
            self._swept_at_s = time.monotonic()
            self._try("sweeping staged files", self.sweep, may_go_on)

    def unfinished(self, may_go_on: Callable[[], bool]) -> Callable[[], object] | None:
        """A compaction that is being written in the background."""
        return partial(self.compactor.finish, may_go_on) if self.compactor.background.is_pending else None

    def sweep(self) -> int:
        """Delete staged files that nobody commits any more; how many. Raises `OSError`, `OperatingError`."""
        return self._orphans.sweep(self._if_still_own, self.version, self.held.paths)

    def delete_old_files(self) -> None:
        """Delete files that are old and no part of the table, and folders that are empty then."""
        super().delete_old_files()
        if (folder := self.loaded.folder) is not None:
            # A folder per transaction: on a disk they stay, and listing them would take longer and longer.
            remove_empty_folders(folder, self.columns.txid, self.compacted_txid)


def _largest_of(staged: Sequence[StagedFile], check: SumCheck) -> dict[str, int]:
    """What one key can get of all the files at most: each has one row of it, if any."""
    return {field.name: sum(file.largest[field.name] for file in staged) for _, field in check.columns}


def remove_empty_folders(table: Path, column: str, before: TxId) -> None:
    """Remove the folders of transactions before `before` that hold no file any more. Nobody writes there again."""
    for folder in table.glob(f"{column}=*"):
        text = folder.name.removeprefix(f"{column}=")
        if text.isdigit() and int(text) < before and not any(folder.iterdir()):
            folder.rmdir()
