"""Which files of a table a transaction reaches, by the bounds of whole numbers and times in their footers.

A file is left alone, unread, if none of its keys comes: some key column says so, whose values in the file all lie
before or all after those that come. So it is with windows, whose rows go into the table with their time. A file all of
whose rows have expired is dropped, unread. Bounds that are missing, or of other types, say nothing: then it is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet
from pyarrow.fs import FileSystem

from state.delta.merging.change import Change
from state.delta.merging.ranges import TimeRange
from state.delta.tables.data_files import DataFile, WrittenFile
from state.rows.columns import StateColumns


@dataclass(frozen=True, slots=True)
class Bounds:
    """The least and the greatest value of a column, as integers: of a time its microseconds. NULL is apart."""

    least: int
    greatest: int
    has_null: bool = False

    def overlaps(self, other: Bounds) -> bool:
        """Whether a value can be in both."""
        return self.least <= other.greatest and other.least <= self.greatest


_NOTHING: Final = Bounds(2**63, -(2**63) - 1)


@dataclass(frozen=True, slots=True)
class FileBounds:
    """How many rows a file has, and the bounds of those of its columns of which they are known."""

    rows: int
    columns: Mapping[str, Bounds]
    lacks: frozenset[str]
    """The columns that the table has gained since: NULL in all rows."""


@dataclass(frozen=True, slots=True)
class Reached:
    """The files that a transaction reaches: those that have to be looked into, those that only have past rows, and,
    where rows lie by time, those that are looked into for the past rows that they have beside others."""

    touched: list[DataFile]
    past: list[DataFile]
    aging: list[DataFile]
    rows: Mapping[DataFile, int]
    """How many rows each file of the table has."""


@dataclass(slots=True)
class Footers:
    """The bounds of the files of one table, read once: what a file holds never changes."""

    storage: FileSystem
    columns: StateColumns
    _known: dict[str, FileBounds] = field(default_factory=dict)

    def _of(self, files: Sequence[DataFile]) -> list[FileBounds]:
        """The bounds of these files, which are all there are."""
        wanted = _wanted(self.columns)
        self._known = {
            file.name: self._known.get(file.name)
            or _bounds_of(parquet.read_metadata(file.name, filesystem=self.storage), wanted)
            for file in files
        }
        return list(self._known.values())

    def add(self, written: Iterable[WrittenFile]) -> None:
        """Note the bounds of files that were written."""
        self._known |= {file.name: _bounds_of(file.footer, _wanted(self.columns)) for file in written}

    def reached(self, files: Sequence[DataFile], change: Change) -> Reached:
        """What a transaction reaches of these files, which are all there are. Raises `OSError`, `ArrowException`."""
        reach = _Reach(change, _coming(change.columns, change.rows))
        found = Reached([], [], [], {file: bounds.rows for file, bounds in zip(files, self._of(files), strict=True)})
        for file in files:
            bounds = self._known[file.name]
            if reach.leaves_nothing(bounds):
                found.past.append(file)
            elif reach.may_touch(bounds):
                found.touched.append(file)
            elif reach.may_have_past(bounds):
                (found.aging if self.columns.is_by_time else found.touched).append(file)
        return found

    def between(self, files: Sequence[DataFile], wanted: TimeRange) -> list[DataFile]:
        """Those that may have a row of a range. Raises `OSError`, `ArrowException`."""

        def may_have(bounds: FileBounds) -> bool:
            known = bounds.columns.get(wanted.column)
            if known is None:
                return True
            return known.least <= wanted.until and (wanted.after is None or known.greatest > wanted.after)

        return [file for file, bounds in zip(files, self._of(files), strict=True) if may_have(bounds)]

    def adjacent(self, files: Sequence[DataFile], rows_max: int, bytes_max: int) -> list[list[DataFile]]:
        """Small files side by side in time, in runs that together are not too large. `files` are all there are, of a
        table whose rows expire by a column of the key. Raises `OSError`, `ArrowException`."""
        known = dict(zip(files, self._of(files), strict=True))
        runs, rows, size_bytes = [list[DataFile]()], 0, 0
        for file in sorted(files, key=lambda each: self._greatest(known[each])):
            more = known[file].rows
            is_large = 2 * more > rows_max or 2 * file.size_bytes > bytes_max
            if is_large or rows + more > rows_max or size_bytes + file.size_bytes > bytes_max:
                runs, rows, size_bytes = [*runs, []], 0, 0
            if not is_large:
                runs[-1].append(file)
                rows, size_bytes = rows + more, size_bytes + file.size_bytes
        return [run for run in runs if len(run) > 1]

    def _greatest(self, file: FileBounds) -> tuple[bool, int]:
        """The place of a file by time; the last ones are those of which it is not known."""
        bounds = file.columns.get(self.columns.expires or "")
        return (True, 0) if bounds is None else (False, bounds.greatest)


@dataclass(frozen=True, slots=True)
class _Reach:
    """What a transaction does, as far as bounds show. `coming` are those of the keys that come."""

    change: Change
    coming: Mapping[str, Bounds]

    def leaves_nothing(self, file: FileBounds) -> bool:
        """Whether all rows of a file had expired for the transaction before."""
        expiry, horizon = file.columns.get(self.change.columns.expires or ""), self.change.horizons.previous
        if horizon is None or expiry is None or expiry.has_null:
            return False
        return expiry.greatest <= horizon and not self._may_be_own(file)

    def may_touch(self, file: FileBounds) -> bool:
        """Whether a file may have a key that comes, or a row that a dead attempt or a tombstone is."""
        return (
            self._may_be_own(file)
            or self._may_have_tombstones(file)
            or all(known.overlaps(self.coming[name]) for name, known in file.columns.items() if name in self.coming)
        )

    def _may_be_own(self, file: FileBounds) -> bool:
        """Whether a dead attempt of this transaction may have written a row of it."""
        txid, txids = self.change.txid, file.columns.get(self.change.columns.txid)
        return txids is None or txids.overlaps(Bounds(txid, txid))

    def _may_have_tombstones(self, file: FileBounds) -> bool:
        columns = self.change.columns
        if not columns.deletes or columns.deleted in file.lacks:
            return False
        deleted = file.columns.get(columns.deleted)
        return deleted is None or deleted.greatest > 0

    def may_have_past(self, file: FileBounds) -> bool:
        """Whether a file may have rows that are removed as they had expired for the transaction before."""
        horizon, expires = self.change.horizons.previous, self.change.columns.expires
        if not self.change.removes or horizon is None or expires is None:
            return False
        expiry = file.columns.get(expires)
        return expiry is None or expiry.least <= horizon


def _wanted(columns: StateColumns) -> pa.Schema:
    """The columns whose bounds say something, of types whose bounds are exact."""
    names = [*columns.key.names, columns.txid]
    names += [columns.deleted] if columns.deletes else []
    names += [columns.expires] if columns.expires is not None and columns.expires not in names else []
    schema = columns.table_schema
    return pa.schema([schema.field(name) for name in names if _is_exact(schema.field(name).type)])


def _is_exact(type_: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_integer(type_) or types.is_timestamp(type_) or types.is_date(type_) or types.is_boolean(type_))


def _coming(columns: StateColumns, rows: pa.Table) -> dict[str, Bounds]:
    """The bounds of the keys that come. Without rows no key does."""
    types, found = _wanted(columns), dict[str, Bounds]()
    for name in columns.key.names:
        if name not in types.names:
            continue
        if not rows.num_rows:
            found[name] = _NOTHING
        elif not rows[name].null_count and rows[name].type == types.field(name).type:
            ends = pc.min_max(rows[name])
            found[name] = Bounds(_as_integer(ends["min"]), _as_integer(ends["max"]))
    return found


def _as_integer(value: pa.Scalar) -> int:
    stored = value.cast(pa.int32()) if pa.types.is_date32(value.type) else value
    number: int = stored.cast(pa.int64()).as_py()
    return number


def _bounds_of(footer: parquet.FileMetaData, wanted: pa.Schema) -> FileBounds:
    places = {footer.schema.column(place).path: place for place in range(footer.num_columns)}
    types = footer.schema.to_arrow_schema()
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    found = dict[str, Bounds]()
    for each in wanted:
        if each.name not in places or types.field(each.name).type != each.type:
            continue
        if (bounds := _over(group.column(places[each.name]).statistics for group in groups)) is not None:
            found[each.name] = bounds
    return FileBounds(footer.num_rows, found, frozenset(wanted.names) - frozenset(types.names))


def _over(parts: Iterable[parquet.Statistics | None]) -> Bounds | None:
    """The bounds over all row groups. None: they are not known, or there are none."""
    found = list(parts)
    known = [part for part in found if part is not None and part.has_min_max and part.has_null_count]
    if not known or len(known) < len(found):
        return None
    return Bounds(
        min(int(part.min_raw) for part in known),
        max(int(part.max_raw) for part in known),
        any(part.null_count > 0 for part in known),
    )
