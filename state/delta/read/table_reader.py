"""`TableReader`: reads the rows of a loaded table as they were before a transaction, whatever the table's layout.

`MergedReader` (one row per key) and `SegmentReader` (the rows that each transaction adds) implement it. A reader never
moves the table to another version, and writes nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import pyarrow as pa
from deltalake.exceptions import DeltaError

from state.delta.tables.lookup import with_keys
from state.delta.tables.sql import DATA_FUSION, Dialect, build_range_condition
from state.delta.tables.table import unreadable_table_error
from state.delta.write.loaded_table import LoadedTable
from state.rows.expiring import select_range, select_unexpired
from transactional.model.attempt import TxId

CACHED_ROWS_MAX = 100_000
"""Largest number of rows that are cached between two reads of one attempt."""


class TableReader(ABC):
    """Reads the rows of a loaded table."""

    def __init__(self, loaded: LoadedTable) -> None:
        self.loaded, self.columns = loaded, loaded.columns
        self._cached_rows: tuple[int, TxId, pa.Table] | None = None

    @property
    def compacted_txid(self) -> TxId | None:
        """The transaction up to which the table is compacted, 0 if it never was. None if its layout has no segments."""
        return None

    def can_show(self, txid: TxId) -> bool:
        """True if this version can show the table as of a transaction, whatever the table's newest version is."""
        return False

    def lookup(self, end_txid: TxId, keys: pa.Table) -> pa.Table:
        """Return key and value columns of the rows with these keys, as they were before transaction `end_txid`.

        Rows of other keys may be among them.
        """
        version = (self.loaded.delta_version, end_txid)
        if self._cached_rows is None or self._cached_rows[:2] != version:
            if self.row_count() > CACHED_ROWS_MAX:
                return self.search(end_txid, keys)
            # A bolt may read key by key.
            self._cached_rows = (*version, self.rows(end_txid))
        return with_keys(self._cached_rows[2], keys)

    @abstractmethod
    def rows(self, end_txid: TxId | None, select: Callable[[pa.Table], pa.Table] = lambda rows: rows) -> pa.Table:
        """Return key and value columns of the rows as they were before transaction `end_txid`; None: as they are.

        `select` filters the rows, one part of them at a time, so that a large table is never in memory as a whole.
        """

    def rows_between(self, end_txid: TxId, column: str, start: int | None, end: int) -> pa.Table:
        """Return the rows, as `rows` does, with `start < column <= end`."""
        return self.rows(end_txid, lambda rows: select_range(rows, column, start, end))

    def count_between(self, column: str, start: int | None, end: int) -> int:
        """Return the number of stored rows with `start < column <= end`. Raises `OperatingError`."""
        query = f"SELECT count(*) AS n FROM t WHERE {build_range_condition(DATA_FUSION, column, start, end)}"
        try:
            return int(self.loaded.query(query).read_all()["n"][0].as_py())
        except (DeltaError, OSError, pa.ArrowException) as error:
            raise unreadable_table_error(self.loaded.location, error) from None

    def unexpired_rows(self, end_txid: TxId | None) -> pa.Table:
        """Return the rows, as `rows` does, without those that had expired for readers then."""
        expires = self.columns.expires
        if expires is None:
            return self.rows(end_txid)
        horizon = self.horizon_for(end_txid)
        return self.rows(end_txid, lambda rows: select_unexpired(rows, expires, horizon))

    def horizon_for(self, end_txid: TxId | None) -> int | None:
        """Return the expiry horizon of readers who see the table as it was before transaction `end_txid`."""
        return self.loaded.horizons().for_reader(None if end_txid is None else TxId(end_txid - 1))

    @abstractmethod
    def search(self, end_txid: TxId, keys: pa.Table) -> pa.Table:
        """Return what `lookup` does, from a large table."""

    @abstractmethod
    def make_view_query(self, end_txid: TxId | None, dialect: Dialect, source: str) -> str:
        """Return a SELECT of one row per key, in the dialect's SQL, without expired rows. `source` names the table.

        Rows are as they were before transaction `end_txid`; None stands for the newest version.
        """

    def row_count(self) -> int:
        """Return the number of stored rows, including those of a transaction that is not committed.

        Raises `OperatingError`.
        """
        return self.loaded.row_count()
