"""The data files of a Delta table between two transactions: small ones are compacted, and old ones deleted.

Files are compacted by a Delta commit that is refused when any other one came between. Only files that a Delta engine
has named, in places where a table has its data files, are deleted: the folder may also hold a store, a journal, or
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
"""A path that has only one form in a log."""


def compact(
    table: DeltaTable, location: DeltaLocation, owner: str, runs: Sequence[Collection[str]] | None = None
) -> int:
    """Replace small files of a snapshot by fewer ones with the same rows. Return the number of replaced files.

    `runs` are the names of the files to combine, each run into files of its own. None: the smallest files.

    delta-rs' own compaction takes no condition: the one of a coordinator that was taken over meanwhile would still be
    written. So delta-rs puts copies of the files together in a scratch table, and the Delta commit is made here, with
    no retry: it is the next one after the snapshot, or it is refused. The handle stays where it was. Raises
    `CommitFailedError` when it is refused, `DeltaError` or `OSError` when a file can't be read or written.
    """
    files = pa.table(table.get_add_actions()).to_pylist()
    chosen = _smallest(files) if runs is None else [[file for file in files if file["path"] in run] for run in runs]
    added, replaced_files = list[AddAction](), list[dict[str, Any]]()
    for small in chosen:
        if len(small) > 1:
            _put_together(open_storage(location), small, table, added, replaced_files)
    if not replaced_files:
        return 0
    at_ms = max(action.modification_time for action in added)
    removed = [
        RemoveAction(file["path"], False, at_ms, file["size_bytes"], _partition(file)) for file in replaced_files
    ]
    counts = {COMPACTED_FILES_NOTE: len(replaced_files), ADDED_FILES_NOTE: len(added)}
    _replace(table, [*removed, *added], {OWNER_NOTE: owner, **counts})
    return len(replaced_files)


def _put_together(
    files: FileSystem,
    small: list[dict[str, Any]],
    table: DeltaTable,
    added: list[AddAction],
    replaced_files: list[dict[str, Any]],
) -> None:
    """Combine some files into new ones. Append the new files to `added`, and the combined ones to `replaced_files`."""
    with TemporaryDirectory(prefix="compaction-") as scratch:
        _bring(files, small, table, Path(scratch))
        DeltaTable(scratch).optimize.compact(target_size=TARGET_BYTES)
        actions = _actions(Path(scratch))
        added += [_taken_over(files, Path(scratch), action["add"]) for action in actions if "add" in action]
        # A file that is alone in its partition was left alone.
        replaced_files += [small[int(Path(action["remove"]["path"]).stem)] for action in actions if "remove" in action]


def _smallest(files: Sequence[dict[str, Any]]) -> list[list[dict[str, Any]]]:
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
    """Return the actions of the scratch table's compaction, or none if it had nothing to do."""
    log = scratch / entry_path(1)
    return list(map(json.loads, log.read_text(encoding="utf-8").splitlines())) if log.exists() else []


def _taken_over(files: FileSystem, scratch: Path, file: dict[str, Any]) -> AddAction:
    """Copy a file of the scratch table back, as one that is not yet part of the table."""
    name = new_data_file("zstd")
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
        post_commithook_properties=NO_POST_COMMIT_HOOKS,
    )


def _partition(file: dict[str, Any]) -> dict[str, str | None]:
    """The partition's values, as Delta writes them."""
    values = file.get("partition") or {}
    return {name: None if partition is None else _text(partition) for name, partition in values.items()}


def _text(partition_value: Any) -> str:
    return str(partition_value).lower() if isinstance(partition_value, bool) else str(partition_value)


# --- deleting ---------------------------------------------------------------------------------------------------------

LISTED_WITHIN_S = 60
"""A list that took longer is not used. Less than the time for which files are kept, which is minutes at least."""
UNCOMMITTED_KEPT_S = 24 * 60 * 60
"""Seconds for which a file stays that the log was not seen to remove: a writer may be about to commit it."""
RETENTION_S = 7 * 24 * 60 * 60
"""How long Delta keeps removed files of a table that does not say."""

_RETENTION = "delta.deletedFileRetentionDuration"
_SECONDS = {"second": 1, "minute": 60, "hour": 3_600, "day": 86_400, "week": 604_800}


class Removals:
    """The files that the log has given up since a Delta version, and when: as far as this process has followed it.

    Checkpoints forget it, so the log is read before each of them.
    """

    def __init__(self, location: DeltaLocation, version: int) -> None:
        self._files = open_storage(location)
        self._version = version
        self.removed_at_s: dict[str, float] = {}

    def follow(self, version: int) -> None:
        """Read the log up to this Delta version. Raises `OSError`."""
        for number in range(self._version + 1, version + 1):
            try:
                with self._files.open_input_stream(entry_path(number)) as stream:
                    actions = [json.loads(line) for line in stream.read().splitlines()]
            except (FileNotFoundError, ValueError):
                continue  # cleaned out of the log, or torn; what it removed is kept for a day
            for action in actions:
                if removed := action.get("remove"):
                    at_s = removed.get("deletionTimestamp", 0) / 1000
                    self.removed_at_s[unquote(removed["path"])] = at_s
                elif added := action.get("add"):
                    self.removed_at_s.pop(unquote(added["path"]), None)
        self._version = max(version, self._version)

    def forget(self, path: str) -> None:
        """Drop the time at which a file was removed from the log, as the file is now deleted."""
        self.removed_at_s.pop(path, None)


def delete_old_files(
    location: DeltaLocation,
    load: Callable[[], DeltaTable | None],
    removals: Removals | None = None,
    held_paths: Collection[str] = (),
) -> int:
    """Delete the files that are older than the table's `delta.deletedFileRetentionDuration` and no part of it.

    `load` brings the table up to date, and gives None when somebody else has written to it. A vacuum looks for files
    that its snapshot does not name: on one from before a pause, those of whoever took over meanwhile are among them.
    So files are listed on a fresh snapshot and in a short time, and nothing but those is deleted: what was old then
    and no part of the table never becomes one. Files at `held_paths` stay. Returns the number of deleted files.
    """
    began_s = time.monotonic()
    table = load()
    if table is None:
        return 0
    listed = table.vacuum(dry_run=True, full=True)
    if time.monotonic() - began_s > LISTED_WITHIN_S:
        return 0
    removals = removals or Removals(location, table.version())
    removals.follow(table.version())
    files, deleted_files = open_storage(location), 0
    for path in _deletable(table, [path for path in listed if path not in held_paths], files, removals.removed_at_s):
        files.delete_file(path)
        removals.forget(path)
        deleted_files += 1
    return deleted_files


def _deletable(table: DeltaTable, listed: list[str], files: FileSystem, removed_at_s: Mapping[str, float]) -> list[str]:
    metadata = table.metadata()
    kept_s = retention_s(str(metadata.configuration.get(_RETENTION, "")))
    ours = [path for path in listed if is_data_file(path, metadata.partition_columns)]
    tables = {folder for folder in set(map(_folder, ours)) if folder and _has_log(files, folder)}
    ours = [path for path in ours if not any(_is_within(path, folder) for folder in tables)]
    # By the storage's own clock, as it stamped the last Delta commit.
    [newest] = files.get_file_info([entry_path(table.version())])
    now_s = 0 if newest.mtime is None else newest.mtime.timestamp()
    unknown = [path for path in ours if path not in removed_at_s]
    write_times = {file.path: file.mtime.timestamp() for file in files.get_file_info(unknown) if file.mtime is not None}
    return [
        path
        for path in ours
        if (path in removed_at_s and removed_at_s[path] + kept_s <= now_s)
        or (path in write_times and write_times[path] + max(kept_s, UNCOMMITTED_KEPT_S) <= now_s)
    ]


def is_data_file(path: str, partition_columns: list[str]) -> bool:
    """Whether a Delta engine may have written this file for the table: by its name, and by the folder it is in.

    Data files are in the table's folder, or in those of its partitions: `column=value/…`, one folder per column.
    """
    *folders, name = path.split("/")
    is_at_home = not folders or (
        len(folders) == len(partition_columns)
        and all(
            unquote(folder).startswith(f"{column}=") for folder, column in zip(folders, partition_columns, strict=True)
        )
    )
    return is_at_home and DATA_FILE.fullmatch(name) is not None


def retention_s(text: str) -> float:
    """How long removed files are kept, in seconds: `interval 30 minutes`. What is not understood is Delta's default."""
    seconds = interval_s(text)
    return RETENTION_S if seconds is None else seconds


def interval_s(text: str) -> float | None:
    """The seconds of an interval as Delta writes it: `interval 30 minutes`. None for a text that is none."""
    match = re.fullmatch(r"(?:interval\s+)?(\d+)\s+([a-z]+?)s?", text.strip().lower())
    return int(match[1]) * _SECONDS[match[2]] if match and match[2] in _SECONDS else None


def _folder(path: str) -> str:
    return path.rpartition("/")[0]


def _has_log(files: FileSystem, folder: str) -> bool:
    """Whether a folder, or one that it is in, is a Delta table of its own."""
    parts = folder.split("/")
    above = ["/".join(parts[:number]) for number in range(1, len(parts) + 1)]
    return any(files.get_file_info(FileSelector(f"{path}/{LOG_FOLDER}", allow_not_found=True)) for path in above)


def _is_within(path: str, folder: str) -> bool:
    return path.startswith(f"{folder}/")
