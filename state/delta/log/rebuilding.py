"""Rebuilds a table's checkpoint from the memory of its leader, when no engine can load the table to write one.

A leader holds its table in memory, and may continue for hours while the log has lost an entry or a checkpoint, so that
no other process can open the table. `rebuild_checkpoint` writes a checkpoint of the leader's version. The description
of a data file comes from the entries and checkpoints that can still be read, or from the leader's memory if none of
them names the file. Nothing is guessed: it raises an error if a description is incomplete or a data file is missing.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote
from uuid import uuid4

import pyarrow as pa
from deltalake import DeltaTable
from pyarrow import parquet
from pyarrow.fs import FileSelector, FileSystem, FileType

from state.delta.log.entries import Entry, log_files, read_entry
from state.delta.log.log import (
    ENTRY,
    LOG_FOLDER,
    MALFORMED_ENTRY_ERRORS,
    WHOLE_CHECKPOINT,
    check_no_entry_is_empty,
    entry_name,
)
from state.delta.log.torn import TornFile, set_aside
from state.delta.tables.data_files import DataFile
from state.delta.tables.table import DeltaLocation, load_table, open_storage
from transactional.model.errors import OperatingError, StoreMismatch
from transactional.model.plumbing.syncing import sync

_TEXTS: Final = pa.map_(pa.string(), pa.string())
_FORMAT: Final = pa.struct([("provider", pa.string()), ("options", _TEXTS)])
CHECKPOINT_SCHEMA: Final = pa.schema(
    [
        ("txn", pa.struct([("appId", pa.string()), ("version", pa.int64()), ("lastUpdated", pa.int64())])),
        (
            "add",
            pa.struct(
                [
                    ("path", pa.string()),
                    ("partitionValues", _TEXTS),
                    ("size", pa.int64()),
                    ("modificationTime", pa.int64()),
                    ("dataChange", pa.bool_()),
                    ("stats", pa.string()),
                    ("tags", _TEXTS),
                ]
            ),
        ),
        (
            "remove",
            pa.struct([("path", pa.string()), ("deletionTimestamp", pa.int64()), ("dataChange", pa.bool_())]),
        ),
        (
            "metaData",
            pa.struct(
                [
                    ("id", pa.string()),
                    ("name", pa.string()),
                    ("description", pa.string()),
                    ("format", _FORMAT),
                    ("schemaString", pa.string()),
                    ("partitionColumns", pa.list_(pa.string())),
                    ("configuration", _TEXTS),
                    ("createdTime", pa.int64()),
                ]
            ),
        ),
        (
            "protocol",
            pa.struct(
                [
                    ("minReaderVersion", pa.int32()),
                    ("minWriterVersion", pa.int32()),
                    ("readerFeatures", pa.list_(pa.string())),
                    ("writerFeatures", pa.list_(pa.string())),
                ]
            ),
        ),
    ]
)
"""The columns of a checkpoint of one file, by Delta's protocol. A vacuum keeps the newest of the removed files."""


@dataclass(frozen=True, slots=True)
class TableInMemory:
    """A table at a version in its leader's memory: the data files with their numbers of rows, and app transactions.

    The leader has read or written every entry after `read_from`. `snapshot` may be older, but it declares the same
    table.
    """

    version: int
    read_from: int
    snapshot: DeltaTable
    files: Mapping[DataFile, int]
    app_versions: Mapping[str, int]
    wrote_all: bool
    """True if no entry after `read_from` can have other app transactions than `app_versions`."""


@dataclass(slots=True)
class _ReadableLog:
    """The content of the entries and checkpoints up to a version that can still be read."""

    adds: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    app_versions: dict[str, int] = field(default_factory=dict)
    newest: Entry | None = None
    """The entry of the version itself."""
    unreadable_versions: list[int] = field(default_factory=list)
    """The versions after the newest readable checkpoint whose entries are missing or can't be read."""
    broken_files: dict[str, str] = field(default_factory=dict)
    """The reasons why files of the log can't be read, by their names."""
    removed_paths: set[str] = field(default_factory=set)
    """The paths of data files that were removed, and may have been added again."""
    table_ids: set[str] = field(default_factory=set)
    """The ids of the tables that the log declares; more than one if the table was created again."""


def can_be_opened(location: DeltaLocation) -> bool:
    """True if a reader can load the newest version of a table."""
    try:
        check_no_entry_is_empty(location)
        load_table(location)
    except (OperatingError, StoreMismatch):
        return False
    return True


def rebuild_checkpoint(location: DeltaLocation, memory: TableInMemory) -> str:
    """Write a checkpoint of the leader's version, and set aside the earlier files of the log that can't be read.

    Returns a description of these files and of missing entries. Raises `OSError`, and `OperatingError` if the log and
    the leader's memory together do not describe the table.
    """
    storage = open_storage(location)
    log = _read_log(location, storage, memory.version)
    needed_until = memory.read_from if memory.wrote_all else memory.version
    lost_versions = [
        version for version in log.unreadable_versions if version <= needed_until or version == memory.version
    ]
    if lost_versions:
        raise OperatingError(
            f"Delta table {location}: its checkpoint can't be rebuilt, for the entry of Delta version "
            f"{lost_versions[0]} can't be read; restore it from a backup"
        )
    _check_same_table(location, storage, memory, log)
    rows = [
        *_build_declaration_rows(memory.snapshot),
        *_build_add_rows(storage, memory, log),
        *_build_remove_rows(memory, log),
    ]
    app_versions = {**log.app_versions, **memory.app_versions}
    rows += [{"txn": {"appId": name, "version": version}} for name, version in app_versions.items()]
    _write_checkpoint(location, storage, memory.version, rows)
    if location.scheme == "file":
        folder, checkpoint = Path(location.uri, LOG_FOLDER), _checkpoint_name(memory.version)
        set_aside([TornFile(folder / name, reason) for name, reason in log.broken_files.items() if name != checkpoint])
    problems = [f"{name}: {reason}" for name, reason in log.broken_files.items()]
    missing = [version for version in log.unreadable_versions if entry_name(version) not in log.broken_files]
    return "; ".join([*problems, *(f"the entry of Delta version {version} is missing" for version in missing)])


def _check_same_table(location: DeltaLocation, storage: FileSystem, memory: TableInMemory, log: _ReadableLog) -> None:
    """Raise `OperatingError` if the table at the location is not the one in the leader's memory.

    Its log declares another table, its entry of the leader's version has other files, or data files are missing.
    """
    entry, names = log.newest, {unquote(file.name) for file in memory.files}
    added_paths = set() if entry is None else set(map(unquote, entry.added))
    removed_paths = set() if entry is None else set(map(unquote, entry.removed))
    is_same = (
        entry is not None
        and entry.version == memory.version
        and added_paths <= names
        and not removed_paths & names - added_paths
    )
    if not is_same or log.table_ids - {str(memory.snapshot.metadata().id)}:
        raise OperatingError(
            f"Delta table {location}: its checkpoint can't be rebuilt, for Delta version {memory.version} of its log "
            "is not the one that this run has written: another table lies in its place"
        )
    sizes = {unquote(file.name): file.size_bytes for file in memory.files}
    if changed_paths := [file.path for file in storage.get_file_info(list(sizes)) if file.size != sizes[file.path]]:
        raise OperatingError(
            f"Delta table {location}: its checkpoint can't be rebuilt, for {len(changed_paths)} of its data files, "
            f"such as {changed_paths[0]}, are missing or were changed: restore them from a backup, unless another "
            "table lies here"
        )


def _read_log(location: DeltaLocation, storage: FileSystem, until: int) -> _ReadableLog:
    listed_files = storage.get_file_info(FileSelector(LOG_FOLDER))
    names = sorted(file.base_name for file in listed_files if file.type == FileType.File)
    log, checkpoint_version = _ReadableLog(), -1
    for version, name in _list_versions(names, WHOLE_CHECKPOINT, until):
        try:
            _add_checkpoint(log, parquet.read_table(f"{LOG_FOLDER}/{name}", filesystem=storage))
            checkpoint_version = version
        except (OSError, pa.ArrowException, *MALFORMED_ENTRY_ERRORS) as error:
            log.broken_files[name] = location.describe_error(error)
    files, entries = log_files(location), dict(_list_versions(names, ENTRY, until))
    for version, name in entries.items():
        try:
            entry = read_entry(files, version)
            if not entry.actions:
                raise ValueError("it has no byte")
        except (OSError, *MALFORMED_ENTRY_ERRORS) as error:
            log.broken_files[name] = location.describe_error(error)
            continue
        log.newest = entry
        log.adds.update((add["path"], add) for add in entry.adds)
        log.removed_paths |= entry.removed
        log.table_ids |= {entry.table_id} - {""}
        if version > checkpoint_version:
            log.app_versions.update(entry.app_versions)
    log.unreadable_versions = [
        version
        for version in range(checkpoint_version + 1, until + 1)
        if version not in entries or entries[version] in log.broken_files
    ]
    return log


def _list_versions(names: list[str], pattern: Any, until: int) -> list[tuple[int, str]]:
    """Return the versions and names of the files whose names match a pattern, up to a version, oldest first."""
    versions = [(int(match[1]), match[0]) for match in map(pattern.fullmatch, names) if match]
    return [(version, name) for version, name in versions if version <= until]


def _add_checkpoint(log: _ReadableLog, rows: pa.Table) -> None:
    """Add the data files of a checkpoint to a log, and replace its app transactions: a checkpoint has all of them."""

    def read(kind: str) -> list[dict[str, Any]]:
        column = rows.column(kind) if kind in rows.column_names else pa.chunked_array([], pa.null())
        return [action for action in column.to_pylist() if action is not None]

    adds, transactions = read("add"), read("txn")
    log.adds.update((add["path"], add) for add in adds)
    log.removed_paths |= {remove["path"] for remove in read("remove")}
    log.table_ids |= {metadata["id"] for metadata in read("metaData")}
    log.app_versions = {transaction["appId"]: int(transaction["version"]) for transaction in transactions}


def _build_declaration_rows(snapshot: DeltaTable) -> list[dict[str, Any]]:
    protocol, metadata = snapshot.protocol(), snapshot.metadata()
    features = {"readerFeatures": protocol.reader_features, "writerFeatures": protocol.writer_features}
    return [
        {
            "protocol": {
                "minReaderVersion": protocol.min_reader_version,
                "minWriterVersion": protocol.min_writer_version,
                **{name: list(names) for name, names in features.items() if names is not None},
            }
        },
        {
            "metaData": {
                "id": str(metadata.id),
                "name": metadata.name,
                "description": metadata.description,
                "format": {"provider": "parquet", "options": []},
                "schemaString": snapshot.schema().to_json(),
                "partitionColumns": metadata.partition_columns,
                "configuration": list(metadata.configuration.items()),
                "createdTime": metadata.created_time,
            }
        },
    ]


def _build_add_rows(storage: FileSystem, memory: TableInMemory, log: _ReadableLog) -> list[dict[str, Any]]:
    """Return a row for each data file, described by the log, or by the leader's memory if the log does not name it."""
    described = {unquote(path): add for path, add in log.adds.items()}
    adds = ((file, rows, described.get(unquote(file.name))) for file, rows in memory.files.items())
    is_partitioned = bool(memory.snapshot.metadata().partition_columns)
    if is_partitioned and any(unquote(file.name) not in described for file in memory.files):
        raise OperatingError("the partition of a data file is not known, for no entry that can be read names the file")
    return [{"add": _describe_file(storage, file, rows, add)} for file, rows, add in adds]


def _build_remove_rows(memory: TableInMemory, log: _ReadableLog) -> list[dict[str, Any]]:
    """Return a row for each data file that is no longer part of the table.

    The current time is recorded as that of its removal, so a vacuum deletes it later.
    """
    live, now_ms = {unquote(file.name) for file in memory.files}, time.time_ns() // 1_000_000
    paths = [path for path in sorted(log.removed_paths | log.adds.keys()) if unquote(path) not in live]
    return [{"remove": {"path": path, "deletionTimestamp": now_ms, "dataChange": False}} for path in paths]


def _describe_file(storage: FileSystem, file: DataFile, rows: int, add: Mapping[str, Any] | None) -> dict[str, Any]:
    if add is None or add["size"] != file.size_bytes:
        [stored_file] = storage.get_file_info([unquote(file.name)])
        write_time_ms = 0 if stored_file.mtime_ns is None else stored_file.mtime_ns // 1_000_000
        add = {"path": file.name, "modificationTime": write_time_ms, "stats": json.dumps({"numRecords": rows})}
    elif add.get("deletionVector"):
        raise OperatingError(f"data file {file.name} has a deletion vector, which a checkpoint here can't have")
    return {
        **{name: add.get(name) for name in ("path", "modificationTime", "stats")},
        "partitionValues": list(dict(add.get("partitionValues") or {}).items()),
        "size": file.size_bytes,
        "dataChange": False,
        "tags": list(dict(add.get("tags") or {}).items()),
    }


def _write_checkpoint(location: DeltaLocation, storage: FileSystem, version: int, rows: list[dict[str, Any]]) -> None:
    """Write a checkpoint, replacing one that may exist, and the hint that names it."""
    buffer = pa.BufferOutputStream()
    parquet.write_table(pa.Table.from_pylist(rows, CHECKPOINT_SCHEMA), buffer)
    hint = json.dumps({"version": version, "size": len(rows)}).encode()
    _replace_log_file(location, storage, _checkpoint_name(version), buffer.getvalue().to_pybytes())
    _replace_log_file(location, storage, "_last_checkpoint", hint)


def _checkpoint_name(version: int) -> str:
    return f"{version:020}.checkpoint.parquet"


def _replace_log_file(location: DeltaLocation, storage: FileSystem, name: str, content: bytes) -> None:
    """Replace the content of a file of the log in one step."""
    if location.scheme != "file":
        with storage.open_output_stream(f"{LOG_FOLDER}/{name}") as stream:
            stream.write(content)
        return
    folder = Path(location.uri, LOG_FOLDER)
    # Spark would compare the new content with the checksum of the old one.
    (folder / f".{name}.crc").unlink(missing_ok=True)
    new_file = folder / f"_rebuilt_{uuid4()}.tmp"
    new_file.write_bytes(content)
    sync([new_file])
    os.replace(new_file, folder / name)
    sync([folder])
