"""What a benchmark says: all tables on the terminal, plots, and the figures of docs/performance.md."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench import page, plots
from bench.results import load
from bench.sheets import Sheet, all_sheets

WIDTH = 190


def show(folder: Path, console: Console) -> None:
    """Print every table that a folder's files give."""
    for sheet in all_sheets(load(folder)):
        if sheet.rows:
            console.print(_table(sheet))


def save(folder: Path) -> list[Path]:
    """Draw the plots, and write the figures into the pages around the folder; return the paths."""
    return [*plots.save(load(folder), folder), *page.write(folder)]


def main(arguments: Sequence[str]) -> None:
    """`python -m bench report [folder]`: show and write what was measured before."""
    folder = Path(arguments[0]) if arguments else page.FOLDER
    console = Console(width=WIDTH)
    show(folder, console)
    for path in save(folder):
        console.print(f"written: {path}")


def _table(sheet: Sheet) -> Table:
    table = Table(title=sheet.title, title_justify="left")
    for column in sheet.columns:
        table.add_column(column)
    for row in sheet.rows:
        table.add_row(*(cell.replace("**", "").replace("`", "") for cell in row))
    return table
