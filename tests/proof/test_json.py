"""A million hostile JSON records: read at once, in pieces of all sizes, as each of them is alone.

A part is what is run again if it is interrupted.
"""

from __future__ import annotations

from collections import Counter

import pytest

from tests.unit.spouts.decoding.json_differential import compared

RECORDS, PART = 1_000_000, 100_000
FAR = 100_000
"""Between the seeds of one run and those of another."""


@pytest.mark.proof
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("first", range(0, RECORDS, PART))
def test_hostile_records(first: int, seed: int, told: list[str], counts: Counter[str]) -> None:
    done, bad = compared(seed * FAR + first, PART)
    assert bad > PART // 100, "there have to be bad ones"
    told.append(f"seed {seed}: {done:,} JSON records from {first:,} on, {bad:,} of them bad: as each alone")
    counts["JSON records"] += done
