"""Reading of a table in the log layout: the rows of all transactions, combined to one row per key."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa

from state.delta.read.stored_segments import StoredSegments
from state.delta.read.table_reader import TableReader
from state.delta.segments.log_layout import Segment, SegmentQuery, join_settings
from state.delta.tables.lookup import SegmentCopies, measure_bounds, newest_rows, with_keys
from state.delta.tables.sql import Dialect, select_unexpired_rows
from state.delta.write.loaded_table import LoadedTable
from state.rows.sums import SumBounds
from transactional.model.attempt import TxId
from transactional.model.errors import OperatingError
from transactional.model.schema import Field


class SegmentReader(TableReader):
    """Reads a table in the log layout."""

    def __init__(self, loaded: LoadedTable) -> None:
        super().__init__(loaded)
        self.stored = StoredSegments(loaded)
        self._copies = SegmentCopies(self.columns.key.names, self.stored.load)

    @property
    def compacted_txid(self) -> TxId:
        return self.stored.compacted_txid

    def can_show(self, txid: TxId) -> bool:
        """True if this version can show the table as of a transaction: its rows, and those that had expired."""
        return txid >= self.compacted_txid and (self.columns.expires is None or txid >= self.loaded.horizons().txid - 1)

    def segments(self) -> list[Segment]:
        """Return the segments of this Delta version, oldest first."""
        return self.stored.segments()

    def read_sum_bounds(self, columns: Sequence[Field]) -> SumBounds:
        """Measure the bounds of the stored sums of some columns. Raises `OperatingError`."""
        files = pa.table(self.loaded.engine.get_add_actions(flatten=True))
        return SumBounds(measure_bounds(files, self.columns, columns, self.stored.read_all, self.stored.unique_until))

    def rows(self, end_txid: TxId | None, select: Callable[[pa.Table], pa.Table] = lambda rows: rows) -> pa.Table:
        """Return key and value columns, one row per key (see `TableReader.rows`)."""
        self.stored.check_not_compacted(end_txid)
        schema = self.columns.row_schema
        query, segments = self.stored.query(), self.stored.segments()
        if query is None or not segments or (end_txid is not None and segments[0].txid >= end_txid):
            return schema.empty_table()
        parts = self.stored.read_parts(query.view_over_base(self.stored.base_txid(), end_txid), join_settings(segments))
        filtered_parts = [select(part.cast(schema)) for part in parts]
        return pa.concat_tables(filtered_parts) if filtered_parts else schema.empty_table()

    def rows_between(self, end_txid: TxId, column: str, start: int | None, end: int) -> pa.Table:
        """Return the rows with `start < column <= end`. For a key column no other rows are read."""
        query, segments = self.stored.query(), self.stored.segments()
        if query is None or not segments or segments[0].txid >= end_txid or column not in self.columns.key.names:
            return super().rows_between(end_txid, column, start, end)
        self.stored.check_not_compacted(end_txid)
        schema = self.columns.row_schema
        sql = query.in_range(column, start, end).view_over_base(self.stored.base_txid(), end_txid)
        parts = [part.cast(schema) for part in self.stored.read_parts(sql, join_settings(segments))]
        return pa.concat_tables(parts) if parts else schema.empty_table()

    def make_view_query(self, end_txid: TxId | None, dialect: Dialect, source: str) -> str:
        """Return a query that combines the values of all segments by key (see `TableReader.make_view_query`).

        It stays valid while segments are compacted.
        """
        self.stored.check_not_compacted(end_txid)
        combine = self.stored.combine()
        if combine is None:
            raise OperatingError(
                f"Delta table {self.loaded.location} is empty: how its rows are combined is known with the first one"
            )
        condition = "" if end_txid is None else f"{dialect.name(self.columns.txid)} < {end_txid}"
        query = SegmentQuery(self.columns, combine, dialect, source).view(condition)
        return select_unexpired_rows(query, self.columns, dialect, self.horizon_for(end_txid))

    def search(self, end_txid: TxId, keys: pa.Table) -> pa.Table:
        """Return the rows of these keys. Every segment is searched, and only matching rows are combined."""
        self.stored.check_not_compacted(end_txid)
        query = self.stored.query()
        segments = {
            segment.txid: (segment.files, segment.rows) for segment in self.stored.segments() if segment.txid < end_txid
        }
        if query is None or not segments:
            return self.columns.row_schema.empty_table()
        if query.has_restarts:
            return self.rows(end_txid, lambda rows: with_keys(rows, keys))
        rows = self._copies.search(segments, keys)
        return newest_rows(rows, self.columns, query.combine).cast(self.columns.row_schema)
