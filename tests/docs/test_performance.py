"""The pages with figures hold exactly those of the files beside them: nobody types a figure."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import page, plots
from bench.results import load
from bench.sheets import CONTESTS, sections
from tests.docs.pages import ROOT
from tests.experiment import report

PAGES, FOLDER = [ROOT / each for each in page.PAGES], ROOT / page.FOLDER


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_a_page_is_what_the_files_say(path: Path) -> None:
    text = path.read_text("utf-8")
    assert text == page.filled(text, load(FOLDER)), "stale: run `python -m bench report`"


def test_every_table_is_on_a_page() -> None:
    marks = [mark for path in PAGES for mark in page.marks(path.read_text("utf-8"))]
    assert sorted(marks) == sorted(sections({}))


def test_the_plots_are_those_of_the_files(tmp_path: Path) -> None:
    drawn = {path.name: path.read_text("utf-8") for path in plots.save(load(FOLDER), tmp_path)}
    kept = {path.name: path.read_text("utf-8") for path in FOLDER.glob("*.svg") if path.name != report.PICTURE}
    assert drawn == kept


def test_a_files_name_is_that_of_its_part() -> None:
    others = {
        "steady",
        "profile",
        "tables",
        "streams",
        "closing",
        "guarantees",
        "gears",
        "grid",
        "lookups",
        "scale",
        "sinks",
        "appends",
        Path(report.FIGURES).stem,
    }
    assert {path.stem for path in FOLDER.glob("*.json")} <= {*CONTESTS, *others}
