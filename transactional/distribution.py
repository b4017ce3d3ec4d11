"""The name under which this project is installed, and its version."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Final

DISTRIBUTION: Final = "transactional-topologies"
"""Another project on the package index uses the name of our package and our command."""


@cache
def installed_version() -> str:
    """The installed version; empty if the code is only in a folder."""
    try:
        return version(DISTRIBUTION)
    except PackageNotFoundError:
        return ""
