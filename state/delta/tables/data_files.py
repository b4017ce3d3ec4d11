"""The data files of a Delta table: their names, encoding, statistics and digests.

Whole numbers and times are encoded as the differences between one value and the next, in as few bits as the differences
take: keys in order, transactions and previous values differ by little. A file of ten million counters takes a half to a
fiftieth of the size that plain numbers take, is written in two thirds of the time, and read in a third (ADR 020).
Nothing here needs delta-rs, since tasks write such files as well. A write that fails leaves no file behind, and no
file becomes part of a table here.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any, BinaryIO
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet
from pyarrow.fs import FileSystem

_UUID = r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
# Spark has a dot before c000.
DATA_FILE = re.compile(rf"part-\d{{5,}}-{_UUID}([.-]c\d+)?(\.[a-z0-9]+)?\.parquet", re.IGNORECASE)
"""The name of a data file, as Spark, delta-rs and `new_data_file` choose it."""
GROUP_ROWS = 500_000
"""Number of rows in a row group of a file."""
FILE_ROWS_MAX = 4_000_000
"""Largest number of rows in a file, however few bytes they take, since each thread rewrites one file at a time."""


def new_data_file(compression: str = "snappy") -> str:
    """Return a name that no other data file has."""
    return f"part-00000-{uuid4()}-c000.{compression}.parquet"


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file of a table: its path in the table's folder, and its size in bytes.

    `txid` is the transaction whose segment the file belongs to, in a table in the log layout.
    """

    name: str
    size_bytes: int
    txid: int | None = None


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A file that is written and not yet part of its table: the same file as part of it, and its number of rows.

    `statistics` are those for the table's log, as JSON. `digest` is that of the file's bytes, or empty (`new_digest`).
    `footer` may be None for a staged file: a task has written and synced it, and it outlives a refused Delta commit.
    """

    part: DataFile
    rows: int
    statistics: str
    digest: str = ""
    footer: parquet.FileMetaData | None = None
    is_staged: bool = False

    @property
    def name(self) -> str:
        return self.part.name


@dataclass(slots=True)
class Replacement:
    """The files that a Delta commit replaces, and the written files that replace them.

    `unchanged` are the table's other files with their numbers of rows, if they are known. `rows` are all rows of the
    table afterwards, if they are in memory.
    """

    old: Sequence[DataFile] = ()
    new: Sequence[WrittenFile] = ()
    unchanged: Mapping[DataFile, int] | None = None
    rows: pa.Table | None = None


class DigestingSink:
    """An output file, and the digest of the bytes that were written to it so far."""

    closed = False

    def __init__(self, sink: pa.NativeFile) -> None:
        self._sink, self._digest = sink, new_digest()

    @property
    def digest(self) -> str:
        """The digest in hexadecimal form."""
        return self._digest.hexdigest()

    def write(self, content: bytes) -> int:
        """Append bytes and return their number."""
        self._digest.update(content)
        self._sink.write(content)
        return len(content)

    @property
    def size_bytes(self) -> int:
        return int(self._sink.tell())

    def flush(self) -> None:
        """Pass on the buffered bytes to the file."""
        self._sink.flush()

    def close(self) -> None:
        """End the file, after which nothing is written."""
        self.closed = True
        self._sink.close()


class FileWriter:
    """Writes one new data file, with the columns of a schema.

    `folder` is that of the file in the table's, with a slash at its end. `txid` is as in `DataFile`.
    """

    def __init__(self, storage: FileSystem, schema: pa.Schema, folder: str = "", txid: int | None = None) -> None:
        """Create the file. Raises `OSError`."""
        self._storage, self._schema, self._txid = storage, schema, txid
        self._name, self.rows = folder + new_data_file(), 0
        self._footers = list[parquet.FileMetaData]()
        self._sink = DigestingSink(storage.open_output_stream(self._name))
        try:
            self._writer = table_writer(self._sink, schema, footers=self._footers)
        except OSError:
            self._delete()
            raise

    def write(self, rows: pa.Table) -> None:
        """Append rows, which may have more columns. Raises `OSError`, `ArrowException`."""
        self._writer.write_table(rows.select(self._schema.names).cast(self._schema), row_group_size=GROUP_ROWS)
        self.rows += rows.num_rows

    def close(self) -> WrittenFile:
        """End the file. Raises `OSError`, and deletes it then."""
        try:
            self._writer.close()
            part, [footer] = DataFile(self._name, self._sink.size_bytes, self._txid), self._footers
            self._sink.close()
        except BaseException:
            self.undo()
            raise
        return WrittenFile(part, self.rows, footer_statistics(footer), self._sink.digest, footer)

    def undo(self) -> None:
        """Delete the file, whether it is complete or not."""
        # After a failed write pyarrow raises `RuntimeError`, since the file has no footer.
        with suppress(OSError, RuntimeError):
            self._writer.close()
        self._delete()

    def _delete(self) -> None:
        with suppress(OSError):
            self._sink.close()
        with suppress(FileNotFoundError):
            self._storage.delete_file(self._name)


class Lane:
    """The files that one thread writes, one after the other."""

    def __init__(self, storage: FileSystem, schema: pa.Schema) -> None:
        self._storage, self._schema = storage, schema
        self._writer: FileWriter | None = None
        self.written_files = list[WrittenFile]()

    def write(self, rows: pa.Table) -> None:
        """Write rows, to a new file if there is none or it would be too large."""
        if not rows.num_rows:
            return
        if self._writer is not None and self._writer.rows + rows.num_rows > FILE_ROWS_MAX:
            self.close()
        if self._writer is None:
            self._writer = FileWriter(self._storage, self._schema)
        self._writer.write(rows)

    def close(self) -> None:
        """End the file, if there is one."""
        if self._writer is not None:
            writer, self._writer = self._writer, None
            self.written_files.append(writer.close())

    def undo(self) -> None:
        """Delete the files that were written."""
        if self._writer is not None:
            self._writer.undo()
        for file in self.written_files:
            with suppress(FileNotFoundError):
                self._storage.delete_file(file.name)


def write_file(
    storage: FileSystem, rows: pa.Table, schema: pa.Schema, folder: str = "", txid: int | None = None
) -> list[WrittenFile]:
    """Write rows to a file, in the order of a schema; without rows to none. `folder` and `txid` as in `FileWriter`.

    Raises `OSError`, `ArrowException`, and leaves nothing.
    """
    if not rows.num_rows:
        return []
    writer = FileWriter(storage, schema, folder, txid)
    try:
        writer.write(rows)
    except BaseException:
        writer.undo()
        raise
    return [writer.close()]


def table_writer(
    output: Path | BinaryIO | pa.NativeFile,
    schema: pa.Schema,
    *,
    dictionaries: bool = False,
    footers: list[parquet.FileMetaData] | None = None,
) -> parquet.ParquetWriter:
    """Return a writer of a data file. When it is closed, the file's footer is appended to `footers`.

    With `dictionaries` columns that are no numbers get dictionaries: the keys of a segment may repeat. Where each key
    has one row, a dictionary would cost time and save nothing.
    """
    by_difference = [field.name for field in schema if _has_differences(field.type)]
    dictionary_columns = [name for name in schema.names if name not in by_difference]
    return parquet.ParquetWriter(
        output,
        schema,
        compression="snappy",
        use_dictionary=dictionary_columns if dictionaries else False,
        column_encoding=dict.fromkeys(by_difference, "DELTA_BINARY_PACKED"),
        store_schema=False,
        metadata_collector=footers,
    )


def _has_differences(type_: pa.DataType) -> bool:
    """True if Parquet stores the values of this type as integers."""
    return bool(pa.types.is_integer(type_) or pa.types.is_date32(type_) or pa.types.is_timestamp(type_))


def footer_statistics(footer: parquet.FileMetaData) -> str:
    """Return the statistics of a written file, as `statistics` does, from its footer."""
    counts, bounds = dict[str, int](), dict[str, tuple[Any, Any]]()
    groups = [footer.row_group(group) for group in range(footer.num_row_groups)]
    for number, column in enumerate(footer.schema.to_arrow_schema()):
        parts = [group.column(number).statistics for group in groups]
        are_known = all(parts)
        if are_known and all(map(attrgetter("has_null_count"), parts)):
            counts[column.name] = sum(map(attrgetter("null_count"), parts))
        if are_known and parts and pa.types.is_integer(column.type) and all(map(attrgetter("has_min_max"), parts)):
            bounds[column.name] = min(map(attrgetter("min"), parts)), max(map(attrgetter("max"), parts))
    return _as_json(footer.num_rows, counts, bounds)


def statistics(rows: pa.Table) -> str:
    """Return the statistics of a file for its table's log: the number of rows, and exact bounds of integer columns.

    Bounds of other columns are left out: one of a string may be cut, one of a time is rounded by some readers.
    """
    counts, bounds = dict[str, int](), dict[str, tuple[Any, Any]]()
    for name, column in zip(rows.column_names, rows.columns, strict=True):
        counts[name] = column.null_count
        if pa.types.is_integer(column.type) and column.null_count < len(column):
            extremes = pc.min_max(column).as_py()
            bounds[name] = extremes["min"], extremes["max"]
    return _as_json(rows.num_rows, counts, bounds)


def _as_json(row_count: int, null_counts: dict[str, int], bounds: dict[str, tuple[Any, Any]]) -> str:
    least = {name: minimum for name, (minimum, _) in bounds.items()}
    greatest = {name: maximum for name, (_, maximum) in bounds.items()}
    return json.dumps({"numRecords": row_count, "minValues": least, "maxValues": greatest, "nullCount": null_counts})


def new_digest() -> hashlib.blake2b:
    """Return an empty digest of a data file's bytes, whose hexadecimal form its table's log has."""
    return hashlib.blake2b(digest_size=16)


def with_all(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the columns of a schema, NULL where the table has no column of that name."""
    names = set(table.column_names)
    columns = [table[field.name] if field.name in names else pa.nulls(table.num_rows, field.type) for field in schema]
    return pa.table(columns, names=schema.names).cast(schema)
