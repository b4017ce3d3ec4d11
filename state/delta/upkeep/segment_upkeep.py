"""The maintenance of a table in the log layout: segments are compacted, and orphaned staged files deleted."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from state.delta.read.segment_reader import SegmentReader
from state.delta.segments.log_layout import LogLayout
from state.delta.tables.data_files import DataFile
from state.delta.upkeep.compactor import Compactor
from state.delta.upkeep.staged_orphans import StagedOrphans
from state.delta.upkeep.table_upkeep import TableUpkeep
from state.delta.write.segments import LogWriter
from transactional.model.attempt import TxId

SWEEP_INTERVAL_S = 60.0
"""Seconds between two searches for orphaned staged files."""


class SegmentUpkeep(TableUpkeep):
    """Maintains a table in the log layout, which is compacted as `settings` say."""

    def __init__(self, writer: LogWriter, reader: SegmentReader, settings: LogLayout) -> None:
        super().__init__(writer, reader)
        self.reader: SegmentReader = reader
        self.compactor = Compactor(reader.stored, settings, writer.counts)
        self._orphans = StagedOrphans(self.loaded.location)
        self._swept_at_s = time.monotonic()

    def files_in_memory(self) -> Mapping[DataFile, int]:
        """Return the files of this version with their numbers of rows, without the log."""
        partitions = self.loaded.current.partitions
        return super().files_in_memory() if partitions is None else partitions.files()

    def find_due_work(self, newest: TxId) -> Callable[[], object] | None:
        return self.compactor.find_due_work(newest)

    def compact(self, newest: TxId) -> None:
        """Compact every transaction before `newest` into the base. Raises `WriteRefused`."""
        self.compactor.compact(newest)

    def maintain(self, committed_txid: TxId, may_go_on: Callable[[], bool]) -> None:
        """Maintain the table as every layout does, and sometimes search for orphaned staged files."""
        super().maintain(committed_txid, may_go_on)
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
        return self._orphans.sweep(self._if_still_own, self.loaded.version, self.retained.paths)

    def delete_old_files(self) -> None:
        """Delete the table's old files, and the folders that are empty then."""
        super().delete_old_files()
        if (folder := self.loaded.folder) is not None:
            # Every transaction has a folder, which stays on a disk, so that listing them would take longer and longer.
            remove_empty_folders(folder, self.columns.txid, self.reader.compacted_txid)


def remove_empty_folders(table: Path, column: str, end: TxId) -> None:
    """Remove the empty folders of transactions before `end`, to which no program writes again."""
    for folder in table.glob(f"{column}=*"):
        text = folder.name.removeprefix(f"{column}=")
        if text.isdigit() and int(text) < end and not any(folder.iterdir()):
            folder.rmdir()
