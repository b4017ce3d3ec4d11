"""The compactions of one table, between its transactions: when they are due, how they are committed, what they
write."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import pyarrow as pa
from deltalake import Transaction
from deltalake.exceptions import DeltaError

from state.delta.segments import background_compaction
from state.delta.segments.background_compaction import BackgroundCompaction, WrittenCompaction
from state.delta.segments.compaction_writers import CompactionWriters
from state.delta.segments.log_layout import (
    Compaction,
    LogLayout,
    Segment,
    due_compaction,
    full_compaction,
    is_time,
    join_settings,
)
from state.delta.segments.stored import StoredSegments
from state.delta.tables.sql import DATA_FUSION
from state.delta.tables.staging import is_plain
from state.delta.tables.table import refused
from state.delta.writing.commit import commit_overwrite, noted, settle_feature
from state.fence import WriteRefused
from transactional.model.attempt import TxId
from transactional.model.errors import OperatingError
from transactional.model.names import STAGED_FEATURE, compaction_of

_log = logging.getLogger(__name__)


class Compactor:
    """Compactions of a table that is open for writing. `settings` says what is compacted when."""

    def __init__(self, stored: StoredSegments, settings: LogLayout) -> None:
        self._stored, self._loaded, self.settings = stored, stored.loaded, settings
        self.background, self.writers = BackgroundCompaction(), CompactionWriters()
        self._came, self._compacted_rows, self._files = 0, 0, 0

    def note_write(self, rows: int, *, staged_files: int = 0) -> None:
        """Note what a transaction has written: its rows, and those of its files that tasks have staged."""
        self._came, self._files = self._came + rows, self._files + staged_files

    def due(self, newest: TxId) -> Callable[[], object] | None:
        """What should be compacted by now. None: nothing."""
        files = self._files
        is_due = self.background.is_pending or is_time(self._stored.compacted_txid, newest, self.settings, files=files)
        return (lambda: self._compact_due(newest)) if is_due else None

    def finish(self, may_go_on: Callable[[], bool]) -> None:
        """Wait for the compaction that is being written in the background, and commit it. Raises `WriteRefused`, …"""
        if self.background.wait(may_go_on):
            self._commit_apart()
        else:
            _log.info("Delta table %s: the run has ended before a compaction was written", self._loaded.location)

    def compact(self, newest: TxId) -> None:
        """Compact every transaction before `newest` into the base. Raises `WriteRefused`, `OperatingError`."""
        self.background.forget()
        segments = self._stored.all()
        compaction, horizon = full_compaction(segments, newest), self._past(newest)
        if compaction is None:
            return
        try:
            if (write := self._writer_apart(compaction, segments, horizon)) is None:
                self.make_one(compaction, horizon)
            elif not self._commit_written(write()):
                raise WriteRefused("somebody has rewritten what it was made of", is_conflict=True)
        except (DeltaError, OSError, pa.ArrowException) as error:
            raise refused(self._loaded.location, error) from None

    def make_one(self, compaction: Compaction, horizon: int | None = None) -> None:
        """Make the segments of a compaction one, in one Delta commit; without what had expired by the horizon. Raises
        `WriteRefused`."""
        self._loaded.disk.make_durable()
        query = self._stored.known_query()
        txid = DATA_FUSION.name(self._loaded.columns.txid)
        rows, order = query.compact(compaction, self._stored.base(), horizon), query.compaction_order(compaction)
        sql = f"SELECT f.*, CAST({compaction.until} AS BIGINT) AS {txid} FROM ({rows}) f{order}"
        predicate = f"{txid} > {compaction.after} AND {txid} <= {compaction.until}"
        properties = noted(self._loaded, Transaction(compaction_of(self._loaded.owner), compaction.until))
        reader = self._stored.reader(sql, join_settings(self._stored.all()))
        commit_overwrite(self._loaded, reader, properties, predicate=predicate)
        self._note(compaction)

    def _past(self, newest: TxId) -> int | None:
        """The horizon of the transaction before the newest one: what had expired by it, nobody looks at any more."""
        horizons = self._loaded.horizons()
        return horizons.previous if horizons.txid == newest else None

    def _compact_due(self, newest: TxId) -> bool:
        """Compact what is due; False as long as a compaction that is written in the background is not committed."""
        if self.background.is_pending:
            self._commit_apart()
            return not self.background.is_pending
        segments, query, horizon = self._stored.all(), self._stored.query(), self._past(newest)
        whole = query is not None and query.has_restarts
        compacted = self._stored.compacted_txid
        compaction = due_compaction(segments, compacted, newest, self.settings, files=self._files, whole=whole)
        if compaction is None:
            return True
        if (write := self._writer_apart(compaction, segments, horizon)) is None:
            self.make_one(compaction, horizon)
            return True
        self.background.start(write)
        return False

    def _writer_apart(
        self, compaction: Compaction, segments: Sequence[Segment], horizon: int | None
    ) -> Callable[[], WrittenCompaction] | None:
        """What writes a large compaction: it need not be this thread. None: it is small, or has to be written in
        place."""
        can_be_apart = self._loaded.folder is not None and is_plain(self._loaded.columns.txid)
        if compaction.rows < background_compaction.BACKGROUND_ROWS or not can_be_apart:
            return None
        combine = self._stored.known_query().combine
        settle_feature(self._loaded, STAGED_FEATURE)
        task = background_compaction.compaction_task(self._loaded, combine, compaction, segments, horizon)
        return self.writers.writer_of(task, executors_write=self.settings.staged_bytes is not None)

    def _commit_written(self, written: WrittenCompaction) -> bool:
        """Commit a compaction that was written in the background; False: the table says something else by now."""
        self._loaded.disk.make_durable()
        is_committed = background_compaction.commit_compaction(self._loaded, written)
        if is_committed:
            self._note(written.compaction)
        return is_committed

    def _commit_apart(self) -> None:
        """Commit the compaction that was written in the background, once it is; it is dropped if the table says
        something else by now."""
        if (written := self.background.written()) is None:
            return
        try:
            is_committed = self._commit_written(written)
        except OperatingError as error:
            self.background.forget()
            raise WriteRefused(str(error), is_conflict=False) from error
        if not is_committed:
            _log.warning(
                "Delta table %s: a compaction up to transaction %d was dropped: somebody has rewritten its files",
                *(self._loaded.location, written.compaction.until),
            )
        self.background.forget()

    def _note(self, compaction: Compaction) -> None:
        # All keys may have been deleted.
        written = next((segment.rows for segment in self._stored.all() if segment.txid == compaction.until), 0)
        self._compacted_rows, self._files = self._compacted_rows + written, 0
        _log.info(
            "Delta table %s: %d segments with %d rows up to transaction %d compacted into %d rows; %s",
            *(
                self._loaded.location,
                compaction.segments,
                compaction.rows,
                compaction.until,
                written,
                self.write_amplification(),
            ),
        )

    def write_amplification(self) -> str:
        """How many rows compactions have written, per row that came, since the table was opened."""
        return f"{self._compacted_rows} rows written by compactions for {self._came} that came" + (
            f", {self._compacted_rows / self._came:.1f} each" if self._came else ""
        )
