"""What pages and examples import is there, under the path that they name."""

from __future__ import annotations

import importlib
import re

import pytest

from tests.tidy.files import ROOT, our_files
from tests.tidy.rooms import DOORS, PACKAGES

IMPORT = re.compile(
    rf"^[ >]*from ((?:{'|'.join(PACKAGES[:-1])})(?:\.\w+)*) import (\((?:[^()]*)\)|[\w, ]+)$", re.MULTILINE
)
SHOWN = ("README.md", "docs/", "examples/", "deploy/")


def imports() -> dict[str, set[str]]:
    """The names by module that pages and examples import."""
    found: dict[str, set[str]] = {}
    for path in our_files():
        name = path.relative_to(ROOT).as_posix()
        if name.startswith(SHOWN) and path.suffix in (".md", ".py") and "/adr/" not in name:
            for module, names in IMPORT.findall(path.read_text(encoding="utf-8")):
                found.setdefault(module, set()).update(re.findall(r"(\w+)(?: as \w+)?", names.strip("()")))
    return found


IMPORTS = imports()


@pytest.mark.parametrize("module", sorted(IMPORTS))
def test_what_is_imported_is_there(module: str) -> None:
    there = importlib.import_module(module)
    assert [name for name in sorted(IMPORTS[module] - {"as"}) if not hasattr(there, name)] == []


@pytest.mark.parametrize("door", sorted(DOORS - {"state.dead_letters", "state.providers"}))
def test_a_door_has_each_name_that_it_lists(door: str) -> None:
    there = importlib.import_module(door)
    assert [name for name in there.__all__ if not hasattr(there, name)] == []


def test_imports_are_recognized() -> None:
    assert {"transactional", "transactional.bolts", "transactional.trident", "state", "spouts"} <= IMPORTS.keys()
