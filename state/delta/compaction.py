"""Puts small files of a Delta table together, in a Delta commit that is refused when any other one came between."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable
from deltalake.fs import DeltaStorageHandler
from deltalake.transaction import AddAction, RemoveAction, create_table_with_add_actions
from pyarrow.fs import FileSystem, LocalFileSystem, PyFileSystem, copy_files

from state.delta.log import NOTHING_AFTERWARDS
from state.delta.table import DeltaLocation
from transactional.names import FILES_MADE_NOTE, OWNER_NOTE, PUT_TOGETHER_NOTE

TARGET_BYTES = 100 * 1024 * 1024
"""So much one compaction rewrites, the smallest files first."""
_PLAIN_PATH = re.compile(r"[\w=./-]+", re.ASCII)
"""Other paths are written in a log in more than one way."""
_SCRATCH_LOG = "00000000000000000001.json"


def compact(table: DeltaTable, location: DeltaLocation, owner: str) -> int:
    """Replace the smallest files of the handle's snapshot by fewer ones with the same rows; how many are replaced.

    delta-rs' own compaction takes no condition: the one of a coordinator that was taken over meanwhile would still be
    written. So delta-rs puts copies of the files together in a scratch table, and the Delta commit is made here, with
    no retry: it is the next one after the snapshot, or it is refused. The handle stays where it was. Raises
    `CommitFailedError` when it is refused, `DeltaError` or `OSError` when a file can't be read or written.
    """
    small = _smallest(pa.table(table.get_add_actions()).to_pylist())
    if len(small) < 2:
        return 0
    files = PyFileSystem(DeltaStorageHandler(location.uri, dict(location.storage_options)))
    with TemporaryDirectory(prefix="compaction-") as scratch:
        _bring(files, small, table, Path(scratch))
        DeltaTable(scratch).optimize.compact(target_size=TARGET_BYTES)
        actions = _actions(Path(scratch))
        added = [_taken_over(files, Path(scratch), action["add"]) for action in actions if "add" in action]
        # A file that is alone in its partition was left alone.
        gone = [small[int(Path(action["remove"]["path"]).stem)] for action in actions if "remove" in action]
    if not gone:
        return 0
    at_ms = max(each.modification_time for each in added)
    removed = [RemoveAction(each["path"], False, at_ms, each["size_bytes"], _partition(each)) for each in gone]
    _replace(table, [*removed, *added], {OWNER_NOTE: owner, PUT_TOGETHER_NOTE: len(gone), FILES_MADE_NOTE: len(added)})
    return len(gone)


def _smallest(files: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The smallest files, as many as make up one of the wanted size."""
    chosen, size_bytes = list[dict[str, Any]](), 0
    plain = (file for file in files if _PLAIN_PATH.fullmatch(file["path"]))
    for file in sorted(plain, key=lambda file: (file["size_bytes"], file["path"])):
        size_bytes += file["size_bytes"]
        if size_bytes > TARGET_BYTES:
            break
        chosen.append(file)
    return chosen


def _bring(files: FileSystem, small: Sequence[dict[str, Any]], table: DeltaTable, scratch: Path) -> None:
    """Make a scratch table of copies of some files."""
    added = []
    for number, file in enumerate(small):
        name = f"{number}.parquet"
        _copy(file["path"], files, str(scratch / name), LocalFileSystem())
        added.append(AddAction(name, file["size_bytes"], _partition(file), 0, True, "{}"))
    partition_by = table.metadata().partition_columns
    create_table_with_add_actions(str(scratch), table.schema(), added, partition_by=partition_by)


def _actions(scratch: Path) -> list[dict[str, Any]]:
    """What the compaction of the scratch table has written; nothing when there was nothing to do."""
    log = scratch / "_delta_log" / _SCRATCH_LOG
    return list(map(json.loads, log.read_text(encoding="utf-8").splitlines())) if log.exists() else []


def _taken_over(files: FileSystem, scratch: Path, file: dict[str, Any]) -> AddAction:
    """Copy a file of the scratch table back, as one that is not yet part of the table."""
    name = f"part-00000-{uuid.uuid4()}-c000.zstd.parquet"
    _copy(str(scratch / unquote(file["path"])), LocalFileSystem(), name, files)
    return AddAction(name, file["size"], file["partitionValues"], file["modificationTime"], False, file["stats"])


def _copy(source: str, source_files: FileSystem, target: str, target_files: FileSystem) -> None:
    copy_files(source, target, source_files, target_files, use_threads=False)


def _replace(table: DeltaTable, actions: list[AddAction | RemoveAction], metadata: dict[str, str | int]) -> None:
    properties = CommitProperties(custom_metadata={"userMetadata": json.dumps(metadata)}, max_commit_retries=0)
    table.create_write_transaction(
        actions,
        "append",
        table.schema(),
        table.metadata().partition_columns,
        commit_properties=properties,
        post_commithook_properties=NOTHING_AFTERWARDS,
    )


def _partition(file: dict[str, Any]) -> dict[str, str | None]:
    """The partition's values, as Delta writes them."""
    values = file.get("partition") or {}
    return {name: None if value is None else _text(value) for name, value in values.items()}


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
