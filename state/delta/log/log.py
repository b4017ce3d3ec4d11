"""The files of a table's Delta log: their names, its newest version, and its upkeep.

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
"""The name of a log entry, with its Delta version."""
CHECKPOINT = re.compile(r"(\d{20})\.checkpoint(\..+)?\.parquet")
"""The name of a checkpoint, or of a part of one, with its Delta version."""
WHOLE_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\.parquet")
"""The name of a checkpoint that is a single file, and so complete."""
VERSIONED = re.compile(r"(\d{20})\..*")
"""The name of a file of the log that belongs to one Delta version."""
NO_POST_COMMIT_HOOKS = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)
"""A Delta commit that makes no checkpoint and deletes nothing."""
LOG_COMMITS_KEPT = 500
"""Number of Delta commits that stay in the log, unless the table's property says another number."""
LOG_KEPT_S = 10
"""Age in seconds below which a file of the log is not deleted, since readers list the log first and read it then."""
CHECKPOINT_INTERVAL = 100
"""Delta commits between two checkpoints of a table that does not say."""
MALFORMED_ENTRY_ERRORS = (ValueError, KeyError, TypeError, AttributeError, RecursionError)
"""The errors of reading an entry that is malformed."""


EntryMark = tuple[int, object]
"""The size of an entry in bytes and the time of its last write, by which another entry of its name is noticed."""


def entry_name(version: int) -> str:
    """Return the name of a Delta version's entry in the log."""
    return f"{version:020}.json"


def entry_path(version: int) -> str:
    """Return the path of a Delta version's log entry in the table's folder."""
    return f"{LOG_FOLDER}/{entry_name(version)}"


def table_exists(location: DeltaLocation) -> bool:
    """True if there is a table at the location. Raises `OperatingError` if its storage does not respond."""
    try:
        log = open_storage(location).get_file_info(FileSelector(LOG_FOLDER, allow_not_found=True))
        return any(ENTRY.fullmatch(file.base_name) or CHECKPOINT.fullmatch(file.base_name) for file in log)
    except (DeltaError, OSError) as error:
        raise OperatingError(f"Delta table {location} can't be looked for: {location.describe_error(error)}") from None


def find_empty_entry(location: DeltaLocation, until: int | None = None) -> int | None:
    """Return the version of the first entry without a byte that is read to load the version `until`, or None.

    By default `until` is the newest version. Entries before the checkpoint are not read. Delta-rs ignores an entry
    without a byte, as if it had written nothing. Raises `OSError`.
    """
    listed = open_storage(location).get_file_info(FileSelector(LOG_FOLDER, allow_not_found=True))
    sizes = {file.base_name: file.size for file in listed if file.type == FileType.File}
    return find_first_empty_entry(sizes, until)


def find_first_empty_entry(sizes: Mapping[str, int], until: int | None = None) -> int | None:
    """Return the version of `find_empty_entry` from the sizes in bytes of a log's files, by name."""
    entries = {int(match[1]): size for name, size in sizes.items() if (match := ENTRY.fullmatch(name))}
    whole = [int(name[:20]) for name, size in sizes.items() if WHOLE_CHECKPOINT.fullmatch(name) and size]
    base = max((version for version in whole if until is None or version <= until), default=-1)
    read = range(base, max(entries, default=-1) + 1 if until is None else until + 1)
    return min((version for version, size in entries.items() if version in read and not size), default=None)


def check_no_entry_is_empty(location: DeltaLocation, until: int | None = None) -> None:
    """Raise `StoreMismatch` for an entry without a byte that loading a version reads (see `find_empty_entry`).

    Raises `OperatingError` when the storage does not answer.
    """
    try:
        version = find_empty_entry(location, until)
    except (DeltaError, OSError) as error:
        raise OperatingError(f"Delta table {location} can't be read: {location.describe_error(error)}") from None
    if version is not None:
        raise lost_entry_error(location, version)


def lost_entry_error(location: DeltaLocation, version: int) -> StoreMismatch:
    """Return the error for an entry of the log without a byte."""
    return StoreMismatch(
        f"Delta table {location}: entry {entry_name(version)} of its log has no byte, so what Delta version {version} "
        "has changed is lost. Restore the entry from a backup, or take the topology back to a transaction before it: "
        "`transactional rewind`"
    )


def check_links(location: DeltaLocation) -> None:
    """Raise `ConfigError` where a file system refuses hard links, by which entries of a log get their names.

    To be called after a write has failed. There is no other way to write an entry: a rename could replace another
    writer's.
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
        """The version that was looked at last, with the mark of its entry, or None if there was no entry."""
        self.checkpoint = BackgroundWork[DeltaTable]("checkpoint")
        self.cleanup = BackgroundWork[None]("log")

    def is_newest(self, version: int) -> bool:
        """True if this version exists, and no later one. Two files are checked, none are listed.

        Raises `OSError`, and `StoreMismatch` if the entry of this version has no byte.
        """
        # In this order: old files are deleted oldest first, so as long as this one is there the next one was not.
        later_mark, mark = self._read_marks(version + 1, version)
        self.newest_mark = (version, mark)
        if mark is not None and mark[0] == 0:
            raise lost_entry_error(self._location, version)
        return later_mark is None and mark is not None

    def read_mark(self, version: int) -> tuple[int, EntryMark | None]:
        """Return the version with the mark of its entry, as `newest_mark` has them. Raises `OSError`."""
        self.newest_mark = (version, self._read_marks(version)[0])
        return self.newest_mark

    def _read_marks(self, *versions: int) -> list[EntryMark | None]:
        if self._folder is not None:  # a tenth of the time
            return [_read_mark_on_disk(self._folder, version) for version in versions]
        files = self._files.get_file_info(list(map(entry_path, versions)))
        return [(file.size, file.mtime) if file.type == FileType.File else None for file in files]

    def delete_late_entry(self, version: int) -> None:
        """Delete an entry that was written too late. A checkpoint of it or of a later version makes it superfluous."""
        self._files.delete_file(entry_path(version))

    def is_checkpoint_due(self, version: int) -> bool:
        """True if a checkpoint is due at this Delta version, and neither a checkpoint nor a clean-up is under way."""
        is_pending = self.checkpoint.is_pending or self.cleanup.is_pending
        return not is_pending and version // self._interval != self._checkpointed // self._interval

    def begin_checkpoint(self, version: int, settle: Callable[[], None]) -> None:
        """Begin to write a checkpoint of this Delta version, and then to call `settle`, which makes it durable.

        The version itself has to be durable already. A checkpoint takes as long as several transactions. It describes
        its version whoever has written to the table since, so it does no harm if it is late, or if the coordinator was
        replaced meanwhile.
        """
        self.checkpoint.start(lambda: self._write_checkpoint(version, settle))

    def _write_checkpoint(self, version: int, settle: Callable[[], None]) -> DeltaTable:
        location = self._location
        check_no_entry_is_empty(location, version)
        table = DeltaTable(location.uri, version=version, storage_options=dict(location.storage_options))
        table.create_checkpoint()
        settle()
        return table

    def end_checkpoint(self) -> DeltaTable:
        """Return the table at the version of the written checkpoint.

        Raises `DeltaError`, `OSError` or `StoreMismatch`.
        """
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
        write_times = {file.path: file.mtime.timestamp() for file in self._list_files()}
        # By the storage's own clock, which has just stamped the checkpoint.
        for path in list_surplus_files(write_times, commits, max(write_times.values()) - LOG_KEPT_S, held_version):
            self._files.delete_file(path)

    def end_cleanup(self) -> None:
        """End the clean-up. Raises its `DeltaError` or `OSError`: the next clean-up deletes the files that remain."""
        self.cleanup.take()

    def _list_files(self) -> list[FileInfo]:
        files = self._files.get_file_info(FileSelector(LOG_FOLDER))
        return [file for file in files if file.type == FileType.File]


def list_surplus_files(
    files: Mapping[str, float], commits: int, until_s: float, held_version: int | None = None
) -> list[str]:
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


def _read_mark_on_disk(folder: str, version: int) -> EntryMark | None:
    """Return the mark of a version's entry in the log on this disk, or None if it is not there. Raises `OSError`."""
    try:
        status = os.stat(os.path.join(folder, entry_path(version)))
    except FileNotFoundError:
        return None
    return (status.st_size, status.st_mtime_ns) if stat.S_ISREG(status.st_mode) else None


def read_added_bytes(folder: Path, version: int) -> int | None:
    """Return the size of the files that a version added to a table on this disk, or None if the log entry is malformed.

    Raises `OSError` if the entry is missing.
    """
    with (folder / entry_path(version)).open("rb") as file:
        lines = [line for line in file if line.startswith(b'{"add"')]
    try:
        return sum(int(json.loads(line)["add"]["size"]) for line in lines)
    except MALFORMED_ENTRY_ERRORS:
        return None
