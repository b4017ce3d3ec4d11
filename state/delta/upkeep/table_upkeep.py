"""`TableUpkeep`: the maintenance of a state's table between two transactions, whatever the table's layout.

Compaction, checkpoints, the clean-up of the log, and the deletion of old files. Maintenance never fails a transaction:
an error is counted and logged, and the work is tried again after a later transaction.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from state.delta.log.files import RemovalTimes, delete_old_files
from state.delta.log.log import read_added_bytes
from state.delta.log.rebuilding import TableInMemory, can_be_opened, rebuild_checkpoint
from state.delta.read.table_reader import TableReader
from state.delta.tables.data_files import DataFile
from state.delta.write.table_writer import TableWriter
from state.fence import WriteRefused
from state.rows.expiring import NO_HORIZONS, app_transactions
from transactional.core.ports.state_parts import CommitFacts, TableMaintenance
from transactional.model.attempt import TxId
from transactional.model.errors import OperatingError, TransactionalError
from transactional.model.plumbing.failures import LASTING_COUNT, FailuresInARow

_log = logging.getLogger(__name__)
VACUUM_INTERVAL = 1_000
"""Transactions between two deletions of old files."""
COMPACTING, CHECKPOINT, SYNCING = "compacting", "writing a checkpoint", "syncing to disk"
"""Kinds of maintenance, as `status` shows them."""


@dataclass(frozen=True, slots=True)
class RetainedParts:
    """Parts of a table that maintenance may not delete: the log from a Delta version on, and some data files."""

    version: int | None = None
    paths: frozenset[str] = frozenset()


NOTHING_RETAINED = RetainedParts()


class TableUpkeep(TableMaintenance, ABC):
    """Maintains the table of a writer."""

    def __init__(self, writer: TableWriter, reader: TableReader) -> None:
        self.reader = reader
        self.writer, self.loaded, self.columns = writer, writer.table, writer.columns
        self._removals = RemovalTimes(self.loaded.location, self.loaded.delta_version)
        self.retained = NOTHING_RETAINED
        self._failures = FailuresInARow()

    @abstractmethod
    def find_due_work(self, newest: TxId) -> Callable[[], object] | None:
        """Return a function that does the compaction that is due, or None if none is."""

    @abstractmethod
    def compact(self, newest: TxId) -> None:
        """Compact the rows before transaction `newest` into one row per key. Raises `WriteRefused`."""

    def maintain(self, committed_txid: TxId, may_go_on: Callable[[], bool]) -> None:
        """Compact if that is due, write checkpoints, clean up the log, and sometimes delete old files. Never fails.

        Readers may still need the table as it was before the last transaction. Every transaction leaves a file or two
        that are no longer part of the table. They are deleted once they are older than the table's
        `delta.deletedFileRetentionDuration`.
        """
        self.writer.transactions += 1
        self._try(COMPACTING, lambda: self._do_due(committed_txid), may_go_on)
        self._tend_log(may_go_on)
        if self.writer.transactions % VACUUM_INTERVAL == 0:
            self._try("deleting old files", self.delete_old_files, may_go_on)
        self._try(SYNCING, self.loaded.disk.make_durable)

    def _do_due(self, newest: TxId) -> object:
        """Do the compaction that is due. False if none is, or if it has only begun."""
        work = self.find_due_work(newest)
        return False if work is None else work()

    @property
    def lasting_failure(self) -> str:
        """The maintenance that has failed several times in a row, with the reason, or an empty text."""
        return self._failures.lasting

    def finish(self, may_go_on: Callable[[], bool]) -> None:
        """Wait for work in the background and commit it, as long as `may_go_on()` is true. Never fails."""
        if (work := self.find_unfinished_work(may_go_on)) is not None:
            self._try(COMPACTING, work)
            self._try(SYNCING, self.loaded.disk.make_durable)
        self._finish_log(may_go_on)

    def last_commit(self) -> CommitFacts:
        """Return the Delta version of the last write, and the bytes that it added to a table on a disk of this machine,
        where that takes no request."""
        folder, version = self.loaded.folder, self.loaded.delta_version
        size_bytes = None if folder is None else read_added_bytes(folder, version)
        return CommitFacts(version, size_bytes, self.reader.compacted_txid)

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
        own_version = self.loaded.version()
        self.loaded.refresh()
        return self.loaded.engine if self.loaded.version() == own_version else None

    def _tend_log(self, may_go_on: Callable[[], bool] | None = None) -> None:
        """Begin a checkpoint if it is due. Once it has ended, between two later transactions, clean up the log."""
        log = self.loaded.log
        if log.checkpoint.has_ended:
            self._try(CHECKPOINT, self._end_checkpoint, may_go_on)
            if self._failures.count(CHECKPOINT) >= LASTING_COUNT:
                self._try(CHECKPOINT, self._rebuild_checkpoint, may_go_on)
        elif log.cleanup.has_ended:
            self._try("cleaning up the log", log.end_cleanup, may_go_on)
        elif log.is_checkpoint_due(self.loaded.delta_version):
            self._try(CHECKPOINT, self._begin_checkpoint, may_go_on)

    def _begin_checkpoint(self) -> bool:
        log, disk = self.loaded.log, self.loaded.disk
        disk.make_durable()
        self._removals.read_log(self.loaded.delta_version)
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
        known_versions = loaded.current.app_versions.items()
        app_versions = {app_id: version for app_id, version in known_versions if version is not None}
        remembered_table = TableInMemory(
            loaded.delta_version,
            loaded.opened_at,
            loaded.engine_in_memory,
            self.files_in_memory(),
            app_versions,
            # Without the attempt that wrote the rows, an earlier one would be taken for it.
            wrote_all=self.has_only_attempts and self._expected_app_ids <= app_versions.keys(),
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
    def _expected_app_ids(self) -> set[str]:
        """The app ids with which each commit of an attempt is recorded: the owner's, and those of the horizons if rows
        expire. This version of the table may lack some of them."""
        owner = self.loaded.owner
        return {owner, *dict(app_transactions(owner, NO_HORIZONS) if self.columns.expires is not None else [])}

    @property
    def has_only_attempts(self) -> bool:
        """True if the entries written since the table was opened have no app transactions but those of attempts."""
        return False

    def files_in_memory(self) -> Mapping[DataFile, int]:
        """Return the files of this version with their numbers of rows, without the log. Raises `OperatingError`."""
        loaded = self.loaded
        if loaded.is_ahead:
            raise OperatingError(f"Delta table {loaded.location}: the files of its newest version are not known")
        files = pa.table(loaded.engine_in_memory.get_add_actions()).to_pylist()
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
            reason = location.describe_error(error)
            self._failures.add(kind, reason)
            _log.warning("Delta table %s could not be maintained, it will be tried again: %s", location, reason)
