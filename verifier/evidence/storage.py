"""Where a Delta table's files are: a folder, read as fast as possible, or any storage that delta-rs can open."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

PART_ROWS = 1 << 18


class Storage(Protocol):
    """Reads files below a table's root."""

    def names(self, folder: str) -> list[str]:
        """The names of the files in a folder; none if it does not exist."""

    def read(self, path: str) -> bytes:
        """A whole file. Raises `FileNotFoundError`."""

    def size_bytes(self, path: str) -> int | None:
        """The size of a data file; None if it does not exist."""

    def read_parquet(self, path: str, columns: list[str] | None = None) -> pa.Table:
        """A Parquet file. A column that was added to the table after it is NULL. Raises `FileNotFoundError`."""

    def parquet_parts(self, path: str, columns: list[str]) -> Iterator[pa.Table]:
        """A Parquet file in parts. Raises `OSError` if it can't be read."""


class FolderStorage:
    """A table in a folder of this machine."""

    def __init__(self, root: str) -> None:
        self._root = root

    def names(self, folder: str) -> list[str]:
        """The names of the files in a folder; none if it does not exist."""
        try:
            return os.listdir(os.path.join(self._root, folder))
        except FileNotFoundError:
            return []

    def read(self, path: str) -> bytes:
        """A whole file. Raises `FileNotFoundError`."""
        # Half the time of open(): there may be a hundred thousand of them.
        number = os.open(f"{self._root}/{path}", os.O_RDONLY)
        try:
            parts = []
            while part := os.read(number, 1 << 20):
                parts.append(part)
            return parts[0] if len(parts) == 1 else b"".join(parts)
        finally:
            os.close(number)

    def size_bytes(self, path: str) -> int | None:
        """The size of a data file; None if it does not exist."""
        try:
            return os.stat(f"{self._root}/{unquote(path)}").st_size
        except FileNotFoundError:
            return None

    def read_parquet(self, path: str, columns: list[str] | None = None) -> pa.Table:
        """A Parquet file, with NULL for the `columns` that it lacks. `path` is as in the log, with %-escapes.

        Raises `FileNotFoundError`.
        """
        with pq.ParquetFile(f"{self._root}/{unquote(path)}") as file:
            return _with_missing_columns(file.read(columns), columns or [])

    def parquet_parts(self, path: str, columns: list[str]) -> Iterator[pa.Table]:
        """A Parquet file in parts. Raises `OSError` if it can't be read."""
        with pq.ParquetFile(f"{self._root}/{unquote(path)}") as file:
            yield from _parts(file, columns)


class ObjectStorage:
    """A table in an object store."""

    def __init__(self, uri: str, options: Mapping[str, str]) -> None:
        from deltalake.fs import DeltaStorageHandler

        self._files = pafs.PyFileSystem(DeltaStorageHandler(uri, dict(options)))

    def names(self, folder: str) -> list[str]:
        """The names of the files in a folder; none if it does not exist."""
        selector = pafs.FileSelector(folder, allow_not_found=True)
        return [str(file.base_name) for file in self._files.get_file_info(selector) if file.is_file]

    def read(self, path: str) -> bytes:
        """A whole file. Raises `FileNotFoundError`."""
        with self._files.open_input_stream(path) as stream:
            return bytes(stream.read())

    def size_bytes(self, path: str) -> int | None:
        """The size of a data file; None if it does not exist."""
        [file] = self._files.get_file_info([unquote(path)])
        return None if file.size is None else int(file.size)

    def read_parquet(self, path: str, columns: list[str] | None = None) -> pa.Table:
        """A Parquet file, with NULL for the `columns` that it lacks. `path` is as in the log, with %-escapes.

        Raises `FileNotFoundError`.
        """
        with self._files.open_input_file(unquote(path)) as stream, pq.ParquetFile(stream) as file:
            return _with_missing_columns(file.read(columns), columns or [])

    def parquet_parts(self, path: str, columns: list[str]) -> Iterator[pa.Table]:
        """A Parquet file in parts. Raises `OSError` if it can't be read."""
        with self._files.open_input_file(unquote(path)) as stream, pq.ParquetFile(stream) as file:
            yield from _parts(file, columns)


def _parts(file: pq.ParquetFile, columns: list[str]) -> Iterator[pa.Table]:
    try:
        for batch in file.iter_batches(PART_ROWS, columns=columns):
            part = _with_missing_columns(pa.Table.from_batches([batch]), columns)
            yield part.cast(pa.schema([pa.field(field.name, _plain(field.type)) for field in part.schema]))
    except pa.ArrowException as error:
        raise OSError(str(error)) from error


def _with_missing_columns(rows: pa.Table, columns: list[str]) -> pa.Table:
    """Append, as NULL, the columns that the table has gained since the file was written."""
    for name in columns:
        if name not in rows.column_names:
            rows = rows.append_column(name, pa.nulls(rows.num_rows))
    return rows


def _plain(type_: pa.DataType) -> pa.DataType:
    """Return the type that Arrow has for a type of views or large offsets, which writers choose differently."""
    if pa.types.is_string_view(type_) or pa.types.is_large_string(type_):
        return pa.string()
    return pa.binary() if pa.types.is_binary_view(type_) or pa.types.is_large_binary(type_) else type_


def storage_of(uri: str, options: Mapping[str, str] | None = None) -> Storage:
    """The storage at a path or URI."""
    parts = urlsplit(uri)
    # One letter is a drive on Windows.
    if len(parts.scheme) > 1 and parts.scheme != "file":
        return ObjectStorage(uri, options or {})
    return FolderStorage(str(Path(unquote(parts.path) if parts.scheme == "file" else uri).absolute()))


def opened_version(uri: str, options: Mapping[str, str] | None = None) -> int:
    """The version that a reader gets who opens the table now. Raises `OSError` if it can't be opened."""
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    try:
        return int(DeltaTable(uri, storage_options=dict(options or {})).version())
    except DeltaError as error:
        raise OSError(str(error).splitlines()[0]) from None
