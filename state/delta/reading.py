"""A Delta table that is only read, as it was after a transaction: the newest version, or an older one of the log."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pyarrow as pa
from deltalake.exceptions import DeltaError

from state.delta.log.entries import log_files
from state.delta.log.log import UNREADABLE, check_entries, commit_path
from state.delta.log.version import TableReplaced
from state.delta.tables.table import DeltaLocation, unreadable
from state.delta.writing.layout import Layout
from state.rows.expiring import select_unexpired
from transactional.model.attempt import TxId
from transactional.model.errors import OperatingError, SchemaMismatch, StoreMismatch
from transactional.model.names import OWNER_NOTE


class DeltaReader:
    """Reads the table of one owner. `open` loads its newest version, never the one that is written through."""

    has_history = True

    def __init__(self, location: DeltaLocation, owner: str, open: Callable[[], Layout]) -> None:
        self._location, self._owner, self._open = location, owner, open
        self._newest: Layout | None = None
        self._pinned: Layout | None = None

    def pin(self, txid: TxId | None = None) -> None:
        """Keep the newest version; with `txid` the newest in which that transaction's values can be read."""
        newest = self._refreshed()
        if txid is None or newest.can_show(txid):
            # The rows of a log say themselves which transaction they are of.
            self._pinned = newest
            return
        self._pinned = self._at(txid, newest.loaded.delta_version)

    def _refreshed(self) -> Layout:
        if self._newest is not None:
            try:
                self._newest.loaded.refresh()
            except (SchemaMismatch, TableReplaced):  # it has another layout by now, or is another one
                self._newest = None
        if self._newest is None:
            self._newest = self._open()
        return self._newest

    def _at(self, txid: TxId, newest: int) -> Layout:
        oldest = found = None
        for version, noted in self._noted(newest):
            oldest = noted
            if noted <= txid:
                found = version
                break
        if found is None:
            known = "no transaction" if oldest is None else f"transaction {oldest}"
            raise OperatingError(
                f"Delta table {self._location} can't be read as of transaction {txid}: its log goes back to {known}. "
                "How long it is kept is a property of the table"
            )
        layout = self._open()
        try:
            check_entries(self._location, found)
            layout.loaded.move_to(found)
        except (OperatingError, StoreMismatch) as error:
            raise OperatingError(f"it can't be read as of transaction {txid} any more: {error}") from error
        return layout

    def _noted(self, newest: int) -> Iterator[tuple[int, int]]:
        """The Delta versions that transactions have written, with their txids, newest first."""
        files = log_files(self._location)
        for version in range(newest, -1, -1):
            try:
                with files.open_input_file(commit_path(version)) as file:
                    actions = [json.loads(line) for line in file.read().splitlines() if line.strip()]
                note = json.loads(
                    next((a["commitInfo"].get("userMetadata") or "{}" for a in actions if "commitInfo" in a), "{}")
                )
            except FileNotFoundError:
                return
            except (OSError, *UNREADABLE) as error:
                reason = self._location.reason(error)
                raise OperatingError(
                    f"Delta version {version} of table {self._location} can't be read: {reason}"
                ) from None
            if isinstance(note, dict) and note.get(OWNER_NOTE) == self._owner and isinstance(note.get("txid"), int):
                yield version, note["txid"]

    def rows(self, txid: TxId) -> pa.Table:
        """Key and value columns of all rows as they were after a transaction. Raises `OperatingError`."""
        with self._readable():
            return self._table.unexpired_rows(TxId(txid + 1))

    def lookup(self, txid: TxId, keys: pa.Table) -> pa.Table:
        """As `rows`, of the rows with these keys, maybe of more. Raises `OperatingError`."""
        with self._readable():
            found, expires = self._table.lookup(TxId(txid + 1), keys), self._table.columns.expires
            return (
                found if expires is None else select_unexpired(found, expires, self._table.horizon_for(TxId(txid + 1)))
            )

    @contextmanager
    def _readable(self) -> Iterator[None]:
        """A file that somebody has deleted, or that is torn, is the table's trouble."""
        try:
            yield
        except (DeltaError, OSError, pa.ArrowException) as error:
            raise unreadable(self._location, error) from None

    @property
    def _table(self) -> Layout:
        assert self._pinned is not None, "pin() comes first"
        return self._pinned

    def release(self) -> None:
        """Let go of an older version; the newest stays loaded."""
        self._pinned = None

    def close(self) -> None:
        """Let go of the table."""
        self._pinned = self._newest = None
