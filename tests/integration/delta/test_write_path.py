"""The write path of a merge, from the state to the bytes: which files it goes through, seen from where the Delta commit
is."""

from __future__ import annotations

import itertools
import os
import sys
from pathlib import Path
from typing import Any

import pytest

import state.delta.write.engine_commits
import state.delta.write.loaded_table
from state.delta.state import DeltaMapState
from tests.contract.states import OWNER, Place, counts, write_by_files

ROOT = Path(__file__).parents[3]
PATHS = {
    "two files": (os, "link", "merge", ("entry",)),
    "an overwrite": (state.delta.write.engine_commits, "write_deltalake", "merge", ("merging", "engine_commits")),
    "file by file": (os, "link", "merge", ("entry",)),
    "a segment": (os, "link", "log", ("entry",)),
}


def files_above() -> list[str]:
    """The project's files in the stack, outermost first, each run of one as one."""
    frame, found = sys._getframe(1), list[str]()
    while frame.f_back is not None:
        frame = frame.f_back
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(ROOT) and path.relative_to(ROOT).parts[0] in ("state", "transactional"):
            found.append(path.relative_to(ROOT).as_posix())
    return [name for name, _ in itertools.groupby(reversed(found))]


@pytest.mark.parametrize("way", PATHS)
def test_goes_down_through_few_files_and_never_back(way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    where, name, layout, files = PATHS[way]
    place, passed = Place("delta-rs", tmp_path), list[list[str]]()
    if way == "an overwrite":
        monkeypatch.setattr(state.delta.write.loaded_table, "list_replaceable_files", lambda _: None)
    if way == "file by file":
        write_by_files(monkeypatch)
    words = DeltaMapState(tmp_path / "t", "word string", "count long", layout=layout)
    words.open(OWNER, place.txids.__getitem__)
    original: Any = getattr(where, name)

    def seen(*given: Any, **named: Any) -> Any:
        passed.append(files_above())
        return original(*given, **named)

    monkeypatch.setattr(where, name, seen)
    words.merge(place.attempt(1, 1), counts({"dog": 1}))
    above = ["state/table_state.py", "state/delta/write/table_writer.py"]
    assert passed == [above + [f"state/delta/write/{file}.py" for file in files]]
