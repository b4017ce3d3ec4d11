"""Reading of a Delta table as it was after a transaction, from its newest version or an older one in the log."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pyarrow as pa
from deltalake.exceptions import DeltaError

from state.delta.log.entries import log_files
from state.delta.log.log import MALFORMED_ENTRY_ERRORS, check_no_entry_is_empty, entry_path
from state.delta.read.table_reader import TableReader
from state.delta.tables.table import DeltaLocation, unreadable_table_error
from state.delta.write.loaded_table import TableReplaced
from state.rows.expiring import select_unexpired
from transactional.model.attempt import TxId
from transactional.model.errors import OperatingError, SchemaMismatch, StoreMismatch
from transactional.model.names import OWNER_NOTE


class DeltaReader:
    """Reads the table of one owner. `open` loads its newest version, apart from the one of the writer."""

    has_history = True

    def __init__(self, location: DeltaLocation, owner: str, open: Callable[[], TableReader]) -> None:
        self._location, self._owner, self._open = location, owner, open
        self._newest: TableReader | None = None
        self._pinned: TableReader | None = None

    def pin(self, txid: TxId | None = None) -> None:
        """Pin the newest version, or with `txid` the newest one that has the values as of that transaction."""
        newest = self._refreshed()
        if txid is None or newest.can_show(txid):
            # The rows of a log have the txid of their transaction.
            self._pinned = newest
            return
        self._pinned = self._load_as_of(txid, newest.loaded.delta_version)

    def _refreshed(self) -> TableReader:
        if self._newest is not None:
            try:
                self._newest.loaded.refresh()
            except (SchemaMismatch, TableReplaced):  # it has another layout by now, or is another one
                self._newest = None
        if self._newest is None:
            self._newest = self._open()
        return self._newest

    def _load_as_of(self, txid: TxId, newest: int) -> TableReader:
        oldest_txid = delta_version = None
        for version, version_txid in self._transaction_versions(newest):
            oldest_txid = version_txid
            if version_txid <= txid:
                delta_version = version
                break
        if delta_version is None:
            log_start = "no transaction" if oldest_txid is None else f"transaction {oldest_txid}"
            raise OperatingError(
                f"Delta table {self._location} can't be read as of transaction {txid}: its log goes back to "
                f"{log_start}. How long it is kept is a property of the table"
            )
        reader = self._open()
        try:
            check_no_entry_is_empty(self._location, delta_version)
            reader.loaded.move_to(delta_version)
        except (OperatingError, StoreMismatch) as error:
            raise OperatingError(f"it can't be read as of transaction {txid} any more: {error}") from error
        return reader

    def _transaction_versions(self, newest: int) -> Iterator[tuple[int, int]]:
        """Yield the Delta versions that transactions have written, with their txids, newest first."""
        files = log_files(self._location)
        for version in range(newest, -1, -1):
            try:
                with files.open_input_file(entry_path(version)) as file:
                    actions = [json.loads(line) for line in file.read().splitlines() if line.strip()]
                note = json.loads(
                    next((a["commitInfo"].get("userMetadata") or "{}" for a in actions if "commitInfo" in a), "{}")
                )
            except FileNotFoundError:
                return
            except (OSError, *MALFORMED_ENTRY_ERRORS) as error:
                reason = self._location.describe_error(error)
                raise OperatingError(
                    f"Delta version {version} of table {self._location} can't be read: {reason}"
                ) from None
            if isinstance(note, dict) and note.get(OWNER_NOTE) == self._owner and isinstance(note.get("txid"), int):
                yield version, note["txid"]

    def rows(self, txid: TxId) -> pa.Table:
        """Return key and value columns of all rows as they were after a transaction. Raises `OperatingError`."""
        with self._readable():
            return self._table.unexpired_rows(TxId(txid + 1))

    def lookup(self, txid: TxId, keys: pa.Table) -> pa.Table:
        """Return the rows with these keys, and maybe some more, as `rows` does. Raises `OperatingError`."""
        with self._readable():
            end_txid, expires = TxId(txid + 1), self._table.columns.expires
            rows = self._table.lookup(end_txid, keys)
            return rows if expires is None else select_unexpired(rows, expires, self._table.horizon_for(end_txid))

    @contextmanager
    def _readable(self) -> Iterator[None]:
        """Report a deleted or torn file as an error of the table."""
        try:
            yield
        except (DeltaError, OSError, pa.ArrowException) as error:
            raise unreadable_table_error(self._location, error) from None

    @property
    def _table(self) -> TableReader:
        assert self._pinned is not None, "pin() comes first"
        return self._pinned

    def release(self) -> None:
        """Unpin the version. The newest one stays loaded."""
        self._pinned = None

    def close(self) -> None:
        """Let go of the table."""
        self._pinned = self._newest = None
