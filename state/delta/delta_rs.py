"""The delta-rs engine: one handle of a Delta table, through which the version is read, checked and written.

delta-rs refuses a Delta commit when another one with the same app id came between, but it does not compare versions: it
would write a lower one, and by path it would write anything twice. So the version is always checked on the very
snapshot that is written from, and a refused Delta commit is never tried again from another one.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, QueryBuilder, Transaction, write_deltalake
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction, RemoveAction

from state.base import StateColumns, WriteRefused
from state.delta.compaction import compact
from state.delta.judged import JudgedTable, OwnVersion, once
from state.delta.loading import create_table, is_there, refused, unreadable
from state.delta.rewriting import SmallTable, is_small, visible
from state.delta.small_commit import DataFile, data_files, is_late, replace_rows, replaceable_files
from state.delta.syncing import TableSyncs
from state.delta.table import (
    DATA_FUSION,
    DeltaLocation,
    Dialect,
    commit_metadata,
    delta_schema,
    merge_clauses,
    visible_rows,
    with_keys,
)
from state.delta.upkeep import NOTHING_AFTERWARDS
from state.delta.vacuum import Removals, delete_old_files
from transactional.attempt import AttemptId, TransactionAttempt, TxId
from transactional.syncing import sync

_log = logging.getLogger(__name__)
COMPACTION_INTERVAL = 50
"""Writes between two looks at the number of files."""
FILES_MAX = 32
"""So many files a table may have; a merge reads them all."""
VACUUM_INTERVAL = 1_000
"""Writes between two deletions of old files."""


def always() -> bool:
    """True: whoever calls has time."""
    return True


class DeltaHandle(JudgedTable):
    """A table of a state, in the merge layout."""

    def __init__(self, location: DeltaLocation, owner: str, columns: StateColumns) -> None:
        super().__init__(location, owner, columns)
        self._small, self._writes = SmallTable(columns), 0
        self._syncs: TableSyncs | None = None
        self._removals = Removals(location, self.delta_version)

    @classmethod
    def open(
        cls, location: DeltaLocation, owner: str, columns: StateColumns, properties: Mapping[str, str]
    ) -> DeltaHandle:
        """Create the table where there is none; of two creators at once, both open the same one.

        Raises `SchemaMismatch` when the table that is there has another shape.
        """
        if not is_there(location):
            create_table(location, columns, properties)
        handle = cls(location, owner, columns)
        handle.check()
        return handle

    def keep_durable(self) -> None:
        """Sync what is written from now on, where the table lies on a disk of this machine."""
        if self._location.scheme == "file":
            self._syncs = TableSyncs(Path(self._location.uri), self._file_paths)

    def unsynced(self) -> Collection[Path]:
        """What has to be synced before the handle's Delta version is durable. Raises `OperatingError`."""
        try:
            return () if self._syncs is None else self._syncs.unsynced(self.delta_version)
        except (DeltaError, OSError, ValueError) as error:
            raise unreadable(self._location, error) from None

    def synced(self) -> None:
        """Told when what `unsynced` gave is synced."""
        if self._syncs is not None:
            self._syncs.synced()

    def make_durable(self) -> None:
        """Sync what was written: what comes next builds on it. Raises `OSError`, `OperatingError`."""
        if self._syncs is not None:
            sync(self.unsynced())
            self._syncs.synced()

    def _file_paths(self) -> list[str]:
        paths: list[str] = pa.table(self._table.get_add_actions())["path"].to_pylist()
        return paths

    def merge(self, attempt: TransactionAttempt, source: pa.Table, combine: Mapping[str, str]) -> None:
        """Apply the source's rows, one per key, as this attempt. Raises `WriteRefused`."""
        try:
            rows = self._small.after(attempt.txid, source, combine, self.delta_version, self._rows_if_small)
            if rows is None:
                self._merge(attempt, source, combine)
            else:
                self._rewrite(attempt, rows)
        except (DeltaError, OSError) as error:
            raise refused(self._location, error) from None
        if self.version() != attempt.attempt_id:
            # A merge without effect writes no Delta commit; without one, a dead coordinator could still slip in.
            self.write_version(attempt.attempt_id, attempt)

    def _rewrite(self, attempt: TransactionAttempt, rows: pa.Table) -> None:
        rows = rows.select(pa.schema(self._snapshot.schema()).names)
        files = self._replaceable_files()
        if files is not None:
            version, folder = self.delta_version + 1, Path(self._location.uri)
            transaction, metadata = (self._owner, int(attempt.attempt_id)), self._metadata(attempt.attempt_id, attempt)
            durable = self._syncs is not None
            try:
                self._check_judged()
                new = replace_rows(
                    folder, version, rows, files, transaction=transaction, metadata=metadata, durable=durable
                )
            except FileExistsError:
                raise WriteRefused(f"Delta version {version} is another writer's", is_conflict=True) from None
            self._own, self._judged = OwnVersion(version, attempt.attempt_id), version
            self._small.keep(version, rows, [new])
            if is_late(folder, version):
                self._judge_late()
            elif self._syncs is not None:
                self._syncs.wrote(version)
            return
        self._overwrite(attempt, rows)

    def _replaceable_files(self) -> Sequence[DataFile] | None:
        """The files of this Delta version, where the handle can write the next one itself."""
        if self._own is not None:
            return self._small.files(self._own.delta_version)
        return replaceable_files(self._table) if self._location.scheme == "file" else None

    def _overwrite(self, attempt: TransactionAttempt, rows: pa.Table) -> None:
        with self.writing() as table:
            write_deltalake(
                table,
                rows,
                mode="overwrite",
                commit_properties=self._commit_properties(attempt.attempt_id, attempt),
                post_commithook_properties=NOTHING_AFTERWARDS,
            )
        self._small.keep(self.delta_version, rows, data_files(self._table))

    def _rows_if_small(self, rows_max: int) -> pa.Table | None:
        return self._all_rows() if is_small(self._table, rows_max) else None

    def _all_rows(self) -> pa.Table:
        schema = delta_schema(self._columns)
        names = ", ".join(map(DATA_FUSION.name, schema.names))
        return pa.table(self._query(f"SELECT {names} FROM t").read_all()).cast(schema)

    def _merge(self, attempt: TransactionAttempt, source: pa.Table, combine: Mapping[str, str]) -> None:
        clauses = merge_clauses(self._columns, attempt.txid, combine, DATA_FUSION)
        with self.writing() as table:
            merger = table.merge(
                source,
                clauses.condition,
                source_alias="s",
                target_alias="t",
                commit_properties=self._commit_properties(attempt.attempt_id, attempt),
                post_commithook_properties=NOTHING_AFTERWARDS,
            )
            merger = merger.when_matched_update(clauses.matched).when_not_matched_insert(clauses.not_matched)
            merger = merger.when_not_matched_by_source_update(clauses.rolled_back, clauses.is_rolled_back)
            merger.when_not_matched_by_source_delete(clauses.is_forgotten).execute()

    def write_version(self, attempt_id: AttemptId, attempt: TransactionAttempt | None = None) -> None:
        """Write the version and no row. Raises `WriteRefused`."""
        self.commit([], self._commit_properties(attempt_id, attempt))

    def files(self) -> list[dict[str, Any]]:
        """The files of this Delta version, as its add actions tell of them. Raises `OperatingError`."""
        try:
            found: list[dict[str, Any]] = pa.table(self._table.get_add_actions()).to_pylist()
            return found
        except (DeltaError, OSError) as error:
            raise unreadable(self._location, error) from None

    def replace_files(
        self, attempt: TransactionAttempt, gone: Sequence[RemoveAction], new: Sequence[AddAction]
    ) -> None:
        """As this attempt put files in the place of others; they are in the table's folder. Raises `WriteRefused`."""
        self.commit([*gone, *new], self._commit_properties(attempt.attempt_id, attempt))

    def rows(self, before: TxId | None, keep: Callable[[pa.Table], pa.Table]) -> pa.Table:
        """Key and value columns of the rows, as they were before transaction `before`, that `keep` leaves over.

        `keep` is given a part of the rows at a time, so that a large table is never held as a whole.
        """
        names = (*self._columns.key.names, *self._columns.values.names)
        schema = pa.schema([delta_schema(self._columns).field(name) for name in names])
        if (known := self._small.rows(self.delta_version)) is not None:
            return keep(visible(known, self._columns, before).cast(schema))
        sql = visible_rows(self._columns, before, DATA_FUSION)
        try:
            reader = pa.RecordBatchReader.from_stream(self._query(sql))
            parts = [keep(pa.Table.from_batches([batch]).cast(schema)) for batch in reader]
        except (DeltaError, OSError) as error:
            raise unreadable(self._location, error) from None
        return pa.concat_tables(parts) if parts else schema.empty_table()

    def view(self, before: TxId | None, dialect: Dialect, source: str) -> str:
        """A query on the table, called `source`, for key and value columns as they were before a transaction."""
        return visible_rows(self._columns, before, dialect, source)

    def lookup(self, before: TxId, wanted: pa.Table) -> pa.Table:
        """Key and value columns of the rows with a wanted key, maybe of more, as they were before a transaction."""
        return self.rows(before, lambda rows: with_keys(rows, wanted))

    def newest_txid(self) -> int:
        """The highest transaction of any row, 0 without rows."""
        query = f"SELECT max({DATA_FUSION.name(self._columns.txid)}) AS txid FROM t"
        try:
            rows = pa.table(self._query(query).read_all())
        except (DeltaError, OSError) as error:
            raise unreadable(self._location, error) from None
        return rows.column(0)[0].as_py() or 0

    def row_count(self) -> int:
        """The number of rows, keys that are not yet committed included. Raises `OperatingError`."""
        if (known := self._small.rows(self.delta_version)) is not None:
            return int(known.num_rows)
        try:
            return self._table.count()
        except (DeltaError, OSError) as error:
            raise unreadable(self._location, error) from None

    def maintain(self, newest: TxId, may_go_on: Callable[[], bool] = always) -> None:
        """Now and then put small files together, so that a merge stays quick, and delete old ones. Never fails.

        `newest` is the transaction that was written last; readers may still want to see what was before it.
        Every transaction leaves a file or two that are no longer part of the table; they go once they are older than
        the table's `delta.deletedFileRetentionDuration`.
        """
        self._writes += 1
        if self._writes % COMPACTION_INTERVAL == 0 and self._own is None and len(self._table.file_uris()) > FILES_MAX:
            self._try_to_maintain(self._compact, may_go_on)
        self._try_to_maintain(self._tend_log, may_go_on)
        if self._writes % VACUUM_INTERVAL == 0:
            self._try_to_maintain(self._delete_old_files, may_go_on)
        self._try_to_maintain(self.make_durable)

    def _compact(self) -> None:
        self.make_durable()
        with self.writing() as table:
            if compact(table, self._location, self._owner):
                table.update_incremental()

    def _tend_log(self) -> None:
        if not self._upkeep.is_due(self.delta_version):
            return
        self._removals.follow(self.delta_version)
        if self._upkeep.run(self._table, self._settle_checkpoint):
            # The snapshot may be made of log files that are gone.
            self._load()

    def _settle_checkpoint(self) -> None:
        """What a clean-up deletes is replaced by what may not be lost."""
        if self._syncs is not None:
            self.make_durable()
            self._syncs.sync_checkpoints()

    def _delete_old_files(self) -> None:
        # What the newest version does not need, the one before it may.
        self.make_durable()
        delete_old_files(self._location, self._if_still_own, self._removals)

    def _if_still_own(self) -> DeltaTable | None:
        """The newest snapshot, unless another coordinator has written to the table."""
        written = self.version()
        self.refresh()
        return self._table if self.version() == written else None

    def _try_to_maintain(self, work: Callable[[], object], may_go_on: Callable[[], bool] | None = None) -> None:
        if may_go_on is not None and not may_go_on():
            return
        try:
            work()
        except (DeltaError, OSError, pa.ArrowException, WriteRefused) as error:
            reason = self._location.reason(error)
            _log.warning("Delta table %s could not be tidied up, it will be tried again: %s", self._location, reason)

    def _query(self, sql: str, settings: Mapping[str, str] | None = None) -> Any:
        # `to_pyarrow_table` of this release aborts the process at its exit.
        return QueryBuilder(dict(settings or {})).register("t", self._table).execute(sql)

    def _commit_properties(self, attempt_id: AttemptId, attempt: TransactionAttempt | None) -> CommitProperties:
        # `userMetadata` is what Spark's DESCRIBE HISTORY shows, and the only thing that Spark lets one write there.
        metadata = {"userMetadata": self._metadata(attempt_id, attempt)}
        return once([Transaction(self._owner, attempt_id)], metadata)

    def _metadata(self, attempt_id: AttemptId, attempt: TransactionAttempt | None) -> str:
        return json.dumps(commit_metadata(self._owner, attempt, attempt_id))
