"""The segments of a loaded version of a table in the log layout: how their values are combined, and queries on them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pyarrow as pa
from deltalake.exceptions import DeltaError
from pyarrow import parquet

from state.delta.segments.log_layout import Segment, SegmentQuery, stored_combine
from state.delta.tables.lookup import EVERY_TXID, Files, can_read_files, read_files
from state.delta.tables.sql import DATA_FUSION
from state.delta.tables.table import DeltaLocation, open_storage, parse_features, unreadable_table_error
from state.delta.write.loaded_table import LoadedTable
from state.rows.columns import StateColumns
from transactional.model.attempt import TxId
from transactional.model.errors import OperatingError
from transactional.model.names import STAGED_FEATURE, compaction_of


class StoredSegments:
    """The segments of the version at which a table is loaded. They are read again when the table moves on."""

    def __init__(self, loaded: LoadedTable) -> None:
        self.loaded = loaded
        self._cached: tuple[int, list[Segment]] | None = None

    @property
    def columns(self) -> StateColumns:
        return self.loaded.columns

    @property
    def compacted_txid(self) -> TxId:
        """The transaction up to which the table was compacted, 0: it never was."""
        return TxId(self.loaded.version_of(compaction_of(self.loaded.owner)) or 0)

    @property
    def unique_until(self) -> TxId:
        """The last transaction up to which segments have one row per key: that of the last compaction, if rows are
        staged.

        A segment of several staged files may be one file by now, if somebody has compacted it.
        """
        is_staged = STAGED_FEATURE in parse_features(self.loaded.properties)
        return self.compacted_txid if is_staged else EVERY_TXID

    def segments(self) -> list[Segment]:
        """Return the segments, oldest first."""
        delta_version = self.loaded.delta_version
        if self._cached is None or self._cached[0] != delta_version:
            self._cached = (delta_version, self._read())
        return self._cached[1]

    def _read(self) -> list[Segment]:
        if (live_files := self.loaded.follow_files(self.columns.txid)) is not None:
            until = self.unique_until
            return [Segment(TxId(txid), rows, files, txid <= until) for txid, rows, files in live_files.by_partition()]
        files = pa.table(self.loaded.engine.get_add_actions(flatten=True))
        if not files.num_rows:
            return []
        txids = files.column(f"partition.{self.columns.txid}").cast(pa.int64())
        unique_until = self.unique_until
        rows = _row_numbers(files, self.loaded.location)
        columns = {"txid": txids, "rows": rows, "path": files.column("path")}
        steps = [("rows", "sum"), ("path", "list")]
        grouped = pa.table(columns).group_by("txid", use_threads=False).aggregate(steps).sort_by("txid")
        return [
            Segment(row["txid"], row["rows_sum"], frozenset(row["path_list"]), row["txid"] <= unique_until)
            for row in grouped.to_pylist()
        ]

    def base_txid(self) -> TxId | None:
        """Return the txid of the oldest segment if it has one row per key, as after a compaction. There must be one."""
        oldest = self.segments()[0]
        return oldest.txid if oldest.is_unique else None

    # --- queries ----------------------------------------------------------------------------------------------------

    def query(self) -> SegmentQuery | None:
        """Return a builder of queries on the table, or None if nothing was ever written to it."""
        combine = self.combine()
        return None if combine is None else SegmentQuery(self.columns, combine, DATA_FUSION)

    def require_query(self) -> SegmentQuery:
        """Return a builder of queries on a table that has rows."""
        query = self.query()
        assert query is not None, "a table with rows says how they are combined"
        return query

    def combine(self) -> dict[str, str] | None:
        """Return how the values are combined, by column: `last` where no row has one yet. None if there is no row."""
        stored = stored_combine(self.loaded.properties)
        return None if stored is None else {**dict.fromkeys(self.columns.values.names, "last"), **stored}

    def reader(self, sql: str, settings: Mapping[str, str] | None = None) -> pa.RecordBatchReader:
        """Return a reader of the rows of a query, in the table's schema."""
        return self.loaded.query(sql, settings).cast(self.columns.table_schema)

    def read_parts(self, sql: str, settings: Mapping[str, str] | None = None) -> Iterator[pa.Table]:
        """Yield the rows of a query, one batch at a time. Raises `OperatingError`."""
        try:
            for batch in self.loaded.query(sql, settings):
                yield pa.Table.from_batches([batch])
        except (DeltaError, OSError, pa.ArrowException) as error:  # of Arrow: a sum that does not fit
            raise unreadable_table_error(self.loaded.location, error) from None

    def read_all(self, sql: str) -> pa.Table:
        """Return all rows of a query. Raises `OperatingError`."""
        try:
            return self.loaded.query(sql).read_all()
        except (DeltaError, OSError, pa.ArrowException) as error:
            raise unreadable_table_error(self.loaded.location, error) from None

    def load(self, txid: TxId, files: Files, *, is_small: bool) -> pa.RecordBatchReader:
        """Return a reader of the rows of one segment, sorted by key unless the segment is small."""
        if is_small and can_read_files(self.loaded.location, files):
            return read_files(self.loaded.location, files, self.columns, txid).to_reader()
        return self.reader(self.require_query().sorted_segment(txid, is_unique=txid <= self.unique_until))

    def check_not_compacted(self, until: TxId | None) -> None:
        """Raise `OperatingError` if the rows before transaction `until` are compacted with later ones."""
        if until is not None and until <= self.compacted_txid:
            raise OperatingError(
                f"Delta table {self.loaded.location} is compacted up to transaction {self.compacted_txid}: the rows "
                f"before transaction {until} are no longer known"
            )


def _row_numbers(files: pa.Table, location: DeltaLocation) -> pa.Array:
    """Return the number of rows of every file of a version. Raises `OperatingError`.

    It is in the log's statistics, or in the file's footer if another writer has recorded none.
    """
    row_counts, storage = files.column("num_records").to_pylist(), open_storage(location)
    try:
        rows = [
            parquet.read_metadata(storage.open_input_file(path)).num_rows if number is None else number
            for path, number in zip(files.column("path").to_pylist(), row_counts, strict=True)
        ]
    except (OSError, pa.ArrowException) as error:
        raise unreadable_table_error(location, error) from None
    return pa.array(rows, pa.int64())
