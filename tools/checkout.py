"""The Python modules of a checkout, and what each of them imports.

Everything is read from the source and nothing is run, so that a commit of long ago is read by the same rules.
"""

from __future__ import annotations

import ast
from collections.abc import Container, Iterable, Iterator
from pathlib import Path, PurePath


def read_modules(checkout: Path, packages: Iterable[str]) -> dict[PurePath, ast.Module]:
    """Return the modules of packages by their paths in the checkout, sorted."""
    paths = sorted(path for package in packages for path in (checkout / package).rglob("*.py"))
    return {path.relative_to(checkout): ast.parse(path.read_text("utf-8")) for path in paths}


def module_name(path: PurePath) -> str:
    """Return the name of the module at a path in the checkout: `state/__init__.py` is `state`."""
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


def read_imports(nodes: Iterable[ast.AST], modules: Container[str]) -> Iterator[tuple[str, int]]:
    """Yield the name of every module that these nodes import, with the number of its line.

    `from a import b` imports `a.b` if that is one of the modules, and otherwise `a`. A relative import keeps its dots.
    """
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            names = (f"{base}.{alias.name}" for alias in node.names)
            yield from ((name if name in modules else base, node.lineno) for name in names)
