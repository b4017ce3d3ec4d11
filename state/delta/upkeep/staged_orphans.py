"""Deletion of orphaned staged files: those that no Delta commit will name any more."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Collection
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable

from state.delta.log.files import parse_retention_s
from state.delta.log.log import entry_path
from state.delta.tables.staging import STAGED_FOLDER, parse_staged_attempt
from state.delta.tables.table import DeltaLocation
from state.orphans import NotedOrphans
from transactional.model.attempt import AttemptId

_DRIVER_FILES = (f"{STAGED_FOLDER}/mark-", f"{STAGED_FOLDER}/job-")
_NO_ATTEMPT = AttemptId(0)


class StagedOrphans:
    """Deletes staged files that are no longer part of the table, or never were, in two passes a retention apart.

    Only the table's owner may do so. Each pass lists the files first and loads the newest version after that.
    `NotedOrphans` decides which files are deleted. Times are those of the storage's own clock.
    """

    def __init__(self, location: DeltaLocation) -> None:
        self.location, self._orphans = location, NotedOrphans()

    def sweep(
        self,
        load: Callable[[], DeltaTable | None],
        version: Callable[[], AttemptId | None],
        retained: Collection[str] = (),
    ) -> int:
        """Do both passes, sparing `retained` files, and return the number of deleted files. Raises `OSError`.

        `load` returns the newest snapshot, or None if another coordinator has written it. `version` is called after it
        and returns the attempt that wrote the snapshot.
        """
        staged_files = self._list_files()
        table = load() if staged_files else None
        attempt_id = version()
        if table is None or attempt_id is None:
            return 0
        live = {*pa.table(table.get_add_actions())["path"].to_pylist(), *retained}
        retention = parse_retention_s(str(table.metadata().configuration.get("delta.deletedFileRetentionDuration", "")))
        now_s = Path(self.location.uri, entry_path(table.version())).stat().st_mtime
        due = self._orphans.due(staged_files, live, attempt_id, now_s=now_s, retention_s=retention)
        for path in due:
            self.delete(path)
        return len(due)

    def delete(self, path: str) -> None:
        """Delete a staged file, or the folder of a compaction."""
        target = Path(self.location.uri, path)
        if target.is_dir():
            shutil.rmtree(target, ignore_errors=True)
        else:
            target.unlink(missing_ok=True)

    def _list_files(self) -> dict[str, AttemptId]:
        folder = Path(self.location.uri, STAGED_FOLDER)
        names = os.listdir(folder) if folder.is_dir() else []
        attempts = {f"{STAGED_FOLDER}/{name}": parse_staged_attempt(f"{STAGED_FOLDER}/{name}") for name in names}
        # Marks of a start and the folder of a compaction have no attempt. After a retention their driver is dead.
        driver_files = {path: _NO_ATTEMPT for path in attempts if path.startswith(_DRIVER_FILES)}
        return {**driver_files, **{path: attempt.attempt_id for path, attempt in attempts.items() if attempt}}
