"""Where what a topology keeps lies, by real paths: no two things in one place, and nothing within a table's folder.

A state, a store or an observer that lies in files says where (`Placed`).
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable
from urllib.parse import urlsplit

from transactional.errors import ConfigError
from transactional.topology.topology import Topology

_ONE_STORAGE = {"s3a": "s3", "s3n": "s3", "abfs": "abfss"}


@runtime_checkable
class Placed(Protocol):
    """What lies in files of its own."""

    @property
    def place(self) -> str | None:
        """A path, or a URI; None where it lies in no file after all."""


@runtime_checkable
class FolderOwner(Protocol):
    """A state whose place is a folder."""

    @property
    def owns_folder(self) -> bool:
        """Whether nothing else may lie there."""


@dataclass(frozen=True, slots=True)
class Place:
    """A table's folder, or a file: whose it is, for a message, and its real path or URI."""

    what: str
    path: str
    is_table: bool = False


def real_path(path: str) -> str:
    """One spelling for a path or URI, however it is written: no links, no `..`, no doubled or last slash."""
    parts = urlsplit(path)
    # One letter is a drive on Windows.
    if len(parts.scheme) < 2:
        return os.path.realpath(path)
    if parts.scheme.lower() == "file":
        return os.path.realpath(parts.path)
    scheme = parts.scheme.lower()
    below = posixpath.normpath("/" + parts.path.strip("/"))
    return f"{_ONE_STORAGE.get(scheme, scheme)}://{parts.netloc}{below}"


def table_of(state: Any) -> str:
    """The table that a state keeps, in one spelling: two states with the same one would write over each other."""
    place = _place(state)
    if place is not None and _owns_folder(state):
        return place
    identity: Mapping[str, str] = state.identity()
    if place is not None:
        # A database: of the tables in it, the name tells.
        return f"{place} {identity.get('table', '')}"
    return str(sorted((name, value) for name, value in identity.items() if name != "kind"))


def places_of(topology: Topology) -> list[Place]:
    """Where the states of the topology's committers lie, those that lie in files."""
    found = []
    for component in topology.committers:
        state: Any = component.state
        if (path := _place(state)) is not None:
            found.append(Place(f"the state of committer {component.id!r}", path, is_table=_owns_folder(state)))
    return found


def check_places(topology: Topology, store: object = None, observers: Sequence[object] = ()) -> None:
    """Raise `ConfigError` when something lies within the folder of a committer's table.

    A table's folder is its own: whoever tidies it up, be it another engine's vacuum, deletes what is no part of it.
    """
    others = [
        ("the coordinator's store", store),
        *(("an observer's file, such as the journal,", it) for it in observers),
    ]
    places = places_of(topology)
    files = [Place(name, path) for name, it in others if (path := _place(it)) is not None]
    for table in places:
        if table.is_table:
            _check_within(topology.id, table, [*places, *files])


def _check_within(topology_id: str, table: Place, places: Iterable[Place]) -> None:
    for place in places:
        if place is not table and place.path != table.path and _is_within(place.path, table.path):
            raise ConfigError(
                f"topology {topology_id!r}: {place.what} is at {place.path}, within the folder of the Delta table of "
                f"{table.what.removeprefix('the state of ')} ({table.path}), which is for the table's files alone; "
                "put it beside the folder"
            )


def _is_within(path: str, folder: str) -> bool:
    return path.startswith(folder.rstrip("/") + "/")


def _owns_folder(state: object) -> bool:
    return isinstance(state, FolderOwner) and state.owns_folder


def _place(it: object) -> str | None:
    return real_path(it.place) if isinstance(it, Placed) and it.place is not None else None
