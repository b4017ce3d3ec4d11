"""Queries of a large table that do not scan all of it: the rows of some keys, and how large sums can be.

What a segment holds never changes; a fold makes another one, of other files. So a local copy of a segment, sorted by
key and mapped into memory, is right as long as its files are in the snapshot, and a lookup costs what the wanted keys
cost, not what the table does. Copies are made when they are first needed and go with the process.

A transaction of the log layout reads nothing, and so can't see that the sum of a stored and a new part overflows. A
bound on all totals, measured once and kept up to date, shows when that can't happen; otherwise the keys are looked up.
"""

from __future__ import annotations

import tempfile
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from state.columns import StateColumns
from state.delta.sql import DATA_FUSION
from state.sums import SumCheck
from state.updates import rows_of
from state.values import combined_values
from transactional.absent import ABSENT
from transactional.attempt import TxId
from transactional.schema import Field, Schema
from transactional.sums import Step, largest, reduced

Files = frozenset[str]
SORTED_ROWS_MIN = 200_000
"""Segments of fewer rows are searched whole."""


@dataclass(frozen=True, slots=True)
class _Copy:
    """A segment's rows. Sorted by the one key column, without NULL in it; `rest` has those that are not sorted."""

    is_sorted: bool
    rows: pa.Table
    rest: pa.Table


class SegmentCopies:
    """Copies of the segments of one table. `load(txid)` gives a segment's rows, sorted by key, NULL last."""

    def __init__(self, key: tuple[str, ...], load: Callable[[TxId], pa.RecordBatchReader]) -> None:
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
                self._copies[segment] = self._copied(segment[0], rows)
        copies = self._copies.values()
        # In one go, so that the wanted keys are hashed once.
        small = pa.concat_tables([copy.rest for copy in copies])
        found = [_found(copy.rows, self._key[0], wanted) for copy in copies if copy.is_sorted]
        return pa.concat_tables([with_keys(small, wanted), *found])

    def _copied(self, txid: TxId, rows: int) -> _Copy:
        reader = self._load(txid)
        table = reader.read_all() if rows < SORTED_ROWS_MIN else self._mapped(reader)
        if rows < SORTED_ROWS_MIN or not self._is_searchable(table.schema):
            return _Copy(False, table.slice(0, 0), table)
        # Sorted with NULLs last: there is at most one.
        nulls = table.column(self._key[0]).null_count
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
            for batch in reader:
                file.write_batch(batch)
        table = pa.ipc.open_file(pa.memory_map(str(path))).read_all()
        # What is mapped stays until nobody uses it any more.
        path.unlink()
        return table


def _found(rows: pa.Table, key: str, wanted: pa.Table) -> pa.Table:
    keys = wanted.column(key).combine_chunks().drop_null()
    keys = keys.take(pc.array_sort_indices(keys))
    places = pc.search_sorted(rows.column(key), keys, side="left")
    is_inside = pc.less(places, rows.num_rows)
    candidates = rows.take(places.filter(is_inside))
    return candidates.filter(pc.equal(candidates.column(key), keys.filter(is_inside)))


def with_keys(rows: pa.Table, wanted: pa.Table) -> pa.Table:
    """The rows whose key is in `wanted`, a table of key columns; with composite keys maybe some more."""
    for name in wanted.column_names:
        rows = rows.filter(pc.is_in(rows.column(name), value_set=wanted.column(name).combine_chunks()))
    return rows


def newest_rows(rows: pa.Table, columns: StateColumns, combine: Mapping[str, str]) -> pa.Table:
    """Rows with key, values and txid → key and value columns, one row per key. Raises `SumOverflow`."""
    key, values = list(columns.key.names), list(columns.values.names)
    if not key and not rows.num_rows:
        return rows.select(values)
    if "last" in combine.values():
        rows = rows.sort_by(columns.txid)
    steps: list[Step] = [(name, combine[name]) for name in values]
    return reduced(rows, key, steps, Schema((*columns.key, *columns.values)))


# --- sums ---------------------------------------------------------------------------------------------------------


def check_sums(stored: pa.Table, source: pa.Table, width: int, check: SumCheck) -> None:
    """Raise `SumOverflow` for a key whose sum does not fit. Both tables have `width` key columns, then the values."""
    before = {row[:width]: row[width:] for row in rows_of(stored)}
    for row in rows_of(source):
        key, partials = row[:width], row[width:]
        found = before.get(key, ABSENT)
        check.check(key, found, partials, combined_values(check.combine, found, partials))


def measured(files: pa.Table, txid: str, columns: Sequence[Field], query: Callable[[str], pa.Table]) -> dict[str, int]:
    """For each column a number that no key's sum over all transactions exceeds: the sum of each one's largest.

    `files` are the table's add actions. Their statistics are exact for integers; those of decimals are not.
    """
    bounds = {field.name: _told(files, txid, field) for field in columns}
    unknown = [name for name, bound in bounds.items() if bound is None]
    if unknown and files.num_rows:
        quoted = [DATA_FUSION.name(name) for name in unknown]
        sql = ", ".join(f"min({name}), max({name})" for name in quoted)
        rows = query(f"SELECT {sql} FROM t GROUP BY {DATA_FUSION.name(txid)}")
        for number, name in enumerate(unknown):
            least, most = rows.column(2 * number), rows.column(2 * number + 1)
            bounds[name] = sum(largest(pa.chunked_array([pair])) for pair in _pairs(least, most))
    return {name: bound or 0 for name, bound in bounds.items()}


def _told(files: pa.Table, txid: str, field: Field) -> int | None:
    """The bound that follows from the statistics of the files. None: they do not suffice."""
    names = [f"{what}.{field.name}" for what in ("min", "max", "null_count")]
    if field.type.startswith("decimal") or not {*names, "num_records"} <= set(files.column_names):
        return None
    least, most, nulls = (files.column(name) for name in names)
    is_told = pc.or_(pc.and_(pc.is_valid(least), pc.is_valid(most)), pc.equal(nulls, files.column("num_records")))
    if not pc.all(pc.fill_null(is_told, fill_value=False)).as_py():
        return None
    rows = zip(files.column(f"partition.{txid}").to_pylist(), least.to_pylist(), most.to_pylist(), strict=True)
    by_txid: dict[int, int] = {}
    for segment, low, high in rows:
        by_txid[segment] = max(by_txid.get(segment, 0), abs(low or 0), abs(high or 0))
    return sum(by_txid.values())


def _pairs(least: pa.ChunkedArray, most: pa.ChunkedArray) -> list[pa.Array]:
    low, high = least.combine_chunks(), most.combine_chunks()
    return [pa.concat_arrays([low.slice(row, 1), high.slice(row, 1)]) for row in range(len(low))]
