"""Searches in a large table for the rows of some keys, without a scan, and bounds on its sums.

A segment never changes; a compaction makes another segment, of other files. So a local copy of a segment, sorted by key
and mapped into memory, is valid as long as its files are in the snapshot. The time of a search depends on the number of
keys, not on the size of the table. Copies are made when they are first needed, and deleted with the process.

A transaction of the log layout reads nothing, so it can't see that the sum of a stored and a new part overflows. A
bound on all totals, which is measured once and kept up to date, shows when that is impossible. Otherwise the keys are
looked up.
"""

from __future__ import annotations

import re
import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from state.delta.tables.sql import DATA_FUSION
from state.delta.tables.staging import parse_staged_attempt
from state.delta.tables.table import DeltaLocation, unreadable_table_error
from state.rows.columns import StateColumns
from state.rows.combining import combine_row
from state.rows.python_rows import rows_of
from state.rows.sums import SumCheck
from transactional.model.absent import ABSENT
from transactional.model.aggregates.sums import Step, max_magnitude, reduce_rows
from transactional.model.attempt import TxId
from transactional.model.schema import Field, Schema

Files = frozenset[str]
EVERY_TXID: Final = TxId(2**63 - 1)
SORTED_ROWS_MIN = 200_000
"""Smallest number of rows of a segment that is copied and sorted. A smaller one is scanned."""
_PLAIN_PATH = re.compile(r"[A-Za-z0-9_.=/-]+")
FEW_KEYS = 100
"""Largest number of rows that are taken one by one."""
PIECE_ROWS, PIECE_BYTES = 1_000_000, 64 * 1024 * 1024
"""About the number of rows, or bytes, in a piece of a copy. Every piece is searched by itself."""


@dataclass(frozen=True, slots=True)
class _Copy:
    """The rows of a segment. If it is sorted, `rows` are in the order of the key column, without NULL in it.

    `unsorted` has the other rows.
    """

    is_sorted: bool
    rows: pa.Table
    unsorted: pa.Table


class LoadSegment(Protocol):
    """Reads the rows of a segment, which has these files."""

    def __call__(self, txid: TxId, files: Files, *, is_small: bool) -> pa.RecordBatchReader:
        """Return a reader of the segment's rows."""


class SegmentCopies:
    """Local copies of the segments of one table.

    `load` reads the rows of a segment, sorted by key, NULL last. Those of a small segment need not be sorted.
    """

    def __init__(self, key: tuple[str, ...], load: LoadSegment) -> None:
        self._key, self._load = key, load
        self._copies: dict[tuple[TxId, Files], _Copy] = {}
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._copy_count = 0

    def search(self, segments: Mapping[TxId, tuple[Files, int]], keys: pa.Table) -> pa.Table:
        """Return the rows of segments with these keys. Rows of other keys may be among them.

        `segments` has the files and the number of rows of every segment by txid.
        """
        present = {(txid, files): rows for txid, (files, rows) in segments.items()}
        self._copies = {segment: copy for segment, copy in self._copies.items() if segment in present}
        for segment, rows in present.items():
            if segment not in self._copies:
                self._copies[segment] = self._copy(*segment, rows)
        copies = self._copies.values()
        # All small segments are scanned at once, so that the keys are hashed once.
        small = pa.concat_tables([copy.unsorted for copy in copies])
        matches = [_search_sorted(copy.rows, self._key[0], keys) for copy in copies if copy.is_sorted]
        return pa.concat_tables([with_keys(small, keys), *matches])

    def _copy(self, txid: TxId, files: Files, rows: int) -> _Copy:
        is_small = rows < SORTED_ROWS_MIN
        reader = self._load(txid, files, is_small=is_small)
        table = reader.read_all() if is_small else self._write_mapped(reader)
        if is_small or not self._is_searchable(table.schema):
            return _Copy(False, table.slice(0, 0), table)
        # NULLs are last, and there is one at most.
        nulls, rows = table.column(self._key[0]).null_count, table.num_rows
        return _Copy(True, table.slice(0, rows - nulls), table.slice(rows - nulls))

    def _is_searchable(self, schema: pa.Schema) -> bool:
        """True for one key column that is no decimal, which Arrow's binary search can search."""
        return len(self._key) == 1 and not pa.types.is_decimal(schema.field(self._key[0]).type)

    def _write_mapped(self, reader: pa.RecordBatchReader) -> pa.Table:
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="transactional-")
            weakref.finalize(self, self._folder.cleanup)
        self._copy_count += 1
        path = Path(self._folder.name, f"{self._copy_count}.arrow")
        with pa.ipc.new_file(str(path), reader.schema) as file:
            for piece in _pieces(reader):
                file.write_table(piece)
        table = pa.ipc.open_file(pa.memory_map(str(path))).read_all()
        # The mapped content exists until no table uses it.
        path.unlink()
        return table


def can_read_files(location: DeltaLocation, files: Files) -> bool:
    """True if files of a table are on this disk, under names that the log does not escape."""
    return location.scheme == "file" and all(_PLAIN_PATH.fullmatch(file) for file in files)


def read_files(location: DeltaLocation, files: Files, columns: StateColumns, txid: TxId) -> pa.Table:
    """Read the stored rows of a small segment without a query, whose plan takes longer. Raises `OperatingError`."""
    schema = columns.table_schema
    try:
        # Older files lack the columns that the state has gained since.
        tables = [_read_file(Path(location.uri, file)) for file in sorted(files)]
        rows = pa.concat_tables(tables, promote_options="default")
    except (OSError, pa.ArrowException) as error:
        raise unreadable_table_error(location, error) from None
    for field in schema:
        if field.name not in (*rows.column_names, columns.txid):
            rows = rows.append_column(field, pa.nulls(rows.num_rows, field.type))
    txids = pa.repeat(pa.scalar(int(txid), pa.int64()), rows.num_rows)
    return rows.append_column(columns.txid, txids).select(schema.names).cast(schema)


def _read_file(path: Path) -> pa.Table:
    # `read_table` uses a dataset, which takes several times as long for few rows.
    with parquet.ParquetFile(path) as file:
        return file.read(use_threads=False)


def _search_sorted(rows: pa.Table, key: str, keys: pa.Table) -> pa.Table:
    # The rows of a repeated key are returned once, as by `with_keys`.
    sorted_keys = keys.column(key).unique().drop_null()
    sorted_keys = sorted_keys.take(pc.array_sort_indices(sorted_keys))
    positions = pc.search_sorted(rows.column(key), sorted_keys, side="left")
    # For a Python number, Arrow would try to import modules.
    is_inside = pc.less(positions, pa.scalar(rows.num_rows, positions.type))
    candidates = _take(rows, positions.filter(is_inside))
    return candidates.filter(pc.equal(candidates.column(key), sorted_keys.filter(is_inside)))


def _pieces(reader: pa.RecordBatchReader) -> Iterator[pa.Table]:
    """Yield all rows in pieces, each of one chunk."""
    batches, rows, size = list[pa.RecordBatch](), 0, 0
    for batch in reader:
        batches.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= PIECE_ROWS or size >= PIECE_BYTES:
            yield pa.Table.from_batches(batches).combine_chunks()
            batches, rows, size = [], 0, 0
    yield pa.Table.from_batches(batches, reader.schema).combine_chunks()


def _take(rows: pa.Table, positions: pa.Array) -> pa.Table:
    """Return the rows at ascending positions, piece by piece, since `take` would concatenate all columns."""
    if len(positions) <= FEW_KEYS:
        return pa.concat_tables([rows.slice(0, 0), *(rows.slice(position, 1) for position in positions.to_pylist())])
    parts, begin, first = [rows.schema.empty_table()], 0, 0
    for piece in rows.to_batches():
        end = begin + piece.num_rows
        last = pc.search_sorted(positions, pa.scalar(end, positions.type)).as_py()
        if last > first:
            offsets = pc.subtract(positions.slice(first, last - first), pa.scalar(begin, positions.type))
            parts.append(pa.Table.from_batches([piece.take(offsets)]))
        begin, first = end, last
    return pa.concat_tables(parts)


def with_keys(rows: pa.Table, keys: pa.Table) -> pa.Table:
    """Return the rows whose key is in `keys`, a table of key columns. With several columns, some more rows."""
    for name in keys.column_names:
        rows = rows.filter(pc.is_in(rows.column(name), value_set=keys.column(name).combine_chunks()))
    return rows


def _are_few_and_distinct(keys: pa.Table) -> bool:
    """True if there are few keys, all different. Then there is nothing to combine."""
    if keys.num_rows > FEW_KEYS:
        return False
    tuples = rows_of(keys)
    # Two NaNs are one key, but not equal in Python.
    return len(set(tuples)) == keys.num_rows and all(cell == cell for key in tuples for cell in key)


def newest_rows(rows: pa.Table, columns: StateColumns, combine: Mapping[str, str]) -> pa.Table:
    """Combine rows with key, values and txid into one row per key, without the txid. Raises `SumOverflow`."""
    key, values = list(columns.key.names), list(columns.values.names)
    if not key and not rows.num_rows:
        return rows.select(values)
    if not columns.deletes and _are_few_and_distinct(rows.select(key)):
        return rows.select([*key, *values])
    if "last" in combine.values() or columns.deletes:
        rows = rows.sort_by(columns.txid)
    steps: list[Step] = [(name, combine[name]) for name in values]
    if not columns.deletes:
        return reduce_rows(rows, key, steps, columns.visible)
    mark = Field(columns.deleted, "boolean")
    combined = reduce_rows(rows, key, [*steps, (mark.name, "last")], Schema((*columns.visible, mark)))
    exists = pc.invert(pc.fill_null(combined[mark.name], fill_value=False))
    return combined.filter(exists).select([*key, *values])


# --- sums ---------------------------------------------------------------------------------------------------------


def check_sums(stored: pa.Table, source: pa.Table, width: int, check: SumCheck) -> None:
    """Raise `SumOverflow` with the key whose sum does not fit. Both tables have `width` key columns, then the
    values."""
    stored_values = {row[:width]: row[width:] for row in rows_of(stored)}
    for row in rows_of(source):
        key, partials = row[:width], row[width:]
        values = stored_values.get(key, ABSENT)
        check.check(key, values, partials, combine_row(check.combine, values, partials))


def measure_bounds(
    files: pa.Table,
    columns: StateColumns,
    sums: Sequence[Field],
    query: Callable[[str], pa.Table],
    unique_until: TxId = EVERY_TXID,
) -> dict[str, int]:
    """Return for each of these columns a bound on a key's sum over all transactions: the sum of their largest values.

    `files` are the table's add actions. Their statistics are exact for integers; those of decimals are not. After
    `unique_until` a transaction may have several rows for a key.
    """
    bounds = {field.name: _bound_from_statistics(files, columns.txid, field, unique_until) for field in sums}
    unknown = [name for name, bound in bounds.items() if bound is None]
    if unknown and files.num_rows:
        txid = DATA_FUSION.name(columns.txid)
        sql = ", ".join(f"min({name}), max({name})" for name in map(DATA_FUSION.name, unknown))
        rows = query(f"SELECT {txid}, {sql} FROM t GROUP BY {txid}")
        rows_per_key = {} if unique_until == EVERY_TXID else _rows_per_key(columns, query, unique_until)
        factors = [rows_per_key.get(segment, 1) for segment in rows.column(0).to_pylist()]
        for number, name in enumerate(unknown):
            pairs = _pairs(rows.column(2 * number + 1), rows.column(2 * number + 2))
            magnitudes = [max_magnitude(pa.chunked_array([pair])) for pair in pairs]
            bounds[name] = sum(magnitude * factor for magnitude, factor in zip(magnitudes, factors, strict=True))
    return {name: bound or 0 for name, bound in bounds.items()}


def _rows_per_key(columns: StateColumns, query: Callable[[str], pa.Table], start_txid: TxId) -> dict[int, int]:
    """Return for each later transaction than `start_txid` the largest number of its rows for one key."""
    txid = DATA_FUSION.name(columns.txid)
    group = ", ".join([txid, *map(DATA_FUSION.name, columns.key.names)])
    counted = f"SELECT {txid}, count(*) AS n FROM t WHERE {txid} > {start_txid} GROUP BY {group}"
    rows = query(f"SELECT c.{txid}, max(c.n) FROM ({counted}) c GROUP BY c.{txid}")
    return dict(zip(rows.column(0).to_pylist(), rows.column(1).to_pylist(), strict=True))


def _bound_from_statistics(files: pa.Table, txid: str, field: Field, unique_until: TxId) -> int | None:
    """Return the bound that follows from the statistics of the files, or None if they do not suffice."""
    names = [f"{statistic}.{field.name}" for statistic in ("min", "max", "null_count")]
    if field.type.startswith("decimal") or not {*names, "num_records"} <= set(files.column_names):
        return None
    least, most, nulls = (files.column(name) for name in names)
    is_recorded = pc.or_(pc.and_(pc.is_valid(least), pc.is_valid(most)), pc.equal(nulls, files.column("num_records")))
    if not pc.all(pc.fill_null(is_recorded, fill_value=False)).as_py():
        return None
    columns = (files.column(f"partition.{txid}"), files.column("path"), least, most)
    by_txid: dict[int, int] = {}
    for segment, path, low, high in zip(*(column.to_pylist() for column in columns), strict=True):
        bound, file_bound = by_txid.get(segment, 0), max(abs(low or 0), abs(high or 0))
        if segment <= unique_until:
            by_txid[segment] = max(bound, file_bound)
        elif parse_staged_attempt(path) is not None:
            by_txid[segment] = bound + file_bound
        else:
            return None  # another program may have compacted staged files
    return sum(by_txid.values())


def _pairs(least: pa.ChunkedArray, most: pa.ChunkedArray) -> list[pa.Array]:
    low, high = least.combine_chunks(), most.combine_chunks()
    return [pa.concat_arrays([low.slice(row, 1), high.slice(row, 1)]) for row in range(len(low))]
