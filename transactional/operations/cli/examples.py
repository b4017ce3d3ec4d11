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
from transactional.operations.cli.output.lines import print_line, print_table

FOLDER = "examples"
"""The folder of the examples in a clone, in the wheel and of a copy, so that all import each other alike."""


def examples(
    name: Annotated[str | None, typer.Argument(help="Which one; by default all are listed.")] = None,
) -> None:
    """List the examples, or copy one into the folder `examples` here, where it can be run and changed.

    What it imports of other examples is copied as well. No file is replaced.
    """
    sources = _read_sources()
    titles = {module: title for module, text in sources.items() if (title := _title_of(text))}
    if name is None:
        table = Table.grid(padding=(0, 2, 0, 0))
        for row in titles.items():
            table.add_row(*map(Text, row))
        print_table(table)
        return
    if name not in titles:
        raise ConfigError(f"there is no example {name!r}; there are: {', '.join(titles)}{did_you_mean(name, titles)}")
    for module in ("__init__", *_with_imports(name, sources)):
        _copy(Path(FOLDER, f"{module}.py"), sources[module])
    print_line(f"run it: python -m {FOLDER}.{name}")


def _read_sources() -> Mapping[str, str]:
    """Return the texts of the examples by module, from the wheel, which has them as data, or from the clone."""
    package = Path(__file__).parents[2]
    packaged = package / FOLDER
    folder = packaged if packaged.is_dir() else package.parent / FOLDER
    return {path.stem: path.read_text("utf-8") for path in sorted(folder.glob("*.py"))}


def _title_of(text: str) -> str:
    """Return the first line of a module's docstring, or nothing if the module is no program."""
    doc = ast.get_docstring(ast.parse(text)) or ""
    return doc.partition("\n")[0] if '__name__ == "__main__"' in text else ""


def _with_imports(name: str, sources: Mapping[str, str]) -> Iterator[str]:
    """Yield an example, and the other examples that it imports."""
    yield name
    for node in ast.parse(sources[name]).body:
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith(f"{FOLDER}."):
            yield from _with_imports(str(node.module).rpartition(".")[2], sources)


def _copy(path: Path, text: str) -> None:
    if path.exists() and path.read_text("utf-8") != text:
        raise ConfigError(f"{path} is there, and differs: give it another name, or delete it")
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, "utf-8")
    print_line(str(path))
