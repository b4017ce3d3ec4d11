"""The entries of a table's Delta log: what its Delta commits have changed, and which of them are another writer's."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from state.delta.log.log import UNREADABLE, LogUpkeep, commit_path, lost_entry
from state.delta.tables.table import DeltaLocation, storage_of
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
    table_id: str = ""
    """The id of the table, if the entry declares its columns and properties; else empty."""


def is_foreign(commit: Entry, owner: str) -> bool:
    """True for a Delta commit that changes rows and is not the topology's, nor a compaction of a table in the log
    layout."""
    return commit.changes_data and owner not in commit.app_versions and compaction_of(owner) not in commit.app_versions


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
    """One entry of the log. Raises `FileNotFoundError`, `OperatingError`, or `StoreMismatch` if it has no byte."""
    try:
        entry = read_entry(files, version)
    except FileNotFoundError:
        raise
    except (OSError, *UNREADABLE) as error:
        reason = location.reason(error)
        raise OperatingError(f"Delta version {version} of table {location} can't be read: {reason}") from None
    if not entry.actions:
        raise lost_entry(location, version)
    return entry


def read_entry(files: LogFiles, version: int) -> Entry:
    """One entry of the log; without actions if it has no byte. Raises `OSError`, or what is in `UNREADABLE`."""
    with files.open_input_file(commit_path(version)) as file:
        actions: list[dict[str, Any]] = [json.loads(line) for line in file.read().splitlines() if line.strip()]

    def every(name: str) -> list[dict[str, Any]]:
        return [action[name] for action in actions if action.get(name)]

    added, removed, protocols, declared = every("add"), every("remove"), every("protocol"), every("metaData")
    info = next(iter(every("commitInfo")), {})
    return Entry(
        version,
        info.get("operation", ""),
        {txn["appId"]: int(txn["version"]) for txn in every("txn")},
        any(file["dataChange"] for file in (*added, *removed)),
        bool(protocols or declared),
        frozenset(file["path"] for file in added),
        frozenset(file["path"] for file in removed),
        protocols[0] if protocols else None,
        _rewound_to(info.get("userMetadata")),
        tuple(added),
        frozenset(kind for action in actions for kind in action),
        str(declared[-1].get("id", "")) if declared else "",
    )


def _rewound_to(note: object) -> int | None:
    """What a rewind has noted with its Delta commit; others may note whatever they like."""
    try:
        told = json.loads(note) if isinstance(note, str) else None
    except (ValueError, RecursionError):
        return None
    txid = told.get(REWOUND_NOTE) if isinstance(told, dict) else None
    return txid if isinstance(txid, int) else None
