"""The table of errors as a page: what the documentation says of each code, for whoever is woken by one at night."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from html import escape
from pathlib import Path
from typing import Final

from transactional.model.errors import by_code

_PLACES: Final = (Path(__file__).with_name("errors.md"), Path(__file__).parents[3] / "docs" / "errors.md")
"""Where the documentation's page is: installed with the package, or in a checkout."""
_CODE: Final = re.compile(r"\bTX\d{3}\b")
_INLINE: Final = (
    (re.compile(r"`([^`]+)`"), r"<code>\1</code>"),
    (re.compile(r"\*\*([^*]+)\*\*"), r"<b>\1</b>"),
    (re.compile(r"\[([^]]+)\]\((#[\w-]+)\)"), r'<a href="\2">\1</a>'),
    (re.compile(r"\[([^]]+)\]\([^)]*\)"), r"\1"),
)
"""In this order. Other pages of the documentation are not here: links to them are their words."""


@dataclass(frozen=True, slots=True)
class Section:
    """One heading of the page, where links lead to, and what is below it, as HTML."""

    title: str
    anchor: str
    content: str


def link_to(code: str) -> str | None:
    """The address of a code's section; None: there is no such code."""
    error = by_code(code)
    return None if error is None else f"/errors#{_anchor(f'{code} {error.__name__}')}"


def with_links(words: str) -> str:
    """A text as HTML, in which codes of errors lead to their sections."""

    def linked(found: re.Match[str]) -> str:
        link = link_to(found[0])
        return found[0] if link is None else f'<a href="{link}">{found[0]}</a>'

    return _CODE.sub(linked, escape(words))


@cache
def sections() -> tuple[Section, ...]:
    """The page; nothing if it is not installed."""
    place = next((each for each in _PLACES if each.exists()), None)
    if place is None:
        return ()
    _, *parts = re.split(r"^## ", place.read_text("utf-8"), flags=re.MULTILINE)
    found = (part.partition("\n")[::2] for part in parts)
    return tuple(Section(title, _anchor(title), "".join(_blocks(body))) for title, body in found)


def _anchor(title: str) -> str:
    return re.sub(r"[^\w-]", "", title.lower().replace(" ", "-"))


def _blocks(body: str) -> Iterator[str]:
    for number, part in enumerate(body.split("```")):
        if number % 2:
            yield f'<pre tabindex="0">{escape(part.partition(chr(10))[2])}</pre>'
            continue
        for block in re.split(r"\n\s*\n", part.strip("\n")):
            if block.strip():
                yield _block(block)


def _block(block: str) -> str:
    if block.startswith("|"):
        rows = [[_inline(cell) for cell in line.strip("| ").split(" | ")] for line in block.splitlines()]
        head, body = "".join(f"<th>{cell}</th>" for cell in rows[0]), rows[2:]
        lines = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in body)
        table = f"<table><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table>"
        return f'<div class="scroll" tabindex="0">{table}</div>'
    if block.startswith("- "):
        items = re.split(r"^- ", block, flags=re.MULTILINE)[1:]
        return "<ul>" + "".join(f"<li>{_inline(item)}</li>" for item in items) + "</ul>"
    return f"<p>{_inline(block)}</p>"


def _inline(words: str) -> str:
    words = escape(words)
    for pattern, instead in _INLINE:
        words = pattern.sub(instead, words)
    return words
