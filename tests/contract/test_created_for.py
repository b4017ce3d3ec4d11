"""A table records which coordinator's store it was created for."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.contract.states import Place


def test_the_first_one_that_opens_it_records_its_own(place: Place) -> None:
    """And nothing that is written later changes that."""
    state = place.state(store_id="one")
    assert state.created_for() == "one"
    assert place.state(store_id="other").created_for() == "one"
    state.version()
    place.fence(state, 0, 1)
    state.put(place.attempt(1, 2), {("cat",): (1,)})
    assert place.state().created_for() == place.state(store_id="other").created_for() == "one"


def test_of_several_at_once_it_has_the_one_of_its_creator(place: Place) -> None:
    with ThreadPoolExecutor(4) as pool:
        opened = list(pool.map(lambda name: place.state(store_id=name), "abcd"))
    assert len({state.created_for() for state in opened}) == 1
    assert opened[0].created_for() in {*"abcd"}


def test_one_of_an_earlier_release_has_none(place: Place) -> None:
    """It was created without: nobody adds one."""
    state = place.state()
    place.fence(state, 0, 1)
    assert place.state(store_id="other").created_for() is None


HANDED_OVER = [
    "sqlite",
    pytest.param("postgres", marks=pytest.mark.postgres),
    pytest.param("redis", marks=pytest.mark.redis),
]


@pytest.mark.parametrize("place", HANDED_OVER, indirect=True)
@pytest.mark.parametrize("store_id", ["other", None])
def test_one_that_is_handed_over_has_that_of_its_new_owner(place: Place, store_id: str | None) -> None:
    place.state(store_id="one")
    assert place.state(store_id=store_id, owner="others/count").created_for() == store_id
