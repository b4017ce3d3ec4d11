"""`TableWriter`: the write path of a state's table, the same in every layout but for how rows change its files.

An attempt's write goes over the version that was read and checked: earlier writes are made durable, the layout changes
files (`MergeWriter`, `LogWriter`), and the entry of the log is written. A write that is refused because another writer
came between raises `WriteRefused`. The state then reads the version again and repeats it: nobody else does.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import pyarrow as pa

from state.delta.tables.lookup import check_sums
from state.delta.tables.staged_files import read_by_driver
from state.delta.write.engine_commits import as_attempt, commit_files, settle_expiry
from state.delta.write.loaded_table import LoadedTable
from state.fence import TableWrite, WriteRefused
from state.rows.expiring import ExpiryHorizons, select_unexpired
from state.rows.sums import SumCheck
from transactional.model.attempt import AttemptId, TransactionAttempt, TxId

Lookup = Callable[[TxId, pa.Table], pa.Table]
"""Returns key and value columns of the rows with some keys as they were before a transaction; maybe of more rows."""


class TableWriter(ABC):
    """Writes a table for the one thread that may. `state` is its name in messages; `lookup` reads its rows."""

    def __init__(self, table: LoadedTable, state: str, lookup: Lookup) -> None:
        self.table, self.columns, self.state, self._lookup = table, table.columns, state, lookup
        self.transactions = 0
        """Number of transactions since the table was opened, which maintenance counts."""

    def apply(self, write: TableWrite) -> None:
        """Write rows, one per key, and the version (see `FencedTable`).

        Raises `WriteRefused`, `SumOverflow`, and `OperatingError` for files that are not there.
        """
        self.table.disk.settle()
        if write.horizons is not None:
            self.record_horizons(write.attempt.attempt_id, write.horizons)
        try:
            self.commit(write)
        except WriteRefused as error:
            if not error.is_conflict:
                self.check_sums(write)
            raise

    @abstractmethod
    def commit(self, write: TableWrite) -> None:
        """Change the files of the table, and commit that as the attempt.

        Raises `WriteRefused`, `SumOverflow`, `OperatingError`.
        """

    def write_version(
        self, attempt_id: AttemptId, attempt: TransactionAttempt | None, horizons: ExpiryHorizons | None = None
    ) -> None:
        """Write the version and no row. Raises `WriteRefused`."""
        self.table.disk.settle()
        if horizons is not None:
            self.record_horizons(attempt_id, horizons)
        commit_files(self.table, [], as_attempt(self.table, attempt_id, attempt))

    def record_horizons(self, attempt_id: AttemptId, horizons: ExpiryHorizons) -> None:
        """Let the Delta commit of an attempt record expiry horizons. Raises `WriteRefused`.

        The table says first by which column rows expire.
        """
        settle_expiry(self.table)
        self.table.will_record(attempt_id, horizons)

    def check_sums(self, write: TableWrite) -> None:
        """Raise `SumOverflow` with the key whose sum does not fit, which an engine does not name."""
        check = self.sum_check(write)
        if not check.columns:
            return
        if write.staged:
            write = read_by_driver(self.table.location, self.columns, write, self.state)
        key, expires = self.columns.key.names, self.columns.expires
        stored = self._lookup(write.attempt.txid, write.rows.select(list(key)))
        if write.horizons is not None and expires is not None:
            stored = select_unexpired(stored, expires, write.horizons.current)
        check_sums(stored, write.rows, len(key), check)

    def sum_check(self, write: TableWrite) -> SumCheck:
        """Return the check of the columns whose sums may not fit."""
        values = self.columns.values
        return SumCheck(self.state, values, [write.combine[name] for name in values.names])
