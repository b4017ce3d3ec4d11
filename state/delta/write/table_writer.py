"""`TableWriter`: the write path of a state's table, the same in every layout but for how rows change its files.

An attempt's write goes over the version that was read and checked: earlier writes are made durable, the layout writes
new files for those that change (`MergeWriter`, `LogWriter`), and the entry of the log replaces these. A table whose
files only delta-rs may replace is overwritten by delta-rs. A write that is refused because another writer came between
raises `WriteRefused`. The state then reads the version again and repeats it: nobody else does.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa
from deltalake.exceptions import DeltaError

from state.delta.tables.data_files import Replacement
from state.delta.tables.lookup import check_sums
from state.delta.tables.staged_files import read_by_driver
from state.delta.tables.storage import can_create_exclusively
from state.delta.tables.table import unreadable_table_error, write_refused_error
from state.delta.write.engine_commits import as_attempt, commit_nothing, settle_expiry
from state.delta.write.entry import commit_attempt
from state.delta.write.loaded_table import LoadedTable
from state.fence import TableWrite, WriteRefused
from state.rows.expiring import ExpiryHorizons, select_unexpired
from state.rows.sums import SumCheck
from transactional.model.attempt import AttemptId, TransactionAttempt, TxId

Lookup = Callable[[TxId, pa.Table], pa.Table]
"""Returns key and value columns of the rows with some keys as they were before a transaction; maybe of more rows."""


@dataclass(slots=True)
class WriteCounts:
    """Numbers of rows that transactions have written, and of files that tasks have staged since the last compaction."""

    rows: int = 0
    staged_files: int = 0


class TableWriter(ABC):
    """Writes a table for the one thread that may. `state` is its name in messages; `lookup` reads its rows."""

    def __init__(self, table: LoadedTable, state: str, lookup: Lookup) -> None:
        self.table, self.columns, self.state, self._lookup = table, table.columns, state, lookup
        self._writes_entries = can_create_exclusively(table.storage)
        """True if the log's entries can be written without delta-rs."""
        self.counts, self.transactions = WriteCounts(), 0
        """Number of transactions since the table was opened, which maintenance counts."""

    def apply(self, write: TableWrite) -> None:
        """Write rows, one per key, and the version (see `FencedTable`): new files, and the entry that adds them.

        Raises `WriteRefused`, `SumOverflow`, and `OperatingError` for files that are not there.
        """
        table, attempt = self.table, write.attempt
        table.disk.settle()
        if write.horizons is not None:
            settle_expiry(table)
        try:
            write = self.prepare(write)
            replacement = self.replace_files(write) if self._writes_entries else None
            if replacement is None:
                self.overwrite(write)
            else:
                commit_attempt(table, replacement, attempt.attempt_id, attempt, write.horizons)
        except WriteRefused as error:
            refusal = error
        except (DeltaError, OSError) as error:
            refusal = write_refused_error(table.location, error)
        except pa.ArrowException as error:
            raise unreadable_table_error(table.location, error) from None
        else:
            self.counts.rows += write.rows.num_rows + sum(file.rows for file in write.staged)
            self.counts.staged_files += len(write.staged)
            return
        if not refusal.is_conflict:
            self.check_sums(write)
        raise refusal

    @abstractmethod
    def prepare(self, write: TableWrite) -> TableWrite:
        """Check a write, and settle what the table says of such writes. Return the write with the rows to be written.

        Raises `WriteRefused`, `SumOverflow`, `OperatingError`.
        """

    @abstractmethod
    def replace_files(self, write: TableWrite) -> Replacement | None:
        """Write the new files of a write. None if only delta-rs may replace files of this table."""

    @abstractmethod
    def overwrite(self, write: TableWrite) -> None:
        """Let delta-rs write the rows of a write, and commit them as the attempt. Raises `WriteRefused`."""

    def write_version(
        self, attempt_id: AttemptId, attempt: TransactionAttempt | None, horizons: ExpiryHorizons | None = None
    ) -> None:
        """Write the version and no row. Raises `WriteRefused`."""
        table = self.table
        table.disk.settle()
        if horizons is not None:
            settle_expiry(table)
        if not self._writes_entries:
            return commit_nothing(table, as_attempt(table, attempt_id, attempt, horizons))
        try:
            nothing = Replacement(unchanged=table.current.files, rows=table.current.rows)
            return commit_attempt(table, nothing, attempt_id, attempt, horizons)
        except OSError as error:
            raise write_refused_error(table.location, error) from None

    def check_sums(self, write: TableWrite) -> None:
        """Raise `SumOverflow` with the key whose sum does not fit, which an engine does not name."""
        check = SumCheck(self.state, self.columns.values, [write.combine[name] for name in self.columns.values.names])
        if not check.columns:
            return
        if write.staged:
            write = read_by_driver(self.table.location, self.columns, write, self.state)
        key, expires = self.columns.key.names, self.columns.expires
        stored = self._lookup(write.attempt.txid, write.rows.select(list(key)))
        if write.horizons is not None and expires is not None:
            stored = select_unexpired(stored, expires, write.horizons.current)
        check_sums(stored, write.rows, len(key), check)
