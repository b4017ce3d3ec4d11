"""What a test stands on: no module is missed that it runs, and none is named that it has nothing to do with."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from tests.resuming import ROOT, digest_of, seconds, write_whole
from tests.standing import Sources
from tests.windows.world import run_seeds

FILES = {
    ".gitignore": "",
    "pyproject.toml": "",
    "house/__init__.py": "from house.door import Door\nif TYPE_CHECKING:\n    from house.lazy import Lazy\n",
    "house/door.py": "import house.hinge",
    "house/hinge.py": "",
    "house/lazy.py": "",
    "house/roof.py": "",
    "house/pages/page.html": "",
    "tests/conftest.py": "from house.roof import Roof\nfrom house import lazy\n\n"
    "def pytest_configure():\n    import house.hinge\n\n"
    "def roof():\n    return tiled(Roof())\n\n"
    "def tiled(roof):\n    import house.hinge\n\ndef other():\n    return lazy\n",
    "tests/helping.py": "import house.lazy",
}
DOOR = ["house/__init__.py", "house/pages/page.html"]
"""What counts with any module of that package."""


def stands_on(folder: Path, test: str, fixtures: Iterable[str] = ()) -> list[str]:
    """The files that a test with this source stands on, but for itself and what stands beside it."""
    for name, text in {**FILES, "tests/test_it.py": test}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    own = {"tests/test_it.py", "tests/conftest.py"}
    return [name for name in Sources(folder).under("tests/test_it.py", fixtures) if name not in own]


@pytest.mark.parametrize(
    ("test", "expected"),
    [
        ("import json", []),
        ("import house.roof", [*DOOR, "house/roof.py"]),
        ("from house import roof", [*DOOR, "house/roof.py"]),
        ("from house.roof import Roof", [*DOOR, "house/roof.py"]),
        ("from house.roof import Roof as Other, Tile", [*DOOR, "house/roof.py"]),
        ("def f():\n    if f:\n        from house.roof import Roof", [*DOOR, "house/roof.py"]),
        ("import house.door", [*DOOR, "house/door.py", "house/hinge.py"]),
        ("from house import Door", [*DOOR, "house/door.py", "house/hinge.py"]),
        ("from house import Lazy", [*DOOR, "house/lazy.py"]),
        ("from tests import helping", [*DOOR, "house/lazy.py", "tests/helping.py"]),
        ("if TYPE_CHECKING:\n    from house.roof import Roof", []),
        ("run([sys.executable, '-m', 'house.roof'])", [*DOOR, "house/roof.py"]),
        ('run("house.roof:build")', [*DOOR, "house/roof.py"]),
        ('monkeypatch.setattr("house.roof.LIMIT", 1)', [*DOOR, "house/roof.py"]),
        ("import house", [*DOOR, "house/door.py", "house/hinge.py"]),
    ],
)
def test_what_is_imported_counts_and_nothing_else(test: str, expected: list[str], tmp_path: Path) -> None:
    assert stands_on(tmp_path, test) == sorted(expected)


@pytest.mark.parametrize(
    ("fixtures", "expected"),
    [((), []), (("roof",), [*DOOR, "house/hinge.py", "house/roof.py"]), (("other",), [*DOOR, "house/lazy.py"])],
)
def test_of_a_conftest_the_fixtures_count_that_are_used(
    fixtures: tuple[str, ...], expected: list[str], tmp_path: Path
) -> None:
    assert stands_on(tmp_path, "", fixtures) == sorted(expected)


def test_modules_that_were_not_loaded_do_not_count_nor_what_is_beside_them(tmp_path: Path) -> None:
    stands_on(tmp_path, "import house.roof\nimport house.door")
    for loaded in (["house/hinge.py"], ["house/__init__.py", "house/roof.py"], []):
        expected = {*loaded, *(["house/pages/page.html"] if loaded else [])}
        assert {*Sources(tmp_path).under("tests/test_it.py", loaded=loaded)} == expected


@pytest.mark.long("the whole repository: test_what_is_imported_counts_and_nothing_else")
def test_what_a_world_runs_is_what_its_proof_stands_on() -> None:
    ran = set[str]()

    def called(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and frame.f_code.co_name != "<module>":
            ran.add(frame.f_code.co_filename)

    before = sys.getprofile()
    threading.setprofile(called)
    sys.setprofile(called)
    try:
        run_seeds(1, 1)
    finally:
        sys.setprofile(before)
        threading.setprofile(None)
    ours = {
        Path(name).relative_to(ROOT).as_posix() for name in ran if name.startswith(f"{ROOT}/") and ".venv" not in name
    }
    stands = {*Sources().under("tests/proof/test_worlds.py", ["seed"])}
    assert len(ours) > 40
    assert ours - stands - {"tests/unit/test_standing.py"} == set()
    assert "state/redis/state.py" not in stands


@pytest.mark.long("the whole repository: test_what_is_imported_counts_and_nothing_else")
def test_the_soaks_stand_on_all_that_the_command_line_finds() -> None:
    stands = Sources().under("tests/proof/test_soak.py", ["kafka_broker"])
    found = {"state/providers.py", "spouts/local_broker.py", "tests/proof/soaking.py"}
    store = "transactional/core/store/sql/sql_store.py"
    assert {*found, store, "transactional/operations/console/templates/base.html"} - {*stands} == set()


def test_a_digest_is_of_names_and_contents(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).write_text(name)
    digests = [
        digest_of(said, names, tmp_path) for said in ("", "more") for names in (["one"], ["two"], ["one", "two"])
    ]
    digests.append(digest_of("", ["missing"], tmp_path))
    (tmp_path / "one").write_text("two")
    digests.append(digest_of("", ["one"], tmp_path))
    assert len(set(digests)) == 8
    assert digest_of("", ["two"], tmp_path) == digests[1]


def test_a_file_is_written_as_a_whole(tmp_path: Path) -> None:
    write_whole(tmp_path / "kept", "before")
    with pytest.raises(UnicodeEncodeError):
        write_whole(tmp_path / "kept", "after \ud800")
    assert (tmp_path / "kept").read_text() == "before"


@pytest.mark.parametrize(("text", "expected"), [("90s", 90), ("40m", 2_400), ("2h", 7_200)])
def test_a_budget_is_a_time(text: str, expected: int) -> None:
    assert seconds(text) == expected
    with pytest.raises(Exception, match="no time such as"):
        seconds(f"{text}?")
