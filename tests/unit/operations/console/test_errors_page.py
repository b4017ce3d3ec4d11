"""The page of errors: each code of the framework has a section, and links lead to it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from transactional.model import errors
from transactional.operations.console import errors_page
from transactional.operations.console.errors_page import link_to, sections, with_links

CODES = sorted(
    each.code
    for each in vars(errors).values()
    if isinstance(each, type) and issubclass(each, errors.TransactionalError)
)


@pytest.mark.parametrize("code", CODES)
def test_each_code_leads_to_its_section(code: str) -> None:
    link = link_to(code)
    assert link is not None
    [section] = [each for each in sections() if f"/errors#{each.anchor}" == link]
    assert section.title.startswith(code)
    assert "<b>What to do.</b>" in section.content or code == "TX000"


def test_links_within_the_page_lead_somewhere_and_none_leaves_it() -> None:
    anchors = {each.anchor for each in sections()}
    for section in sections():
        links = re.findall(r'href="([^"]*)"', section.content)
        assert {link.removeprefix("#") for link in links} <= anchors


def test_texts_stay_texts() -> None:
    assert with_links("<img> TX302 TX3021 TX999") == (
        '&lt;img&gt; <a href="/errors#tx302-boltfailed">TX302</a> TX3021 TX999'
    )


def test_blocks_of_the_page() -> None:
    block = errors_page._convert_block
    assert block("| a | `b` |\n|---|---|\n| **c** | d |") == (
        '<div class="scroll" tabindex="0"><table><thead><tr><th>a</th><th><code>b</code></th></tr></thead>'
        "<tbody><tr><td><b>c</b></td><td>d</td></tr></tbody></table></div>"
    )
    assert block("- one\n  more\n- [two](#here) [three](there.md)") == (
        '<ul><li>one\n  more\n</li><li><a href="#here">two</a> three</li></ul>'
    )


def test_where_it_is_not_installed_there_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(errors_page, "_PLACES", (tmp_path / "errors.md",))
    assert sections.__wrapped__() == ()
