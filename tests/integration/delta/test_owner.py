"""A Delta table has one owner, from its creation on; whoever else opens it is refused, also while it is empty."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from state.delta.state import DeltaMapState
from tests.contract.states import OWNER, Place, counts
from transactional.errors import StoreMismatch

OTHER = "other/count"


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place("delta-rs", tmp_path)


def opened(place: Place, owner: str = OWNER, *, name: str = "t", layout: str = "auto") -> DeltaMapState:
    words = DeltaMapState(place.folder / name, "word string", "count long", layout=layout)
    words.open(owner, place.txids.__getitem__)
    return words


@pytest.mark.parametrize("layout", ["merge", "log"])
class TestOwner:
    @pytest.mark.parametrize("way", ["t", "link", "x/../t"])
    def test_of_an_empty_table_is_the_first_who_opens_it(self, place: Place, layout: str, way: str) -> None:
        opened(place, layout=layout)
        (place.folder / "x").mkdir()
        os.symlink(place.folder / "t", place.folder / "link")
        with pytest.raises(StoreMismatch, match=f"is the table of {OWNER}, and {OTHER} has opened it.*can be deleted"):
            opened(place, OTHER, name=way)
        opened(place, layout=layout)

    def test_of_a_table_with_rows_is_reported_how_to_rename(self, place: Place, layout: str) -> None:
        opened(place, layout=layout).merge(place.attempt(1, 1), counts({"a": 1}))
        with pytest.raises(StoreMismatch, match=f"If {OWNER} was renamed: keep the old name, or start with a new"):
            opened(place, OTHER)
