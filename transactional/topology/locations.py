"""The locations of a topology's tables and files, as real paths, and the check that they do not collide.

A table's folder is exclusive, because any clean-up of a table, such as another engine's vacuum, deletes files that are
not part of the table. A state says where it is stored, and so does a store or an observer that is stored in a file
(`FileBacked`). This module compares canonical spellings; it opens no table and no store.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable
from urllib.parse import urlsplit

from transactional.core.ports import State
from transactional.model.errors import ConfigError
from transactional.topology.topology import Topology

_ONE_STORAGE = {"s3a": "s3", "abfs": "abfss"}


@runtime_checkable
class FileBacked(Protocol):
    """A store or an observer that may be stored in a file."""

    @property
    def storage_path(self) -> str | None:
        """A path or a URI, or None if it is not stored in a file."""


@dataclass(frozen=True, slots=True)
class Location:
    """The real path or URI of a table's folder or of a file, with its owner as messages name it."""

    owner: str
    path: str
    is_table: bool = False


def real_path(path: str) -> str:
    """Return the canonical spelling of a path or URI: no links, no `..`, no doubled or trailing slash."""
    parts = urlsplit(path)
    # One letter is a drive on Windows.
    if len(parts.scheme) < 2:
        return os.path.realpath(path)
    if parts.scheme.lower() == "file":
        return os.path.realpath(parts.path)
    scheme = parts.scheme.lower()
    below = posixpath.normpath("/" + parts.path.strip("/"))
    return f"{_ONE_STORAGE.get(scheme, scheme)}://{parts.netloc}{below}"


def table_of(state: State) -> str:
    """Return a state's table in canonical spelling: two states with the same one would overwrite each other."""
    identity = state.identity()
    place = state.parts.examination
    if place.storage_path is not None:
        # In a database the name identifies the table.
        path = real_path(place.storage_path)
        return path if place.owns_folder else f"{path} {identity.get('table', '')}"
    return str(sorted((name, text) for name, text in identity.items() if name != "kind"))


def table_locations(topology: Topology) -> list[Location]:
    """Return the locations of the committers' states that are stored in files."""
    return [
        Location(
            f"the state of committer {component.id!r}", real_path(path), is_table=state.parts.examination.owns_folder
        )
        for component in topology.committers
        if (state := component.state) is not None and (path := state.parts.examination.storage_path) is not None
    ]


def check_locations(
    topology: Topology, store: object = None, observers: Sequence[object] = (), outbox: object = None
) -> None:
    """Raise `ConfigError` if a table, the store, its outbox, or an observer's file is inside the folder of a table."""
    candidates = [
        ("the coordinator's store", store),
        ("the folder of the outbox", outbox),
        *(("an observer's file, such as the journal,", observer) for observer in observers),
    ]
    tables = table_locations(topology)
    files = [Location(owner, path) for owner, candidate in candidates if (path := _path_of(candidate)) is not None]
    for table in tables:
        if table.is_table:
            _check_folder(topology.id, table, [*tables, *files])


def _check_folder(topology_id: str, table: Location, locations: Iterable[Location]) -> None:
    for location in locations:
        if location is not table and location.path != table.path and _is_within(location.path, table.path):
            raise ConfigError(
                f"topology {topology_id!r}: {location.owner} is at {location.path}, inside the folder of the Delta "
                f"table of {table.owner.removeprefix('the state of ')} ({table.path}), which is only for the table's "
                "files; put it beside the folder"
            )


def _is_within(path: str, folder: str) -> bool:
    return path.startswith(folder.rstrip("/") + "/")


def _path_of(stored: object) -> str | None:
    return (
        real_path(stored.storage_path) if isinstance(stored, FileBacked) and stored.storage_path is not None else None
    )
