"""What is rewritten at a time: a file, or several small ones; and the parts of it that are in memory at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from threading import Lock

import pyarrow as pa
from pyarrow import parquet
from pyarrow.fs import FileSystem

from state.delta.tables.data_files import DataFile
from state.delta.tables.storage import opened_parquet


@dataclass(slots=True)
class Unit:
    """Files that become one."""

    files: list[DataFile] = field(default_factory=list)
    opened: list[parquet.ParquetFile] = field(default_factory=list)
    rows: int = 0

    def parts(self, rows_max: int) -> Iterator[UnitPart]:
        """The rows of all files, in parts that are worth a hash table."""
        part = UnitPart([])
        for opened in self.opened:
            for group in range(opened.num_row_groups):
                part.groups.append((opened, group))
                if part.rows >= rows_max:
                    yield part
                    part = UnitPart([])
        if part.groups:
            yield part


@dataclass(frozen=True, slots=True)
class UnitPart:
    """Row groups of some files."""

    groups: list[tuple[parquet.ParquetFile, int]]

    @property
    def rows(self) -> int:
        """How many there are."""
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


def units_of(storage: FileSystem, files: Iterable[DataFile], rows_max: int) -> Iterator[Unit]:
    """Files of a table, opened when it is their turn; small ones together up to so many rows."""
    unit = Unit()
    for file in files:
        opened = opened_parquet(storage, file.name, file.size_bytes)
        if unit.files and unit.rows + opened.metadata.num_rows > rows_max:
            yield unit
            unit = Unit()
        unit.files.append(file)
        unit.opened.append(opened)
        unit.rows += opened.metadata.num_rows
    if unit.files:
        yield unit


class UnitQueue:
    """What several threads take one after the other, until one of them ends it."""

    def __init__(self, units: Iterator[Unit]) -> None:
        self._units, self._lock = units, Lock()

    def next(self) -> Unit | None:
        """The next unit; None: there is none, or it has ended."""
        with self._lock:
            return next(self._units, None)

    def end(self) -> None:
        """Give nobody another one."""
        with self._lock:
            self._units = iter(())
