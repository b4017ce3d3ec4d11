"""The pages with figures: the text is written by hand, what is between the marks by `python -m bench report`.

A mark is a pair of lines, `<!-- figures: NAME -->` and `<!-- end: NAME -->`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from bench.results import load
from bench.sheets import sections

PAGES = (Path("docs/performance.md"), Path("docs/performance/measurements.md"), Path("docs/explanation/scaling.md"))
FOLDER = Path("docs/performance")
_MARKED = re.compile(r"(?P<begin><!-- figures: (?P<name>\w+) -->\n).*?(?P<end><!-- end: (?P=name) -->)", re.DOTALL)


def marks(text: str) -> list[str]:
    """The names of a page's marks, in order."""
    return [match["name"] for match in _MARKED.finditer(text)]


def filled(text: str, documents: dict[str, Any]) -> str:
    """A page with its figures written again. Raises KeyError for a mark that there is no table for."""
    made = sections(documents)
    return _MARKED.sub(lambda match: f"{match['begin']}\n{made[match['name']]()}\n\n{match['end']}", text)


def write(folder: Path = FOLDER) -> list[Path]:
    """Write the figures of a folder's files into the pages around it, where it has any; return their paths."""
    pages = [page for page in (folder.parent / each.relative_to(FOLDER.parent) for each in PAGES) if page.exists()]
    for page in pages:
        page.write_text(filled(page.read_text("utf-8"), load(folder)), "utf-8")
    return pages
