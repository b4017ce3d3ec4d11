"""Formats rows as tables in HTML and as text, for notebooks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from transactional.model.drawing.formats import DASH


@dataclass(frozen=True, slots=True)
class TitledRows:
    """Rows of a table with their title and the names of their columns."""

    title: str
    names: Sequence[str]
    rows: Sequence[Sequence[object]]

    def cells(self) -> list[list[str]]:
        """Return the rows as texts, with a dash for NULL."""
        return [[DASH if cell_value is None else str(cell_value) for cell_value in row] for row in self.rows]


def tables_to_html(tables: Sequence[TitledRows]) -> str:
    """Return the tables as HTML, below one another. Every text is escaped."""
    return "".join(map(_table_to_html, tables))


def _table_to_html(table: TitledRows) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in table.names)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in table.cells())
    caption = f"<caption>{escape(table.title)}</caption>"
    return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def tables_to_text(tables: Sequence[TitledRows]) -> str:
    """Return the tables as lines of text, with aligned columns."""
    return "\n".join(line for table in tables for line in _text_lines(table))


def _text_lines(table: TitledRows) -> Iterator[str]:
    rows = [list(table.names), *table.cells()]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    yield table.title
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
