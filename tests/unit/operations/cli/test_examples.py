"""`transactional examples`: what it lists, and that what it copies can be run from where it lies."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.tidy.files import ROOT
from tests.unit.command_line import RUN, Command


def test_every_program_is_listed_with_its_first_line(command: Command) -> None:
    listed = dict(line.split(maxsplit=1) for line in command("examples").out.splitlines())
    programs = {path.stem for path in (ROOT / "examples").glob("*.py") if "__main__" in path.read_text("utf-8")}
    assert listed.keys() == programs
    assert listed["trident_reach"].endswith(".")


def test_a_copy_is_the_example_and_what_it_imports(command: Command) -> None:
    done = command("examples", "stateful_words")
    copied = ["__init__", "stateful_words", "transactional_global_count"]
    assert done.out.splitlines() == [
        *(f"examples/{name}.py" for name in copied),
        "run it: python -m examples.stateful_words",
    ]
    assert [path.stem for path in sorted(Path("examples").iterdir())] == copied
    assert all(Path(f"examples/{name}.py").read_text() == (ROOT / f"examples/{name}.py").read_text() for name in copied)


def test_a_copy_is_run_in_place_of_any_other(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    command("examples", "transactional_global_count")
    for name in [name for name in sys.modules if name.partition(".")[0] == "examples"]:
        monkeypatch.delitem(sys.modules, name)
    copy = Path("examples/transactional_global_count.py")
    copy.write_text(copy.read_text().replace('"global-count"', '"my-count"'))
    done = command(*RUN, "examples.transactional_global_count:build")
    assert "3 transactions committed" in done.out
    assert "my-count" in command("status").out


def test_no_file_is_replaced(command: Command) -> None:
    assert command("examples", "trident_reach").code == command("examples", "trident_reach").code == 0
    Path("examples/trident_reach.py").write_text("mine")
    done = command("examples", "trident_reach")
    assert done.err == "TX100: examples/trident_reach.py is there, and differs: give it another name, or delete it\n"
    assert Path("examples/trident_reach.py").read_text() == "mine"


def test_an_unknown_name_is_one_line(command: Command) -> None:
    done = command("examples", "trident_reech")
    assert done.err.startswith("TX100: there is no example 'trident_reech'; there are: ")
    assert done.err.endswith("did you mean 'trident_reach'?\n")
