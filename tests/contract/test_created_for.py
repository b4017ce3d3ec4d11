"""A table records which coordinator's store it was created for."""

from __future__ import annotations

import pytest

from tests.contract.states import Place

HANDED_OVER = [
    "sqlite",
    pytest.param("postgres", marks=pytest.mark.postgres),
    pytest.param("redis", marks=pytest.mark.redis),
]


@pytest.mark.parametrize("place", HANDED_OVER, indirect=True)
@pytest.mark.parametrize("store_id", ["other", None])
def test_one_that_is_handed_over_has_that_of_its_new_owner(place: Place, store_id: str | None) -> None:
    place.state(store_id="one")
    assert place.state(store_id=store_id, owner="others/count").parts.store_record.created_for() == store_id
