"""What this project is installed as: its name on a package index, and its version."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Final

DISTRIBUTION: Final = "transactional-topologies"
"""Another project has the name of our package and our command on the index."""


@cache
def installed_version() -> str:
    """The version that is installed; empty where the code only lies in a folder."""
    try:
        return version(DISTRIBUTION)
    except PackageNotFoundError:
        return ""
