"""Three thousand worlds of windows equal plain Python: crashes, replays cut elsewhere, late and idle partitions.

A part is what is run again if it is interrupted.
"""

from __future__ import annotations

from collections import Counter

import pytest

from tests.windows.world import run_seeds

WORLDS, PART = 3_000, 100
FAR = 100_000
"""Between the seeds of one run and those of another."""
REACHED = (
    *("crash after a write", "crash before a write", "crash between two steps", "failure"),
    *("a partition appears", "late tuples", "windows closed", "transactions without a tuple"),
)


@pytest.mark.proof
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("first", range(0, WORLDS, PART))
def test_worlds_of_windows(first: int, seed: int, counts: Counter[str]) -> None:
    reached = run_seeds(seed * FAR + first, PART)
    assert [name for name in REACHED if not reached[name]] == []
    counts["worlds"] += PART
