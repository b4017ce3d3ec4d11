"""A program that is changed between two runs: the same result as without the change, or a line that says why not.

`python -m tests.proof tests/proof/test_changes.py` runs a thousand.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.changes.kinds import KINDS, WORLDS
from tests.changes.running import live


@pytest.mark.parametrize("name", WORLDS)
def test_each_kind_of_change(name: str, tmp_path: Path) -> None:
    kinds = [kind for kind in KINDS if kind.world == name]
    live(kinds, WORLDS[name], "memory", tmp_path, is_small=True)


@pytest.mark.long("test_each_kind_of_change")
@pytest.mark.parametrize("number", range(len(KINDS)), ids=lambda number: KINDS[number].name)
def test_each_kind_of_change_alone(number: int, tmp_path: Path) -> None:
    kind = KINDS[number]
    live([kind], 1, kind.places[number % len(kind.places)], tmp_path)
