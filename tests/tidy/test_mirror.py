"""tests/unit has the folders of the project, and its files the names of its modules."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tidy.files import ROOT

UNIT = ROOT / "tests" / "unit"
FOLDERS = sorted({path.parent for path in UNIT.rglob("test_*.py")} - {UNIT})
OF_SEVERAL_MODULES = {
    *("runtime/commit/test_dead_letters.py", "runtime/commit/test_merging.py"),
    "runtime/processing/test_refused_records.py",
    *("state/test_group_by.py", "topology/test_phases.py", "verifier/test_alone.py"),
}
"""What shows only where several modules of a folder work together."""


def mirrored(folder: Path) -> Path:
    """The folder that one of tests/unit is about: within `transactional`, or beside it."""
    name = folder.relative_to(UNIT)
    return next((found for found in (ROOT / "transactional" / name, ROOT / name) if found.is_dir()), ROOT / "nowhere")


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: str(folder.relative_to(UNIT)))
def test_a_folder_of_tests_is_about_a_folder_of_that_name(folder: Path) -> None:
    modules = {path.stem for path in mirrored(folder).glob("*.py")}
    assert modules, f"there is no folder {folder.relative_to(UNIT)}"
    files = {path.relative_to(UNIT).as_posix(): path.stem.removeprefix("test_") for path in folder.glob("test_*.py")}
    astray = [file for file, name in files.items() if not any(is_about(name, module) for module in modules)]
    assert set(astray) <= OF_SEVERAL_MODULES, f"they are about none of {sorted(modules)}"


def is_about(name: str, module: str) -> bool:
    """`driver` and `driver_ends` are about `driver`."""
    return name == module or name.startswith(f"{module}_")


def test_what_is_of_several_modules_is_there() -> None:
    assert {file for file in OF_SEVERAL_MODULES if not (UNIT / file).exists()} == set()
