"""docs/performance.md: the text is written by hand, the figures between the marks by `python -m bench report`.

A mark is a pair of lines, `<!-- figures: NAME -->` and `<!-- end: NAME -->`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from bench.results import load
from bench.sheets import sections

PAGE = Path("docs/performance.md")
FOLDER = Path("docs/performance")
_MARKED = re.compile(r"(?P<begin><!-- figures: (?P<name>\w+) -->\n).*?(?P<end><!-- end: (?P=name) -->)", re.DOTALL)


def marks(text: str) -> list[str]:
    """The names of a page's marks, in order."""
    return [match["name"] for match in _MARKED.finditer(text)]


def filled(text: str, documents: dict[str, Any]) -> str:
    """A page with its figures written again. Raises KeyError for a mark that there is no table for."""
    made = sections(documents)
    return _MARKED.sub(lambda match: f"{match['begin']}\n{made[match['name']]()}\n\n{match['end']}", text)


def write(page: Path = PAGE, folder: Path = FOLDER) -> None:
    """Write the figures of a folder's files into a page."""
    page.write_text(filled(page.read_text("utf-8"), load(folder)), "utf-8")
