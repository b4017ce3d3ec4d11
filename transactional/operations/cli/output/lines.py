"""Prints lines, and tables as wide as the screen, for every command. Imports nothing that runs a topology."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.table import Table
from rich.tree import Tree

from transactional.model.plumbing.redaction import escape_controls

WIDTH_MAX = 10_000


def print_line(text: str) -> None:
    """Print a line on stdout, without colors or wrapping."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def make_plain_console(width: int | None = None) -> Console:
    """Return a console that shows texts unchanged: rich would interpret parts of an error as markup or emoji."""
    return Console(width=width, markup=False, emoji=False, highlight=False)


def print_table(table: Table | Tree) -> None:
    """Print a table or a tree; if stdout is not a terminal, as wide as necessary, and without trailing blanks."""
    if sys.stdout.isatty():
        make_plain_console().print(table)
        return
    console = make_plain_console(WIDTH_MAX)
    with console.capture() as printed:
        console.print(table)
    print_line("\n".join(line.rstrip() for line in printed.get().splitlines()))


def first_line(text: str | None) -> str:
    """Return the text before a traceback, without the control characters that a value of a tuple may have."""
    return escape_controls(next(iter((text or "").splitlines()), ""))
