"""A hundred thousand damaged Avro records, and a thousand pairs of schemas: read as by fastavro.

A part is what is run again if it is interrupted.
"""

from __future__ import annotations

from collections import Counter

import pytest

from tests.unit.spouts.avro.differential import compared, compared_pair

RECORDS, PAIRS, PART = 100_000, 1_000, 20_000
FAR = 1_000_000
"""Between the seeds of one run and those of another."""


@pytest.mark.proof
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("first", range(0, RECORDS, PART))
def test_damaged_records(first: int, seed: int, told: list[str], counts: Counter[str]) -> None:
    done, bad = compared(seed * FAR + first, PART)
    assert bad > PART // 10, "there have to be bad ones"
    told.append(f"seed {seed}: {done:,} damaged Avro records, {bad:,} of them unreadable: as by fastavro")
    counts["damaged Avro records"] += done


@pytest.mark.proof
@pytest.mark.timeout(1_800)
def test_pairs_of_schemas(seed: int, told: list[str], counts: Counter[str]) -> None:
    found = [compared_pair(seed * FAR + number) for number in range(PAIRS)]
    done, bad = (sum(each) for each in zip(*found, strict=True))
    assert 0 < bad < done // 2
    told.append(f"seed {seed}: {done:,} Avro records of {PAIRS:,} pairs of schemas, {bad:,} unreadable: as by fastavro")
    counts["pairs of Avro schemas"] += PAIRS
