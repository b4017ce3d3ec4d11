"""The pages of the documentation, cut into what the tests look at: fenced blocks, links, headings."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]

_FENCE = re.compile(r"^```(?P<language>\S*)[^\n]*\n(?P<text>.*?)^```[ \t]*$", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"(?<!!)\[[^\]]+\]\((?P<target>[^)\s]+)\)")
_HEADING = re.compile(r"^#{1,6} +(?P<title>.+?)\s*$", re.MULTILINE)
_FILE_NAME = re.compile(r"# (?P<name>\w+\.py)\n")


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block. `line` is that of its first line of text in the page, counted from 1."""

    language: str
    text: str
    line: int
    answers_previous: bool
    """True when nothing but blank lines stands between the block before and this one."""

    @property
    def file_name(self) -> str | None:
        """The file that a Python block is to be saved as: its first line says so (`# words.py`)."""
        match = _FILE_NAME.match(self.text) if self.language == "python" else None
        return match["name"] if match else None


def pages() -> list[Path]:
    """Every page: those at the root and all below docs/."""
    return [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


def name_of(page: Path) -> str:
    """The page's path from the root."""
    return page.relative_to(ROOT).as_posix()


def blocks(text: str) -> list[Block]:
    """The fenced blocks of a page, in order."""
    found: list[Block] = []
    end = 0
    for match in _FENCE.finditer(text):
        line = text.count("\n", 0, match.start("text")) + 1
        adjacent = bool(found) and not text[end : match.start()].strip()
        found.append(Block(match["language"], match["text"], line, adjacent))
        end = match.end()
    return found


def commands(block: Block) -> Iterator[tuple[str, str]]:
    """The commands of a `console` block, each with the output shown below it; of a `bash` block each line."""
    if block.language == "bash":
        lines = block.text.replace("\\\n", " ").splitlines()
        yield from ((line, "") for line in lines if line.strip() and not line.startswith("#"))
        return
    for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        command, _, output = part.partition("\n")
        yield command, output


def prose(text: str) -> str:
    """The page without its fenced blocks."""
    return _FENCE.sub("", text)


def links(text: str) -> list[str]:
    """The targets of the links in a page's prose."""
    return [match["target"] for match in _LINK.finditer(prose(text))]


def anchors(text: str) -> set[str]:
    """The fragments by which a page's headings can be linked to, as GitHub makes them."""
    titles = (match["title"] for match in _HEADING.finditer(prose(text)))
    plain = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).replace("`", "") for title in titles)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in plain}


def code_words(text: str) -> list[str]:
    """What stands between single backticks in a page's prose."""
    return re.findall(r"(?<!`)`([^`\n]+)`(?!`)", prose(text))
