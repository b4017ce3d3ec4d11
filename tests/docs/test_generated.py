"""The pages that come from the code are those that the code gives now, and every error and Storm row has its place."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, blocks
from tests.journeys.page import matrix_page
from tools.make_reference import COMMITTED, PAGES, page_of_changes, proof_page, reference_page
from transactional.core.machine.protocol import diagram
from transactional.errors import TransactionalError
from transactional.model import errors

DOCS = ROOT / "docs"
_ID = r"([TRCKEO]\d{1,2}[a-z]?)"
ROW = re.compile(rf"\b(?:rows?|Storm's|and|,) \(?{_ID}\b|\({_ID}[),;:]|\b{_ID}[),]")
PARTS = ("**What happened.**", "**Why.**", "**What to do.**")


@pytest.mark.parametrize("page", COMMITTED)
def test_the_reference_is_fresh(page: str) -> None:
    written = (DOCS / "reference" / f"{page}.md").read_text(encoding="utf-8")
    assert written == reference_page(page), "stale: run `python tools/make_reference.py`"


def test_the_reference_folder_holds_nothing_else() -> None:
    assert {path.stem for path in (DOCS / "reference").iterdir()} == {"index", *COMMITTED}


DOORS = ["transactional", "transactional.trident", "transactional.reliable", "transactional.queries"]
DOORS += ["transactional.testing", "sinks", "spouts", "state"]
IN_A_SENTENCE = {"ABSENT", "AttemptId", "Emitted", "OpaqueValue", "SINK_CASES", "SPOUT_CASES", "STATE_CASES", "TxId"}
"""Names that stand for a type or one value, without a section of their own."""


@pytest.mark.parametrize("door", DOORS)
def test_every_public_name_is_in_the_reference_or_among_the_errors(door: str) -> None:
    described = {name.rpartition(".")[2] for page in PAGES.values() for name in page.names}
    known = described | {*error_classes().values()} | IN_A_SENTENCE
    assert [name for name in import_module(door).__all__ if name not in known] == []


def test_the_page_of_the_proof_is_fresh() -> None:
    assert (DOCS / "proof.md").read_text("utf-8") == proof_page(), "stale: run `make docs`"


def test_the_table_of_changes_is_fresh() -> None:
    assert (DOCS / "howto" / "change.md").read_text("utf-8") == page_of_changes(), "stale: run `make docs`"


def test_the_tables_of_the_journeys_are_fresh() -> None:
    assert (DOCS / "command-matrix.md").read_text("utf-8") == matrix_page(), "stale: run `make docs`"


def test_the_state_diagram_is_fresh() -> None:
    diagrams = [
        block.text for block in blocks((DOCS / "state-machine.md").read_text("utf-8")) if block.language == "mermaid"
    ]
    assert diagrams == [diagram() + "\n"], "stale: run `make docs`"


def error_classes() -> dict[str, str]:
    """Code and name of every error."""
    classes = [
        each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, TransactionalError)
    ]
    assert len({each.code for each in classes}) == len(classes), "two errors have the same code"
    return {each.code: each.__name__ for each in classes}


def error_sections() -> dict[str, str]:
    """The sections of docs/errors.md: title and text."""
    parts = re.split(r"^## (TX\d+ \w+)$", (DOCS / "errors.md").read_text("utf-8"), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_every_error_has_its_section_in_order() -> None:
    assert list(error_sections()) == [f"{code} {name}" for code, name in sorted(error_classes().items())]


def test_every_section_shows_what_happened_why_and_what_to_do() -> None:
    silent = [title for title, text in error_sections().items() if [text.count(part) for part in PARTS] != [1, 1, 1]]
    assert silent == []


def rows_named_in(path: Path) -> set[str]:
    """The ids of Storm's rows (T48, K7a) that a file names."""
    return {row for groups in ROW.findall(path.read_text(encoding="utf-8")) for row in groups if row}


def test_every_row_that_the_code_names_is_on_the_page() -> None:
    """Docstrings point at "Storm row T48": the page about Storm has to say what that is."""
    told = set(re.findall(r"^\| ([TRCKEO]\d{1,2}[a-z]?) \|", (DOCS / "storm-rows.md").read_text("utf-8"), re.MULTILINE))
    files = [
        path
        for folder in ("transactional", "spouts", "state", "sinks", "examples")
        for path in (ROOT / folder).rglob("*.py")
    ]
    named = {row: path.name for path in files for row in rows_named_in(path)}
    assert named
    missing = {row: name for row, name in named.items() if row not in told}
    assert missing == {}, "add a line to the table of docs/storm-rows.md"
