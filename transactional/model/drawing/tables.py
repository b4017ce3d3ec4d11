"""Rows as a table, for notebooks: in HTML, and as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from transactional.model.drawing.formats import NOTHING


@dataclass(frozen=True, slots=True)
class Shown:
    """Some rows of a table under its title."""

    title: str
    names: Sequence[str]
    rows: Sequence[Sequence[object]]

    def cells(self) -> list[list[str]]:
        """The rows as texts; a dash for NULL."""
        return [[NOTHING if value is None else str(value) for value in row] for row in self.rows]


def in_html(tables: Sequence[Shown]) -> str:
    """The tables below one another. Every text is escaped."""
    return "".join(map(_table, tables))


def _table(table: Shown) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in table.names)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in table.cells())
    caption = f"<caption>{escape(table.title)}</caption>"
    return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def in_text(tables: Sequence[Shown]) -> str:
    """The same, in columns."""
    return "\n".join(line for table in tables for line in _lines(table))


def _lines(table: Shown) -> Iterator[str]:
    rows = [list(table.names), *table.cells()]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    yield table.title
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
