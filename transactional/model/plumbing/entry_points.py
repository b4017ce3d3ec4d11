"""Lists the entry points of installed packages, by which another package adds a store or a provider of states.

Nothing is imported here: the caller loads the entry points that it needs.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points


def entry_points_of(group: str) -> Mapping[str, EntryPoint]:
    """Return the entry points of a group by name. They are read once: that opens a file of each installed package."""
    return _entry_points_on(tuple(sys.path), group)


@functools.cache
def _entry_points_on(_path: tuple[str, ...], group: str) -> Mapping[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=group)}
