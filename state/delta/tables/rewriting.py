"""A MERGE of a larger table, file by file, in memory: what delta-rs' own MERGE would leave, by the rules of `small.py`.

A MERGE rewrites every file that has a touched key. Here each file is read a part at a time, its keys are looked for in
one hash table of the keys that come, and what is left of the file is written as a new one; a file without a touched key
stays. New rows go to the last file that is written, unless it is too large. Nothing is committed here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from state.columns import StateColumns
from state.delta.tables.small import DataFile, Places, places_in, places_of_new, rewritten
from state.delta.tables.staging import footer_statistics
from state.delta.tables.table import delta_schema
from state.expiring import NO_FLOORS, Floors, time_scalar
from transactional.attempt import TxId

PART_ROWS = 500_000
"""Small files, and parts of files, are taken together up to so many rows."""
FILE_ROWS_MAX = 4_000_000
"""A file of more rows gets no new ones."""


class NotAlike(Exception):
    """Arrow and delta-rs would not leave the same, or there is something here that Arrow does not do."""


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A file that is no part of its table yet, and what its table's log has to say of it."""

    name: str
    size_bytes: int
    statistics: str


@dataclass(slots=True)
class Rewritten:
    """Files to be replaced, and those to be put in their place; and how many rows were read."""

    old: list[DataFile] = field(default_factory=list)
    new: list[WrittenFile] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Change:
    """What a transaction does to a table: `rows` have key and value columns, one row per key."""

    columns: StateColumns
    txid: TxId
    rows: pa.Table
    combine: Mapping[str, str]
    floors: Floors = NO_FLOORS
    removes: bool = False
    """Whether every row goes that had expired for the transaction before."""

    def applied(self, rows: pa.Table, in_source: pa.Array) -> pa.Table:
        """What becomes of stored rows. Raises `NotAlike`."""
        return self._sure(rows, self.rows, (None, in_source))

    def added(self, rows: pa.Table, none_stored: pa.Table) -> pa.Table:
        """What becomes of rows that come, whose keys are not stored. Raises `NotAlike`."""
        return self._sure(none_stored, rows, places_of_new(rows))

    def _sure(self, rows: pa.Table, source: pa.Table, places: Places) -> pa.Table:
        found = rewritten(rows, source, self.columns, self.txid, self.combine, self.floors, places)
        if found is None:
            raise NotAlike("types, or sums that do not fit")
        return found


def rewrite_files(folder: Path, files: Sequence[DataFile], names: Sequence[str], change: Change) -> Rewritten:
    """Write what becomes of the files of a table, whose columns are `names` in order.

    Nothing is left where it does not work out. Raises `NotAlike`, `OSError`.
    """
    work = _Rewriting(folder, names, change)
    try:
        for unit in _units(folder, files):
            work.take(unit)
        return work.done()
    except BaseException as error:
        work.undo()
        if isinstance(error, pa.ArrowException):
            # Types that are not compared, or a file that is not as ours are: delta-rs names what is wrong.
            raise NotAlike(str(error)) from error
        raise


@dataclass(slots=True)
class _Unit:
    """Files that become one."""

    files: list[DataFile] = field(default_factory=list)
    opened: list[parquet.ParquetFile] = field(default_factory=list)
    rows: int = 0

    def parts(self) -> Iterator[_Part]:
        """The rows of all files, in parts that are worth a hash table."""
        part = _Part([])
        for opened in self.opened:
            for group in range(opened.num_row_groups):
                part.groups.append((opened, group))
                if part.rows >= PART_ROWS:
                    yield part
                    part = _Part([])
        if part.groups:
            yield part


@dataclass(frozen=True, slots=True)
class _Part:
    """Row groups of some files."""

    groups: list[tuple[parquet.ParquetFile, int]]

    @property
    def rows(self) -> int:
        return sum(opened.metadata.row_group(group).num_rows for opened, group in self.groups)

    def read(self, schema: pa.Schema) -> pa.Table:
        """Some columns; what the table has gained since a file was written, is NULL there."""
        tables = [opened.read_row_group(group, columns=schema.names) for opened, group in self.groups]
        return pa.concat_tables([with_all(table, schema) for table in tables])


def with_all(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Columns of a table, NULL where it has none of that name."""
    there = set(table.column_names)
    columns = [table[each.name] if each.name in there else pa.nulls(table.num_rows, each.type) for each in schema]
    return pa.table(columns, names=schema.names).cast(schema)


def _units(folder: Path, files: Iterable[DataFile]) -> Iterator[_Unit]:
    unit = _Unit()
    for file in files:
        opened = parquet.ParquetFile(folder / file.name, coerce_int96_timestamp_unit="us")
        if unit.files and unit.rows + opened.metadata.num_rows > PART_ROWS:
            yield unit
            unit = _Unit()
        unit.files.append(file)
        unit.opened.append(opened)
        unit.rows += opened.metadata.num_rows
    if unit.files:
        yield unit


class _Output:
    """The file that is written to, if there is one."""

    def __init__(self, folder: Path, schema: pa.Schema) -> None:
        self._folder, self._schema = folder, schema
        self._writer: parquet.ParquetWriter | None = None
        self.name, self.rows = "", 0

    def write(self, rows: pa.Table) -> None:
        """Write rows, to a new file if there is none."""
        if not rows.num_rows:
            return
        if self._writer is None:
            self.name, self.rows = f"part-00000-{uuid4()}-c000.snappy.parquet", 0
            self._writer = parquet.ParquetWriter(
                self._folder / self.name, self._schema, compression="snappy", use_dictionary=False, store_schema=False
            )
        self._writer.write_table(rows.select(self._schema.names).cast(self._schema), row_group_size=PART_ROWS)
        self.rows += rows.num_rows

    def close(self) -> WrittenFile | None:
        """End the file, if there is one."""
        if self._writer is None:
            return None
        self._writer.close()
        self._writer, self.rows = None, 0
        path = self._folder / self.name
        return WrittenFile(self.name, path.stat().st_size, footer_statistics(parquet.read_metadata(path)))

    def drop(self) -> None:
        """Delete the file, if there is one."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
            (self._folder / self.name).unlink(missing_ok=True)


class _Rewriting:
    def __init__(self, folder: Path, names: Sequence[str], change: Change) -> None:
        self._folder, self._change, columns = folder, change, change.columns
        types = delta_schema(columns)
        self._schema = pa.schema([types.field(name) for name in names])
        # By these shows whether a file is touched.
        looked_at = [*columns.key.names, columns.txid, *([columns.deleted] if columns.deletes else [])]
        if change.removes and columns.expires is not None and columns.expires not in looked_at:
            looked_at.append(columns.expires)
        self._first = pa.schema([types.field(name) for name in looked_at])
        self._rest = pa.schema([types.field(name) for name in names if name not in looked_at])
        self._met = list[pa.Array]()
        self._result, self._output = Rewritten(), _Output(folder, self._schema)
        self._newest, self._latest = _Output(folder, self._schema), _latest(change)

    def take(self, unit: _Unit) -> None:
        """Rewrite the files of a unit, or leave them."""
        looked = [(part, rows, self._places(rows)) for part in unit.parts() for rows in [part.read(self._first)]]
        if not any(self._is_touched(rows, places) for _, rows, places in looked):
            return
        if self._output.rows + unit.rows > FILE_ROWS_MAX:
            self._close()
        for part, rows, places in looked:
            for field_, column in zip(self._rest, part.read(self._rest).columns, strict=True):
                rows = rows.append_column(field_, column)
            self._met.append(places.drop_null())
            self._write(self._change.applied(rows, places))
        self._result.old += unit.files

    def done(self) -> Rewritten:
        """Write the new rows, and end the file that is written."""
        source = self._change.rows
        met = pa.concat_arrays([*self._met, pa.array([], pa.int64())])
        new = source
        if len(met) == source.num_rows:
            new = source.slice(0, 0)
        elif len(met):
            numbers = pa.array(range(source.num_rows), pa.int64())
            new = source.filter(pc.invert(pc.is_in(numbers, value_set=met)))
        if self._output.rows + new.num_rows > FILE_ROWS_MAX:
            self._close()
        if new.num_rows:
            self._write(self._change.added(new, self._schema.empty_table()))
        self._close()
        return self._result

    def undo(self) -> None:
        """Delete what was written."""
        self._output.drop()
        self._newest.drop()
        for file in self._result.new:
            (self._folder / file.name).unlink(missing_ok=True)

    def _places(self, rows: pa.Table) -> pa.Array:
        return places_in(rows, self._change.rows, self._change.columns.key.names)

    def _is_touched(self, rows: pa.Table, places: pa.Array) -> bool:
        """Whether a row comes, was written by a dead attempt of this transaction, is a tombstone of a dead key, or is
        past and removed for that."""
        if places.null_count < len(places):
            return True
        columns = self._change.columns
        is_own = pc.any(pc.equal(rows[columns.txid], int(self._change.txid))).as_py()
        return bool(is_own or (columns.deletes and pc.any(rows[columns.deleted]).as_py()) or self._has_past(rows))

    def _has_past(self, rows: pa.Table) -> bool:
        expires, floor = self._change.columns.expires, self._change.floors.before
        if not self._change.removes or expires is None or floor is None:
            return False
        return bool(pc.any(pc.less_equal(rows[expires], time_scalar(floor))).as_py())

    def _write(self, rows: pa.Table) -> None:
        """Rows with the latest time go to a file of their own: the next transaction adds to those, and the others are
        left alone until they expire together."""
        if self._latest is None:
            self._output.write(rows)
            return
        is_latest = pc.fill_null(pc.equal(rows[self._change.columns.expires], self._latest), False)
        self._output.write(rows.filter(pc.invert(is_latest)))
        self._newest.write(rows.filter(is_latest))

    def _close(self) -> None:
        for output in (self._output, self._newest):
            if (file := output.close()) is not None:
                self._result.new.append(file)


def _latest(change: Change) -> pa.Scalar | None:
    """The latest time of the keys that come, where rows expire by it; None: they do not."""
    expires = change.columns.expires
    if expires is None or expires not in change.columns.key.names or not change.rows.num_rows:
        return None
    latest = pc.max(change.rows[expires])
    return latest if latest.is_valid else None
