"""A table in the merge layout that is to have the log layout, which it gets with its next new transaction."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from state.delta.segments.log_layout import LogLayout
from state.delta.state import DeltaMapState
from tests.contract.states import OWNER, Place, content
from transactional.model.absent import ABSENT


def test_keys_that_tasks_delete_go_from_a_table_that_is_no_log_yet(tmp_path: Path) -> None:
    """While its newest transaction is repeated it stays as it is, and the driver reads what tasks have staged."""
    place = Place("delta-rs", tmp_path)
    columns: dict[str, Any] = {"key": "word string", "values": "count long", "deletes": True}
    merged = DeltaMapState(place.folder / "t", **columns, layout="merge")
    merged.open(OWNER, place.txids.__getitem__)
    merged.put(place.attempt(1, 1), {("cat",): (1,), ("dog",): (2,)})
    merged.put(place.attempt(2, 2), {("cat",): (5,)})
    log = DeltaMapState(place.folder / "t", **columns, layout=LogLayout(staged_bytes=0))
    log.open(OWNER, place.txids.__getitem__)
    again = place.attempt(2, 3)
    part = log.parts.tasks.for_tasks(again)
    assert part is not None
    written = part.make_part(part.table({("cat",): ABSENT, ("owl",): (7,)}), 1)
    assert written.file is not None
    log.parts.tasks.put_parts(again, [written])
    assert content(log) == {"dog": 2, "owl": 7}


def test_the_parts_are_those_of_the_table_that_is_open(tmp_path: Path) -> None:
    """Once a table is turned its maintenance is another one; until then no part is made twice."""
    place = Place("delta-rs", tmp_path)
    merged = DeltaMapState(place.folder / "t", "word string", "count long", layout="merge")
    merged.open(OWNER, place.txids.__getitem__)
    merged.put(place.attempt(1, 1), {("cat",): (1,)})
    log = DeltaMapState(place.folder / "t", "word string", "count long", layout="log")
    unopened = log.parts
    log.open(OWNER, place.txids.__getitem__)
    before_turning = log.parts
    assert before_turning is log.parts
    log.put(place.attempt(2, 2), {("dog",): (2,)})
    assert log.parts.maintenance is log.open_table.upkeep
    assert log.parts.maintenance not in (before_turning.maintenance, unopened.maintenance)
    assert log.parts is log.parts
    log.close()
    assert log.parts.maintenance is unopened.maintenance
