"""A table's Delta log: its files, whether there is one, its newest version; and keeping it short.

delta-rs lists the whole log before and after each Delta commit, and by default twice more to delete what is
old. On a disk a listing takes longer the more there is to list. So transactions leave checkpoints and deletions to
the time between them, and the number of Delta commits in the log is bounded.
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from deltalake import DeltaTable, PostCommitHookProperties
from deltalake.exceptions import DeltaError
from pyarrow.fs import FileInfo, FileSelector, FileType

from state.delta.log.background import BackgroundWork
from state.delta.tables.table import DeltaLocation, open_storage
from transactional.model.errors import ConfigError, OperatingError, StoreMismatch
from transactional.model.names import LOG_COMMITS_PROPERTY

LOG_FOLDER = "_delta_log"
ENTRY = re.compile(r"(\d{20})\.json")
"""An entry of the log, with its Delta version."""
CHECKPOINT = re.compile(r"(\d{20})\.checkpoint(\..+)?\.parquet")
"""A checkpoint, or one part of it, with its Delta version."""
WHOLE_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\.parquet")
"""A checkpoint of one file: where there is one, it has everything."""
VERSIONED = re.compile(r"(\d{20})\..*")
"""A file of the log that belongs to one Delta version."""
NOTHING_AFTERWARDS = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)
"""A Delta commit that makes no checkpoint and deletes nothing."""
LOG_COMMITS_KEPT = 500
"""Number of Delta commits that stay in the log, unless the table's property says another number."""
LOG_KEPT_S = 10
"""Age in seconds below which a file of the log is not deleted, since readers list the log first and read it then."""
CHECKPOINT_INTERVAL = 100
"""Delta commits between two checkpoints of a table that does not say."""
UNREADABLE = (ValueError, KeyError, TypeError, AttributeError, RecursionError)
"""The errors of reading an entry that is malformed."""


EntryMark = tuple[int, object]
"""The size of an entry in bytes and the time of its last write, by which another entry of its name is noticed."""


def entry_name(version: int) -> str:
    """The name of a Delta version's entry in the log."""
    return f"{version:020}.json"


def commit_path(version: int) -> str:
    """Where the log's entry of a Delta version lies, in the table's folder."""
    return f"{LOG_FOLDER}/{entry_name(version)}"


def is_there(location: DeltaLocation) -> bool:
    """Whether there is a table. Raises `OperatingError` when its storage does not answer."""
    try:
        log = open_storage(location).get_file_info(FileSelector(LOG_FOLDER, allow_not_found=True))
        return any(ENTRY.fullmatch(file.base_name) or CHECKPOINT.fullmatch(file.base_name) for file in log)
    except (DeltaError, OSError) as error:
        raise OperatingError(f"Delta table {location} can't be looked for: {location.describe_error(error)}") from None


def empty_entry(location: DeltaLocation, until: int | None = None) -> int | None:
    """The first entry without a byte that loading a Delta version reads, the newest version by default; None: there is
    none. Entries before the checkpoint are not read. Raises `OSError`.

    Delta-rs passes over such an entry, as if nothing had been written by it.
    """
    listed = open_storage(location).get_file_info(FileSelector(LOG_FOLDER, allow_not_found=True))
    sizes = {file.base_name: file.size for file in listed if file.type == FileType.File}
    return first_empty(sizes, until)


def first_empty(sizes: Mapping[str, int], until: int | None = None) -> int | None:
    """Return the version of `empty_entry` from the sizes in bytes of a log's files, by name."""
    entries = {int(match[1]): size for name, size in sizes.items() if (match := ENTRY.fullmatch(name))}
    whole = [int(name[:20]) for name, size in sizes.items() if WHOLE_CHECKPOINT.fullmatch(name) and size]
    base = max((version for version in whole if until is None or version <= until), default=-1)
    read = range(base, max(entries, default=-1) + 1 if until is None else until + 1)
    return min((version for version, size in entries.items() if version in read and not size), default=None)


def check_entries(location: DeltaLocation, until: int | None = None) -> None:
    """Raise `StoreMismatch` for an entry without a byte that loading a version reads (see `empty_entry`).

    Raises `OperatingError` when the storage does not answer.
    """
    try:
        version = empty_entry(location, until)
    except (DeltaError, OSError) as error:
        raise OperatingError(f"Delta table {location} can't be read: {location.describe_error(error)}") from None
    if version is not None:
        raise lost_entry(location, version)


def lost_entry(location: DeltaLocation, version: int) -> StoreMismatch:
    """The error for an entry of the log without a byte."""
    return StoreMismatch(
        f"Delta table {location}: entry {entry_name(version)} of its log has no byte, so what Delta version {version} "
        "has changed is lost. Restore the entry from a backup, or take the topology back to a transaction before it: "
        "`transactional rewind`"
    )


def check_links(location: DeltaLocation) -> None:
    """Raise `ConfigError` where a file system refuses hard links, by which entries of a log get their names.

    For what has failed: a rename could take another writer's place, so there is nothing to fall back to.
    """
    if location.scheme != "file":
        return
    folder = Path(location.uri, LOG_FOLDER)
    while not folder.is_dir():
        folder = folder.parent
    with suppress(OSError), TemporaryDirectory(prefix="links-", dir=folder) as scratch:
        file = Path(scratch, "file")
        file.touch()
        try:
            file.with_name("link").hardlink_to(file)
        except OSError as error:
            if error.errno in (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS):
                raise ConfigError(
                    f"Delta table {location} lies on a file system that refuses hard links ({error.strerror}), so that "
                    f"no two writers can be kept apart: move {location.uri} to one that has them, such as ext4, XFS or "
                    "NFS, or to an object store"
                ) from None


class LogUpkeep:
    """Maintains the log of one table, for one handle."""

    def __init__(self, location: DeltaLocation, table: DeltaTable) -> None:
        self._files = open_storage(location)
        self._folder = location.uri if location.scheme == "file" else None
        self._interval = int(table.metadata().configuration.get("delta.checkpointInterval", CHECKPOINT_INTERVAL))
        self._checkpointed = table.version()
        self._location = location
        self.newest_mark: tuple[int, EntryMark | None] = (-1, None)
        """The version that was looked at last, and its entry; None: it was not there."""
        self.checkpoint = BackgroundWork[DeltaTable]("checkpoint")
        self.cleanup = BackgroundWork[None]("log")

    def is_newest(self, version: int) -> bool:
        """Whether this version is there, and no later one; checks two files and lists nothing.

        Raises `OSError`, and `StoreMismatch` if the entry of this version has no byte.
        """
        # In this order: old files are deleted oldest first, so as long as this one is there the next one was not.
        later_mark, mark = self._marks(version + 1, version)
        self.newest_mark = (version, mark)
        if mark is not None and mark[0] == 0:
            raise lost_entry(self._location, version)
        return later_mark is None and mark is not None

    def look_at(self, version: int) -> tuple[int, EntryMark | None]:
        """Return the version with the mark of its entry (see `newest_mark`). Raises `OSError`."""
        self.newest_mark = (version, self._marks(version)[0])
        return self.newest_mark

    def _marks(self, *versions: int) -> list[EntryMark | None]:
        if self._folder is not None:  # a tenth of the time
            return [_mark_on_disk(self._folder, version) for version in versions]
        files = self._files.get_file_info(list(map(commit_path, versions)))
        return [(file.size, file.mtime) if file.type == FileType.File else None for file in files]

    def withdraw(self, version: int) -> None:
        """Take an entry away that came too late. Nobody needs it: there is a checkpoint of it, or of a later one."""
        self._files.delete_file(commit_path(version))

    def is_due(self, version: int) -> bool:
        """Whether a checkpoint is due at this Delta version, and nothing is pending."""
        is_pending = self.checkpoint.is_pending or self.cleanup.is_pending
        return not is_pending and version // self._interval != self._checkpointed // self._interval

    def begin_checkpoint(self, version: int, settle: Callable[[], None]) -> None:
        """Begin to write a checkpoint of this Delta version, which has to be durable; then call `settle`, which has to
        make the checkpoint durable.

        It takes as long as several transactions. It says what its version says, whoever has written to the table since:
        it does no harm if it comes late, or from a coordinator that was replaced meanwhile.
        """
        self.checkpoint.start(lambda: self._checkpoint(version, settle))

    def _checkpoint(self, version: int, settle: Callable[[], None]) -> DeltaTable:
        location = self._location
        check_entries(location, version)
        table = DeltaTable(location.uri, version=version, storage_options=dict(location.storage_options))
        table.create_checkpoint()
        settle()
        return table

    def end_checkpoint(self) -> DeltaTable:
        """The table as of the checkpoint that was written. Raises `DeltaError`, `OSError` or `StoreMismatch`."""
        table = self.checkpoint.take()
        self._checkpointed = table.version()
        return table

    def begin_cleanup(self, table: DeltaTable, held_version: int | None = None) -> bool:
        """Begin to delete the files of the log that a checkpoint has made old. False if nothing is to be deleted.

        Nothing that the Delta version `held_version` needs is deleted. No snapshot may need log files from before the
        checkpoint any more.
        """
        properties = table.metadata().configuration
        if properties.get("delta.enableExpiredLogCleanup", "true").lower() != "true":
            return False
        commits = int(properties.get(LOG_COMMITS_PROPERTY, LOG_COMMITS_KEPT))
        self.cleanup.start(lambda: self._clean_up(table, commits, held_version))
        return True

    def _clean_up(self, table: DeltaTable, commits: int, held_version: int | None) -> None:
        if held_version is None:
            table.cleanup_metadata()
        write_times = {file.path: file.mtime.timestamp() for file in self._listed()}
        # By the storage's own clock, which has just stamped the checkpoint.
        for path in surplus(write_times, commits, max(write_times.values()) - LOG_KEPT_S, held_version):
            self._files.delete_file(path)

    def end_cleanup(self) -> None:
        """The log was cleaned up. Raises `DeltaError` or `OSError`: what is left is deleted after the next one."""
        self.cleanup.take()

    def _listed(self) -> list[FileInfo]:
        files = self._files.get_file_info(FileSelector(LOG_FOLDER))
        return [file for file in files if file.type == FileType.File]


def surplus(files: Mapping[str, float], commits: int, until_s: float, held_version: int | None = None) -> list[str]:
    """Return the log files that may be deleted, oldest first: all before a checkpoint with `commits` later commits.

    `files` has the time at which each was written, in seconds. Files written after `until_s` stay, and so does the
    checkpoint that they need. Nothing that the Delta version `held_version` needs is among the returned files.
    """
    versions = {path: int(match[1]) for path in files if (match := VERSIONED.fullmatch(_name(path)))}
    checkpoints = [versions[path] for path in versions if WHOLE_CHECKPOINT.fullmatch(_name(path))]
    young = [version for path, version in versions.items() if files[path] > until_s]
    last = min([max(versions.values(), default=0) - commits, *young, *([] if held_version is None else [held_version])])
    base = max((version for version in checkpoints if version <= last), default=0)
    return sorted(path for path, version in versions.items() if version < base)


def _name(path: str) -> str:
    return path.rsplit("/", 1)[-1]


def _mark_on_disk(folder: str, version: int) -> EntryMark | None:
    """Return the mark of a version's entry in the log on this disk, or None if it is not there. Raises `OSError`."""
    try:
        status = os.stat(os.path.join(folder, commit_path(version)))
    except FileNotFoundError:
        return None
    return (status.st_size, status.st_mtime_ns) if stat.S_ISREG(status.st_mode) else None


def read_added_bytes(folder: Path, version: int) -> int | None:
    """Return the size of the files that a version added to a table on this disk, or None if the log entry is malformed.

    Raises `OSError` if the entry is missing.
    """
    with (folder / commit_path(version)).open("rb") as file:
        lines = [line for line in file if line.startswith(b'{"add"')]
    try:
        return sum(int(json.loads(line)["add"]["size"]) for line in lines)
    except UNREADABLE:
        return None
