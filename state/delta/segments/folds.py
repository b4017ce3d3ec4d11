"""The folds of one table, between its transactions: when they are due, how they are committed, what they write."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import pyarrow as pa
from deltalake import Transaction
from deltalake.exceptions import DeltaError

from state.delta.segments import folds_apart
from state.delta.segments.fold_writers import FoldWriters
from state.delta.segments.folding import Fold, LogLayout, Segment, due_fold, is_time, join_settings, whole_fold
from state.delta.segments.folds_apart import FoldsApart, WrittenFold
from state.delta.segments.stored import StoredSegments
from state.delta.tables.sql import DATA_FUSION
from state.delta.tables.staging import is_plain
from state.delta.tables.table import refused
from state.delta.writing.commit import commit_overwrite, noted, settle_feature
from state.fence import WriteRefused
from transactional.model.attempt import TxId
from transactional.model.errors import OperatingError
from transactional.model.names import STAGED_FEATURE, fold_of

_log = logging.getLogger(__name__)


class Folds:
    """Folds of a table that is open for writing. `settings` says what is folded when."""

    def __init__(self, stored: StoredSegments, settings: LogLayout) -> None:
        self._stored, self._loaded, self.settings = stored, stored.loaded, settings
        self.apart, self.writers = FoldsApart(), FoldWriters()
        self._came, self._folded_rows, self._files = 0, 0, 0

    def note_write(self, rows: int, *, staged_files: int = 0) -> None:
        """Note what a transaction has written: its rows, and those of its files that tasks have staged."""
        self._came, self._files = self._came + rows, self._files + staged_files

    def due(self, newest: TxId) -> Callable[[], object] | None:
        """What should be folded by now. None: nothing."""
        files = self._files
        is_due = self.apart.is_pending or is_time(self._stored.folded_txid, newest, self.settings, files=files)
        return (lambda: self._fold_due(newest)) if is_due else None

    def finish(self, may_go_on: Callable[[], bool]) -> None:
        """Wait for the fold that is being written apart, and commit it. Raises `WriteRefused`, …"""
        if self.apart.wait(may_go_on):
            self._commit_apart()
        else:
            _log.info("Delta table %s: the run has ended before a fold was written", self._loaded.location)

    def fold(self, newest: TxId) -> None:
        """Fold every transaction before `newest` into the base. Raises `WriteRefused`, `OperatingError`."""
        self.apart.forget()
        segments = self._stored.all()
        fold, floor = whole_fold(segments, newest), self._past(newest)
        if fold is None:
            return
        try:
            if (write := self._writer_apart(fold, segments, floor)) is None:
                self.make_one(fold, floor)
            elif not self._commit_written(write()):
                raise WriteRefused("somebody has rewritten what it was made of", is_conflict=True)
        except (DeltaError, OSError, pa.ArrowException) as error:
            raise refused(self._loaded.location, error) from None

    def make_one(self, fold: Fold, floor: int | None = None) -> None:
        """Make the segments of a fold one, in one Delta commit; without what had expired by the floor. Raises
        `WriteRefused`."""
        self._loaded.disk.make_durable()
        query = self._stored.known_query()
        txid = DATA_FUSION.name(self._loaded.columns.txid)
        rows, order = query.fold(fold, self._stored.base(), floor), query.fold_order(fold)
        sql = f"SELECT f.*, CAST({fold.until} AS BIGINT) AS {txid} FROM ({rows}) f{order}"
        predicate = f"{txid} > {fold.after} AND {txid} <= {fold.until}"
        properties = noted(self._loaded, Transaction(fold_of(self._loaded.owner), fold.until))
        reader = self._stored.reader(sql, join_settings(self._stored.all()))
        commit_overwrite(self._loaded, reader, properties, predicate=predicate)
        self._note(fold)

    def _past(self, newest: TxId) -> int | None:
        """The floor of the transaction before the newest one: what had expired by it, nobody looks at any more."""
        floors = self._loaded.floors()
        return floors.before if floors.txid == newest else None

    def _fold_due(self, newest: TxId) -> bool:
        """Fold what is due; False as long as a fold that is written apart is not committed."""
        if self.apart.is_pending:
            self._commit_apart()
            return not self.apart.is_pending
        segments, query, floor = self._stored.all(), self._stored.query(), self._past(newest)
        whole = query is not None and query.has_restarts
        folded = self._stored.folded_txid
        fold = due_fold(segments, folded, newest, self.settings, files=self._files, whole=whole)
        if fold is None:
            return True
        if (write := self._writer_apart(fold, segments, floor)) is None:
            self.make_one(fold, floor)
            return True
        self.apart.start(write)
        return False

    def _writer_apart(
        self, fold: Fold, segments: Sequence[Segment], floor: int | None
    ) -> Callable[[], WrittenFold] | None:
        """What writes a large fold: it need not be this thread. None: it is small, or has to be written in place."""
        can_be_apart = self._loaded.folder is not None and is_plain(self._loaded.columns.txid)
        if fold.rows < folds_apart.APART_ROWS or not can_be_apart:
            return None
        combine = self._stored.known_query().combine
        settle_feature(self._loaded, STAGED_FEATURE)
        task = folds_apart.fold_task(self._loaded, combine, fold, segments, floor)
        return self.writers.writer_of(task, executors_write=self.settings.staged_bytes is not None)

    def _commit_written(self, written: WrittenFold) -> bool:
        """Commit a fold that was written apart; False: the table says something else by now."""
        self._loaded.disk.make_durable()
        is_committed = folds_apart.commit_fold(self._loaded, written)
        if is_committed:
            self._note(written.fold)
        return is_committed

    def _commit_apart(self) -> None:
        """Commit the fold that was written apart, once it is; it is dropped if the table says something else by now."""
        if (written := self.apart.written()) is None:
            return
        try:
            is_committed = self._commit_written(written)
        except OperatingError as error:
            self.apart.forget()
            raise WriteRefused(str(error), is_conflict=False) from error
        if not is_committed:
            _log.warning(
                "Delta table %s: a fold up to transaction %d was dropped: somebody has rewritten what it was made of",
                *(self._loaded.location, written.fold.until),
            )
        self.apart.forget()

    def _note(self, fold: Fold) -> None:
        # All keys may have been deleted.
        written = next((segment.rows for segment in self._stored.all() if segment.txid == fold.until), 0)
        self._folded_rows, self._files = self._folded_rows + written, 0
        _log.info(
            "Delta table %s: %d segments with %d rows up to transaction %d folded into %d rows; %s",
            *(self._loaded.location, fold.segments, fold.rows, fold.until, written, self.write_amplification()),
        )

    def write_amplification(self) -> str:
        """How many rows folds have written, per row that came, since the table was opened."""
        return f"{self._folded_rows} rows written by folds for {self._came} that came" + (
            f", {self._folded_rows / self._came:.1f} each" if self._came else ""
        )
