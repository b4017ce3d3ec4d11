"""`transactional examples`: lists the topologies to start from, and copies one into this folder."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from transactional.model.errors import ConfigError
from transactional.model.schema import did_you_mean
from transactional.operations.cli.output.lines import plain_line, print_table

FOLDER = "examples"
"""In it they are in a clone and in the wheel, and in it a copy lies: so they import each other, and are run, alike."""


def examples(
    name: Annotated[str | None, typer.Argument(help="Which one; by default all are listed.")] = None,
) -> None:
    """List the examples, or copy one into the folder `examples` here, where it can be run and changed.

    What it imports of other examples is copied as well. No file is replaced.
    """
    sources = _sources()
    titles = {each: title for each, text in sources.items() if (title := _title(text))}
    if name is None:
        table = Table.grid(padding=(0, 2, 0, 0))
        for row in titles.items():
            table.add_row(*map(Text, row))
        print_table(table)
        return
    if name not in titles:
        raise ConfigError(f"there is no example {name!r}; there are: {', '.join(titles)}{did_you_mean(name, titles)}")
    for each in ("__init__", *_with_imports(name, sources)):
        _copy(Path(FOLDER, f"{each}.py"), sources[each])
    plain_line(f"run it: python -m {FOLDER}.{name}")


def _sources() -> Mapping[str, str]:
    """Module → text: of the wheel, which has them as data, or of the clone."""
    package = Path(__file__).parents[2]
    within = package / FOLDER
    folder = within if within.is_dir() else package.parent / FOLDER
    return {path.stem: path.read_text("utf-8") for path in sorted(folder.glob("*.py"))}


def _title(text: str) -> str:
    """The first line of its docstring; of what is no program, none."""
    doc = ast.get_docstring(ast.parse(text)) or ""
    return doc.partition("\n")[0] if '__name__ == "__main__"' in text else ""


def _with_imports(name: str, sources: Mapping[str, str]) -> Iterator[str]:
    """An example, and the modules beside it that it imports."""
    yield name
    for node in ast.parse(sources[name]).body:
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith(f"{FOLDER}."):
            yield from _with_imports(str(node.module).rpartition(".")[2], sources)


def _copy(path: Path, text: str) -> None:
    if path.exists() and path.read_text("utf-8") != text:
        raise ConfigError(f"{path} is there, and differs: give it another name, or delete it")
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, "utf-8")
    plain_line(str(path))
