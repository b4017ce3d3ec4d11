"""The name on the package index: one word in pyproject.toml, in the code, in the tools and in what users are told."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from importlib.metadata import requires, version
from pathlib import Path

from packaging.requirements import Requirement

from tests.tidy.files import ROOT, text_files
from transactional.model.names import DISTRIBUTION
from transactional.runtime.engine.history.run_history import installed_version

# An extra in brackets, or what pip is to install; put apart, so that this file does not hold what it looks for.
NAMED = re.compile(r"(?<![\w-])(transactional[\w-]*)\[(?:postgres|ui|examples|dev)\b")


def project() -> dict[str, object]:
    """The table `project` of pyproject.toml."""
    found: dict[str, object] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    return found


def named_elsewhere() -> Iterator[tuple[str, str]]:
    """Where an extra of a distribution of another name is asked for."""
    for path, text in text_files():
        for name in NAMED.findall(text):
            if name != DISTRIBUTION:
                yield path.relative_to(ROOT).as_posix(), name


def test_the_code_knows_what_it_is_installed_as() -> None:
    assert project()["name"] == DISTRIBUTION
    assert installed_version() == version(DISTRIBUTION) == project()["version"]


def test_nobody_is_reported_another_name() -> None:
    assert list(named_elsewhere()) == []


def test_what_is_requested_is_a_range_but_for_what_shares_the_protocol() -> None:
    exact = {Requirement(each).name for each in project()["dependencies"] if "==" in each}  # type: ignore[attr-defined]
    assert exact == {"delta-spark", "pyspark"}
    assert requires(DISTRIBUTION)


def test_only_pythons_that_were_tried_are_claimed() -> None:
    prefix = "Programming Language :: Python :: "
    claimed = {each.removeprefix(prefix) for each in project()["classifiers"] if prefix in each}  # type: ignore[attr-defined]
    readme = " ".join((Path(ROOT) / "README.md").read_text("utf-8").split())
    assert claimed == {"3.11", "3.12", "3.13"}
    assert "Python 3.11 to 3.13" in readme
