"""A thousand programs that are changed between two runs, against a plain model: each kind of change, each place for
tables, and whatever was in flight."""

from __future__ import annotations

import logging
from collections import Counter
from pathlib import Path
from random import Random

import pytest

from tests.changes.kinds import KINDS, with_others
from tests.changes.places import LOCAL, Place
from tests.changes.running import live

WORLDS, PART = 1_000, 50
FAR = 100_000
"""Between the seeds of one run and those of another."""


@pytest.mark.proof
@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", range(0, WORLDS, PART))
def test_changes_between_two_runs(first: int, seed: int, counts: Counter[str], tmp_path: Path) -> None:
    # A run that ends with an error is no news.
    logging.disable(logging.ERROR)
    try:
        for number in range(first, first + PART):
            kind = KINDS[number % len(KINDS)]
            local = [each for each in LOCAL if each in kind.places]
            place = local[number // len(KINDS) % len(local)]
            folder = tmp_path / str(number)
            folder.mkdir()
            try:
                kinds = with_others(kind, Random(f"others {seed} {number}"))
                live(kinds, seed * FAR + number, Place(place, folder))
                counts.update({"worlds": 1, "changes": len(kinds)})
            except BaseException as error:
                raise AssertionError(f"{kind.name}, number {number}, {place}: {error!r}") from error
    finally:
        logging.disable(logging.NOTSET)
