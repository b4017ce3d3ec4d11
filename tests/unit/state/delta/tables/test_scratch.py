"""What tasks leave in a file for later steps, and what goes through the driver."""

from __future__ import annotations

from pathlib import Path

import pytest

from state import DeltaMapState, LogLayout
from transactional.core.ports.staged import Scratch

MIB = 1024 * 1024


def scratch_of(folder: Path, layout: LogLayout) -> Scratch | None:
    return DeltaMapState(folder / "t", "word string", "count long", layout=layout).parts.staging.scratch(
        "topology/count"
    )


@pytest.mark.parametrize(
    ("staged_bytes", "tasks", "through_the_driver"),
    [
        pytest.param(4 * MIB, 2, MIB, id="larger results pile up in the driver's JVM"),
        pytest.param(1_000, 2, 1_000, id="as little as of aggregates"),
        pytest.param(4 * MIB, 256, MIB // 4, id="a task's share"),
    ],
)
def test_little_goes_through_the_driver(tmp_path: Path, staged_bytes: int, tasks: int, through_the_driver: int) -> None:
    scratch = scratch_of(tmp_path, LogLayout(staged_bytes=staged_bytes))
    assert scratch is not None
    assert not scratch.is_large_enough(through_the_driver, tasks)
    assert scratch.is_large_enough(through_the_driver + 1, tasks)


def test_all_goes_through_the_driver_where_nothing_is_staged(tmp_path: Path) -> None:
    assert scratch_of(tmp_path, LogLayout(staged_bytes=None)) is None
