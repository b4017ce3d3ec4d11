"""A topology is taken back to each transaction of a run of sixty, and a rewind dies at each of its steps.

What comes then is compared with a plain count: as a run that never went further would have left it.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import closing

import pytest

from tests.rewinding import LAYOUTS, TRANSACTIONS, Died, Kept, Steps, World, contents, dies_at, expected, stepping

TARGET = 5
SHORT = 9
PARTS, PART_S = 6, 1_200
"""A part is what is run again if it is interrupted."""


@pytest.fixture(scope="module")
def long_runs(tmp_path_factory: pytest.TempPathFactory) -> Kept:
    return Kept(tmp_path_factory.mktemp("sixty"), TRANSACTIONS)


@pytest.fixture(scope="module")
def short_runs(tmp_path_factory: pytest.TempPathFactory) -> Kept:
    return Kept(tmp_path_factory.mktemp("nine"), SHORT)


def opened(kept: Kept, layout: str) -> Iterator[World]:
    world = kept.world(layout)
    with closing(world.store):
        yield world


def back_and_on(world: World, txids: Sequence[int]) -> None:
    """Each from the run's end, then on to its end again."""
    for txid in txids:
        world.restart()
        world.back_to(txid)
        assert contents(world.topology()) == expected(txid, TRANSACTIONS), f"back at {txid}"
        assert world.findings() == [], f"back at {txid}"
        world.run()
        assert contents(world.topology()) == expected(TRANSACTIONS, TRANSACTIONS), f"on from {txid}"
        assert world.findings() == [], f"on from {txid}"


@pytest.mark.proof
@pytest.mark.timeout(PART_S)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("part", range(PARTS))
def test_back_to_every_transaction_and_on(long_runs: Kept, layout: str, part: int, told: list[str]) -> None:
    for world in opened(long_runs, layout):
        txids = range(part, TRANSACTIONS + 1, PARTS)
        back_and_on(world, txids)
        told.append(f"rewinds, {layout}: back to {', '.join(map(str, txids))}, and on to {TRANSACTIONS}")


@pytest.mark.proof
@pytest.mark.timeout(PART_S)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_back_one_by_one_and_on(long_runs: Kept, layout: str) -> None:
    for world in opened(long_runs, layout):
        for txid in range(TRANSACTIONS, -1, -1):
            world.back_to(txid)
            assert contents(world.topology()) == expected(txid, TRANSACTIONS)
        world.run()
        assert contents(world.topology()) == expected(TRANSACTIONS, TRANSACTIONS)
        assert world.findings() == []


def moments(world: World) -> int:
    """How many moments a rewind has: before and after each of its steps."""
    steps = Steps()
    with stepping(world.store, steps):
        world.back_to(TARGET)
    return 2 * len(steps.names)


def die_at(world: World, moment: int) -> None:
    """A rewind dies, the next one dies at the same moment of its own, and the third one ends."""
    world.restart()
    for _ in range(2):
        with stepping(world.store, Steps(dies_at(moment))):
            try:
                world.back_to(TARGET)
            except Died:
                world.free()
            else:
                break  # one that only finishes has fewer steps
    world.finish(TARGET)


@pytest.mark.proof
@pytest.mark.timeout(PART_S)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("part", range(PARTS))
def test_every_crash_point(short_runs: Kept, layout: str, part: int, told: list[str]) -> None:
    for world in opened(short_runs, layout):
        every = moments(world)
        mine = range(part, every, PARTS)
        for moment in mine:
            die_at(world, moment)
        told.append(f"rewinds, {layout}: {len(mine)} of {every} crash points, each met twice")


@pytest.mark.sample
@pytest.mark.parametrize("layout", LAYOUTS)
def test_some_crash_points(short_runs: Kept, layout: str, seed: int) -> None:
    for world in opened(short_runs, layout):
        die_at(world, random.Random(f"{seed} {layout}").randrange(moments(world)))
