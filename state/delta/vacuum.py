"""Deletes the files that a Delta table does not need any more, whatever else happens to the table meanwhile.

Only what a Delta engine has named and put where a table has its data files: a folder may hold a store, a journal, or
another table besides. A file that the log has given up goes once it is older than the table says. Of any other one
nobody can tell whether some writer, such as an OPTIMIZE that takes hours, is about to commit it: it stays for a day.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping
from urllib.parse import unquote

from deltalake import DeltaTable
from deltalake.fs import DeltaStorageHandler
from pyarrow.fs import FileSelector, PyFileSystem

from state.delta.log import commit_path
from state.delta.table import DeltaLocation

LISTED_WITHIN_S = 60
"""A list that took longer is not used. Less than the time for which files are kept, which is minutes at least."""
UNCOMMITTED_KEPT_S = 24 * 60 * 60
"""So long stays what the log was not seen to give up: somebody may be about to commit it."""
RETENTION_S = 7 * 24 * 60 * 60
"""How long Delta keeps removed files of a table that does not say."""

_RETENTION = "delta.deletedFileRetentionDuration"
_SECONDS = {"second": 1, "minute": 60, "hour": 3_600, "day": 86_400, "week": 604_800}
_UUID = r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
# As Spark, delta-rs and `replace_rows` name them: part-00000-<uuid>-c000.snappy.parquet; Spark has a dot before c000.
_DATA_FILE = re.compile(rf"part-\d{{5,}}-{_UUID}([.-]c\d+)?(\.[a-z0-9]+)?\.parquet", re.IGNORECASE)


class Removals:
    """The files that the log has given up since a Delta version, and when: as far as this process has followed it.

    Checkpoints forget it, so the log is read before each of them.
    """

    def __init__(self, location: DeltaLocation, version: int) -> None:
        self._files = _files(location)
        self._version = version
        self.removed_at_s: dict[str, float] = {}

    def follow(self, version: int) -> None:
        """Read the log up to this Delta version. Raises `OSError`."""
        for number in range(self._version + 1, version + 1):
            try:
                with self._files.open_input_stream(commit_path(number)) as stream:
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
        """The file is deleted."""
        self.removed_at_s.pop(path, None)


def delete_old_files(
    location: DeltaLocation, load: Callable[[], DeltaTable | None], removals: Removals | None = None
) -> int:
    """Delete the files that are older than the table's `delta.deletedFileRetentionDuration` and no part of it.

    `load` brings the table up to date, and gives None when somebody else has written to it. A vacuum looks for files
    that its snapshot does not name: on one from before a pause, those of whoever took over meanwhile are among them.
    So files are listed on a fresh snapshot and in a short time, and nothing but those is deleted: what was old then
    and no part of the table never becomes one. Returns how many files are gone.
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
    files, gone = _files(location), 0
    for path in _deletable(table, listed, files, removals.removed_at_s):
        files.delete_file(path)
        removals.forget(path)
        gone += 1
    return gone


def _deletable(
    table: DeltaTable, listed: list[str], files: PyFileSystem, removed_at_s: Mapping[str, float]
) -> list[str]:
    metadata = table.metadata()
    kept_s = retention_s(str(metadata.configuration.get(_RETENTION, "")))
    ours = [path for path in listed if is_data_file(path, metadata.partition_columns)]
    tables = {folder for folder in set(map(_folder, ours)) if folder and _has_log(files, folder)}
    ours = [path for path in ours if not any(_is_within(path, folder) for folder in tables)]
    # By the storage's own clock, as it stamped the last Delta commit.
    [newest] = files.get_file_info([commit_path(table.version())])
    now_s = 0 if newest.mtime is None else newest.mtime.timestamp()
    unknown = [path for path in ours if path not in removed_at_s]
    written = {info.path: info.mtime.timestamp() for info in files.get_file_info(unknown) if info.mtime is not None}
    return [
        path
        for path in ours
        if (path in removed_at_s and removed_at_s[path] + kept_s <= now_s)
        or (path in written and written[path] + max(kept_s, UNCOMMITTED_KEPT_S) <= now_s)
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
    return is_at_home and _DATA_FILE.fullmatch(name) is not None


def retention_s(text: str) -> float:
    """How long removed files are kept, in seconds: `interval 30 minutes`. What is not understood is Delta's default."""
    match = re.fullmatch(r"(?:interval\s+)?(\d+)\s+([a-z]+?)s?", text.strip().lower())
    return int(match[1]) * _SECONDS[match[2]] if match and match[2] in _SECONDS else RETENTION_S


def _files(location: DeltaLocation) -> PyFileSystem:
    return PyFileSystem(DeltaStorageHandler(location.uri, dict(location.storage_options)))


def _folder(path: str) -> str:
    return path.rpartition("/")[0]


def _has_log(files: PyFileSystem, folder: str) -> bool:
    """Whether a folder, or one that it is in, is a Delta table of its own."""
    parts = folder.split("/")
    above = ["/".join(parts[:number]) for number in range(1, len(parts) + 1)]
    return any(files.get_file_info(FileSelector(f"{each}/_delta_log", allow_not_found=True)) for each in above)


def _is_within(path: str, folder: str) -> bool:
    return path.startswith(f"{folder}/")
