"""A program that is changed between two runs: the same result as without the change, or a line that says why not.

`python -m tests.proof tests/proof/test_changes.py` runs a thousand.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.changes.kinds import KINDS, WORLDS
from tests.changes.places import DURABLE, LOCAL, Place
from tests.changes.running import live

IN_MEMORY = pytest.mark.long("test_each_kind_of_change[memory-...]")
SERVERS = {"postgres": pytest.mark.postgres, "redis": pytest.mark.redis}


@pytest.mark.parametrize("name", WORLDS)
@pytest.mark.parametrize(
    "place",
    ["memory", *(pytest.param(each, marks=SERVERS.get(each, IN_MEMORY)) for each in DURABLE)],
    indirect=True,
)
def test_each_kind_of_change(place: Place, name: str) -> None:
    kinds = [kind for kind in KINDS if kind.world == name]
    live(kinds, WORLDS[name], place, is_small=True)


@pytest.mark.long("test_each_kind_of_change")
@pytest.mark.parametrize("number", range(len(KINDS)), ids=lambda number: KINDS[number].name)
def test_each_kind_of_change_alone(number: int, tmp_path: Path) -> None:
    kind = KINDS[number]
    local = [each for each in LOCAL if each in kind.places]
    live([kind], 1, Place(local[number % len(local)], tmp_path))
