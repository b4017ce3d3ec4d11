"""Ten thousand random worlds in which bolts, jobs and processes fail: at least once nothing is lost, at most once
nothing is repeated.

A part is what is run again if it is interrupted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from tests.unit.topology.reliable.test_running import loses_nothing, repeats_nothing

WORLDS, PART = 10_000, 1_000
FAR = 100_000
"""Between the seeds of one run and those of another."""


@pytest.mark.proof
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("first", range(0, WORLDS, PART))
@pytest.mark.parametrize(
    ("guarantee", "differs", "how"),
    [
        pytest.param("at least once", loses_nothing, "something twice", id="at-least-once"),
        pytest.param("at most once", repeats_nothing, "something lost", id="at-most-once"),
    ],
)
def test_worlds_of_messages(
    guarantee: str,
    differs: Callable[[int], bool],
    how: str,
    first: int,
    seed: int,
    told: list[str],
    counts: Counter[str],
) -> None:
    number = sum(differs(seed * FAR + each) for each in range(first, first + PART))
    assert number > PART // 10, "there has to be something that could go wrong"
    told.append(
        f"seed {seed}: {PART:,} worlds {guarantee} from {first:,} on, in {number} of them {how}: all as promised"
    )
    counts["worlds"] += PART
