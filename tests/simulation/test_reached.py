"""The sweep of `test_seeds` struck with every fault, and reached every consequence and every transition."""

from __future__ import annotations

from tests.simulation.sweep import Sweep, swept
from tests.simulation.test_seeds import CHUNK, CHUNKS


def test_everything_was_reached() -> None:
    total = Sweep()
    for first in CHUNKS:
        total.add(swept(first, CHUNK))
    assert not total.missing()


def test_what_is_missing_is_told() -> None:
    nothing = Sweep()
    assert "the process crashes" in nothing.missing()
    assert "PLANNING: batch planned" in nothing.missing()
    assert "late: WAITING: batch planned" in nothing.late()
