"""Compacts small data files of a Delta table between two transactions, and deletes old ones.

A compaction is a Delta commit that is refused if there was another one meanwhile. Only files that a Delta engine has
named, in folders where a table has its data files, are deleted: the table's folder may also hold a store, a journal, or
another table. A file that the log has removed is deleted once it is older than the table's retention. Any other file
may be about to be committed by some writer, such as an OPTIMIZE that takes hours: it stays for a day.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable
from deltalake.transaction import AddAction, RemoveAction, create_table_with_add_actions
from pyarrow.fs import FileSelector, FileSystem, LocalFileSystem, copy_files

from state.delta.log.log import LOG_FOLDER, NO_POST_COMMIT_HOOKS, entry_path
from state.delta.tables.data_files import DATA_FILE, FILE_ROWS_MAX, new_data_file
from state.delta.tables.table import DeltaLocation, open_storage
from transactional.model.names import ADDED_FILES_NOTE, COMPACTED_FILES_NOTE, OWNER_NOTE

TARGET_BYTES = 100 * 1024 * 1024
"""Largest number of bytes that one compaction rewrites, the smallest files first."""
_PLAIN_PATH = re.compile(r"[\w=./-]+", re.ASCII)
"""A path that no engine escapes, so that it has one form in a log."""


def compact_files(
    table: DeltaTable, location: DeltaLocation, owner: str, runs: Sequence[Collection[str]] | None = None
) -> int:
    """Replace small files of a snapshot by fewer ones with the same rows. Return the number of replaced files.

    `runs` are the names of the files to combine, each run into files of its own. None: the smallest files.

    delta-rs' own compaction takes no condition: that of a coordinator that was replaced meanwhile would still be
    written. So delta-rs compacts copies of the files in a scratch table, and the Delta commit is made here, without
    retries: it is the next one after the snapshot, or it is refused. `table` stays at its version. Raises
    `CommitFailedError` if the commit is refused, and `DeltaError` or `OSError` if a file can't be read or written.
    """
    files = pa.table(table.get_add_actions()).to_pylist()
    chosen = (
        _choose_smallest_files(files)
        if runs is None
        else [[file for file in files if file["path"] in run] for run in runs]
    )
    added_files, replaced_files = list[AddAction](), list[dict[str, Any]]()
    for small in chosen:
        if len(small) > 1:
            _compact_in_scratch_table(open_storage(location), small, table, added_files, replaced_files)
    if not replaced_files:
        return 0
    removal_time_ms = max(action.modification_time for action in added_files)
    removed_files = [
        RemoveAction(file["path"], False, removal_time_ms, file["size_bytes"], _format_partition(file))
        for file in replaced_files
    ]
    counts = {COMPACTED_FILES_NOTE: len(replaced_files), ADDED_FILES_NOTE: len(added_files)}
    _commit_replacement(table, [*removed_files, *added_files], {OWNER_NOTE: owner, **counts})
    return len(replaced_files)


def _compact_in_scratch_table(
    files: FileSystem,
    small: list[dict[str, Any]],
    table: DeltaTable,
    added_files: list[AddAction],
    replaced_files: list[dict[str, Any]],
) -> None:
    """Combine files into new ones. Append the new files to `added_files`, and the old ones to `replaced_files`."""
    with TemporaryDirectory(prefix="compaction-") as scratch:
        _create_scratch_table(files, small, table, Path(scratch))
        DeltaTable(scratch).optimize.compact(target_size=TARGET_BYTES)
        actions = _read_compaction_actions(Path(scratch))
        added_files += [_copy_back(files, Path(scratch), action["add"]) for action in actions if "add" in action]
        # The only file of a partition is not rewritten.
        replaced_files += [small[int(Path(action["remove"]["path"]).stem)] for action in actions if "remove" in action]


def _choose_smallest_files(files: Sequence[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Return the smallest files, up to `TARGET_BYTES`, in groups that become one file each."""
    chosen, size_bytes, rows = [list[dict[str, Any]]()], 0, 0
    plain = (file for file in files if _PLAIN_PATH.fullmatch(file["path"]))
    for file in sorted(plain, key=lambda file: (file["size_bytes"], file["path"])):
        size_bytes += file["size_bytes"]
        if size_bytes > TARGET_BYTES:
            break
        more = file["num_records"] or 0
        if rows + more > FILE_ROWS_MAX:
            chosen.append([])
            rows = 0
        chosen[-1].append(file)
        rows += more
    return chosen


def _create_scratch_table(files: FileSystem, small: Sequence[dict[str, Any]], table: DeltaTable, scratch: Path) -> None:
    """Create a table in the scratch folder from copies of some files."""
    added = []
    for number, file in enumerate(small):
        name = f"{number}.parquet"
        _copy_file(file["path"], files, str(scratch / name), LocalFileSystem())
        added.append(AddAction(name, file["size_bytes"], _format_partition(file), 0, True, "{}"))
    partition_by = table.metadata().partition_columns
    create_table_with_add_actions(str(scratch), table.schema(), added, partition_by=partition_by)


def _read_compaction_actions(scratch: Path) -> list[dict[str, Any]]:
    """Return the actions of the scratch table's compaction, or none if it had nothing to do."""
    log = scratch / entry_path(1)
    return list(map(json.loads, log.read_text(encoding="utf-8").splitlines())) if log.exists() else []


def _copy_back(files: FileSystem, scratch: Path, file: dict[str, Any]) -> AddAction:
    """Copy a file of the scratch table into the table's folder. It is no part of the table until it is committed."""
    name = new_data_file("zstd")
    _copy_file(str(scratch / unquote(file["path"])), LocalFileSystem(), name, files)
    return AddAction(name, file["size"], file["partitionValues"], file["modificationTime"], False, file["stats"])


def _copy_file(source: str, source_files: FileSystem, target: str, target_files: FileSystem) -> None:
    copy_files(source, target, source_files, target_files, use_threads=False)


def _commit_replacement(
    table: DeltaTable, actions: list[AddAction | RemoveAction], metadata: dict[str, str | int]
) -> None:
    properties = CommitProperties(custom_metadata={"userMetadata": json.dumps(metadata)}, max_commit_retries=0)
    table.create_write_transaction(
        actions,
        "append",
        table.schema(),
        table.metadata().partition_columns,
        commit_properties=properties,
        post_commithook_properties=NO_POST_COMMIT_HOOKS,
    )


def _format_partition(file: dict[str, Any]) -> dict[str, str | None]:
    """Return the values of a file's partition columns as Delta writes them."""
    values = file.get("partition") or {}
    return {
        name: None if partition is None else _format_partition_value(partition) for name, partition in values.items()
    }


def _format_partition_value(partition_value: Any) -> str:
    return str(partition_value).lower() if isinstance(partition_value, bool) else str(partition_value)


# --- deleting ---------------------------------------------------------------------------------------------------------

LISTING_S_MAX = 60
"""Largest time to list old files in. A slower list is not used; retentions are longer, minutes at least."""
UNCOMMITTED_RETENTION_S = 24 * 60 * 60
"""Age in seconds up to which a file stays without a known removal: a writer may be about to commit it."""
RETENTION_S = 7 * 24 * 60 * 60
"""Delta's default retention of removed files in seconds."""

_RETENTION = "delta.deletedFileRetentionDuration"
_SECONDS = {"second": 1, "minute": 60, "hour": 3_600, "day": 86_400, "week": 604_800}


class RemovalTimes:
    """The times at which the log has removed files since a Delta version, up to the version that was read last.

    Checkpoints do not have these times, so the log is read before a checkpoint replaces its entries.
    """

    def __init__(self, location: DeltaLocation, version: int) -> None:
        self._files = open_storage(location)
        self._version = version
        self.removed_at_s: dict[str, float] = {}

    def read_log(self, version: int) -> None:
        """Read the log up to this Delta version. Raises `OSError`."""
        for number in range(self._version + 1, version + 1):
            try:
                with self._files.open_input_stream(entry_path(number)) as stream:
                    actions = [json.loads(line) for line in stream.read().splitlines()]
            except (FileNotFoundError, ValueError):
                continue  # cleaned out of the log, or torn; the files that it removed stay for a day
            for action in actions:
                if remove := action.get("remove"):
                    self.removed_at_s[unquote(remove["path"])] = remove.get("deletionTimestamp", 0) / 1000
                elif add := action.get("add"):
                    self.removed_at_s.pop(unquote(add["path"]), None)
        self._version = max(version, self._version)

    def drop(self, path: str) -> None:
        """Drop the time at which a file was removed from the log, as the file is now deleted."""
        self.removed_at_s.pop(path, None)


def delete_old_files(
    location: DeltaLocation,
    load: Callable[[], DeltaTable | None],
    removals: RemovalTimes | None = None,
    held_paths: Collection[str] = (),
) -> int:
    """Delete the files that are no part of the table and older than its `delta.deletedFileRetentionDuration`.

    `load` returns the newest snapshot, or None if another process has written to the table. A vacuum lists the files
    that its snapshot does not name: on a snapshot from before a pause, these include files of a coordinator that took
    over meanwhile. So files are listed on a new snapshot and in a short time, and no others are deleted: a file that
    was old then, and no part of the table, never becomes a part of it. Files at `held_paths` stay. Returns the number
    of deleted files.
    """
    began_s = time.monotonic()
    table = load()
    if table is None:
        return 0
    old_paths = table.vacuum(dry_run=True, full=True)
    if time.monotonic() - began_s > LISTING_S_MAX:
        return 0
    removals = removals or RemovalTimes(location, table.version())
    removals.read_log(table.version())
    files, deleted_files = open_storage(location), 0
    for path in _list_deletable_files(
        table, [path for path in old_paths if path not in held_paths], files, removals.removed_at_s
    ):
        files.delete_file(path)
        removals.drop(path)
        deleted_files += 1
    return deleted_files


def _list_deletable_files(
    table: DeltaTable, old_paths: list[str], files: FileSystem, removed_at_s: Mapping[str, float]
) -> list[str]:
    """Return those of the paths whose files are data files of this table, and old enough to be deleted."""
    metadata = table.metadata()
    retention_s = parse_retention_s(str(metadata.configuration.get(_RETENTION, "")))
    paths = [path for path in old_paths if is_data_file(path, metadata.partition_columns)]
    tables = {folder for folder in set(map(_folder_of, paths)) if folder and _has_log(files, folder)}
    paths = [path for path in paths if not any(_is_within(path, folder) for folder in tables)]
    # The time of the last Delta commit, by the storage's own clock.
    [newest] = files.get_file_info([entry_path(table.version())])
    now_s = 0 if newest.mtime is None else newest.mtime.timestamp()
    without_removal = [path for path in paths if path not in removed_at_s]
    write_times = {
        file.path: file.mtime.timestamp() for file in files.get_file_info(without_removal) if file.mtime is not None
    }
    return [
        path
        for path in paths
        if (path in removed_at_s and removed_at_s[path] + retention_s <= now_s)
        or (path in write_times and write_times[path] + max(retention_s, UNCOMMITTED_RETENTION_S) <= now_s)
    ]


def is_data_file(path: str, partition_columns: list[str]) -> bool:
    """True if a Delta engine may have written this file for the table, by its name and folder.

    Data files are in the table's folder, or in those of its partitions: `column=value/…`, one folder per column.
    """
    *folders, name = path.split("/")
    is_in_table_folder = not folders or (
        len(folders) == len(partition_columns)
        and all(
            unquote(folder).startswith(f"{column}=") for folder, column in zip(folders, partition_columns, strict=True)
        )
    )
    return is_in_table_folder and DATA_FILE.fullmatch(name) is not None


def parse_retention_s(text: str) -> float:
    """Return the seconds of a retention such as `interval 30 minutes`. A malformed one is Delta's default."""
    seconds = parse_interval_s(text)
    return RETENTION_S if seconds is None else seconds


def parse_interval_s(text: str) -> float | None:
    """Return the seconds of a Delta interval such as `interval 30 minutes`, or None if it is malformed."""
    match = re.fullmatch(r"(?:interval\s+)?(\d+)\s+([a-z]+?)s?", text.strip().lower())
    return int(match[1]) * _SECONDS[match[2]] if match and match[2] in _SECONDS else None


def _folder_of(path: str) -> str:
    return path.rpartition("/")[0]


def _has_log(files: FileSystem, folder: str) -> bool:
    """True if a folder, or a folder that contains it, is another Delta table."""
    parts = folder.split("/")
    above = ["/".join(parts[:number]) for number in range(1, len(parts) + 1)]
    return any(files.get_file_info(FileSelector(f"{path}/{LOG_FOLDER}", allow_not_found=True)) for path in above)


def _is_within(path: str, folder: str) -> bool:
    return path.startswith(f"{folder}/")
