"""A topology is taken back to each transaction of a run of sixty, and a rewind dies at each of its steps.

What comes then is compared with what a run that never went further has: of words a plain count, with deleted keys and
dead letters; of windows, with what expires and what is told on, the same run in memory.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing

import pytest

from tests.rewinding import LAYOUTS, TRANSACTIONS, Died, Kept, Steps, World, dies_at, stepping
from tests.rewinding_windows import WindowsWorld

TARGET = 5
SHORT = 9
PARTS, CRASH_PARTS, PART_S = 6, 2, 1_200
"""A part is what is run again if it is interrupted."""
KINDS = {"words": World, "windows": WindowsWorld}
each_layout = pytest.mark.parametrize("layout", LAYOUTS)
Runs = dict[str, Kept]
each_kind = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(scope="module")
def long_runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return {kind: Kept(tmp_path_factory.mktemp(f"sixty-{kind}"), TRANSACTIONS) for kind in KINDS}


@pytest.fixture(scope="module")
def short_runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return {kind: Kept(tmp_path_factory.mktemp(f"nine-{kind}"), SHORT) for kind in KINDS}


def opened(runs: Runs, layout: str, kind: str) -> Iterator[World]:
    world = runs[kind].world(layout, KINDS[kind])
    with closing(world.store):
        yield world


def back_and_on(world: World, txids: Sequence[int]) -> None:
    """Each from the run's end, then on to its end again."""
    for txid in txids:
        world.restart()
        world.back_to(txid)
        assert world.contents() == world.expected(txid), f"back at {txid}"
        assert world.findings() == [], f"back at {txid}"
        world.run()
        assert world.contents() == world.expected(TRANSACTIONS), f"on from {txid}"
        assert world.findings() == [], f"on from {txid}"


@pytest.mark.proof
@pytest.mark.timeout(PART_S)
@each_layout
@each_kind
@pytest.mark.parametrize("part", range(PARTS))
def test_back_to_every_transaction_and_on(
    long_runs: Runs, layout: str, kind: str, part: int, told: list[str], counts: Counter[str]
) -> None:
    for world in opened(long_runs, layout, kind):
        txids = range(part, TRANSACTIONS + 1, PARTS)
        back_and_on(world, txids)
        told.append(f"rewinds, {kind} in {layout}: back to {', '.join(map(str, txids))}, and on to {TRANSACTIONS}")
        counts["rewinds"] += len(txids)


@pytest.mark.proof
@pytest.mark.timeout(PART_S)
@each_layout
@each_kind
def test_back_one_by_one_and_on(long_runs: Runs, layout: str, kind: str, counts: Counter[str]) -> None:
    for world in opened(long_runs, layout, kind):
        for txid in range(TRANSACTIONS, -1, -1):
            world.back_to(txid)
            assert world.contents() == world.expected(txid)
        world.run()
        assert world.contents() == world.expected(TRANSACTIONS)
        assert world.findings() == []
        counts["rewinds"] += TRANSACTIONS + 1


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
@each_layout
@each_kind
@pytest.mark.parametrize("part", range(CRASH_PARTS))
def test_every_crash_point(
    short_runs: Runs, layout: str, kind: str, part: int, told: list[str], counts: Counter[str]
) -> None:
    for world in opened(short_runs, layout, kind):
        every = moments(world)
        mine = range(part, every, CRASH_PARTS)
        for moment in mine:
            die_at(world, moment)
        told.append(f"rewinds, {kind} in {layout}: {len(mine)} of {every} crash points, each met twice")
        counts["crash points"] += len(mine)


@pytest.mark.sample
@pytest.mark.sampled(3)
@each_layout
@each_kind
def test_some_crash_points(short_runs: Runs, layout: str, kind: str, seed: int) -> None:
    for world in opened(short_runs, layout, kind):
        die_at(world, random.Random(f"{seed} {layout} {kind}").randrange(moments(world)))
