"""The port of a state's Delta table, whatever its layout; and what both layouts do alike.

`MergedTable` (one row per key) and `SegmentsTable` (what each transaction adds) stand behind it.
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
from state.delta.log.version import TableVersion
from state.delta.tables.data_files import DataFile
from state.delta.tables.lookup import check_sums, with_keys
from state.delta.tables.sql import DATA_FUSION, Dialect, is_in_range
from state.delta.tables.table import unreadable
from state.delta.writing.commit import as_attempt, commit_files, settle_expiry
from state.fence import TableWrite, WriteRefused
from state.rows.expiring import ExpiryHorizons, select_range, select_unexpired
from state.rows.sums import SumCheck
from transactional.core.ports import CommitFacts
from transactional.model.attempt import AttemptId, TransactionAttempt, TxId
from transactional.model.errors import OperatingError, TransactionalError
from transactional.model.names import STORE_PROPERTY
from transactional.model.plumbing.failures import LASTING, FailuresInARow

_log = logging.getLogger(__name__)
VACUUM_INTERVAL = 1_000
"""Writes between two deletions of old files."""
COMPACTING, CHECKPOINT, SYNCING = "compacting", "writing a checkpoint", "syncing to disk"
"""Kinds of upkeep, in words."""
CACHED_ROWS_MAX = 100_000
"""The rows of a table of this size are kept between two reads of one attempt."""


@dataclass(frozen=True, slots=True)
class Held:
    """What maintenance may not delete: the log from a Delta version on, and the files of some versions."""

    version: int | None = None
    paths: frozenset[str] = frozenset()


NOTHING_HELD = Held()


class Layout(ABC):
    """An open table of a state. `state` is what messages call it."""

    def __init__(self, loaded: TableVersion, state: str) -> None:
        self.loaded, self.columns, self._state = loaded, loaded.columns, state
        self._kept: tuple[int, TxId, pa.Table] | None = None
        self._writes = 0
        self._removals = Removals(loaded.location, loaded.delta_version)
        self.held = NOTHING_HELD
        self._failures = FailuresInARow()

    # --- the fenced table -------------------------------------------------------------------------------------------

    def read_and_check_version(self) -> AttemptId | None:
        """Load the table (see `TableVersion.read_and_check_version`)."""
        return self.loaded.read_and_check_version()

    def created_for(self) -> str | None:
        """The `store_id` that it was created with."""
        return self.loaded.properties.get(STORE_PROPERTY)

    def version(self) -> AttemptId | None:
        """The attempt id that the loaded version was written by."""
        return self.loaded.version()

    def horizons(self) -> ExpiryHorizons:
        """What the version that was loaded has recorded of horizons."""
        return self.loaded.horizons()

    def last_commit(self) -> CommitFacts:
        """What the last write made."""
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
        """Let the Delta commit of an attempt record horizons, in a table that says so. Raises `WriteRefused`."""
        if horizons is not None:
            settle_expiry(self.loaded)
            self.loaded.will_record(attempt_id, horizons)

    def lookup(self, before: TxId, wanted: pa.Table) -> pa.Table:
        """Key and value columns of the rows with a wanted key, maybe of more, as they were before a transaction."""
        at = (self.loaded.delta_version, before)
        if self._kept is None or self._kept[:2] != at:
            if self.row_count() > CACHED_ROWS_MAX:
                return self.search(before, wanted)
            # A bolt may read key by key.
            self._kept = (*at, self.rows(before))
        return with_keys(self._kept[2], wanted)

    def rows_between(self, before: TxId, column: str, after: int | None, until: int) -> pa.Table:
        """As `rows`, of those whose column lies in a range."""
        return self.rows(before, lambda rows: select_range(rows, column, after, until))

    def count_between(self, column: str, after: int | None, until: int) -> int:
        """How many rows as they are stored lie in a range. Raises `OperatingError`."""
        query = f"SELECT count(*) AS n FROM t WHERE {is_in_range(DATA_FUSION, column, after, until)}"
        try:
            return int(self.loaded.query(query).read_all()["n"][0].as_py())
        except (DeltaError, OSError, pa.ArrowException) as error:
            raise unreadable(self.loaded.location, error) from None

    @abstractmethod
    def apply(self, write: TableWrite) -> None:
        """Write rows, one per key, and the version (see `FencedTable`). Raises `WriteRefused`, `SumOverflow`, and
        `OperatingError` for files that are not there."""

    # --- reading ----------------------------------------------------------------------------------------------------

    def knows(self, txid: TxId) -> bool:
        """Whether this version says itself what was there after a transaction, wherever the table is now."""
        return False

    @abstractmethod
    def rows(self, before: TxId | None, keep: Callable[[pa.Table], pa.Table] = lambda rows: rows) -> pa.Table:
        """Key and value columns of the rows, as they were before transaction `before`, that `keep` leaves over.

        `keep` is given a part of the rows at a time, so that a large table is never held as a whole.
        """

    def alive_rows(self, before: TxId | None) -> pa.Table:
        """As `rows`, without those that had expired for readers then."""
        expires = self.columns.expires
        if expires is None:
            return self.rows(before)
        horizon = self.horizon_for(before)
        return self.rows(before, lambda rows: select_unexpired(rows, expires, horizon))

    def horizon_for(self, before: TxId | None) -> int | None:
        """The horizon of readers who see what was before a transaction."""
        return self.horizons().for_reader(None if before is None else TxId(before - 1))

    @abstractmethod
    def search(self, before: TxId, wanted: pa.Table) -> pa.Table:
        """As `lookup`, in a large table."""

    @abstractmethod
    def view(self, before: TxId | None, dialect: Dialect, source: str) -> str:
        """A query on the table, called `source`, for one row per key as they were before a transaction."""

    def row_count(self) -> int:
        """The number of rows as they are stored. Raises `OperatingError`."""
        return self.loaded.row_count()

    # --- between two transactions -----------------------------------------------------------------------------------

    @abstractmethod
    def due(self, newest: TxId) -> Callable[[], object] | None:
        """What the layout should compact by now. None: nothing."""

    @abstractmethod
    def compact(self, newest: TxId) -> None:
        """Leave one row per key of what was before transaction `newest`. Raises `WriteRefused`."""

    def maintain(self, newest: TxId, may_go_on: Callable[[], bool]) -> None:
        """Compact what is due, keep the log short, and now and then delete old files. Never fails.

        `newest` is the transaction that was written last; readers may still want to see what was before it.
        Every transaction leaves a file or two that are no longer part of the table; they go once they are older than
        the table's `delta.deletedFileRetentionDuration`.
        """
        self._writes += 1
        self._try(COMPACTING, lambda: self._do_due(newest), may_go_on)
        self._tend_log(may_go_on)
        if self._writes % VACUUM_INTERVAL == 0:
            self._try("deleting old files", self.delete_old_files, may_go_on)
        self._try(SYNCING, self.loaded.disk.make_durable)

    def _do_due(self, newest: TxId) -> object:
        """Compact what is due; False if nothing is, or it has only begun."""
        work = self.due(newest)
        return False if work is None else work()

    @property
    def upkeep_failure(self) -> str:
        """Which upkeep has failed several times in a row, and why; empty without any."""
        return self._failures.lasting

    def finish_maintenance(self, may_go_on: Callable[[], bool]) -> None:
        """Wait for what is done beside the transactions, and commit it, as long as `may_go_on` says so. Never fails."""
        if (work := self.unfinished(may_go_on)) is not None:
            self._try(COMPACTING, work)
            self._try(SYNCING, self.loaded.disk.make_durable)
        self._finish_log(may_go_on)

    def unfinished(self, may_go_on: Callable[[], bool]) -> Callable[[], object] | None:
        """What waits for it and commits it. None: nothing is under way."""
        return None

    def delete_old_files(self) -> None:
        """Delete files that are old and no part of the table. Raises `DeltaError`, `OSError`."""
        # What the newest version does not need, the one before it may.
        self.loaded.disk.make_durable()
        delete_old_files(self.loaded.location, self._if_still_own, self._removals, self.held.paths)

    def _if_still_own(self) -> DeltaTable | None:
        """The newest snapshot, unless another coordinator has written to the table."""
        written = self.version()
        self.loaded.refresh()
        return self.loaded.snapshot if self.version() == written else None

    def _tend_log(self, may_go_on: Callable[[], bool] | None = None) -> None:
        """Begin a checkpoint that is due; between two later transactions, begin to clean up the log by it."""
        log = self.loaded.log
        if log.checkpoint.has_ended:
            self._try(CHECKPOINT, self._end_checkpoint, may_go_on)
            if self._failures.count(CHECKPOINT) >= LASTING:
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
        log.begin_cleanup(table, self.held.version)

    def _rebuild_checkpoint(self) -> bool:
        """Write the checkpoint from what is known of the table; False, and nothing is done, if others can open it.

        Raises `OSError`, `OperatingError`.
        """
        loaded = self.loaded
        if can_be_opened(loaded.location):
            return False
        loaded.disk.make_durable()
        app_versions = loaded.remembered_app_versions()
        known = KnownTable(
            loaded.delta_version,
            loaded.opened_at,
            loaded.remembered,
            self.remembered_files(),
            app_versions,
            # Without the attempt that wrote the rows, an earlier one would be taken for it.
            wrote_all=self.wrote_all and loaded.recorded_app_ids <= app_versions.keys(),
        )
        wrong = rebuild_checkpoint(loaded.location, known)
        _log.warning(
            "Delta table %s: nobody else could open it, so its checkpoint of Delta version %d was written from what "
            "this run knows; what was wrong: %s",
            *(loaded.location, known.version, wrong or "the hint of the last checkpoint"),
        )
        loaded.reload()
        return True

    @property
    def wrote_all(self) -> bool:
        """Whether every entry since the table was opened has no other app transactions than those of attempts."""
        return False

    def remembered_files(self) -> Mapping[DataFile, int]:
        """The files of this version with their numbers of rows, without the log. Raises `OperatingError`."""
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
        """Do some upkeep, and count in a row what fails of its kind. Work that returns False has only begun."""
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
        """Raise `SumOverflow` for a key whose sum does not fit: an engine does not name it."""
        key, expires = self.columns.key.names, self.columns.expires
        stored = self.lookup(write.attempt.txid, write.rows.select(list(key)))
        if write.horizons is not None and expires is not None:
            stored = select_unexpired(stored, expires, write.horizons.current)
        check_sums(stored, write.rows, len(key), check)
