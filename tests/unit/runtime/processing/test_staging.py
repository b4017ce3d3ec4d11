"""Which committers' partial aggregates tasks write themselves: not of those whose changes somebody reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from state import DeltaMapState, LogLayout
from tests.unit.fakes import builder, same
from transactional.runtime.processing.staging import find_stagers


@pytest.mark.parametrize("stream", [None, "default", "old"])
def test_what_a_state_changes_passes_through_the_driver_if_it_is_read(stream: str | None, tmp_path: Path) -> None:
    made = builder()
    counts = DeltaMapState(tmp_path / "counts", key="word", layout=LogLayout())
    made.set_committer_bolt("counts", counts.count()).fields_grouping("spout", "word")
    if stream is not None:
        made.set_bolt("behind", same, output="word string, count long").shuffle_grouping("counts", stream=stream)
    assert set(find_stagers(made.build())) == ({"counts"} if stream is None else set())
