"""What other writers have done to a table: their Delta commits between two versions, read from the log's entries.

It is asked only when there is a version that the handle has not written, so a table that is left alone costs nothing.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from deltalake.fs import DeltaStorageHandler

from state.delta.table import DeltaLocation
from state.delta.upkeep import commit_path
from transactional.errors import OperatingError, StoreMismatch
from transactional.foreign import foreign_change, named

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Entry:
    """One Delta commit of the log."""

    version: int
    operation: str
    app_versions: Mapping[str, int]
    changes_data: bool
    changes_table: bool
    """Whether columns, properties or protocol are declared anew."""


def entries_between(location: DeltaLocation, after: int, until: int) -> list[Entry]:
    """The Delta commits after one version up to another one, oldest first; those that are gone from the log are not
    among them. Raises `OperatingError`.
    """
    return list(_entries(location, after, until))


def entries_since_own(location: DeltaLocation, owner: str, newest: int) -> list[Entry]:
    """The Delta commits after the newest one of this owner, oldest first, as far back as the log goes.

    Raises `OperatingError`.
    """
    files, since = DeltaStorageHandler(location.uri, dict(location.storage_options)), list[Entry]()
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
            "counts would go on from what that left behind: see `transactional doctor`"
        )


def _entries(location: DeltaLocation, after: int, until: int) -> Iterator[Entry]:
    files = DeltaStorageHandler(location.uri, dict(location.storage_options))
    for version in range(after + 1, until + 1):
        try:
            yield _read(files, location, version)
        except FileNotFoundError:
            _log.warning(
                "Delta table %s: its versions %d to %d are another writer's, and the entry of %d was cleaned out of "
                "the log: nobody can tell any more whether it changed rows",
                *(location, after + 1, until, version),
            )


def _read(files: DeltaStorageHandler, location: DeltaLocation, version: int) -> Entry:
    """One entry of the log. Raises `FileNotFoundError`, or `OperatingError`."""
    try:
        with files.open_input_file(commit_path(version)) as file:
            text = file.read()
        return _entry(version, map(json.loads, text.splitlines()))
    except FileNotFoundError:
        raise
    except (OSError, ValueError, TypeError) as error:
        reason = location.reason(error)
        raise OperatingError(f"Delta version {version} of table {location} can't be read: {reason}") from None


def _entry(version: int, actions: Iterator[dict[str, Any]]) -> Entry:
    app_versions, operation, changes_data, changes_table = dict[str, int](), "", False, False
    for action in actions:
        if moved := action.get("add") or action.get("remove"):
            changes_data = changes_data or moved["dataChange"]
        elif transaction := action.get("txn"):
            app_versions[transaction["appId"]] = transaction["version"]
        elif information := action.get("commitInfo"):
            operation = information.get("operation", "")
        changes_table = changes_table or "metaData" in action or "protocol" in action
    return Entry(version, operation, app_versions, changes_data, changes_table)
