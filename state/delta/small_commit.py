"""One Delta commit that makes a small table on a disk anew: a file with all its rows, and the log's next entry.

delta-rs lists the log for each Delta commit, and reads again what came after the last checkpoint. Whoever wrote the
newest Delta version knows all of it. As with delta-rs, an entry of the log appears whole or not at all and never takes
the place of another one: it is linked to its name. What is written is what delta-rs and Spark write, and read.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pyarrow as pa
from pyarrow import parquet

from state.delta.loading import features_of
from state.delta.table import is_known_protocol
from transactional.syncing import sync

if TYPE_CHECKING:
    from deltalake import DeltaTable

_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint(\..+)?\.parquet")
_PLAIN = re.compile(r"[A-Za-z0-9._-]+")
"""The name of a file that the log does not escape, and that lies in the table's own folder."""


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file of a table: its name in the table's folder, and its size in bytes."""

    name: str
    size_bytes: int


def data_files(table: DeltaTable) -> list[DataFile]:
    """The files that a table is made of."""
    actions = pa.table(table.get_add_actions())
    names, sizes = actions["path"].to_pylist(), actions["size_bytes"].to_pylist()
    return [DataFile(name, size_bytes) for name, size_bytes in zip(names, sizes, strict=True)]


def replaceable_files(table: DeltaTable) -> list[DataFile] | None:
    """The files that a table is made of; None when `replace_rows` does not do what it asks of its writers."""
    protocol, metadata = table.protocol(), table.metadata()
    features = features_of(protocol)
    if (
        not is_known_protocol(protocol.min_reader_version, protocol.min_writer_version, features)
        or metadata.partition_columns
        or str(metadata.configuration.get("delta.appendOnly", "false")).lower() != "false"
        or "delta.invariants" in table.schema().to_json()
    ):
        return None
    files = data_files(table)
    return files if all(_PLAIN.fullmatch(file.name) for file in files) else None


def replace_rows(
    folder: Path,
    version: int,
    rows: pa.Table,
    old: Sequence[DataFile],
    *,
    transaction: tuple[str, int],
    metadata: str,
    durable: bool = True,
) -> DataFile:
    """Write Delta version `version`: the table has these rows instead of those in the `old` files. Returns its file.

    `rows` have the table's columns in order. `transaction` is an app id with its version, `metadata` what the table's
    history shows. With `durable` the file and the entry are synced before the entry has its name; the names in the two
    folders are not. Raises `FileExistsError`, and changes nothing, when there is such a version; `OSError`. Ask
    `is_late` afterwards.
    """
    log, new = folder / "_delta_log", _write_rows(folder, rows)
    now_ms = (folder / new.name).stat().st_mtime_ns // 1_000_000
    parameters = {"mode": "Overwrite"}
    note = {"timestamp": now_ms, "operation": "WRITE", "operationParameters": parameters, "readVersion": version - 1}
    removed = {"dataChange": True, "deletionTimestamp": now_ms, "extendedFileMetadata": True, "partitionValues": {}}
    added = {"partitionValues": {}, "modificationTime": now_ms, "dataChange": True}
    stats = json.dumps({"numRecords": rows.num_rows})
    actions = [
        {"commitInfo": {**note, "isBlindAppend": False, "engineInfo": "transactional", "userMetadata": metadata}},
        *({"remove": {"path": file.name, "size": file.size_bytes, **removed}} for file in old),
        {"add": {"path": new.name, "size": new.size_bytes, **added, "stats": stats}},
        {"txn": {"appId": transaction[0], "version": transaction[1]}},
    ]
    try:
        write_entry(log / _entry(version), actions, [folder / new.name] if durable else None)
    except FileExistsError:
        (folder / new.name).unlink()
        raise
    return new


def is_late(folder: Path, version: int) -> bool:
    """Whether another writer may have written this Delta version before, and its entry was cleaned out of the log.

    An entry goes once there is a later checkpoint, and those before it go first. The checkpoint tells whose it was.
    """
    log = folder / "_delta_log"
    if not (log / _entry(version - 1)).exists():
        return True
    told = _hint(log)
    return (told is None or told >= version) and _newest_checkpoint(log) >= version


def _write_rows(folder: Path, rows: pa.Table) -> DataFile:
    name = f"part-00000-{uuid4()}-c000.snappy.parquet"
    # Most values of a small table differ: a dictionary of them would cost time and save nothing.
    parquet.write_table(rows, folder / name, compression="snappy", use_dictionary=False, store_schema=False)
    return DataFile(name, (folder / name).stat().st_size)


def write_entry(path: Path, actions: Sequence[Mapping[str, Any]], needed: Sequence[Path] | None) -> None:
    """Write an entry of a log, and sync it before, together with the files that it needs; None: not at all.

    Raises `FileExistsError` when there is such an entry.
    """
    lines = "\n".join(json.dumps(action, separators=(",", ":")) for action in actions)
    # As delta-rs names it: readers pass over it.
    written = path.with_name(f"_commit_{uuid4()}.json.tmp")
    try:
        written.write_text(lines, "utf-8")
        if needed is not None:
            sync([*needed, written])
        os.link(written, path)
    finally:
        written.unlink(missing_ok=True)


def _hint(log: Path) -> int | None:
    """What `_last_checkpoint` says, -1: it is not there, None: it says nothing, as after a power cut."""
    try:
        return int(json.loads((log / "_last_checkpoint").read_bytes())["version"])
    except FileNotFoundError:
        return -1
    except (ValueError, LookupError, TypeError):
        return None


def _newest_checkpoint(log: Path) -> int:
    names = map(_CHECKPOINT.fullmatch, os.listdir(log))
    return max((int(name[1]) for name in names if name is not None), default=-1)


def _entry(version: int) -> str:
    return f"{version:020}.json"
