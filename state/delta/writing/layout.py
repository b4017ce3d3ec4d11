"""`Layout`: the open Delta table of a state, whatever its layout.

`MergedTable` (one row per key) and `SegmentsTable` (the rows that each transaction adds) implement it. What both do in
the same way is here: versions, expiry horizons, cached rows, and maintenance between two transactions. Maintenance
never fails a transaction: an error is counted and logged, and the work is tried again after a later transaction.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from state.delta.log.files import Removals, delete_old_files
from state.delta.log.log import added_bytes
from state.delta.log.rebuilding import KnownTable, can_be_opened, rebuild_checkpoint
from state.delta.tables.data_files import DataFile
from state.delta.tables.lookup import check_sums, with_keys
from state.delta.tables.sql import DATA_FUSION, Dialect, is_in_range
from state.delta.tables.table import unreadable
from state.delta.write.entry import as_attempt, commit_files, settle_expiry
from state.delta.write.snapshot import LoadedTable
from state.fence import TableWrite, WriteRefused
from state.rows.expiring import ExpiryHorizons, select_range, select_unexpired
from state.rows.sums import SumCheck
from transactional.core.ports import CommitFacts
from transactional.model.attempt import AttemptId, TransactionAttempt, TxId
from transactional.model.errors import OperatingError, TransactionalError
from transactional.model.names import STORE_PROPERTY
from transactional.model.plumbing.failures import LASTING_COUNT, FailuresInARow

_log = logging.getLogger(__name__)
VACUUM_INTERVAL = 1_000
"""Writes between two deletions of old files."""
COMPACTING, CHECKPOINT, SYNCING = "compacting", "writing a checkpoint", "syncing to disk"
"""Kinds of maintenance, as `status` shows them."""
CACHED_ROWS_MAX = 100_000
"""Largest number of rows that are cached between two reads of one attempt."""


@dataclass(frozen=True, slots=True)
class RetainedParts:
    """Parts of a table that maintenance may not delete: the log from a Delta version on, and some data files."""

    version: int | None = None
    paths: frozenset[str] = frozenset()


NOTHING_RETAINED = RetainedParts()


class Layout(ABC):
    """The open table of a state. `state` is its name in messages."""

    def __init__(self, loaded: LoadedTable, state: str) -> None:
        self.loaded, self.columns, self._state = loaded, loaded.columns, state
        self._cached_rows: tuple[int, TxId, pa.Table] | None = None
        self._writes = 0
        self._removals = Removals(loaded.location, loaded.delta_version)
        self.retained = NOTHING_RETAINED
        self._failures = FailuresInARow()

    # --- the fenced table -------------------------------------------------------------------------------------------

    def read_and_check_version(self) -> AttemptId | None:
        """Load the table (see `LoadedTable.read_and_check_version`)."""
        return self.loaded.read_and_check_version()

    def created_for(self) -> str | None:
        """Return the `store_id` that the table was created with."""
        return self.loaded.properties.get(STORE_PROPERTY)

    def version(self) -> AttemptId | None:
        """Return the id of the attempt that wrote the loaded version."""
        return self.loaded.version()

    def horizons(self) -> ExpiryHorizons:
        """Return the expiry horizons that the loaded version has recorded."""
        return self.loaded.horizons()

    def last_commit(self) -> CommitFacts:
        """Return facts of the last write: its Delta version, and the bytes that it added to a table on a disk."""
        folder, version = self.loaded.folder, self.loaded.delta_version
        return CommitFacts(version, None if folder is None else added_bytes(folder, version))

    def write_version(
        self, attempt_id: AttemptId, attempt: TransactionAttempt | None, horizons: ExpiryHorizons | None = None
    ) -> None:
        """Write the version and no row. Raises `WriteRefused`."""
        self.loaded.disk.settle()
        self.will_record(attempt_id, horizons)
        commit_files(self.loaded, [], as_attempt(self.loaded, attempt_id, attempt))

    def will_record(self, attempt_id: AttemptId, horizons: ExpiryHorizons | None) -> None:
        """Let the Delta commit of an attempt record expiry horizons, None for none. Raises `WriteRefused`.

        The table says first by which column rows expire.
        """
        if horizons is not None:
            settle_expiry(self.loaded)
            self.loaded.will_record(attempt_id, horizons)

    def lookup(self, end_txid: TxId, keys: pa.Table) -> pa.Table:
        """Return key and value columns of the rows with these keys, as they were before transaction `end_txid`.

        Rows of other keys may be among them.
        """
        version = (self.loaded.delta_version, end_txid)
        if self._cached_rows is None or self._cached_rows[:2] != version:
            if self.row_count() > CACHED_ROWS_MAX:
                return self.search(end_txid, keys)
            # A bolt may read key by key.
            self._cached_rows = (*version, self.rows(end_txid))
        return with_keys(self._cached_rows[2], keys)

    def rows_between(self, end_txid: TxId, column: str, start: int | None, end: int) -> pa.Table:
        """Return the rows, as `rows` does, with `start < column <= end`."""
        return self.rows(end_txid, lambda rows: select_range(rows, column, start, end))

    def count_between(self, column: str, start: int | None, end: int) -> int:
        """Return the number of stored rows with `start < column <= end`. Raises `OperatingError`."""
        query = f"SELECT count(*) AS n FROM t WHERE {is_in_range(DATA_FUSION, column, start, end)}"
        try:
            return int(self.loaded.query(query).read_all()["n"][0].as_py())
        except (DeltaError, OSError, pa.ArrowException) as error:
            raise unreadable(self.loaded.location, error) from None

    @abstractmethod
    def apply(self, write: TableWrite) -> None:
        """Write rows, one per key, and the version (see `FencedTable`). Raises `WriteRefused`, `SumOverflow`, and
        `OperatingError` for files that are not there."""

    # --- reading ----------------------------------------------------------------------------------------------------

    def can_show(self, txid: TxId) -> bool:
        """True if this version can show the table as of a transaction, whatever the table's newest version is."""
        return False

    @abstractmethod
    def rows(self, end_txid: TxId | None, select: Callable[[pa.Table], pa.Table] = lambda rows: rows) -> pa.Table:
        """Return key and value columns of the rows as they were before transaction `end_txid`; None: as they are.

        `select` filters the rows, one part of them at a time, so that a large table is never in memory as a whole.
        """

    def unexpired_rows(self, end_txid: TxId | None) -> pa.Table:
        """Return the rows, as `rows` does, without those that had expired for readers then."""
        expires = self.columns.expires
        if expires is None:
            return self.rows(end_txid)
        horizon = self.horizon_for(end_txid)
        return self.rows(end_txid, lambda rows: select_unexpired(rows, expires, horizon))

    def horizon_for(self, end_txid: TxId | None) -> int | None:
        """Return the expiry horizon of readers who see the table as it was before transaction `end_txid`."""
        return self.horizons().for_reader(None if end_txid is None else TxId(end_txid - 1))

    @abstractmethod
    def search(self, end_txid: TxId, keys: pa.Table) -> pa.Table:
        """Return what `lookup` does, from a large table."""

    @abstractmethod
    def view(self, end_txid: TxId | None, dialect: Dialect, source: str) -> str:
        """Return a query for one row per key as it was before transaction `end_txid`. `source` names the table."""

    def row_count(self) -> int:
        """Return the number of stored rows. Raises `OperatingError`."""
        return self.loaded.row_count()

    # --- between two transactions -----------------------------------------------------------------------------------

    @abstractmethod
    def find_due_work(self, newest: TxId) -> Callable[[], object] | None:
        """Return a function that does the compaction that is due, or None if none is."""

    @abstractmethod
    def compact(self, newest: TxId) -> None:
        """Compact the rows before transaction `newest` into one row per key. Raises `WriteRefused`."""

    def maintain(self, newest: TxId, may_go_on: Callable[[], bool]) -> None:
        """Compact if that is due, write checkpoints, clean up the log, and sometimes delete old files. Never fails.

        `newest` is the transaction that was written last. Readers may still need the table as it was before it. Every
        transaction leaves a file or two that are no longer part of the table. They are deleted once they are older than
        the table's `delta.deletedFileRetentionDuration`.
        """
        self._writes += 1
        self._try(COMPACTING, lambda: self._do_due(newest), may_go_on)
        self._tend_log(may_go_on)
        if self._writes % VACUUM_INTERVAL == 0:
            self._try("deleting old files", self.delete_old_files, may_go_on)
        self._try(SYNCING, self.loaded.disk.make_durable)

    def _do_due(self, newest: TxId) -> object:
        """Do the compaction that is due. False if none is, or if it has only begun."""
        work = self.find_due_work(newest)
        return False if work is None else work()

    @property
    def upkeep_failure(self) -> str:
        """The maintenance that has failed several times in a row, with the reason, or an empty text."""
        return self._failures.lasting

    def finish_maintenance(self, may_go_on: Callable[[], bool]) -> None:
        """Wait for work in the background and commit it, as long as `may_go_on()` is true. Never fails."""
        if (work := self.find_unfinished_work(may_go_on)) is not None:
            self._try(COMPACTING, work)
            self._try(SYNCING, self.loaded.disk.make_durable)
        self._finish_log(may_go_on)

    def find_unfinished_work(self, may_go_on: Callable[[], bool]) -> Callable[[], object] | None:
        """Return a function that waits for work in the background and commits it, or None if there is none."""
        return None

    def delete_old_files(self) -> None:
        """Delete old files that are not part of the table. Raises `DeltaError`, `OSError`."""
        # The version before the newest one may need files that the newest one does not.
        self.loaded.disk.make_durable()
        delete_old_files(self.loaded.location, self._if_still_own, self._removals, self.retained.paths)

    def _if_still_own(self) -> DeltaTable | None:
        """Load and return the newest snapshot, or None if another coordinator has written to the table."""
        own_version = self.version()
        self.loaded.refresh()
        return self.loaded.snapshot if self.version() == own_version else None

    def _tend_log(self, may_go_on: Callable[[], bool] | None = None) -> None:
        """Begin a checkpoint if it is due. Once it has ended, between two later transactions, clean up the log."""
        log = self.loaded.log
        if log.checkpoint.has_ended:
            self._try(CHECKPOINT, self._end_checkpoint, may_go_on)
            if self._failures.count(CHECKPOINT) >= LASTING_COUNT:
                self._try(CHECKPOINT, self._rebuild_checkpoint, may_go_on)
        elif log.cleanup.has_ended:
            self._try("cleaning up the log", log.end_cleanup, may_go_on)
        elif log.is_due(self.loaded.delta_version):
            self._try(CHECKPOINT, self._begin_checkpoint, may_go_on)

    def _begin_checkpoint(self) -> bool:
        log, disk = self.loaded.log, self.loaded.disk
        disk.make_durable()
        self._removals.follow(self.loaded.delta_version)
        log.begin_checkpoint(self.loaded.delta_version, disk.sync_checkpoints)
        return False

    def _end_checkpoint(self) -> None:
        log = self.loaded.log
        table = log.end_checkpoint()
        # The snapshot may be made of log files that are about to go.
        self.loaded.reload()
        self.loaded.version()  # read now, since it can't be once the log is damaged
        log.begin_cleanup(table, self.retained.version)

    def _rebuild_checkpoint(self) -> bool:
        """Write the checkpoint from the table's files and versions that this process has in memory.

        False, and nothing is written, if other programs can open the table. Raises `OSError`, `OperatingError`.
        """
        loaded = self.loaded
        if can_be_opened(loaded.location):
            return False
        loaded.disk.make_durable()
        app_versions = loaded.remembered_app_versions()
        remembered_table = KnownTable(
            loaded.delta_version,
            loaded.opened_at,
            loaded.remembered,
            self.remembered_files(),
            app_versions,
            # Without the attempt that wrote the rows, an earlier one would be taken for it.
            wrote_all=self.has_only_attempts and loaded.expected_app_ids <= app_versions.keys(),
        )
        wrong = rebuild_checkpoint(loaded.location, remembered_table)
        _log.warning(
            "Delta table %s: other programs could not open it, so this run wrote its checkpoint of Delta version %d "
            "from memory; what was wrong: %s",
            *(loaded.location, remembered_table.version, wrong or "the hint of the last checkpoint"),
        )
        loaded.reload()
        return True

    @property
    def has_only_attempts(self) -> bool:
        """True if the entries written since the table was opened have no app transactions but those of attempts."""
        return False

    def remembered_files(self) -> Mapping[DataFile, int]:
        """Return the files of this version with their numbers of rows, without the log. Raises `OperatingError`."""
        loaded = self.loaded
        if loaded.is_ahead:
            raise OperatingError(f"Delta table {loaded.location}: the files of its newest version are not known")
        files = pa.table(loaded.remembered.get_add_actions()).to_pylist()
        return {DataFile(file["path"], file["size_bytes"]): file["num_records"] or 0 for file in files}

    def _finish_log(self, may_go_on: Callable[[], bool]) -> None:
        for work in (self.loaded.log.checkpoint, self.loaded.log.cleanup):
            work.wait(may_go_on)
            if work.has_ended:
                self._tend_log()

    def _try(self, kind: str, work: Callable[[], object], may_go_on: Callable[[], bool] | None = None) -> None:
        """Do some maintenance, and count the failures of its kind in a row. Work that returns False has only begun."""
        if may_go_on is not None and not may_go_on():
            return
        try:
            if work() is not False:
                self._failures.clear(kind)
        except (DeltaError, OSError, pa.ArrowException, WriteRefused, TransactionalError) as error:
            location = self.loaded.location
            reason = location.reason(error)
            self._failures.add(kind, reason)
            _log.warning("Delta table %s could not be maintained, it will be tried again: %s", location, reason)

    # --- for the layouts --------------------------------------------------------------------------------------------

    def _sum_check(self, combine: Mapping[str, str]) -> SumCheck:
        values = self.columns.values
        return SumCheck(self._state, values, [combine[name] for name in values.names])

    def _check_sums(self, write: TableWrite, check: SumCheck) -> None:
        """Raise `SumOverflow` with the key whose sum does not fit, which an engine does not name."""
        key, expires = self.columns.key.names, self.columns.expires
        stored = self.lookup(write.attempt.txid, write.rows.select(list(key)))
        if write.horizons is not None and expires is not None:
            stored = select_unexpired(stored, expires, write.horizons.current)
        check_sums(stored, write.rows, len(key), check)
