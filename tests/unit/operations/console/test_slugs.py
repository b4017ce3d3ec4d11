"""Ids in URLs: any characters, one segment of a path, and back again."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.operations.console.stores import HOSTILE
from transactional.operations.console.slugs import id_of, slug_of


@given(st.text(min_size=1))
def test_any_id_is_one_harmless_segment_and_comes_back(topology_id: str) -> None:
    slug = slug_of(topology_id)
    assert re.fullmatch(r"[A-Za-z0-9._~-]+", slug)
    assert slug not in (".", "..")
    assert id_of(slug) == topology_id


def test_plain_ids_are_readable() -> None:
    assert slug_of("flights-2.b_1") == "flights-2.b_1"
    assert slug_of("a/b") == "~YS9i"


@pytest.mark.parametrize("slug", ["", "..", "-a", "~", "~!", "~YQ", "~YS9i=", "~_w", "~7aCA", HOSTILE, "a b"])
def test_what_is_no_slug_is_no_id(slug: str) -> None:
    assert id_of(slug) is None
