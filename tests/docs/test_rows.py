"""Every row of Storm that this project answers to is built, with a test that names it, or told as a difference."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.docs.pages import ROOT

PAGE = ROOT / "docs" / "storm-rows.md"

TRANSACTIONAL = [f"T{number}" for number in range(1, 61)]
KAFKA = [f"K{number}" for number in range(1, 11)]
TRIDENT = [f"R{number}" for number in range(1, 34)]
EXAMPLES = ["E1", "E2"]
CORE = [f"C{number}" for number in range(1, 16)]
ROWS = [*TRANSACTIONAL, *KAFKA, *TRIDENT, *EXAMPLES, *CORE]

LINE = re.compile(r"^\| (?P<row>[TRCKEO]\d{1,2}[a-z]?) \| (?P<storm>[^|]+) \| (?P<here>[^|]+) \|$", re.MULTILINE)
ANSWER = re.compile(r"built(: .{5,})?|(differs|not here): .{20,}")
NAMED = re.compile(r"\b[TRCKEO]\d{1,2}[a-z]?\b")


def answers() -> dict[str, str]:
    """By row, what the page says of it; K7a to K7g each by itself."""
    return {match["row"]: match["here"] for match in LINE.finditer(PAGE.read_text(encoding="utf-8"))}


def named_by_tests() -> set[str]:
    """The rows that a test, a case of states or a scenario names; what tests the pages is none."""
    return {row for text in texts() for row in NAMED.findall(text)}


def texts() -> Iterator[str]:
    """The text of every test file, case and scenario."""
    for path in [*sorted((ROOT / "tests").rglob("*")), *sorted((ROOT / "transactional/testing/states").glob("*.py"))]:
        if path.suffix in (".py", ".txt") and path.parent.name != "docs":
            yield path.read_text(encoding="utf-8")


def is_told(row: str, told: set[str]) -> bool:
    """Whether a row, or one of its parts (K7a of K7), is among those that are told."""
    return row in told or any(re.fullmatch(row + "[a-z]", other) for other in told)


def test_every_row_has_its_line() -> None:
    assert [row for row in ROWS if not is_told(row, set(answers()))] == []


def test_every_row_that_is_built_is_named_by_a_test() -> None:
    built = {row for row, here in answers().items() if here.startswith("built") and whole(row) in ROWS}
    named = named_by_tests()
    assert len(built) > 50
    assert sorted(row for row in built if row not in named and whole(row) not in named) == []


def test_every_row_of_the_core_is_named_by_a_test_or_argued() -> None:
    """Also those in which this differs: a test shows how. What is not here has its reason."""
    found, named = answers(), named_by_tests()
    argued = {row for row in CORE if found[row].startswith("not here")}
    assert sorted(argued) == ["C6", "C8"]
    assert sorted(row for row in CORE if row not in named | argued) == []


def whole(row: str) -> str:
    """K7 of K7a."""
    return row.rstrip("abcdefgh")


@pytest.mark.parametrize(("row", "here"), answers().items(), ids=list(answers()))
def test_an_answer_is_built_or_a_reason(row: str, here: str) -> None:
    assert ANSWER.fullmatch(here), f"{row}: begin with built, 'differs: …' or 'not here: …', and say why"


def test_no_row_is_reported_twice() -> None:
    rows = [match["row"] for match in LINE.finditer(PAGE.read_text(encoding="utf-8"))]
    assert sorted(rows) == sorted(set(rows))


def test_a_row_is_reported_by_itself_or_by_its_parts() -> None:
    assert is_told("K7", {"K7a"})
    assert not is_told("T1", {"T10", "T11"})
