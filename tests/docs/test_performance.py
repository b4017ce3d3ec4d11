"""docs/performance.md holds exactly the figures of the files beside it: nobody types a figure."""

from __future__ import annotations

from pathlib import Path

from bench import page, plots
from bench.results import load
from bench.sheets import CONTESTS, sections
from tests.docs.pages import ROOT

PAGE, FOLDER = ROOT / "docs/performance.md", ROOT / "docs/performance"


def test_the_page_shows_the_figures_of_its_files() -> None:
    text = PAGE.read_text("utf-8")
    assert text == page.filled(text, load(FOLDER)), "stale: run `python -m bench report`"


def test_the_page_shows_every_part() -> None:
    assert sorted(page.marks(PAGE.read_text("utf-8"))) == sorted(sections({}))


def test_the_plots_are_those_of_the_files(tmp_path: Path) -> None:
    drawn = {path.name: path.read_text("utf-8") for path in plots.save(load(FOLDER), tmp_path)}
    assert drawn == {path.name: path.read_text("utf-8") for path in FOLDER.glob("*.svg")}


def test_a_files_name_is_that_of_its_part() -> None:
    assert {path.stem for path in FOLDER.glob("*.json")} <= {*CONTESTS, "steady", "profile", "tables", "streams"}
