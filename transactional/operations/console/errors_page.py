"""The page of error codes, converted from the documentation's, for operators without access to the documentation."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from html import escape
from pathlib import Path
from typing import Final

from transactional.model.errors import error_class_of

_PLACES: Final = (Path(__file__).with_name("errors.md"), Path(__file__).parents[3] / "docs" / "errors.md")
"""Where the documentation's page is: installed with the package, or in a checkout."""
_CODE: Final = re.compile(r"\bTX\d{3}\b")
_INLINE: Final = (
    (re.compile(r"`([^`]+)`"), r"<code>\1</code>"),
    (re.compile(r"\*\*([^*]+)\*\*"), r"<b>\1</b>"),
    (re.compile(r"\[([^]]+)\]\((#[\w-]+)\)"), r'<a href="\2">\1</a>'),
    (re.compile(r"\[([^]]+)\]\([^)]*\)"), r"\1"),
)
"""The replacements of Markdown, in their order. A link to another page of the documentation becomes its words."""


@dataclass(frozen=True, slots=True)
class Section:
    """A section of the page: its heading, the anchor of links to it, and its content as HTML."""

    title: str
    anchor: str
    content: str


def link_to(code: str) -> str | None:
    """Return the address of a code's section, or None if there is no such code."""
    error = error_class_of(code)
    return None if error is None else f"/errors#{_anchor(f'{code} {error.__name__}')}"


def with_links(words: str) -> str:
    """Return a text as HTML in which error codes are links to their sections."""

    def link_code(code: re.Match[str]) -> str:
        link = link_to(code[0])
        return code[0] if link is None else f'<a href="{link}">{code[0]}</a>'

    return _CODE.sub(link_code, escape(words))


@cache
def sections() -> tuple[Section, ...]:
    """Read the sections of the page; none if it is not installed."""
    page = next((path for path in _PLACES if path.exists()), None)
    if page is None:
        return ()
    _, *parts = re.split(r"^## ", page.read_text("utf-8"), flags=re.MULTILINE)
    titles_and_bodies = (part.partition("\n")[::2] for part in parts)
    return tuple(Section(title, _anchor(title), "".join(_convert_blocks(body))) for title, body in titles_and_bodies)


def _anchor(title: str) -> str:
    return re.sub(r"[^\w-]", "", title.lower().replace(" ", "-"))


def _convert_blocks(body: str) -> Iterator[str]:
    for number, part in enumerate(body.split("```")):
        if number % 2:
            yield f'<pre tabindex="0">{escape(part.partition(chr(10))[2])}</pre>'
            continue
        for block in re.split(r"\n\s*\n", part.strip("\n")):
            if block.strip():
                yield _convert_block(block)


def _convert_block(block: str) -> str:
    if block.startswith("|"):
        rows = [[_convert_inline(cell) for cell in line.strip("| ").split(" | ")] for line in block.splitlines()]
        head, body = "".join(f"<th>{cell}</th>" for cell in rows[0]), rows[2:]
        lines = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in body)
        table = f"<table><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table>"
        return f'<div class="scroll" tabindex="0">{table}</div>'
    if block.startswith("- "):
        entries = re.split(r"^- ", block, flags=re.MULTILINE)[1:]
        return "<ul>" + "".join(f"<li>{_convert_inline(entry)}</li>" for entry in entries) + "</ul>"
    return f"<p>{_convert_inline(block)}</p>"


def _convert_inline(words: str) -> str:
    words = escape(words)
    for pattern, replacement in _INLINE:
        words = pattern.sub(replacement, words)
    return words
