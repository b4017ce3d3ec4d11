"""What a loaded version of a table in the log layout holds: its segments, how their values combine, queries of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pyarrow as pa
from deltalake.exceptions import DeltaError
from pyarrow import parquet

from state.delta.log.version import TableVersion
from state.delta.segments.log_layout import Segment, SegmentQuery, stored_combine
from state.delta.tables.lookup import EVERY_TXID, Files, can_read_files, read_files
from state.delta.tables.sql import DATA_FUSION
from state.delta.tables.table import DeltaLocation, features_used, storage_of, unreadable
from state.rows.columns import StateColumns
from transactional.model.attempt import TxId
from transactional.model.errors import OperatingError
from transactional.model.names import STAGED_FEATURE, compaction_of


class StoredSegments:
    """The segments of the version that a table is loaded at; another one as soon as it moves on."""

    def __init__(self, loaded: TableVersion) -> None:
        self.loaded = loaded
        self._found: tuple[int, list[Segment]] | None = None

    @property
    def columns(self) -> StateColumns:
        """The table's columns."""
        return self.loaded.columns

    @property
    def compacted_txid(self) -> TxId:
        """The transaction up to which the table was compacted, 0: it never was."""
        return TxId(self.loaded.version_of(compaction_of(self.loaded.owner)) or 0)

    @property
    def unique_until(self) -> TxId:
        """Up to this transaction a segment has one row per key: what a compaction has written; all, where nothing was
        staged.

        A segment of several staged files may be one file by now, if somebody has compacted it.
        """
        is_staged = STAGED_FEATURE in features_used(self.loaded.properties)
        return self.compacted_txid if is_staged else EVERY_TXID

    def all(self) -> list[Segment]:
        """The segments, oldest first."""
        at = self.loaded.delta_version
        if self._found is None or self._found[0] != at:
            self._found = (at, self._read())
        return self._found[1]

    def _read(self) -> list[Segment]:
        if (known := self.loaded.known_files(self.columns.txid)) is not None:
            until = self.unique_until
            return [Segment(TxId(txid), rows, files, txid <= until) for txid, rows, files in known.by_value()]
        files = pa.table(self.loaded.snapshot.get_add_actions(flatten=True))
        if not files.num_rows:
            return []
        txids = files.column(f"partition.{self.columns.txid}").cast(pa.int64())
        unique_until = self.unique_until
        rows = _row_numbers(files, self.loaded.location)
        columns = {"txid": txids, "rows": rows, "path": files.column("path")}
        steps = [("rows", "sum"), ("path", "list")]
        grouped = pa.table(columns).group_by("txid", use_threads=False).aggregate(steps).sort_by("txid")
        return [
            Segment(each["txid"], each["rows_sum"], frozenset(each["path_list"]), each["txid"] <= unique_until)
            for each in grouped.to_pylist()
        ]

    def base(self) -> TxId | None:
        """The oldest segment, if it has one row per key, as what a compaction has written. There must be one."""
        oldest = self.all()[0]
        return oldest.txid if oldest.is_unique else None

    # --- queries ----------------------------------------------------------------------------------------------------

    def query(self) -> SegmentQuery | None:
        """What queries are made with. None: there is no row at all."""
        combine = self.combine()
        return None if combine is None else SegmentQuery(self.columns, combine, DATA_FUSION)

    def known_query(self) -> SegmentQuery:
        """As `query`, of a table that has rows."""
        query = self.query()
        assert query is not None, "a table with rows says how they are combined"
        return query

    def combine(self) -> dict[str, str] | None:
        """Return how the values are combined, by column: `last` where no row has one yet. None if there is no row."""
        stored = stored_combine(self.loaded.properties)
        return None if stored is None else {**dict.fromkeys(self.columns.values.names, "last"), **stored}

    def reader(self, sql: str, settings: Mapping[str, str] | None = None) -> pa.RecordBatchReader:
        """The rows that a query finds, as they are stored."""
        return self.loaded.query(sql, settings).cast(self.columns.table_schema)

    def parts(self, sql: str, settings: Mapping[str, str] | None = None) -> Iterator[pa.Table]:
        """What a query gives, a part at a time. Raises `OperatingError`."""
        try:
            for batch in self.loaded.query(sql, settings):
                yield pa.Table.from_batches([batch])
        except (DeltaError, OSError, pa.ArrowException) as error:  # of Arrow: a sum that does not fit
            raise unreadable(self.loaded.location, error) from None

    def answer(self, sql: str) -> pa.Table:
        """All rows that a query gives, which may be none. Raises `OperatingError`."""
        try:
            return self.loaded.query(sql).read_all()
        except (DeltaError, OSError, pa.ArrowException) as error:
            raise unreadable(self.loaded.location, error) from None

    def load(self, txid: TxId, files: Files, *, is_small: bool) -> pa.RecordBatchReader:
        """The rows of one segment, sorted by key unless it is small."""
        if is_small and can_read_files(self.loaded.location, files):
            return read_files(self.loaded.location, files, self.columns, txid).to_reader()
        return self.reader(self.known_query().sorted_segment(txid, is_unique=txid <= self.unique_until))

    def check_not_compacted(self, before: TxId | None) -> None:
        """Raise `OperatingError` when what was before a transaction is compacted into what came after."""
        if before is not None and before <= self.compacted_txid:
            raise OperatingError(
                f"Delta table {self.loaded.location} is compacted up to transaction {self.compacted_txid}: the rows "
                f"before transaction {before} are no longer known"
            )


def _row_numbers(files: pa.Table, location: DeltaLocation) -> pa.Array:
    """How many rows each of a version's files has: as the log says, or, where another writer has given the log no
    statistics, as the file does. Raises `OperatingError`."""
    told, storage = files.column("num_records").to_pylist(), storage_of(location)
    try:
        rows = [
            parquet.read_metadata(storage.open_input_file(path)).num_rows if number is None else number
            for path, number in zip(files.column("path").to_pylist(), told, strict=True)
        ]
    except (OSError, pa.ArrowException) as error:
        raise unreadable(location, error) from None
    return pa.array(rows, pa.int64())
