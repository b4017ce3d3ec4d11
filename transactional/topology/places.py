"""The locations of a topology's data, as real paths: no two in one place, and nothing inside a table's folder.

A state says where it is stored, and so does a store or an observer that is stored in a file (`Placed`).
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
class Placed(Protocol):
    """A store or an observer that may be stored in a file."""

    @property
    def place(self) -> str | None:
        """A path, or a URI; None if it is not stored in files after all."""


@dataclass(frozen=True, slots=True)
class Place:
    """A table's folder, or a file: its owner, for a message, and its real path or URI."""

    what: str
    path: str
    is_table: bool = False


def real_path(path: str) -> str:
    """The canonical spelling of a path or URI: no links, no `..`, no doubled or trailing slash."""
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
    """A state's table in canonical spelling: two states with the same one would overwrite each other."""
    identity = state.identity()
    if state.place is not None:
        # In a database the name identifies the table.
        path = real_path(state.place)
        return path if state.owns_folder else f"{path} {identity.get('table', '')}"
    return str(sorted((name, value) for name, value in identity.items() if name != "kind"))


def places_of(topology: Topology) -> list[Place]:
    """The locations of the states of the topology's committers that are stored in files."""
    found = []
    for component in topology.committers:
        state = component.state
        if state is not None and state.place is not None:
            path = real_path(state.place)
            found.append(Place(f"the state of committer {component.id!r}", path, is_table=state.owns_folder))
    return found


def check_places(topology: Topology, store: object = None, observers: Sequence[object] = ()) -> None:
    """Raise `ConfigError` if anything is inside the folder of a committer's table.

    A table's folder is exclusive: any clean-up, such as another engine's vacuum, deletes what is not part of the table.
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
                f"topology {topology_id!r}: {place.what} is at {place.path}, inside the folder of the Delta table of "
                f"{table.what.removeprefix('the state of ')} ({table.path}), which is only for the table's files; "
                "put it beside the folder"
            )


def _is_within(path: str, folder: str) -> bool:
    return path.startswith(folder.rstrip("/") + "/")


def _place(it: object) -> str | None:
    return real_path(it.place) if isinstance(it, Placed) and it.place is not None else None
