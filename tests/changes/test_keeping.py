"""Tuples and rows are kept by name and type: a change gives the same result, or a line that says why it does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.changes.keeping import TYPES, WAYS
from tests.changes.keeping_changes import CHANGES, check
from tests.changes.keeping_staged import check_staged


@pytest.mark.sampled(3)
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("way", WAYS)
def test_what_is_kept_stays_what_it_is(way: str, change: str) -> None:
    """Each way with each change, of one of the types in turn."""
    check(way, change, list(WAYS).index(way) + list(CHANGES).index(change))


@pytest.mark.long("test_what_is_kept_stays_what_it_is")
@pytest.mark.parametrize("number", range(len(TYPES)), ids=lambda number: TYPES[number])
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("way", WAYS)
def test_what_is_kept_stays_what_it_is_in_every_type(way: str, change: str, number: int) -> None:
    check(way, change, number)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("change", CHANGES)
def test_rows_that_a_dead_run_has_staged_are_processed_by_the_changed_program(change: str, tmp_path: Path) -> None:
    check_staged(tmp_path / "shown", change)
