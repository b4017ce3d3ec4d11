"""Deletion of run files that no version of the table within its retention has.

Dead attempts leave files that were never published, and maintenance by others removes files from the table; no vacuum
lists the folder, so the sink deletes both. A file is deleted only if its attempt is not later than the newest published
one, so that the outbox names no such file and no attempt in flight writes one; if the newest version does not have it;
and if it is a retention old, and so is the Delta commit that removed it. Times are those of the storage's own clock.
"""

from __future__ import annotations

import json

import pyarrow as pa
from pyarrow.fs import FileInfo, FileSelector, FileSystem, FileType

from sinks.delta.run_files import RUNS_FOLDER, attempt_of
from state.delta.log.files import retention_s
from state.delta.log.log import ENTRY, LOG_FOLDER, commit_path
from state.delta.tables.storage import delete
from state.delta.tables.table import DeltaLocation, load_table, storage_of
from transactional.model.names import SINK_ATTEMPT


def sweep(location: DeltaLocation) -> list[str]:
    """Delete the run files that are due, and return their paths. Raises `OSError`, `OperatingError`."""
    storage = storage_of(location)
    # Listed first: a file that is published later is live in the version that is loaded after it.
    run_files = _list_files(storage, RUNS_FOLDER)
    table = load_table(location)
    published_id = table.transaction_version(SINK_ATTEMPT) or 0
    live = {*pa.table(table.get_add_actions())["path"].to_pylist()}
    entries = {file.base_name: file for file in _list_files(storage, LOG_FOLDER) if ENTRY.fullmatch(file.base_name)}
    newest_s = max(map(_modified_s, entries.values()), default=0.0)
    old_s = newest_s - retention_s(str(table.metadata().configuration.get("delta.deletedFileRetentionDuration", "")))
    due = [
        path
        for path, file in ((f"{RUNS_FOLDER}/{file.base_name}", file) for file in run_files)
        if (attempt := attempt_of(path)) is not None
        and attempt.attempt_id <= published_id
        and path not in live
        and _modified_s(file) < old_s
    ]
    if due:
        removed_lately = _paths_removed_since(storage, entries, old_s)
        due = [] if removed_lately is None else [path for path in due if path not in removed_lately]
    delete(storage, due)
    return due


def _list_files(storage: FileSystem, folder: str) -> list[FileInfo]:
    files = storage.get_file_info(FileSelector(folder, allow_not_found=True))
    return [file for file in files if file.type == FileType.File]


def _modified_s(file: FileInfo) -> float:
    return int(file.mtime_ns) / 1e9


def _paths_removed_since(storage: FileSystem, entries: dict[str, FileInfo], since_s: float) -> set[str] | None:
    """Return the paths that Delta commits have removed since a time; None if the log does not go back so far."""
    versions = {int(name[:20]): file for name, file in entries.items()}
    late_versions = [version for version, file in versions.items() if _modified_s(file) >= since_s]
    if len(late_versions) == len(versions) and 0 not in versions:
        return None
    paths = set[str]()
    for version in late_versions:
        with storage.open_input_file(commit_path(version)) as file:
            actions = [json.loads(line) for line in file.read().splitlines() if b'"remove"' in line]
        paths |= {action["remove"]["path"] for action in actions if "remove" in action}
    return paths
