"""A table's Delta log: which version is its newest, and keeping it short, so that a table's age costs nothing.

delta-rs lists the whole log before and after each Delta commit, and, unless told not to, twice more to delete what is
old. On a disk a listing takes the longer the more there is to list. So transactions leave checkpoints and deletions to
the time between them, and the number of Delta commits in the log is bounded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from deltalake import DeltaTable, PostCommitHookProperties
from deltalake.fs import DeltaStorageHandler
from pyarrow.fs import FileInfo, FileSelector, FileType

from state.delta.table import DeltaLocation
from transactional.names import LOG_COMMITS_PROPERTY

NOTHING_AFTERWARDS = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)
"""A Delta commit that makes no checkpoint and deletes nothing."""
LOG_COMMITS_KEPT = 500
"""So many Delta commits the log keeps, unless the table's property says another number."""
LOG_KEPT_S = 10
"""What is younger stays, however many there are: readers list the log first, and read it then."""
CHECKPOINT_INTERVAL = 100
"""Delta commits between two checkpoints of a table that does not say."""

_LOG = "_delta_log"
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\.parquet")
_VERSIONED = re.compile(r"(\d{20})\..*")


class LogUpkeep:
    """Looks after the log of one table, for one handle."""

    def __init__(self, location: DeltaLocation, table: DeltaTable) -> None:
        self._files = DeltaStorageHandler(location.uri, dict(location.storage_options))
        self._interval = int(table.metadata().configuration.get("delta.checkpointInterval", CHECKPOINT_INTERVAL))
        self._checkpointed = table.version()

    def is_newest(self, version: int) -> bool:
        """Whether this version is there, and no later one; asks for two files and lists nothing. Raises `OSError`."""
        # In this order: old files are deleted oldest first, so as long as this one is there the next one was not.
        later, this = self._files.get_file_info([commit_path(version + 1), commit_path(version)])
        return bool(later.type == FileType.NotFound and this.type == FileType.File)

    def withdraw(self, version: int) -> None:
        """Take an entry away that came too late. Nobody needs it: there is a checkpoint of it, or of a later one."""
        self._files.delete_file(commit_path(version))

    def is_due(self, version: int) -> bool:
        """Whether a checkpoint is due at this Delta version."""
        return version // self._interval != self._checkpointed // self._interval

    def run(self, table: DeltaTable, settle: Callable[[], None]) -> bool:
        """Write a checkpoint, and delete what of the log is old then: True when something went.

        `settle` is called in between: the checkpoint, and all that it stands for, has to be durable by then.

        Whose snapshot holds log files that went has to load the table anew. Raises `DeltaError` or `OSError`.
        """
        table.create_checkpoint()
        self._checkpointed = table.version()
        settle()
        properties = table.metadata().configuration
        if properties.get("delta.enableExpiredLogCleanup", "true").lower() != "true":
            return False
        table.cleanup_metadata()
        kept = int(properties.get(LOG_COMMITS_PROPERTY, LOG_COMMITS_KEPT))
        written = {file.path: file.mtime.timestamp() for file in self._listed()}
        # By the storage's own clock, which has just stamped the checkpoint.
        for path in surplus(written, kept, max(written.values()) - LOG_KEPT_S):
            self._files.delete_file(path)
        return True

    def _listed(self) -> list[FileInfo]:
        files = self._files.get_file_info_selector(FileSelector(_LOG, recursive=False))
        return [file for file in files if file.type == FileType.File]


def surplus(files: Mapping[str, float], kept: int, until_s: float) -> list[str]:
    """The log files that may go, oldest first: all before a checkpoint that has `kept` Delta commits after it.

    `files` tells when each was written; those after `until_s` stay, and so does the checkpoint that is needed for them.
    """
    versions = {path: int(match[1]) for path in files if (match := _VERSIONED.fullmatch(_name(path)))}
    checkpoints = [versions[path] for path in versions if _CHECKPOINT.fullmatch(_name(path))]
    young = [version for path, version in versions.items() if files[path] > until_s]
    last = min([max(versions.values(), default=0) - kept, *young])
    base = max((version for version in checkpoints if version <= last), default=0)
    return sorted(path for path, version in versions.items() if version < base)


def _name(path: str) -> str:
    return path.rsplit("/", 1)[-1]


def commit_path(version: int) -> str:
    """Where the log's entry of a Delta version lies, in the table's folder."""
    return f"{_LOG}/{version:020}.json"
