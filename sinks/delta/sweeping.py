"""Deletion of files that no version of the table within its retention has.

Dead attempts leave files that were never published, leaders that died leave files that they were merging, and
maintenance by others removes files from the table. No vacuum lists the folder of run files, so the sink deletes what it
has written. A file is deleted only if all its attempts are settled, so that the outbox names no such file and no
attempt in flight writes one; if the newest version does not have it; and if it is a retention old, and so is the Delta
commit that removed it. Times are those of the storage's own clock.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import pyarrow as pa
from pyarrow import parquet
from pyarrow.fs import FileInfo, FileSelector, FileSystem, FileType

from sinks.delta.append_log import AppendLog
from sinks.delta.compaction import compacted_attempt
from sinks.delta.run_files import RUNS_FOLDER, attempt_of
from state.delta.log.files import parse_retention_s
from state.delta.log.log import ENTRY, LOG_FOLDER, WHOLE_CHECKPOINT, entry_path
from state.delta.tables.storage import delete_files
from state.delta.tables.table import open_storage
from transactional.model.attempt import AttemptId


def sweep(log: AppendLog, first_unsettled: AttemptId) -> list[str]:
    """Delete the files that are due, and return their paths. All attempts before `first_unsettled` are settled.

    Raises `OSError`, `OperatingError`.
    """
    due = find_due_files(log, first_unsettled)
    delete_files(open_storage(log.location), due)
    return due


def find_due_files(log: AppendLog, first_unsettled: AttemptId) -> list[str]:
    """Return the paths of the files that `sweep` deletes. Raises `OSError`, `OperatingError`."""
    storage = open_storage(log.location)
    # Listed first: a file that is published later is live in the version that is loaded after it.
    own_files = _list_own_files(storage, first_unsettled)
    table = log.load()
    live = {*pa.table(table.get_add_actions())["path"].to_pylist()}
    log_files = {file.base_name: file for file in list_files(storage, LOG_FOLDER)}
    newest_s = max((_modified_s(file) for name, file in log_files.items() if ENTRY.fullmatch(name)), default=0.0)
    old_s = newest_s - parse_retention_s(
        str(table.metadata().configuration.get("delta.deletedFileRetentionDuration", ""))
    )
    due = [path for path, file in own_files.items() if path not in live and _modified_s(file) < old_s]
    if due:
        removed_lately = paths_removed_since(storage, log_files, old_s)
        due = [] if removed_lately is None else [path for path in due if path not in removed_lately]
    return due


def _list_own_files(storage: FileSystem, first_unsettled: AttemptId) -> dict[str, FileInfo]:
    """Return the files that the sink has written for settled attempts, by path."""
    files = dict[str, FileInfo]()
    for file in list_files(storage, RUNS_FOLDER):
        attempt = attempt_of(path := f"{RUNS_FOLDER}/{file.base_name}")
        if attempt is not None and attempt.attempt_id < first_unsettled:
            files[path] = file
    for file in list_files(storage, ""):
        attempt_id = compacted_attempt(file.base_name)
        if attempt_id is not None and attempt_id < first_unsettled:
            files[file.base_name] = file
    return files


def list_files(storage: FileSystem, folder: str) -> list[FileInfo]:
    """Return the files in a folder, none if there is no such folder. Raises `OSError`."""
    files = storage.get_file_info(FileSelector(folder, allow_not_found=True))
    return [file for file in files if file.type == FileType.File]


def _modified_s(file: FileInfo) -> float:
    return int(file.mtime_ns) / 1e9


def paths_removed_since(storage: FileSystem, log: Mapping[str, FileInfo], since_s: float) -> set[str] | None:
    """Return the paths that Delta commits have removed since a time; None if the log does not go back so far.

    The newest checkpoint has the removed files of all entries before it. `log` are the files of the log by name.
    """
    checkpoints = [name for name, file in log.items() if WHOLE_CHECKPOINT.fullmatch(name) and file.size]
    checkpoint = max(checkpoints, default="")
    paths, base = set[str](), -1
    if checkpoint:
        base = int(checkpoint[:20])
        columns = ["remove.path", "remove.deletionTimestamp"]
        with storage.open_input_file(f"{LOG_FOLDER}/{checkpoint}") as file:
            rows = parquet.ParquetFile(file).read(columns=columns)
        removals = rows["remove"].to_pylist() if "remove" in rows.column_names else []
        paths = {
            removal["path"]
            for removal in removals
            if removal is not None and (removal["deletionTimestamp"] or 0) >= since_s * 1_000
        }
    versions = {int(name[:20]): file for name, file in log.items() if ENTRY.fullmatch(name)}
    later_versions = [version for version in versions if version > base]
    if not checkpoint and 0 not in versions and all(_modified_s(file) >= since_s for file in versions.values()):
        return None
    for version in later_versions:
        if _modified_s(versions[version]) < since_s:
            continue
        with storage.open_input_file(entry_path(version)) as file:
            actions = [json.loads(line) for line in file.read().splitlines() if b'"remove"' in line]
        paths |= {action["remove"]["path"] for action in actions if "remove" in action}
    return paths
