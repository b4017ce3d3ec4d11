"""The files of rows that a Delta table is made of: their names, how they are encoded and written, their statistics.

Whole numbers and times are written as the differences between one value and the next, in as few bits as these take:
keys in order, transactions, and what was there before differ by little. A file of ten million counters takes a half to
a fiftieth of the room that plain numbers take, is written in two thirds of the time, and read in a third (ADR 020).
Files are written side by side, by a thread each: Arrow and Parquet work without Python's lock. Nothing in here needs
delta-rs: tasks write such files, too.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import Any, BinaryIO
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet
from pyarrow.fs import FileSystem

from transactional.model.plumbing.pools import DaemonPool

_UUID = r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
# Spark has a dot before c000.
DATA_FILE = re.compile(rf"part-\d{{5,}}-{_UUID}([.-]c\d+)?(\.[a-z0-9]+)?\.parquet", re.IGNORECASE)
"""A file of rows, as Spark, delta-rs and `new_data_file` name it."""
FILE_ROWS_MAX = 4_000_000
"""A file gets no more rows than this, however few bytes they take: threads rewrite a file each."""
GROUP_ROWS = 500_000
"""So many rows of a file are a row group."""
LANE_ROWS = 200_000
"""So many rows are worth a thread, and a file, of their own."""
LANES_MAX = 4
"""Each touched file may become so many."""


def new_data_file(compression: str = "snappy") -> str:
    """A name for a file of rows that no other one has."""
    return f"part-00000-{uuid4()}-c000.{compression}.parquet"


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file of a table: its name in the table's folder, and its size in bytes."""

    name: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A file that is no part of its table yet."""

    name: str
    size_bytes: int
    footer: parquet.FileMetaData
    digest: str = ""
    """Of its bytes, as `new_digest` makes it; empty: it is not known."""

    @property
    def rows(self) -> int:
        """How many it has."""
        return int(self.footer.num_rows)

    @property
    def statistics(self) -> str:
        """What its table's log has to say of it."""
        return footer_statistics(self.footer)

    @property
    def as_part(self) -> DataFile:
        """Once it is a part of it."""
        return DataFile(self.name, self.size_bytes)


# --- encoding -----------------------------------------------------------------------------------------------------


def table_writer(
    where: Path | BinaryIO | pa.NativeFile | DigestingSink,
    schema: pa.Schema,
    *,
    dictionaries: bool = False,
    footers: list[parquet.FileMetaData] | None = None,
) -> parquet.ParquetWriter:
    """What writes rows of a table to a file. `dictionaries`: other values than numbers repeat, as those of a segment's
    keys may; where each key is there once a dictionary would cost time and save nothing. To `footers` the file's own is
    added when it is closed."""
    by_difference = [field.name for field in schema if _has_differences(field.type)]
    others = [name for name in schema.names if name not in by_difference]
    return parquet.ParquetWriter(
        where,
        schema,
        compression="snappy",
        use_dictionary=others if dictionaries else False,
        column_encoding=dict.fromkeys(by_difference, "DELTA_BINARY_PACKED"),
        store_schema=False,
        metadata_collector=footers,
    )


def _has_differences(type_: pa.DataType) -> bool:
    """Whether Parquet keeps its values as integers."""
    return bool(pa.types.is_integer(type_) or pa.types.is_date32(type_) or pa.types.is_timestamp(type_))


def footer_statistics(written: parquet.FileMetaData) -> str:
    """The same of a file that is written, from its footer: whose bounds of integers are exact."""
    told: dict[str, dict[str, Any]] = {"minValues": {}, "maxValues": {}, "nullCount": {}}
    groups = [written.row_group(group) for group in range(written.num_row_groups)]
    for number, column in enumerate(written.schema.to_arrow_schema()):
        parts = [group.column(number).statistics for group in groups]
        are_known = all(parts)
        if are_known and all(map(attrgetter("has_null_count"), parts)):
            told["nullCount"][column.name] = sum(map(attrgetter("null_count"), parts))
        if are_known and parts and pa.types.is_integer(column.type) and all(map(attrgetter("has_min_max"), parts)):
            told["minValues"][column.name] = min(map(attrgetter("min"), parts))
            told["maxValues"][column.name] = max(map(attrgetter("max"), parts))
    return json.dumps({"numRecords": written.num_rows, **told})


def statistics(rows: pa.Table) -> str:
    """The statistics of a file for its table's log: the number of rows, and exact bounds of integer columns.

    Others are left out: a bound of a string may be cut, one of a time is rounded by some readers.
    """
    told: dict[str, dict[str, Any]] = {"minValues": {}, "maxValues": {}, "nullCount": {}}
    for name, column in zip(rows.column_names, rows.columns, strict=True):
        told["nullCount"][name] = column.null_count
        if pa.types.is_integer(column.type) and column.null_count < len(column):
            bounds = pc.min_max(column).as_py()
            told["minValues"][name], told["maxValues"][name] = bounds["min"], bounds["max"]
    return json.dumps({"numRecords": rows.num_rows, **told})


# --- writing ------------------------------------------------------------------------------------------------------


def lanes_for(rows: int | None = None) -> int:
    """How many files are worth it for so many rows; None: at the most."""
    most: int = max(1, min(LANES_MAX, pa.cpu_count()))
    return most if rows is None else max(1, min(most, rows // LANE_ROWS))


def new_digest() -> hashlib.blake2b:
    """An empty digest of a data file's bytes, whose hexadecimal form its table's log has."""
    return hashlib.blake2b(digest_size=16)


class DigestingSink:
    """A file that is written, and the digest of what was written to it so far."""

    closed = False

    def __init__(self, sink: pa.NativeFile) -> None:
        self._sink, self._digest = sink, new_digest()

    @property
    def digest(self) -> str:
        """In hexadecimal form."""
        return self._digest.hexdigest()

    def write(self, data: bytes) -> int:
        """Append bytes; returns how many."""
        self._digest.update(data)
        self._sink.write(data)
        return len(data)

    def tell(self) -> int:
        """The number of bytes written."""
        return int(self._sink.tell())

    def flush(self) -> None:
        """Pass on what is buffered."""
        self._sink.flush()

    def close(self) -> None:
        """End the file."""
        self.closed = True
        self._sink.close()


class Lane:
    """The files that one thread writes, one after the other."""

    def __init__(self, storage: FileSystem, schema: pa.Schema) -> None:
        self._storage, self._schema = storage, schema
        self._writer: parquet.ParquetWriter | None = None
        self._sink: DigestingSink | None = None
        self._footers = list[parquet.FileMetaData]()
        self._name, self._rows = "", 0
        self.written = list[WrittenFile]()

    def write(self, rows: pa.Table) -> None:
        """Write rows, to a new file if there is none or it would be too large."""
        if not rows.num_rows:
            return
        if self._rows + rows.num_rows > FILE_ROWS_MAX:
            self.close()
        if self._writer is None:
            self._name = new_data_file()
            self._sink = DigestingSink(self._storage.open_output_stream(self._name))
            self._writer = table_writer(self._sink, self._schema, footers=self._footers)
        self._writer.write_table(rows.select(self._schema.names).cast(self._schema), row_group_size=GROUP_ROWS)
        self._rows += rows.num_rows

    def close(self) -> None:
        """End the file, if there is one."""
        if self._writer is not None and self._sink is not None:
            self._writer.close()
            self._writer, self._rows = None, 0
            self.written.append(WrittenFile(self._name, self._sink.tell(), self._footers.pop(), self._sink.digest))
            self._sink.close()

    def undo(self) -> None:
        """Delete what was written."""
        names = [file.name for file in self.written]
        if self._writer is not None and self._sink is not None:
            with suppress(OSError):
                self._writer.close()
                self._sink.close()
            self._writer = None
            names.append(self._name)
        for name in names:
            with suppress(FileNotFoundError):
                self._storage.delete_file(name)


def write_file(storage: FileSystem, rows: pa.Table, schema: pa.Schema) -> list[WrittenFile]:
    """Write rows to a file, in the order of a schema; without rows to none. Raises `OSError`, and leaves nothing."""
    lane = Lane(storage, schema)
    try:
        lane.write(rows)
        lane.close()
    except BaseException:
        lane.undo()
        raise
    return lane.written


def side_by_side(works: Sequence[Callable[[], None]]) -> None:
    """Do all of it, by a thread each (see `DaemonPool.run_concurrently`)."""
    _threads().run_concurrently(works)


@cache
def _threads() -> DaemonPool:
    return DaemonPool(LANES_MAX - 1, "rewriting")


def with_all(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Columns of a table, NULL where it has none of that name."""
    there = set(table.column_names)
    columns = [table[each.name] if each.name in there else pa.nulls(table.num_rows, each.type) for each in schema]
    return pa.table(columns, names=schema.names).cast(schema)
