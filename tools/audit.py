"""`make audit`: are the dependencies what `pyproject.toml` requires and `requirements.lock` pins, in this environment?

Every line of the lock has to name one exact version and its hashes; every dependency of `pyproject.toml` has to be
pinned in a version that fits; what is installed has to be what is pinned, and nothing else. Needs no network.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
NOT_LOCKED = {"pip", "transactional-topologies"}
"""Packages that the lock leaves out: those of every virtual environment, and this project."""
ANEW = "make clean, then make check"
UNKNOWN = (
    "Whether a pinned version has known vulnerabilities can't be seen from here: run `pip-audit -r requirements.lock` "
    "where a database of them can be reached."
)
_PINNED = re.compile(r"([A-Za-z0-9._-]+)==([^\s;\\]+)(?:\s*;\s*([^\\]+?))?\s*(?:\\\s*\n|$)")
_HASH = re.compile(r"--hash=sha256:[0-9a-f]{64}(?=\s|$)")


def locked(text: str) -> tuple[dict[str, str], list[str]]:
    """Name → version of what the lock installs here, and what is wrong with it."""
    pinned: dict[str, str] = {}
    wrong: list[str] = []
    for entry in re.split(r"\n(?=\S)", text):
        if entry.startswith("#") or not entry.strip():
            continue
        match = _PINNED.match(entry)
        if match is None:
            wrong.append(f"requirements.lock does not pin {entry.split()[0]} to one version")
        elif not _HASH.search(entry):
            wrong.append(f"requirements.lock has no hash for {match[1]} {match[2]}")
        elif not match[3] or Requirement(f"x; {match[3]}").marker.evaluate():  # type: ignore[union-attr]
            pinned[canonicalize_name(match[1])] = match[2]
    return pinned, wrong


def asked_for(pyproject: dict[str, Any], pinned: dict[str, str]) -> Iterator[str]:
    """Dependencies of the project that the lock does not hold, or in a version that does not fit."""
    project = pyproject["project"]
    groups = [*project["optional-dependencies"].values(), *pyproject["dependency-groups"].values()]
    for text in [*project["dependencies"], *(requirement_text for group in groups for requirement_text in group)]:
        requirement = Requirement(text)
        name = canonicalize_name(requirement.name)
        if name in NOT_LOCKED:
            continue
        if name not in pinned:
            yield f"pyproject.toml requires {text}, and requirements.lock does not pin it: run make lock"
        elif not requirement.specifier.contains(pinned[name], prereleases=True):
            yield f"pyproject.toml requires {text}, and requirements.lock pins {pinned[name]}: run make lock"


def installed(pinned: dict[str, str]) -> Iterator[str]:
    """Yield the installed packages that differ from the lock."""
    here = {canonicalize_name(each.name): each.version for each in distributions()}
    for name, version in sorted(here.items()):
        if name not in pinned and name not in NOT_LOCKED:
            yield f"{name} {version} is installed, and requirements.lock does not know it: {ANEW}"
        elif name in pinned and version != pinned[name]:
            yield f"{name} {version} is installed, and requirements.lock pins {pinned[name]}: {ANEW}"


def main() -> int:
    """Print what is wrong; 0 when nothing is."""
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    pinned, wrong = locked((ROOT / "requirements.lock").read_text())
    wrong += [*asked_for(pyproject, pinned), *installed(pinned)]
    for line in wrong:
        sys.stdout.write(f"{line}\n")
    sys.stdout.write(f"{len(pinned)} pinned packages, {len(wrong)} differences. {UNKNOWN}\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
