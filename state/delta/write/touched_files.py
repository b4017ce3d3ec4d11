"""The files of a table that a transaction concerns, by the bounds of whole numbers and times in their footers.

A file is not read if it has no key of the transaction, which a key column shows whose values in the file are all below
or all above those of the transaction. That is so for windows, whose rows are written with their time. A file all of
whose rows have expired is dropped without being read. Missing bounds, or bounds of other types, exclude nothing: such a
file is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet
from pyarrow.fs import FileSystem

from state.delta.tables.data_files import DataFile, WrittenFile
from state.delta.tables.ranges import TimeRange
from state.delta.write.change import Change
from state.rows.columns import StateColumns


@dataclass(frozen=True, slots=True)
class Bounds:
    """The least and the greatest value of a column, as integers; a time in microseconds. NULL is not among them."""

    least: int
    greatest: int
    has_null: bool = False

    def overlaps(self, bounds: Bounds) -> bool:
        """True if a value may lie in both bounds."""
        return self.least <= bounds.greatest and bounds.least <= self.greatest


_NO_VALUES: Final = Bounds(2**63, -(2**63) - 1)


@dataclass(frozen=True, slots=True)
class FileBounds:
    """The number of rows in a file, and the bounds of its columns, as far as the footer has them."""

    rows: int
    columns: Mapping[str, Bounds]
    missing: frozenset[str]
    """The columns that the table has gained since: NULL in all rows."""


@dataclass(frozen=True, slots=True)
class FileSelection:
    """The files of a table that a transaction concerns. `changed` may have rows that it changes.

    `expired` have only rows that had expired for the previous transaction. `aging`, where files hold rows by time, have
    such rows beside others. `rows` has the number of rows of every file of the table.
    """

    changed: list[DataFile]
    expired: list[DataFile]
    aging: list[DataFile]
    rows: Mapping[DataFile, int]


@dataclass(slots=True)
class Footers:
    """The bounds of the files of one table. A footer is read once, since a file never changes."""

    storage: FileSystem
    columns: StateColumns
    _cached: dict[str, FileBounds] = field(default_factory=dict)
    _fields: pa.Schema = field(init=False)

    def __post_init__(self) -> None:
        self._fields = _bounded_columns(self.columns)

    def _read_bounds(self, files: Sequence[DataFile]) -> list[FileBounds]:
        """Return the bounds of all files of the table."""
        self._cached = {
            file.name: self._cached.get(file.name)
            or _bounds_of_file(parquet.read_metadata(file.name, filesystem=self.storage), self._fields)
            for file in files
        }
        return list(self._cached.values())

    def add(self, files: Iterable[WrittenFile]) -> None:
        """Cache the bounds of files that were just written."""
        with_footers = [file for file in files if file.footer is not None]
        self._cached |= {file.part.name: _bounds_of_file(file.footer, self._fields) for file in with_footers}

    def select(self, files: Sequence[DataFile], change: Change) -> FileSelection:
        """Select the files that a transaction concerns. `files` are all of the table.

        Raises `OSError`, `ArrowException`.
        """
        filter_ = _FileFilter(change, _bounds_of_keys(self._fields, change))
        row_counts = {file: bounds.rows for file, bounds in zip(files, self._read_bounds(files), strict=True)}
        selection = FileSelection([], [], [], row_counts)
        for file in files:
            bounds = self._cached[file.name]
            if filter_.has_expired(bounds):
                selection.expired.append(file)
            elif filter_.may_change(bounds):
                selection.changed.append(file)
            elif filter_.may_have_expired_rows(bounds):
                (selection.aging if self.columns.is_by_time else selection.changed).append(file)
        return selection

    def overlapping(self, files: Sequence[DataFile], time_range: TimeRange) -> list[DataFile]:
        """Return the files that may have a row of a range. Raises `OSError`, `ArrowException`."""

        def may_overlap(bounds: FileBounds) -> bool:
            times = bounds.columns.get(time_range.column)
            if times is None:
                return True
            return times.least <= time_range.end and (time_range.start is None or times.greatest > time_range.start)

        return [file for file, bounds in zip(files, self._read_bounds(files), strict=True) if may_overlap(bounds)]

    def adjacent(self, files: Sequence[DataFile], rows_max: int, bytes_max: int) -> list[list[DataFile]]:
        """Group small files with adjacent times, each group within the limits. `files` are all of the table.

        Rows of the table expire by a key column. Raises `OSError`, `ArrowException`.
        """
        bounds = dict(zip(files, self._read_bounds(files), strict=True))
        groups, rows, size_bytes = [list[DataFile]()], 0, 0
        for file in sorted(files, key=lambda file: self._time_order(bounds[file])):
            file_rows = bounds[file].rows
            is_large = 2 * file_rows > rows_max or 2 * file.size_bytes > bytes_max
            if is_large or rows + file_rows > rows_max or size_bytes + file.size_bytes > bytes_max:
                groups, rows, size_bytes = [*groups, []], 0, 0
            if not is_large:
                groups[-1].append(file)
                rows, size_bytes = rows + file_rows, size_bytes + file.size_bytes
        return [group for group in groups if len(group) > 1]

    def _time_order(self, file: FileBounds) -> tuple[bool, int]:
        """Return a sort key of files by time. Files without known times are last."""
        bounds = file.columns.get(self.columns.expires or "")
        return (True, 0) if bounds is None else (False, bounds.greatest)


@dataclass(frozen=True, slots=True)
class _FileFilter:
    """Decides by bounds which files a change concerns. `keys` are the bounds of the change's keys."""

    change: Change
    keys: Mapping[str, Bounds]

    def has_expired(self, file: FileBounds) -> bool:
        """True if all rows of a file had expired for the previous transaction."""
        expiry, horizon = file.columns.get(self.change.columns.expires or ""), self.change.horizons.previous
        if horizon is None or expiry is None or expiry.has_null:
            return False
        return expiry.greatest <= horizon and not self._may_be_own(file)

    def may_change(self, file: FileBounds) -> bool:
        """True if a file may have a key of the change, a row of a dead attempt, or a tombstone."""
        return (
            self._may_be_own(file)
            or self._may_have_tombstones(file)
            or all(bounds.overlaps(self.keys[name]) for name, bounds in file.columns.items() if name in self.keys)
        )

    def _may_be_own(self, file: FileBounds) -> bool:
        """True if a dead attempt of this transaction may have written a row of a file."""
        txid, txids = self.change.txid, file.columns.get(self.change.columns.txid)
        return txids is None or txids.overlaps(Bounds(txid, txid))

    def _may_have_tombstones(self, file: FileBounds) -> bool:
        columns = self.change.columns
        if not columns.deletes or columns.deleted in file.missing:
            return False
        deleted = file.columns.get(columns.deleted)
        return deleted is None or deleted.greatest > 0

    def may_have_expired_rows(self, file: FileBounds) -> bool:
        """True if a file may have rows to remove, since they had expired for the previous transaction."""
        horizon, expires = self.change.horizons.previous, self.change.columns.expires
        if not self.change.removes or horizon is None or expires is None:
            return False
        expiry = file.columns.get(expires)
        return expiry is None or expiry.least <= horizon


def _bounded_columns(columns: StateColumns) -> pa.Schema:
    """Return the columns whose bounds are used, as far as bounds of their type are exact."""
    names = [*columns.key.names, columns.txid]
    names += [columns.deleted] if columns.deletes else []
    names += [columns.expires] if columns.expires is not None and columns.expires not in names else []
    schema = columns.table_schema
    return pa.schema([schema.field(name) for name in names if _is_exact(schema.field(name).type)])


def _is_exact(type_: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_integer(type_) or types.is_timestamp(type_) or types.is_date(type_) or types.is_boolean(type_))


def _bounds_of_keys(types: pa.Schema, change: Change) -> dict[str, Bounds]:
    """Return the bounds of the keys of new rows by key column. Without rows they overlap nothing."""
    rows, bounds = change.rows, dict[str, Bounds]()
    for name in change.columns.key.names:
        if name not in types.names:
            continue
        if not rows.num_rows:
            bounds[name] = _NO_VALUES
        elif not rows[name].null_count and rows[name].type == types.field(name).type:
            extremes = pc.min_max(rows[name])
            bounds[name] = Bounds(_as_integer(extremes["min"]), _as_integer(extremes["max"]))
    return bounds


def _as_integer(scalar: pa.Scalar) -> int:
    stored = scalar.cast(pa.int32()) if pa.types.is_date32(scalar.type) else scalar
    number: int = stored.cast(pa.int64()).as_py()
    return number


def _bounds_of_file(footer: parquet.FileMetaData, fields: pa.Schema) -> FileBounds:
    positions = {footer.schema.column(position).path: position for position in range(footer.num_columns)}
    types = footer.schema.to_arrow_schema()
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    columns = dict[str, Bounds]()
    for field_ in fields:
        if field_.name not in positions or types.field(field_.name).type != field_.type:
            continue
        statistics = [group.column(positions[field_.name]).statistics for group in groups]
        if (bounds := _combine_statistics(statistics)) is not None:
            columns[field_.name] = bounds
    return FileBounds(footer.num_rows, columns, frozenset(fields.names) - frozenset(types.names))


def _combine_statistics(statistics: Sequence[parquet.Statistics | None]) -> Bounds | None:
    """Return the bounds over all row groups, or None if they are not recorded for all, or there is no group."""
    complete = [group for group in statistics if group is not None and group.has_min_max and group.has_null_count]
    if not complete or len(complete) < len(statistics):
        return None
    return Bounds(
        min(int(group.min_raw) for group in complete),
        max(int(group.max_raw) for group in complete),
        any(group.null_count > 0 for group in complete),
    )
