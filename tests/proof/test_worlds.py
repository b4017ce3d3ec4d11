"""Ten thousand worlds of all kinds end with right tables; three thousand of windows equal plain Python, and a thousand
of windows that are joined: crashes, replays cut elsewhere, late and idle partitions.

A part is what is run again if it is interrupted.
"""

from __future__ import annotations

from collections import Counter

import pytest

from tests.simulation.sweep import run_some
from tests.windows.join_bolt_world import JoinBoltWorld
from tests.windows.join_world import JoinWorld
from tests.windows.world import run_seeds

WORLDS, JOINED, PART = 3_000, 1_000, 100
SEEDS, SOME = 10_000, 2_000
"""Of worlds of all kinds, and so many as meet every fault and every transition, whichever they are."""
FAR = 100_000
"""Between the seeds of one run and those of another."""
REACHED = (
    *("crash after a write", "crash before a write", "crash between two steps", "failure"),
    *("a partition appears", "late tuples", "windows closed", "transactions without a tuple"),
)


@pytest.mark.proof
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("first", range(0, SEEDS, SOME))
def test_worlds(first: int, seed: int, counts: Counter[str]) -> None:
    sweep, failed = run_some(seed * FAR + first, SOME)
    assert failed == []
    assert sweep.missing() == []
    counts["worlds"] += SOME


@pytest.mark.proof
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("first", range(0, WORLDS, PART))
def test_worlds_of_windows(first: int, seed: int, counts: Counter[str]) -> None:
    reached = run_seeds(seed * FAR + first, PART)
    assert [name for name in REACHED if not reached[name]] == []
    counts["worlds"] += PART


@pytest.mark.proof
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("first", range(0, JOINED, PART))
@pytest.mark.parametrize("world", [JoinWorld, JoinBoltWorld])
def test_worlds_of_joins(world: type[JoinWorld], first: int, seed: int, counts: Counter[str]) -> None:
    reached = run_seeds(seed * FAR + first, PART, None, world)
    assert [name for name in (*REACHED, "pairs", "without a partner") if not reached[name]] == []
    counts["worlds"] += PART
