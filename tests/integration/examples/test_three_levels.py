"""The example of the three guarantees: what each loses and repeats over the same faults, killed processes included."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples.guarantees import EXPECTED, FAULTS, LEVELS, run, summary, svg


@pytest.mark.sampled(3)
@pytest.mark.parametrize("level", LEVELS)
def test_a_level_loses_and_repeats_what_it_may(level: str, tmp_path: Path) -> None:
    counts = run(level, tmp_path, "none")
    lost, twice = EXPECTED - counts, counts - EXPECTED
    assert bool(lost) == (level == "at-most-once"), lost
    assert bool(twice) == (level == "at-least-once"), twice
    assert set(counts) <= set(EXPECTED)
    met = {fault for fault in FAULTS if (tmp_path / fault).exists()}
    assert met & {"kills-before", "kills-after"}
    assert met == set(FAULTS) or level == "at-most-once", "where it is lost, a fault may not be met"


def test_it_is_told_and_drawn() -> None:
    none, more = EXPECTED.copy(), EXPECTED.copy()
    del none["ant"]
    more["bee"] += 2
    lost, right = EXPECTED["ant"], len(EXPECTED) - 1
    assert summary("x", none) == f"x{lost:17} lost,   0 too many; {right} of {right + 1} words have the right count"
    assert summary("x", more) == f"x{0:17} lost,   2 too many; {right} of {right + 1} words have the right count"
    drawn = svg({"at-most-once": none, "at-least-once": more})
    assert f"ant -{lost}<" in drawn
    assert "bee +2<" in drawn
