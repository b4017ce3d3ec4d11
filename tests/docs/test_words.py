"""Pages for users say it in words: the ids of Storm's rows belong to the page about Storm, to comments and to tests.

Pages, docstrings, comments and messages use the verbs of the field, one for each meaning, and American spelling.
"""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, name_of, pages
from tests.tidy.files import our_files
from tools.make_reference import PAGES, reference_page

ABOUT_STORM = ("docs/storm-differences.md", "docs/storm-rows.md")
INTERNAL = re.compile(r"\b[TRKCEOX]\d{1,2}[a-z]?\b|\b[Ss]eeds? 00\d\b")


def internal_words(text: str) -> list[str]:
    """The ids of rows (T45, K7a) and of sources (seed 004) in a text, with the line that has them."""
    return [f"{number}: {line.strip()}" for number, line in enumerate(text.splitlines(), 1) if INTERNAL.search(line)]


def for_users() -> Iterator[Path]:
    """The pages that users read, and the examples that the pages send them to."""
    tracked = {*our_files()}
    yield from (page for page in pages() if page in tracked and name_of(page) not in ABOUT_STORM)
    yield from (path for path in sorted((ROOT / "examples").glob("*.py")) if path in tracked)


def test_pages_for_users_name_no_internal_ids() -> None:
    texts = {name_of(page): page.read_text("utf-8") for page in for_users()}
    texts |= {f"reference/{name}": reference_page(name) for name in PAGES}
    found = {name: words for name, text in texts.items() if (words := internal_words(text))}
    assert found == {}, "say it in words; the reference pages are made of docstrings"


@pytest.mark.parametrize("text", ["as it was (row T45).", "Storm's K7a", "(R24, C3)", "(Seed 004, 2)"])
def test_an_internal_id_is_found(text: str) -> None:
    assert internal_words(f"fine\n{text}") == [f"2: {text}"]


@pytest.mark.parametrize("text", ["TX404 StoreMismatch", "a seed of 004", "0.4 ms, 20 k rows", "UTF8, 2x64 GiB"])
def test_other_words_pass(text: str) -> None:
    assert internal_words(text) == []


# --- phrases that must not come back --------------------------------------------------------------------------------

NOT_ENGLISH = re.compile(
    r"\b(tells?|told|telling|asks?|asked|asking)\b"  # notify, report, warn, raise, log; call, query, read, request
    r"|\banew\b|\bfor ever\b|\bmisspelt\b|\bgo(es)? on\b|\blook(s|ed|ing)? after\b|\bput(s)? together\b"
    r"|\bheld against\b|\bwithout a word\b|\bin silence\b|\bat (its|their|a tuple's) door\b|\bleave \w+ \w+ away\b"
    r"|\b(colour|favour|neighbour|behaviour|recognis|serialis|parameteris|optimis)",
    re.IGNORECASE,
)
UNCLEAR = re.compile(
    r"\b(are|is|as) (those|that) of\b|\bgo(es)? by\b|\b(is|are) of (one|tuples|states|streams)\b", re.IGNORECASE
)
"""Phrases of pages that hide who does what: name the noun again, and use a verb."""
PACKAGES = ("transactional", "spouts", "state", "sinks", "verifier", "examples", "bench", "tools")
KEPT = ("docs/adr/", "docs/reference/")
"""Decisions are history; the reference pages are generated."""


def texts_of(path: Path) -> Iterator[tuple[int, str]]:
    """The lines that people read, with their numbers: of a page all, of a module its strings and comments."""
    source = path.read_text("utf-8")
    if path.suffix != ".py":
        yield from enumerate(source.splitlines(), 1)
        return
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in (tokenize.STRING, tokenize.COMMENT):
            text = without_names(token.string)
            yield from enumerate(text.splitlines(), token.start[0])


def without_names(text: str) -> str:
    """An f-string's names are code."""
    return re.sub(r"\{[^{}]*\}", "", text)


def phrases(path: Path) -> list[str]:
    """The banned phrases of a file, with their lines."""
    source = path.read_text("utf-8")
    if not NOT_ENGLISH.search(source) and not NOT_ENGLISH.search(without_names(source)):
        return []  # so it is with most modules, which need not be taken to pieces
    return [f"{number}: {found[0]}" for number, line in texts_of(path) for found in NOT_ENGLISH.finditer(line)]


def test_pages_use_the_words_of_the_field() -> None:
    read = [path for path in our_files() if path.suffix == ".md" and not name_of(path).startswith(KEPT)]
    found = {name_of(path): words for path in read if (words := phrases(path))}
    assert found == {}, "notify, report, warn, log, raise; call, query, read; again, continue, maintain, compare"


def test_modules_use_the_words_of_the_field() -> None:
    modules = [path for path in our_files() if path.suffix == ".py" and path.relative_to(ROOT).parts[0] in PACKAGES]
    found = {name_of(path): words for path in modules if (words := phrases(path))}
    assert found == {}, "notify, report, warn, log, raise; call, query, read; again, continue, maintain, compare"


def test_sentences_of_pages_name_what_they_are_about() -> None:
    read = {name_of(path): path.read_text("utf-8") for path in pages() if not name_of(path).startswith(KEPT)}
    found = {name: [match[0] for match in UNCLEAR.finditer(text)] for name, text in read.items()}
    assert {name: phrases for name, phrases in found.items() if phrases} == {}


@pytest.mark.parametrize("text", ["a gap is told", "it asks the store", "planned anew", "neighbouring rows", "goes on"])
def test_a_phrase_is_found(text: str, tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text(f'"""Fine.\n\n{text}\n"""\nasked = told = f"{{asked}}"\n', "utf-8")
    assert len(phrases(module)) == 1
