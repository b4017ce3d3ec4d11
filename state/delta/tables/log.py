"""A table's Delta log: its newest version, what others have written, and keeping it short.

delta-rs lists the whole log before and after each Delta commit, and by default twice more to delete what is
old. On a disk a listing takes longer the more there is to list. So transactions leave checkpoints and deletions to
the time between them, and the number of Delta commits in the log is bounded.
"""

from __future__ import annotations

import json
import logging
import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from deltalake import DeltaTable, PostCommitHookProperties
from pyarrow.fs import FileInfo, FileSelector, FileType

from state.delta.tables.names import LOG_FOLDER, VERSIONED, WHOLE_CHECKPOINT, entry_name
from state.delta.tables.table import DeltaLocation, storage_of
from transactional.errors import OperatingError, StoreMismatch
from transactional.names import LOG_COMMITS_PROPERTY, REWOUND_NOTE, fold_of, repair_of

_log = logging.getLogger(__name__)
NOTHING_AFTERWARDS = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)
"""A Delta commit that makes no checkpoint and deletes nothing."""
LOG_COMMITS_KEPT = 500
"""So many Delta commits the log keeps, unless the table's property says another number."""
LOG_KEPT_S = 10
"""What is younger stays, however many there are: readers list the log first, and read it then."""
CHECKPOINT_INTERVAL = 100
"""Delta commits between two checkpoints of a table that does not say."""


class LogUpkeep:
    """Maintains the log of one table, for one handle."""

    def __init__(self, location: DeltaLocation, table: DeltaTable) -> None:
        self._files = storage_of(location)
        self._folder = location.uri if location.scheme == "file" else None
        self._interval = int(table.metadata().configuration.get("delta.checkpointInterval", CHECKPOINT_INTERVAL))
        self._checkpointed = table.version()

    def is_newest(self, version: int) -> bool:
        """Whether this version is there, and no later one; checks two files and lists nothing. Raises `OSError`."""
        # In this order: old files are deleted oldest first, so as long as this one is there the next one was not.
        if self._folder is not None:  # a tenth of the time
            return not _is_file(self._folder, version + 1) and _is_file(self._folder, version)
        later, this = self._files.get_file_info([commit_path(version + 1), commit_path(version)])
        return bool(later.type == FileType.NotFound and this.type == FileType.File)

    def withdraw(self, version: int) -> None:
        """Take an entry away that came too late. Nobody needs it: there is a checkpoint of it, or of a later one."""
        self._files.delete_file(commit_path(version))

    def is_due(self, version: int) -> bool:
        """Whether a checkpoint is due at this Delta version."""
        return version // self._interval != self._checkpointed // self._interval

    def run(self, table: DeltaTable, settle: Callable[[], None], held: int | None = None) -> bool:
        """Write a checkpoint, and delete what of the log is old by then: True when something was deleted.

        Nothing that the Delta version `held` needs is deleted. `settle` is called in between: the checkpoint, and all
        that it stands for, has to be durable by then.

        A snapshot that refers to deleted log files has to be loaded again. Raises `DeltaError` or `OSError`.
        """
        table.create_checkpoint()
        self._checkpointed = table.version()
        settle()
        properties = table.metadata().configuration
        if properties.get("delta.enableExpiredLogCleanup", "true").lower() != "true":
            return False
        if held is None:
            table.cleanup_metadata()
        kept = int(properties.get(LOG_COMMITS_PROPERTY, LOG_COMMITS_KEPT))
        written = {file.path: file.mtime.timestamp() for file in self._listed()}
        # By the storage's own clock, which has just stamped the checkpoint.
        for path in surplus(written, kept, max(written.values()) - LOG_KEPT_S, held):
            self._files.delete_file(path)
        return True

    def _listed(self) -> list[FileInfo]:
        files = self._files.get_file_info(FileSelector(LOG_FOLDER))
        return [file for file in files if file.type == FileType.File]


def surplus(files: Mapping[str, float], kept: int, until_s: float, held: int | None = None) -> list[str]:
    """The log files that may go, oldest first: all before a checkpoint that has `kept` Delta commits after it.

    `files` has the time at which each was written; those after `until_s` stay, and so does the checkpoint that
    they need. Nothing that the Delta version `held` needs is among them.
    """
    versions = {path: int(match[1]) for path in files if (match := VERSIONED.fullmatch(_name(path)))}
    checkpoints = [versions[path] for path in versions if WHOLE_CHECKPOINT.fullmatch(_name(path))]
    young = [version for path, version in versions.items() if files[path] > until_s]
    last = min([max(versions.values(), default=0) - kept, *young, *([] if held is None else [held])])
    base = max((version for version in checkpoints if version <= last), default=0)
    return sorted(path for path, version in versions.items() if version < base)


def _name(path: str) -> str:
    return path.rsplit("/", 1)[-1]


def _is_file(folder: str, version: int) -> bool:
    """Whether the log on this disk has the entry of a version. Raises `OSError`."""
    try:
        return stat.S_ISREG(os.stat(os.path.join(folder, commit_path(version))).st_mode)
    except FileNotFoundError:
        return False


def commit_path(version: int) -> str:
    """Where the log's entry of a Delta version lies, in the table's folder."""
    return f"{LOG_FOLDER}/{entry_name(version)}"


def added_bytes(folder: str, version: int) -> int | None:
    """The size of the files that a version added to a table on this disk; None: its entry can't be read. Raises
    `OSError`."""
    with open(os.path.join(folder, commit_path(version)), "rb") as file:
        lines = [line for line in file if line.startswith(b'{"add"')]
    try:
        return sum(int(json.loads(line)["add"]["size"]) for line in lines)
    except UNREADABLE:
        return None


# --- what others have written ---------------------------------------------------------------------------------------


UNREADABLE = (ValueError, KeyError, TypeError, AttributeError, RecursionError)
"""What comes of an entry that is none."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One Delta commit of the log."""

    version: int
    operation: str
    app_versions: Mapping[str, int]
    changes_data: bool
    changes_table: bool
    """Whether columns, properties or protocol are declared again."""
    added: frozenset[str]
    removed: frozenset[str]
    protocol: Mapping[str, Any] | None
    """The new protocol, if the entry declares one."""
    rewound_to: int | None = None
    """The transaction that a rewind has taken the table back to by it."""
    adds: tuple[Mapping[str, Any], ...] = ()
    """What it says of the files that it has added."""
    actions: frozenset[str] = frozenset()
    """The kinds of its actions."""


def is_foreign(commit: Entry, owner: str) -> bool:
    """True for a Delta commit that changes rows and is not the topology's, nor a fold of a table in the log layout."""
    return commit.changes_data and owner not in commit.app_versions and fold_of(owner) not in commit.app_versions


def foreign_change(commits: Sequence[Entry], owner: str) -> Entry | None:
    """The first of these Delta commits, oldest first, that is foreign; None also when the last such one is a repair."""
    foreign = [commit for commit in commits if is_foreign(commit, owner)]
    return foreign[0] if foreign and repair_of(owner) not in foreign[-1].app_versions else None


def named(commit: Entry) -> str:
    """A Delta commit in words."""
    return f"Delta version {commit.version} ({commit.operation or 'unnamed'})"


def healed_by_others(commits: Sequence[Entry], owner: str) -> set[int]:
    """The versions of foreign Delta commits after which a later one, not the topology's, has put all files back."""
    healed, open_since = set[int](), list[int]()
    # The files that there are by now and were not before the first of them, and the other way round.
    more, fewer = set[str](), set[str]()
    for commit in commits:
        if owner in commit.app_versions:
            open_since = []
        elif is_foreign(commit, owner):
            more, fewer = (more, fewer) if open_since else (set(), set())
            open_since.append(commit.version)
        if open_since:
            gone = commit.removed - commit.added
            more, fewer = (more - gone) | (commit.added - fewer), (fewer - commit.added) | (gone - more)
            if not more and not fewer:
                healed |= set(open_since)
                open_since = []
    return healed


def entries_between(location: DeltaLocation, after: int, until: int) -> list[Entry]:
    """The Delta commits after one version up to another one, oldest first; those that are gone from the log are not
    among them. Raises `OperatingError`.
    """
    return list(_entries(location, after, until))


def entries_until_newest(location: DeltaLocation, after: int, log: LogUpkeep, most: int) -> list[Entry] | None:
    """All Delta commits after a version, oldest first; None: there are more than so many, or one is gone from the log.

    Lists nothing, and reads no entry that is not new. Raises `OperatingError`, `OSError`.
    """
    files, entries = log_files(location), list[Entry]()
    while not log.is_newest(after + len(entries)):
        if len(entries) == most:
            return None
        try:
            entries.append(_read(files, location, after + len(entries) + 1))
        except FileNotFoundError:
            return None
    return entries


def entries_since_own(location: DeltaLocation, owner: str, newest: int) -> list[Entry]:
    """The Delta commits after the newest one of this owner, oldest first, as far back as the log goes.

    Raises `OperatingError`.
    """
    files, since = log_files(location), list[Entry]()
    for version in range(newest, -1, -1):
        try:
            entry = _read(files, location, version)
        except FileNotFoundError:
            break
        if owner in entry.app_versions:
            break
        since.append(entry)
    return since[::-1]


def check_not_foreign(location: DeltaLocation, owner: str, entries: list[Entry]) -> None:
    """Raise `StoreMismatch` when one of these Delta commits has changed rows and is not the topology's (row T56)."""
    if (commit := foreign_change(entries, owner)) is not None:
        raise StoreMismatch(
            f"Delta table {location} of {owner} was changed by {named(commit)}, which is not the topology's. Its "
            "counts would continue from what that left behind: see `transactional doctor`"
        )


class LogFiles(Protocol):
    """Opens files of a table."""

    def open_input_file(self, path: str) -> Any:
        """A file, by its path in the table's folder. Raises `FileNotFoundError`, `OSError`."""


@dataclass(frozen=True, slots=True)
class _OnDisk:
    """Files on this machine: without a storage's client, which takes longer than a small file does."""

    folder: str

    def open_input_file(self, path: str) -> Any:
        return Path(self.folder, path).open("rb")


def log_files(location: DeltaLocation) -> LogFiles:
    """What the log of a table is read by."""
    if location.scheme == "file":
        return _OnDisk(location.uri)
    files: LogFiles = storage_of(location)
    return files


def _entries(location: DeltaLocation, after: int, until: int) -> Iterator[Entry]:
    files = log_files(location)
    for version in range(after + 1, until + 1):
        try:
            yield _read(files, location, version)
        except FileNotFoundError:
            _log.warning(
                "Delta table %s: its versions %d to %d are another writer's, and the entry of %d was cleaned out of "
                "the log: whether it changed rows can no longer be known",
                *(location, after + 1, until, version),
            )


def _read(files: LogFiles, location: DeltaLocation, version: int) -> Entry:
    """One entry of the log. Raises `FileNotFoundError`, or `OperatingError`."""
    try:
        return read_entry(files, version)
    except FileNotFoundError:
        raise
    except (OSError, *UNREADABLE) as error:
        reason = location.reason(error)
        raise OperatingError(f"Delta version {version} of table {location} can't be read: {reason}") from None


def read_entry(files: LogFiles, version: int) -> Entry:
    """One entry of the log. Raises `OSError`, or what is in `UNREADABLE`."""
    with files.open_input_file(commit_path(version)) as file:
        actions: list[dict[str, Any]] = [json.loads(line) for line in file.read().splitlines() if line.strip()]

    def every(name: str) -> list[dict[str, Any]]:
        return [action[name] for action in actions if action.get(name)]

    added, removed, protocols = every("add"), every("remove"), every("protocol")
    info = next(iter(every("commitInfo")), {})
    return Entry(
        version,
        info.get("operation", ""),
        {txn["appId"]: int(txn["version"]) for txn in every("txn")},
        any(file["dataChange"] for file in (*added, *removed)),
        bool(protocols or every("metaData")),
        frozenset(file["path"] for file in added),
        frozenset(file["path"] for file in removed),
        protocols[0] if protocols else None,
        _rewound_to(info.get("userMetadata")),
        tuple(added),
        frozenset(kind for action in actions for kind in action),
    )


def _rewound_to(note: object) -> int | None:
    """What a rewind has noted with its Delta commit; others may note whatever they like."""
    try:
        told = json.loads(note) if isinstance(note, str) else None
    except (ValueError, RecursionError):
        return None
    txid = told.get(REWOUND_NOTE) if isinstance(told, dict) else None
    return txid if isinstance(txid, int) else None
