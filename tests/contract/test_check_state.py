"""Every state of ours keeps what `check_state` tries; and `check_state` finds what is wrong with one that does not."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from examples.duckdb_state import DuckRows
from state.memory import MemoryMapState
from tests.contract.places import ENGINES, place_of
from tests.contract.states import COMPACT_AFTER, Place
from tests.contract.wrong_states import WRONG, break_write, made
from transactional.errors import ConfigError
from transactional.testing import STATE_CASES, check_state

NO_WAY_BACK = {"going_back", "going_back_too_far"}
NO_TASKS = {"tasks_of_a_step"}
NOT_BROKEN = {f"a_write_that_breaks_off({follows})" for follows in ("the same attempt", "another batch")}
LOG = {
    *(f"the_opaque_rule({does})" for does in (("sum", 3), ("sum", None), ("min", 3), ("max", 3), ("max", None))),
    *(
        f"the_opaque_rule_with_deletes({does})"
        for does in (("sum", 3), ("sum", None), ("min", 3), ("max", 3), ("max", None))
    ),
}
REFUSED: dict[str, set[str]] = {
    "memory": NO_WAY_BACK,
    "sqlite": NO_TASKS,
    "sqlite in memory": {*NO_TASKS, "a_reader_sees_what_is_committed", "what_is_pinned_stays"},
    "postgres": NO_TASKS,
    "redis": {*NO_TASKS, *NO_WAY_BACK, "what_is_pinned_stays"},
    "duckdb": {*NO_TASKS, "a_reader_sees_what_is_committed", "what_is_pinned_stays"},
    **{f"delta-rs/{layout}": LOG for layout in COMPACT_AFTER},
}
"""What a state refuses, as it may, by engine."""


DATABASES = ["sqlite", "sqlite in memory", pytest.param("postgres", marks=pytest.mark.postgres), "duckdb"]


@pytest.fixture(params=[*ENGINES, "duckdb"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """Where the tables of an engine lie."""
    with place_of(request, tmp_path) as place:
        yield place


@pytest.mark.sampled(41)
@pytest.mark.parametrize("case", STATE_CASES)
def test_a_state_keeps_what_is_promised(place: Place, case: str) -> None:
    """A case in `STATE_CASES` is a row, an engine is a column."""
    refused = check_state(place.made, case)
    assert set(refused) <= {*REFUSED.get(place.engine, set()), *NOT_BROKEN}, refused


@pytest.mark.parametrize("place", DATABASES, indirect=True)
@pytest.mark.parametrize("case", sorted(NOT_BROKEN))
def test_a_write_to_a_database_that_breaks_off(place: Place, case: str) -> None:
    """All of its rows are written, and its transaction is not."""
    assert check_state(place.made, case, break_write=broken) == {}


def broken(state: Any) -> None:
    """Let the next write of rows raise when it has written them."""
    store = state._opened.store
    owner, name = (store, "_replace") if isinstance(store, DuckRows) else (store._table, "write")
    write = getattr(owner, name)

    def breaks(*given: Any) -> None:
        setattr(owner, name, write)
        write(*given)
        raise OSError("the disk is full")

    setattr(owner, name, breaks)


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_is_found(what: str) -> None:
    wrong = WRONG[what]
    with pytest.raises(AssertionError, match=re.escape(f"case {wrong.case}: ")) as told:
        check_state(made(wrong.state), wrong.case, break_write=break_write)
    assert re.search(r"\nDone:\n  1\. writer 1 opens the table: .*\nExpected.*\nCame: ", str(told.value), re.DOTALL)


def test_what_is_right_passes_as_a_whole() -> None:
    """In one call, as users make it."""
    assert set(check_state(made(MemoryMapState))) == {*NO_WAY_BACK, *NOT_BROKEN}


def test_all_that_fails_is_named() -> None:
    cases = ("an_older_attempt_is_fenced", "starts_empty", "an_older_attempt_of_the_same_transaction")
    with pytest.raises(AssertionError, match=r"Other cases that fail: an_older_attempt_of_the_same_transaction$"):
        check_state(made(WRONG["the fence is ignored"].state), *cases)


def test_a_case_that_there_is_not() -> None:
    with pytest.raises(ConfigError, match="there is no case 'fences' of a state: "):
        check_state(made(MemoryMapState), "fences")
