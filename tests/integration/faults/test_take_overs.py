"""A take-over in the middle of a rewind, of a transaction, of a compaction: the one that wakes up too late changes
nothing.

The first one stands still before a write. Its lease ends, another one finishes what was begun, or does all there is to
do; then the first one goes on.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.integration.faults.taking_over import overtaken
from tests.proof.shapes import Setting
from tests.rewinding import Kept, Steps, World, stepping
from transactional.errors import Fenced

# `make check` has the fence of each state (tests/contract/test_check_state.py), and simulated take-overs.
pytestmark = pytest.mark.sampled(14, tests=True)
LENGTH, TARGET = 4, 2

# --- a rewind ---------------------------------------------------------------------------------------------------------

REWIND = ("record_fence", "write_entry", "renew", "begin_rewind", "restore", "finish_rewind")
"""Its writes, of each of which it stands still before the last one."""


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Kept:
    """Folders in which a run has ended, one for each layout."""
    return Kept(tmp_path_factory.mktemp("take-overs"), LENGTH)


@pytest.fixture
def world(kept: Kept, layout: str) -> Iterator[World]:
    world = kept.world(layout)
    with closing(world.store):
        yield world


@pytest.fixture(scope="module")
def names(kept: Kept) -> list[str]:
    """The writes of a rewind."""
    world, steps = kept.world("merge"), Steps()
    with closing(world.store), stepping(world.store, steps):
        world.back_to(TARGET)
    assert set(steps.names) == {*REWIND, "acquire", "release"}
    return steps.names


@pytest.mark.parametrize("layout", ["merge", "log"])
@pytest.mark.parametrize("write", REWIND)
def test_of_a_rewind(world: World, names: list[str], write: str) -> None:
    """Whoever takes over finishes it, and in every second case runs to the end again, before the first one goes on."""
    moment = 2 * max(number for number, name in enumerate(names) if name == write)
    goes_on = (REWIND.index(write) + (world.layout == "log")) % 2 == 1

    def take_over(now: int) -> None:
        if now == moment:
            world.free()
            world.back_to(TARGET, owner="second")
            if goes_on:
                world.run(owner="third")

    with stepping(world.store, Steps(take_over)), pytest.raises(Fenced):
        world.back_to(TARGET, owner="first")
    assert world.contents() == world.expected(LENGTH if goes_on else TARGET)
    assert world.rewinding_to() is None
    if not goes_on:
        world.run(owner="third")
        assert world.contents() == world.expected(LENGTH)
    assert world.findings() == []


# --- a transaction, a step, a compaction ------------------------------------------------------------------------------

SETTINGS = {
    "merge": Setting("new values", is_opaque=True, pending=1),
    "log": Setting("new values", is_opaque=True, pending=1, layout="log"),
    "staged": Setting("new values", is_opaque=False, pending=1, layout="staged"),
}


LAST_COMPACTION = 5
CASES = [
    *(("merge", "per-word: rewrite", 1), ("merge", "per-bucket: rewrite", 2), ("merge", "per-word: rewrite", 2)),
    *(("merge", "per-bucket: rewrite", 1), ("merge", "store: record_attempt", 3), ("merge", "store: record_commit", 2)),
    *(("merge", "per-word: vacuum", 1), ("merge", "per-bucket: vacuum", 1)),
    *(("log", "per-word: write", 3), ("log", "per-word: write", 4), ("log", "per-bucket: write", 3)),
    *(("log", "per-bucket: write", 4), ("log", "per-word: set_table_properties", 1), ("log", "per-word: vacuum", 1)),
    *(("staged", "per-word: stage", 3), ("staged", "per-word: stage", 6), ("staged", "per-word: stage_batches", 1)),
    *(("staged", "per-word: staged files", n) for n in (1, 2, 3, 4, LAST_COMPACTION)),
    *(("staged", "per-word: write", n) for n in (3, 8)),
    *(("staged", "per-bucket: write", 2), ("staged", "per-word: remove", 2), ("staged", "store: record_processed", 2)),
]
"""Rows of a table and of the one behind it, what tasks stage and keep, files put together, compactions, old files
deleted;
the store."""


@pytest.mark.parametrize(("layout", "write", "number"), CASES)
def test_of_a_transaction(layout: str, write: str, number: int, tmp_path: Path) -> None:
    said = overtaken(SETTINGS[layout], tmp_path, (write, number))
    # After the last transaction there is only maintenance, which ends without a word when it is not its turn. Old files
    # are deleted beside transactions: before the last one, or after it.
    is_maintenance = number == LAST_COMPACTION or write.endswith("vacuum")
    assert isinstance(said, Fenced) or (said is None and is_maintenance)
