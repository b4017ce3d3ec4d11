"""Pages for users say it in words: the ids of Storm's rows belong to the page about Storm, to comments and to tests."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, name_of, pages
from tests.tidy.files import our_files

ABOUT_STORM = "docs/storm-differences.md"
INTERNAL = re.compile(r"\b[TRKCEOX]\d{1,2}[a-z]?\b|\b[Ss]eeds? 00\d\b")


def internal_words(text: str) -> list[str]:
    """The ids of rows (T45, K7a) and of sources (seed 004) in a text, with the line that has them."""
    return [f"{number}: {line.strip()}" for number, line in enumerate(text.splitlines(), 1) if INTERNAL.search(line)]


def for_users() -> Iterator[Path]:
    """The pages that users read, and the examples that the pages send them to."""
    tracked = {*our_files()}
    yield from (page for page in pages() if page in tracked and name_of(page) != ABOUT_STORM)
    yield from (path for path in sorted((ROOT / "examples").glob("*.py")) if path in tracked)


def test_pages_for_users_name_no_internal_ids() -> None:
    found = {name_of(page): words for page in for_users() if (words := internal_words(page.read_text("utf-8")))}
    assert found == {}, "say it in words; the reference pages are made of docstrings"


@pytest.mark.parametrize("text", ["as it was (row T45).", "Storm's K7a", "(R24, C3)", "(Seed 004, 2)"])
def test_an_internal_id_is_found(text: str) -> None:
    assert internal_words(f"fine\n{text}") == [f"2: {text}"]


@pytest.mark.parametrize("text", ["TX404 StoreMismatch", "a seed of 004", "0.4 ms, 20 k rows", "UTF8, 2x64 GiB"])
def test_other_words_pass(text: str) -> None:
    assert internal_words(text) == []
