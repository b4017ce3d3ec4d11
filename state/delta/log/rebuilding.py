"""Rebuilding a checkpoint that nobody can write the usual way: from what a leader knows of its table.

A leader holds its table in memory, and may continue for hours while the log has lost an entry or a checkpoint,
so that nobody else can open the table. `rebuild_checkpoint` writes a checkpoint of the leader's version. What readers
need of a file is taken from the entries and checkpoints that can still be read; for a file that none of them names,
from the leader's memory. It refuses where something would have to be guessed, and where the files that the leader
knows are not there.
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
from state.delta.log.log import ENTRY, LOG_FOLDER, UNREADABLE, WHOLE_CHECKPOINT, check_entries
from state.delta.log.torn import TornFile, set_aside
from state.delta.tables.data_files import DataFile
from state.delta.tables.table import DeltaLocation, load_table, open_storage
from transactional.model.errors import OperatingError, StoreMismatch
from transactional.model.plumbing.syncing import sync

_TEXTS: Final = pa.map_(pa.string(), pa.string())
_FORMAT: Final = pa.struct([("provider", pa.string()), ("options", _TEXTS)])
SCHEMA: Final = pa.schema(
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
"""A checkpoint of one file, as Delta's protocol has it. Removed files are in it, for a vacuum keeps young ones."""


@dataclass(frozen=True, slots=True)
class KnownTable:
    """A table at a version as its leader has it in memory: the files with their numbers of rows, and app transactions.

    It has read, or written, every entry after `read_from`. `snapshot` may be older, but has the same declaration.
    """

    version: int
    read_from: int
    snapshot: DeltaTable
    files: Mapping[DataFile, int]
    app_versions: Mapping[str, int]
    wrote_all: bool
    """Whether an entry after `read_from` can have no other app transactions than `app_versions`."""


@dataclass(slots=True)
class _Remains:
    """The parts of a log up to a version that can still be read."""

    adds: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    app_versions: dict[str, int] = field(default_factory=dict)
    newest: Entry | None = None
    """The entry of the version itself."""
    unread: list[int] = field(default_factory=list)
    """The versions after the newest readable checkpoint whose entries are missing, or can't be read."""
    broken: dict[str, str] = field(default_factory=dict)
    """The names of files of the log that can't be read, with the reasons."""
    removed: set[str] = field(default_factory=set)
    """Files that were removed, and may have been added again."""
    table_ids: set[str] = field(default_factory=set)
    """The ids of tables that are declared."""


def can_be_opened(location: DeltaLocation) -> bool:
    """Whether a reader can load the newest version."""
    try:
        check_entries(location)
        load_table(location)
    except (OperatingError, StoreMismatch):
        return False
    return True


def rebuild_checkpoint(location: DeltaLocation, known: KnownTable) -> str:
    """Write a checkpoint of the known version, and set aside what can't be read of the log before it.

    Returns what was wrong, in words. Raises `OSError`, and `OperatingError` where not enough is known.
    """
    storage = open_storage(location)
    remains = _read_remains(location, storage, known.version)
    beyond = known.read_from if known.wrote_all else known.version
    if lost := [version for version in remains.unread if version <= beyond or version == known.version]:
        raise OperatingError(
            f"Delta table {location}: its checkpoint can't be rebuilt, for the entry of Delta version {lost[0]} can't "
            "be read; restore it from a backup"
        )
    _check_same(location, storage, known, remains)
    rows = [*_declaration(known.snapshot), *_adds(storage, known, remains), *_removes(known, remains)]
    app_versions = {**remains.app_versions, **known.app_versions}
    rows += [{"txn": {"appId": name, "version": at}} for name, at in app_versions.items()]
    _write(location, storage, known.version, rows)
    if location.scheme == "file":
        log, checkpoint = Path(location.uri, LOG_FOLDER), _checkpoint_name(known.version)
        set_aside([TornFile(log / name, why) for name, why in remains.broken.items() if name != checkpoint])
    wrong = [f"{name}: {why}" for name, why in remains.broken.items()]
    gaps = [version for version in remains.unread if f"{version:020}.json" not in remains.broken]
    return "; ".join([*wrong, *(f"the entry of Delta version {version} is missing" for version in gaps)])


def _check_same(location: DeltaLocation, storage: FileSystem, known: KnownTable, remains: _Remains) -> None:
    """Raise `OperatingError` if another table lies in the place of the one that the leader knows: its log declares
    another table, the version's entry is another one, or the known files are not there."""
    entry, names = remains.newest, {unquote(file.name) for file in known.files}
    added = set() if entry is None else set(map(unquote, entry.added))
    removed = set() if entry is None else set(map(unquote, entry.removed))
    is_same = entry is not None and entry.version == known.version and added <= names and not removed & names - added
    if not is_same or remains.table_ids - {str(known.snapshot.metadata().id)}:
        raise OperatingError(
            f"Delta table {location}: its checkpoint can't be rebuilt, for Delta version {known.version} of its log is "
            "not the one that this run has written: another table lies in its place"
        )
    sizes = {unquote(file.name): file.size_bytes for file in known.files}
    if away := [info.path for info in storage.get_file_info(list(sizes)) if info.size != sizes[info.path]]:
        raise OperatingError(
            f"Delta table {location}: its checkpoint can't be rebuilt, for {len(away)} of its data files, such as "
            f"{away[0]}, are missing or were changed: restore them from a backup, unless another table lies here"
        )


def _read_remains(location: DeltaLocation, storage: FileSystem, until: int) -> _Remains:
    listed = storage.get_file_info(FileSelector(LOG_FOLDER))
    names = sorted(info.base_name for info in listed if info.type == FileType.File)
    remains, base = _Remains(), -1
    for version, name in _versions(names, WHOLE_CHECKPOINT, until):
        try:
            _take_checkpoint(remains, parquet.read_table(f"{LOG_FOLDER}/{name}", filesystem=storage))
            base = version
        except (OSError, pa.ArrowException, *UNREADABLE) as error:
            remains.broken[name] = location.describe_error(error)
    files, entries = log_files(location), dict(_versions(names, ENTRY, until))
    for version, name in entries.items():
        try:
            entry = read_entry(files, version)
            if not entry.actions:
                raise ValueError("it has no byte")
        except (OSError, *UNREADABLE) as error:
            remains.broken[name] = location.describe_error(error)
            continue
        remains.newest = entry
        remains.adds.update((add["path"], add) for add in entry.adds)
        remains.removed |= entry.removed
        remains.table_ids |= {entry.table_id} - {""}
        if version > base:
            remains.app_versions.update(entry.app_versions)
    remains.unread = [
        version
        for version in range(base + 1, until + 1)
        if version not in entries or entries[version] in remains.broken
    ]
    return remains


def _versions(names: list[str], pattern: Any, until: int) -> list[tuple[int, str]]:
    """The files of a kind up to a version, oldest first."""
    found = [(int(match[1]), match[0]) for match in map(pattern.fullmatch, names) if match]
    return [(version, name) for version, name in found if version <= until]


def _take_checkpoint(remains: _Remains, rows: pa.Table) -> None:
    """Read the files and app transactions of a checkpoint, which has all of them."""

    def read(kind: str) -> list[dict[str, Any]]:
        column = rows.column(kind) if kind in rows.column_names else pa.chunked_array([], pa.null())
        return [value for value in column.to_pylist() if value is not None]

    adds, transactions = read("add"), read("txn")
    remains.adds.update((add["path"], add) for add in adds)
    remains.removed |= {remove["path"] for remove in read("remove")}
    remains.table_ids |= {metadata["id"] for metadata in read("metaData")}
    remains.app_versions = {each["appId"]: int(each["version"]) for each in transactions}


def _declaration(snapshot: DeltaTable) -> list[dict[str, Any]]:
    protocol, metadata = snapshot.protocol(), snapshot.metadata()
    features = {"readerFeatures": protocol.reader_features, "writerFeatures": protocol.writer_features}
    return [
        {
            "protocol": {
                "minReaderVersion": protocol.min_reader_version,
                "minWriterVersion": protocol.min_writer_version,
                **{name: list(there) for name, there in features.items() if there is not None},
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


def _adds(storage: FileSystem, known: KnownTable, remains: _Remains) -> list[dict[str, Any]]:
    """The files of the table, as the log describes them; as the leader knows them, where it does not."""
    described = {unquote(path): add for path, add in remains.adds.items()}
    adds = ((file, rows, described.get(unquote(file.name))) for file, rows in known.files.items())
    if known.snapshot.metadata().partition_columns and any(unquote(each.name) not in described for each in known.files):
        raise OperatingError("the partition of a data file is not known, for no entry that can be read names the file")
    return [{"add": _add(storage, file, rows, add)} for file, rows, add in adds]


def _removes(known: KnownTable, remains: _Remains) -> list[dict[str, Any]]:
    """The files that are no longer part of the table, as if they were removed now: a vacuum deletes them later."""
    live, now_ms = {unquote(file.name) for file in known.files}, time.time_ns() // 1_000_000
    paths = [path for path in sorted(remains.removed | remains.adds.keys()) if unquote(path) not in live]
    return [{"remove": {"path": path, "deletionTimestamp": now_ms, "dataChange": False}} for path in paths]


def _add(storage: FileSystem, file: DataFile, rows: int, add: Mapping[str, Any] | None) -> dict[str, Any]:
    if add is None or add["size"] != file.size_bytes:
        [info] = storage.get_file_info([unquote(file.name)])
        written_ms = 0 if info.mtime_ns is None else info.mtime_ns // 1_000_000
        add = {"path": file.name, "modificationTime": written_ms, "stats": json.dumps({"numRecords": rows})}
    elif add.get("deletionVector"):
        raise OperatingError(f"data file {file.name} has a deletion vector, which a checkpoint here can't have")
    return {
        **{name: add.get(name) for name in ("path", "modificationTime", "stats")},
        "partitionValues": list(dict(add.get("partitionValues") or {}).items()),
        "size": file.size_bytes,
        "dataChange": False,
        "tags": list(dict(add.get("tags") or {}).items()),
    }


def _write(location: DeltaLocation, storage: FileSystem, version: int, rows: list[dict[str, Any]]) -> None:
    """Write a checkpoint in place of the one that may be there, and the hint that says so."""
    sink = pa.BufferOutputStream()
    parquet.write_table(pa.Table.from_pylist(rows, SCHEMA), sink)
    hint = json.dumps({"version": version, "size": len(rows)}).encode()
    _replace(location, storage, _checkpoint_name(version), sink.getvalue().to_pybytes())
    _replace(location, storage, "_last_checkpoint", hint)


def _checkpoint_name(version: int) -> str:
    return f"{version:020}.checkpoint.parquet"


def _replace(location: DeltaLocation, storage: FileSystem, name: str, data: bytes) -> None:
    """Give a file of the log other bytes, at once."""
    if location.scheme != "file":
        with storage.open_output_stream(f"{LOG_FOLDER}/{name}") as stream:
            stream.write(data)
        return
    log = Path(location.uri, LOG_FOLDER)
    # Spark would check the new bytes against the sum of the earlier ones.
    (log / f".{name}.crc").unlink(missing_ok=True)
    written = log / f"_rebuilt_{uuid4()}.tmp"
    written.write_bytes(data)
    sync([written])
    os.replace(written, log / name)
    sync([log])
