"""The compactions of one open table in the log layout.

A compaction replaces adjacent segments of committed transactions by one, in a Delta commit of its own, between two
transactions. `Compactor` decides when one is due, has it written, and commits it. A small compaction is written by the
calling thread at once. A large one is written in the background (`background_compaction.py`) and committed between two
later transactions. The newest transaction is never compacted, since it may have to be replaced.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import pyarrow as pa
from deltalake import Transaction
from deltalake.exceptions import DeltaError

from state.delta.read.stored_segments import StoredSegments
from state.delta.segments.log_layout import (
    Compaction,
    LogLayout,
    Segment,
    due_compaction,
    full_compaction,
    is_compaction_due,
    join_settings,
)
from state.delta.tables.sql import DATA_FUSION
from state.delta.tables.staging import is_unescaped_column
from state.delta.tables.table import write_refused_error
from state.delta.upkeep import background_compaction
from state.delta.upkeep.background_compaction import BackgroundCompaction, WrittenCompaction
from state.delta.upkeep.compaction_writers import CompactionWriters
from state.delta.write.engine_commits import commit_overwrite, owned_properties, settle_feature
from state.delta.write.table_writer import WriteCounts
from state.fence import WriteRefused
from transactional.model.attempt import TxId
from transactional.model.errors import OperatingError
from transactional.model.names import STAGED_FEATURE, compaction_of

_log = logging.getLogger(__name__)


class Compactor:
    """Compacts one table that is open for writing, as `settings` say."""

    def __init__(self, stored: StoredSegments, settings: LogLayout, counts: WriteCounts) -> None:
        self._stored, self._loaded, self.settings = stored, stored.loaded, settings
        self.background, self.writers = BackgroundCompaction(), CompactionWriters()
        self._counts, self._compacted_rows = counts, 0

    def find_due_work(self, newest: TxId) -> Callable[[], object] | None:
        """Return a function that does the compaction that is due, or None if none is."""
        compacted, files = self._stored.compacted_txid, self._counts.staged_files
        is_due = self.background.is_pending or is_compaction_due(compacted, newest, self.settings, files=files)
        return (lambda: self._compact_due(newest)) if is_due else None

    def finish(self, may_go_on: Callable[[], bool]) -> None:
        """Wait for the compaction that is being written in the background, and commit it. Raises `WriteRefused`, …"""
        if self.background.wait_until_written(may_go_on):
            self._commit_from_background()
        else:
            _log.info("Delta table %s: the run ended before a compaction was written", self._loaded.location)

    def compact(self, newest: TxId) -> None:
        """Compact every transaction before `newest` into the base. Raises `WriteRefused`, `OperatingError`."""
        self.background.forget()
        segments = self._stored.segments()
        compaction, horizon = full_compaction(segments, newest), self._horizon_before(newest)
        if compaction is None:
            return
        try:
            if (write := self._background_writer(compaction, segments, horizon)) is None:
                self.write_compaction(compaction, horizon)
            elif not self._commit_written(write()):
                raise WriteRefused("another program has rewritten the files that were compacted", is_conflict=True)
        except (DeltaError, OSError, pa.ArrowException) as error:
            raise write_refused_error(self._loaded.location, error) from None

    def write_compaction(self, compaction: Compaction, horizon: int | None = None) -> None:
        """Replace the segments of a compaction by one, in one Delta commit. Raises `WriteRefused`.

        Rows that had expired at `horizon` are left out.
        """
        self._loaded.disk.make_durable()
        query = self._stored.require_query()
        txid = DATA_FUSION.name(self._loaded.columns.txid)
        rows, order = query.compact(compaction, self._stored.base_txid(), horizon), query.compaction_order(compaction)
        sql = f"SELECT f.*, CAST({compaction.end} AS BIGINT) AS {txid} FROM ({rows}) f{order}"
        predicate = f"{txid} > {compaction.start} AND {txid} <= {compaction.end}"
        properties = owned_properties(self._loaded, Transaction(compaction_of(self._loaded.owner), compaction.end))
        reader = self._stored.reader(sql, join_settings(self._stored.segments()))
        commit_overwrite(self._loaded, reader, properties, predicate=predicate)
        self._log_compaction(compaction)

    def _horizon_before(self, newest: TxId) -> int | None:
        """Return the expiry horizon of the transaction before the newest one. No reader needs rows expired by it."""
        horizons = self._loaded.horizons()
        return horizons.previous if horizons.txid == newest else None

    def _compact_due(self, newest: TxId) -> bool:
        """Do the compaction that is due. False while one that is written in the background is not committed."""
        if self.background.is_pending:
            self._commit_from_background()
            return not self.background.is_pending
        segments, query, horizon = self._stored.segments(), self._stored.query(), self._horizon_before(newest)
        whole = query is not None and query.has_restarts
        compacted = self._stored.compacted_txid
        compaction = due_compaction(
            segments, compacted, newest, self.settings, files=self._counts.staged_files, whole=whole
        )
        if compaction is None:
            return True
        if (write := self._background_writer(compaction, segments, horizon)) is None:
            self.write_compaction(compaction, horizon)
            return True
        self.background.start(write)
        return False

    def _background_writer(
        self, compaction: Compaction, segments: Sequence[Segment], horizon: int | None
    ) -> Callable[[], WrittenCompaction] | None:
        """Return a function that writes a large compaction, in whatever thread calls it.

        None if the compaction is small, or if this thread has to write it.
        """
        is_possible = self._loaded.folder is not None and is_unescaped_column(self._loaded.columns.txid)
        if compaction.rows < background_compaction.BACKGROUND_ROWS or not is_possible:
            return None
        combine = self._stored.require_query().combine
        settle_feature(self._loaded, STAGED_FEATURE)
        task = background_compaction.compaction_task(self._loaded, combine, compaction, segments, horizon)
        return self.writers.writer_of(task, executors_write=self.settings.staged_bytes is not None)

    def _commit_written(self, finished: WrittenCompaction) -> bool:
        """Commit a compaction whose rows are written. False if its range of the table has other files by now."""
        self._loaded.disk.make_durable()
        is_committed = background_compaction.commit_compaction(self._loaded, finished)
        if is_committed:
            self._log_compaction(finished.compaction)
        return is_committed

    def _commit_from_background(self) -> None:
        """Commit the compaction from the background if it is written. It is dropped if its range has other files."""
        if (finished := self.background.read_finished()) is None:
            return
        try:
            is_committed = self._commit_written(finished)
        except OperatingError as error:
            self.background.forget()
            raise WriteRefused(str(error), is_conflict=False) from error
        if not is_committed:
            _log.warning(
                "Delta table %s: a compaction up to transaction %d was dropped: its files were rewritten meanwhile",
                *(self._loaded.location, finished.compaction.end),
            )
        self.background.forget()

    def _log_compaction(self, compaction: Compaction) -> None:
        # The table has no such segment if all keys were deleted.
        rows = next((segment.rows for segment in self._stored.segments() if segment.txid == compaction.end), 0)
        self._compacted_rows += rows
        self._counts.staged_files = 0
        _log.info(
            "Delta table %s: %d segments with %d rows up to transaction %d compacted into %d rows; %s",
            *(
                self._loaded.location,
                compaction.segments,
                compaction.rows,
                compaction.end,
                rows,
                self.write_amplification(),
            ),
        )

    def write_amplification(self) -> str:
        """Return how many rows compactions have written for each row added since the table was opened, as a text."""
        added_rows = self._counts.rows
        return f"{self._compacted_rows} rows written by compactions for {added_rows} that were added" + (
            f", {self._compacted_rows / added_rows:.1f} each" if added_rows else ""
        )
