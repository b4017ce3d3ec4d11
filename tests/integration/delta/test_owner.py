"""A Delta table has one owner, from its creation on; whoever else opens it is refused, also while it is empty."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

import state.delta.opening
import state.delta.state
from state.delta.state import DeltaMapState
from tests.contract.states import OWNER, Place, content, counts
from transactional.errors import OperatingError, StoreMismatch
from transactional.model.names import OWNER_PROPERTY

OTHER = "other/count"


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place("delta-rs", tmp_path)


def opened(place: Place, owner: str = OWNER, *, name: str = "t", layout: str = "auto") -> DeltaMapState:
    words = DeltaMapState(place.folder / name, "word string", "count long", layout=layout)
    words.open(owner, place.txids.__getitem__)
    return words


def stored_owner(place: Place) -> str | None:
    return DeltaTable(str(place.folder / "t")).metadata().configuration.get(OWNER_PROPERTY)


def of_an_earlier_release(place: Place, layout: str, monkeypatch: pytest.MonkeyPatch) -> DeltaMapState:
    """A table that does not say whose it is."""
    with monkeypatch.context() as earlier:
        earlier.setattr(state.delta.opening, "with_owner", lambda properties, *_: properties)
        earlier.setattr(state.delta.state, "claim", lambda _: None)
        return opened(place, layout=layout)


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

    @pytest.mark.parametrize("has_rows", [False, True])
    def test_of_an_earlier_release_is_noted(
        self, place: Place, layout: str, *, has_rows: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        words = of_an_earlier_release(place, layout, monkeypatch)
        words.merge(place.attempt(1, 1), counts({"a": 1} if has_rows else {}))
        assert stored_owner(place) is None
        again = opened(place)
        assert (stored_owner(place), again.version()) == (OWNER, 1)
        again.merge(place.attempt(2, 2), counts({"a": 1}))
        assert content(again) == {"a": 2 if has_rows else 1}
        version = DeltaTable(str(place.folder / "t")).version()
        opened(place)
        assert DeltaTable(str(place.folder / "t")).version() == version, "it is noted once"

    def test_of_an_earlier_release_with_rows_of_another_is_not_taken(
        self, place: Place, layout: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        of_an_earlier_release(place, layout, monkeypatch).merge(place.attempt(3, 1), counts({"a": 1}))
        with pytest.raises(StoreMismatch, match=f"has rows of transaction 3, none written by {OTHER}"):
            opened(place, OTHER)
        assert stored_owner(place) is None

    def test_is_one_of_two_who_claim_it_at_once(
        self, place: Place, layout: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        of_an_earlier_release(place, layout, monkeypatch)
        both, write = threading.Barrier(2, timeout=240), state.delta.opening._write_owner

        def together(handle: Any) -> None:
            if handle.snapshot.version() == 0:
                both.wait()
            write(handle)

        monkeypatch.setattr(state.delta.opening, "_write_owner", together)
        with ThreadPoolExecutor() as pool:
            claims = [pool.submit(opened, place, owner) for owner in (OWNER, OTHER)]
        [error] = [error for claim in claims if (error := claim.exception()) is not None]
        assert isinstance(error, StoreMismatch)
        assert f"is the table of {stored_owner(place)}, and" in str(error)

    def test_is_not_noted_over_what_somebody_else_writes_all_the_time(
        self, place: Place, layout: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Each claim names the version that was judged."""
        old = of_an_earlier_release(place, layout, monkeypatch)
        version, write = iter(range(1, 100)), state.delta.opening._write_owner

        def after_another(handle: Any) -> None:
            old.merge(place.attempt(1, next(version)), counts({"a": 1}))
            write(handle)

        monkeypatch.setattr(state.delta.opening, "_write_owner", after_another)
        with pytest.raises((OperatingError, StoreMismatch), match=r"so often that|is not the topology's"):
            opened(place, OTHER)
        assert stored_owner(place) is None
