"""Queries of a large table that do not scan all of it: the rows of some keys, and how large sums can be.

What a segment holds never changes; a compaction makes another one, of other files. So a local copy of a segment, sorted
by key and mapped into memory, is right as long as its files are in the snapshot, and a lookup costs what the wanted
keys cost, not what the table does. Copies are made when they are first needed and go with the process.

A transaction of the log layout reads nothing, and so can't see that the sum of a stored and a new part overflows. A
bound on all totals, measured once and kept up to date, shows when that can't happen; otherwise the keys are looked up.
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
from state.delta.tables.staging import attempt_of
from state.delta.tables.table import DeltaLocation, unreadable
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
"""Segments of fewer rows are searched whole."""
_PLAIN_PATH = re.compile(r"[A-Za-z0-9_.=/-]+")
FEW_KEYS = 100
"""So many rows are picked one by one."""
PIECE_ROWS, PIECE_BYTES = 1_000_000, 64 * 1024 * 1024
"""A copy is mapped in pieces of about so many rows, or bytes, each of which is searched for what is wanted."""


@dataclass(frozen=True, slots=True)
class _Copy:
    """A segment's rows. Sorted by the one key column, without NULL in it; `rest` has those that are not sorted."""

    is_sorted: bool
    rows: pa.Table
    rest: pa.Table


class LoadSegment(Protocol):
    """Reads a segment, which is made of these files."""

    def __call__(self, txid: TxId, files: Files, *, is_small: bool) -> pa.RecordBatchReader:
        """Its rows."""


class SegmentCopies:
    """Copies of the segments of one table. `load` gives a segment's rows, sorted by key, NULL last; one that is small
    need not be sorted."""

    def __init__(self, key: tuple[str, ...], load: LoadSegment) -> None:
        self._key, self._load = key, load
        self._copies: dict[tuple[TxId, Files], _Copy] = {}
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._written = 0

    def search(self, segments: Mapping[TxId, tuple[Files, int]], wanted: pa.Table) -> pa.Table:
        """All rows of the segments that have a wanted key, maybe more. `segments`: files and number of rows by txid."""
        present = {(txid, files): rows for txid, (files, rows) in segments.items()}
        self._copies = {segment: copy for segment, copy in self._copies.items() if segment in present}
        for segment, rows in present.items():
            if segment not in self._copies:
                self._copies[segment] = self._copied(*segment, rows)
        copies = self._copies.values()
        # In one go, so that the wanted keys are hashed once.
        small = pa.concat_tables([copy.rest for copy in copies])
        found = [_found(copy.rows, self._key[0], wanted) for copy in copies if copy.is_sorted]
        return pa.concat_tables([with_keys(small, wanted), *found])

    def _copied(self, txid: TxId, files: Files, rows: int) -> _Copy:
        is_small = rows < SORTED_ROWS_MIN
        reader = self._load(txid, files, is_small=is_small)
        table = reader.read_all() if is_small else self._mapped(reader)
        if is_small or not self._is_searchable(table.schema):
            return _Copy(False, table.slice(0, 0), table)
        # Sorted with NULLs last: there is at most one.
        nulls, rows = table.column(self._key[0]).null_count, table.num_rows
        return _Copy(True, table.slice(0, rows - nulls), table.slice(rows - nulls))

    def _is_searchable(self, schema: pa.Schema) -> bool:
        """Several key columns, and decimals, are beyond Arrow's binary search: they are compared one by one."""
        return len(self._key) == 1 and not pa.types.is_decimal(schema.field(self._key[0]).type)

    def _mapped(self, reader: pa.RecordBatchReader) -> pa.Table:
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="transactional-")
            weakref.finalize(self, self._folder.cleanup)
        self._written += 1
        path = Path(self._folder.name, f"{self._written}.arrow")
        with pa.ipc.new_file(str(path), reader.schema) as file:
            for piece in _pieces(reader):
                file.write_table(piece)
        table = pa.ipc.open_file(pa.memory_map(str(path))).read_all()
        # What is mapped stays until nobody uses it any more.
        path.unlink()
        return table


def can_read_files(location: DeltaLocation, files: Files) -> bool:
    """Whether files of a table are on this disk under the names that the log has."""
    return location.scheme == "file" and all(_PLAIN_PATH.fullmatch(file) for file in files)


def read_files(location: DeltaLocation, files: Files, columns: StateColumns, txid: TxId) -> pa.Table:
    """The rows of a small segment, as they are stored: without a query, whose plan takes longer. Raises
    `OperatingError`."""
    schema = columns.table_schema
    try:
        # Files of before the state has gained a column lack it.
        tables = [_read_file(Path(location.uri, file)) for file in sorted(files)]
        rows = pa.concat_tables(tables, promote_options="default")
    except (OSError, pa.ArrowException) as error:
        raise unreadable(location, error) from None
    for field in schema:
        if field.name not in (*rows.column_names, columns.txid):
            rows = rows.append_column(field, pa.nulls(rows.num_rows, field.type))
    txids = pa.repeat(pa.scalar(int(txid), pa.int64()), rows.num_rows)
    return rows.append_column(columns.txid, txids).select(schema.names).cast(schema)


def _read_file(path: Path) -> pa.Table:
    # `read_table` goes by a dataset, which takes several times as long for few rows.
    with parquet.ParquetFile(path) as file:
        return file.read(use_threads=False)


def _found(rows: pa.Table, key: str, wanted: pa.Table) -> pa.Table:
    # A key that is wanted twice has its rows once, as in `with_keys`.
    keys = wanted.column(key).unique().drop_null()
    keys = keys.take(pc.array_sort_indices(keys))
    places = pc.search_sorted(rows.column(key), keys, side="left")
    # Arrow tries to import modules for a number of Python's.
    is_inside = pc.less(places, pa.scalar(rows.num_rows, places.type))
    candidates = _taken(rows, places.filter(is_inside))
    return candidates.filter(pc.equal(candidates.column(key), keys.filter(is_inside)))


def _pieces(reader: pa.RecordBatchReader) -> Iterator[pa.Table]:
    """All rows, in pieces that are each in one place."""
    batches, rows, size = list[pa.RecordBatch](), 0, 0
    for batch in reader:
        batches.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= PIECE_ROWS or size >= PIECE_BYTES:
            yield pa.Table.from_batches(batches).combine_chunks()
            batches, rows, size = [], 0, 0
    yield pa.Table.from_batches(batches, reader.schema).combine_chunks()


def _taken(rows: pa.Table, places: pa.Array) -> pa.Table:
    """Some rows of a large table, in ascending order, piece by piece: `take` would concatenate all of its columns."""
    if len(places) <= FEW_KEYS:
        return pa.concat_tables([rows.slice(0, 0), *(rows.slice(place, 1) for place in places.to_pylist())])
    found, begin, first = [rows.schema.empty_table()], 0, 0
    for piece in rows.to_batches():
        end = begin + piece.num_rows
        until = pc.search_sorted(places, pa.scalar(end, places.type)).as_py()
        if until > first:
            inside = pc.subtract(places.slice(first, until - first), pa.scalar(begin, places.type))
            found.append(pa.Table.from_batches([piece.take(inside)]))
        begin, first = end, until
    return pa.concat_tables(found)


def with_keys(rows: pa.Table, wanted: pa.Table) -> pa.Table:
    """The rows whose key is in `wanted`, a table of key columns; with composite keys maybe some more."""
    for name in wanted.column_names:
        rows = rows.filter(pc.is_in(rows.column(name), value_set=wanted.column(name).combine_chunks()))
    return rows


def _is_one_each(keys: pa.Table) -> bool:
    """Whether few rows have a key each: there is nothing to combine, which would take longer than to see it."""
    if keys.num_rows > FEW_KEYS:
        return False
    found = rows_of(keys)
    # Of two NaNs Python says that they differ.
    return len(set(found)) == keys.num_rows and all(value == value for key in found for value in key)


def newest_rows(rows: pa.Table, columns: StateColumns, combine: Mapping[str, str]) -> pa.Table:
    """Rows with key, values and txid → key and value columns, one row per key. Raises `SumOverflow`."""
    key, values = list(columns.key.names), list(columns.values.names)
    if not key and not rows.num_rows:
        return rows.select(values)
    if not columns.deletes and _is_one_each(rows.select(key)):
        return rows.select([*key, *values])
    if "last" in combine.values() or columns.deletes:
        rows = rows.sort_by(columns.txid)
    steps: list[Step] = [(name, combine[name]) for name in values]
    if not columns.deletes:
        return reduce_rows(rows, key, steps, columns.shown)
    mark = Field(columns.deleted, "boolean")
    found = reduce_rows(rows, key, [*steps, (mark.name, "last")], Schema((*columns.shown, mark)))
    is_alive = pc.invert(pc.fill_null(found[mark.name], fill_value=False))
    return found.filter(is_alive).select([*key, *values])


# --- sums ---------------------------------------------------------------------------------------------------------


def check_sums(stored: pa.Table, source: pa.Table, width: int, check: SumCheck) -> None:
    """Raise `SumOverflow` for a key whose sum does not fit. Both tables have `width` key columns, then the values."""
    before = {row[:width]: row[width:] for row in rows_of(stored)}
    for row in rows_of(source):
        key, partials = row[:width], row[width:]
        found = before.get(key, ABSENT)
        check.check(key, found, partials, combine_row(check.combine, found, partials))


def measured(
    files: pa.Table,
    columns: StateColumns,
    sums: Sequence[Field],
    query: Callable[[str], pa.Table],
    unique_until: TxId = EVERY_TXID,
) -> dict[str, int]:
    """For each of these columns a number that no key's sum over all transactions exceeds: all their largest together.

    `files` are the table's add actions. Their statistics are exact for integers; those of decimals are not. After
    `unique_until` a transaction may have several rows for a key.
    """
    bounds = {field.name: _told(files, columns.txid, field, unique_until) for field in sums}
    unknown = [name for name, bound in bounds.items() if bound is None]
    if unknown and files.num_rows:
        txid = DATA_FUSION.name(columns.txid)
        sql = ", ".join(f"min({name}), max({name})" for name in map(DATA_FUSION.name, unknown))
        rows = query(f"SELECT {txid}, {sql} FROM t GROUP BY {txid}")
        times = {} if unique_until == EVERY_TXID else _rows_per_key(columns, query, unique_until)
        often = [times.get(each, 1) for each in rows.column(0).to_pylist()]
        for number, name in enumerate(unknown):
            pairs = _pairs(rows.column(2 * number + 1), rows.column(2 * number + 2))
            largest_ones = [max_magnitude(pa.chunked_array([pair])) for pair in pairs]
            bounds[name] = sum(each * n for each, n in zip(largest_ones, often, strict=True))
    return {name: bound or 0 for name, bound in bounds.items()}


def _rows_per_key(columns: StateColumns, query: Callable[[str], pa.Table], after: TxId) -> dict[int, int]:
    """By transaction the greatest number of rows that it has for one key."""
    txid = DATA_FUSION.name(columns.txid)
    group = ", ".join([txid, *map(DATA_FUSION.name, columns.key.names)])
    counted = f"SELECT {txid}, count(*) AS n FROM t WHERE {txid} > {after} GROUP BY {group}"
    rows = query(f"SELECT c.{txid}, max(c.n) FROM ({counted}) c GROUP BY c.{txid}")
    return dict(zip(rows.column(0).to_pylist(), rows.column(1).to_pylist(), strict=True))


def _told(files: pa.Table, txid: str, field: Field, unique_until: TxId) -> int | None:
    """The bound that follows from the statistics of the files. None: they do not suffice."""
    names = [f"{what}.{field.name}" for what in ("min", "max", "null_count")]
    if field.type.startswith("decimal") or not {*names, "num_records"} <= set(files.column_names):
        return None
    least, most, nulls = (files.column(name) for name in names)
    is_told = pc.or_(pc.and_(pc.is_valid(least), pc.is_valid(most)), pc.equal(nulls, files.column("num_records")))
    if not pc.all(pc.fill_null(is_told, fill_value=False)).as_py():
        return None
    told = (files.column(f"partition.{txid}"), files.column("path"), least, most)
    by_txid: dict[int, int] = {}
    for segment, path, low, high in zip(*(column.to_pylist() for column in told), strict=True):
        known, most_of_file = by_txid.get(segment, 0), max(abs(low or 0), abs(high or 0))
        if segment <= unique_until:
            by_txid[segment] = max(known, most_of_file)
        elif attempt_of(path) is not None:
            by_txid[segment] = known + most_of_file
        else:
            return None  # somebody may have put staged files together
    return sum(by_txid.values())


def _pairs(least: pa.ChunkedArray, most: pa.ChunkedArray) -> list[pa.Array]:
    low, high = least.combine_chunks(), most.combine_chunks()
    return [pa.concat_arrays([low.slice(row, 1), high.slice(row, 1)]) for row in range(len(low))]
