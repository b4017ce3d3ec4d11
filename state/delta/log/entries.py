"""The entries of a table's Delta log: the changes of its Delta commits, and which commits are another writer's."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from state.delta.log.log import MALFORMED_ENTRY_ERRORS, LogUpkeep, entry_path, lost_entry_error
from state.delta.tables.table import DeltaLocation, open_storage
from transactional.model.errors import OperatingError, StoreMismatch
from transactional.model.names import REWOUND_NOTE, compaction_of, repair_of

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Entry:
    """One Delta commit of the log."""

    version: int
    operation: str
    app_versions: Mapping[str, int]
    changes_data: bool
    changes_table: bool
    """True if the entry declares columns, properties or the protocol."""
    added: frozenset[str]
    removed: frozenset[str]
    protocol: Mapping[str, Any] | None
    """The new protocol, if the entry declares one."""
    rewound_to: int | None = None
    """The transaction to which the entry, a rewind, has taken the table back; else None."""
    adds: tuple[Mapping[str, Any], ...] = ()
    """The add actions of the entry."""
    actions: frozenset[str] = frozenset()
    """The kinds of all actions in the entry."""
    table_id: str = ""
    """The id of the table, if the entry declares its columns and properties; else empty."""


def is_foreign(commit: Entry, owner: str) -> bool:
    """True for a Delta commit that changes rows and is not the topology's, nor a compaction of a table in the log
    layout."""
    return commit.changes_data and owner not in commit.app_versions and compaction_of(owner) not in commit.app_versions


def foreign_change(commits: Sequence[Entry], owner: str) -> Entry | None:
    """Return the first foreign one of these Delta commits, which are oldest first. None if the last foreign one is a
    repair."""
    foreign = [commit for commit in commits if is_foreign(commit, owner)]
    return foreign[0] if foreign and repair_of(owner) not in foreign[-1].app_versions else None


def describe_commit(commit: Entry) -> str:
    """Return a Delta commit in words, for messages."""
    return f"Delta version {commit.version} ({commit.operation or 'unnamed'})"


def healed_by_others(commits: Sequence[Entry], owner: str) -> set[int]:
    """Return the versions of foreign Delta commits that a later one, not the topology's, has undone."""
    healed, open_since = set[int](), list[int]()
    # The files that the commits since the first open one have added and removed in sum.
    extra, missing = set[str](), set[str]()
    for commit in commits:
        if owner in commit.app_versions:
            open_since = []
        elif is_foreign(commit, owner):
            extra, missing = (extra, missing) if open_since else (set(), set())
            open_since.append(commit.version)
        if open_since:
            removed = commit.removed - commit.added
            extra, missing = (extra - removed) | (commit.added - missing), (missing - commit.added) | (removed - extra)
            if not extra and not missing:
                healed |= set(open_since)
                open_since = []
    return healed


def entries_between(location: DeltaLocation, start: int, end: int) -> list[Entry]:
    """Return the entries with `start < version <= end`, oldest first, as far as the log has them.

    Raises `OperatingError`.
    """
    return list(_entries(location, start, end))


def entries_until_newest(location: DeltaLocation, start: int, log: LogUpkeep, most: int) -> list[Entry] | None:
    """Return all entries after version `start`, oldest first. None if there are more than `most`, or one is missing.

    The log is not listed, and only new entries are read. Raises `OperatingError`, `OSError`.
    """
    files, entries = log_files(location), list[Entry]()
    while not log.is_newest(start + len(entries)):
        if len(entries) == most:
            return None
        try:
            entries.append(_read(files, location, start + len(entries) + 1))
        except FileNotFoundError:
            return None
    return entries


def entries_since_own(location: DeltaLocation, owner: str, newest: int) -> list[Entry]:
    """Return the entries after the owner's newest one, oldest first, as far back as the log goes.

    Raises `OperatingError`.
    """
    files, entries = log_files(location), list[Entry]()
    for version in range(newest, -1, -1):
        try:
            entry = _read(files, location, version)
        except FileNotFoundError:
            break
        if owner in entry.app_versions:
            break
        entries.append(entry)
    return entries[::-1]


def check_not_foreign(location: DeltaLocation, owner: str, entries: list[Entry]) -> None:
    """Raise `StoreMismatch` if one of these Delta commits has changed rows and is not the topology's (row T56)."""
    if (commit := foreign_change(entries, owner)) is not None:
        raise StoreMismatch(
            f"Delta table {location} of {owner} was changed by {describe_commit(commit)}, which is not the topology's. "
            "Its counts would continue from what that left behind: see `transactional doctor`"
        )


class LogFiles(Protocol):
    """Opens files of a table."""

    def open_input_file(self, path: str) -> Any:
        """Open a file by its path in the table's folder. Raises `FileNotFoundError`, `OSError`."""


@dataclass(frozen=True, slots=True)
class _OnDisk:
    """Files on this machine, opened without a storage client, which would take longer than to read a small file."""

    folder: str

    def open_input_file(self, path: str) -> Any:
        return Path(self.folder, path).open("rb")


def log_files(location: DeltaLocation) -> LogFiles:
    """Return the reader of a table's log files."""
    if location.scheme == "file":
        return _OnDisk(location.uri)
    files: LogFiles = open_storage(location)
    return files


def _entries(location: DeltaLocation, start: int, end: int) -> Iterator[Entry]:
    files = log_files(location)
    for version in range(start + 1, end + 1):
        try:
            yield _read(files, location, version)
        except FileNotFoundError:
            _log.warning(
                "Delta table %s: its versions %d to %d are another writer's, and the entry of %d was cleaned out of "
                "the log: whether it changed rows can no longer be known",
                *(location, start + 1, end, version),
            )


def _read(files: LogFiles, location: DeltaLocation, version: int) -> Entry:
    """Return an entry. Raises `FileNotFoundError`, `OperatingError`, or `StoreMismatch` if it is empty."""
    try:
        entry = read_entry(files, version)
    except FileNotFoundError:
        raise
    except (OSError, *MALFORMED_ENTRY_ERRORS) as error:
        reason = location.describe_error(error)
        raise OperatingError(f"Delta version {version} of table {location} can't be read: {reason}") from None
    if not entry.actions:
        raise lost_entry_error(location, version)
    return entry


def read_entry(files: LogFiles, version: int) -> Entry:
    """Return a log entry, without actions if it is empty. Raises `OSError` or one of `MALFORMED_ENTRY_ERRORS`."""
    with files.open_input_file(entry_path(version)) as file:
        actions: list[dict[str, Any]] = [json.loads(line) for line in file.read().splitlines() if line.strip()]

    def actions_of(name: str) -> list[dict[str, Any]]:
        return [action[name] for action in actions if action.get(name)]

    added, removed, protocols, declared = (
        actions_of("add"),
        actions_of("remove"),
        actions_of("protocol"),
        actions_of("metaData"),
    )
    commit_info = next(iter(actions_of("commitInfo")), {})
    return Entry(
        version,
        commit_info.get("operation", ""),
        {txn["appId"]: int(txn["version"]) for txn in actions_of("txn")},
        any(file["dataChange"] for file in (*added, *removed)),
        bool(protocols or declared),
        frozenset(file["path"] for file in added),
        frozenset(file["path"] for file in removed),
        protocols[0] if protocols else None,
        _rewound_to(commit_info.get("userMetadata")),
        tuple(added),
        frozenset(kind for action in actions for kind in action),
        str(declared[-1].get("id", "")) if declared else "",
    )


def _rewound_to(note: object) -> int | None:
    """Return the transaction in a rewind's note, or None for any other note."""
    try:
        content = json.loads(note) if isinstance(note, str) else None
    except (ValueError, RecursionError):
        return None
    txid = content.get(REWOUND_NOTE) if isinstance(content, dict) else None
    return txid if isinstance(txid, int) else None
