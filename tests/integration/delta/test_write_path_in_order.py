"""What one has to read, and in which order, to follow a row through a merge: each function at its first call."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

from state.delta.state import DeltaMapState
from state.delta.write import change
from tests.contract.states import OWNER, Place, counts
from transactional.model.plumbing.syncing import sync
from transactional.model.schema import Schema

ROOT = Path(__file__).parents[3]
OURS = tuple(f"{ROOT / folder}/" for folder in ("state", "transactional"))
LAYOUTS = {"small": "merge", "file by file": "merge", "log": "log"}
MOST = {"small": (15, 13), "file by file": (18, 29), "log": (17, 12)}
"""Files, and returns to a file that was left: two returns more than there are today, since what earlier
tests have left in caches is not called again. To be lowered by whoever gets below."""


def functions_called(work: Callable[[], object]) -> list[CodeType]:
    """The project's functions, in the order of their first calls, in the calling thread."""
    called, before = dict[CodeType, None](), sys.getprofile()

    def note(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(OURS) and not code.co_name.startswith("<"):
            called.setdefault(code)

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(before)
    return list(called)


@pytest.mark.parametrize("way", LAYOUTS)
def test_few_files_are_read_and_few_times_one_that_was_left(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if way == "file by file":
        monkeypatch.setattr(change, "REWRITTEN_ROWS_MAX", -1)
    place = Place("delta-rs", tmp_path)
    words = DeltaMapState(tmp_path / "t", "word string", "count long", layout=LAYOUTS[way])
    words.open(OWNER, place.txids.__getitem__)
    for txid in (1, 2):
        words.merge(place.attempt(txid, txid), counts({"cat": 1, "dog": 2}))
        # As the commit phase does for all tables at once.
        sync(words.parts.durability.unsynced())
        words.parts.durability.mark_synced()
    steady, partials = place.attempt(3, 3), counts({"dog": 1})
    functions = functions_called(lambda: words.merge(steady, partials))
    read = [file for file, _ in itertools.groupby(function.co_filename for function in functions)]
    files = len(set(read))
    files_most, returns_most = MOST[way]
    path = "\n".join(Path(file).relative_to(ROOT).as_posix() for file in read)
    assert ("write/rewriting" in path, "write/segments" in path) == (way == "file by file", way == "log"), path
    assert files <= files_most, f"{files} files:\n{path}"
    assert len(read) - files <= returns_most, f"{len(read) - files} returns:\n{path}"
    assert words.get(place.attempt(4, 4), [("dog",)]) == {("dog",): (5,)}


def test_a_function_counts_once_and_only_one_of_the_project() -> None:
    called = functions_called(lambda: [Schema.parse("word string"), Path("a").name, Schema.parse("count long")])
    assert called[0].co_name == "parse"
    assert len(called) == len(set(called))
    assert {Path(function.co_filename).name for function in called} == {"schema.py"}
