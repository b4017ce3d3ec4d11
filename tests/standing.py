"""What a test stands on: its module, the modules that it imports, and theirs, as far as they are this repository's.

Read from the sources, wherever an import stands but under TYPE_CHECKING. What a process has loaded narrows it down, but
is not finer by itself: with this repository's doors a process loads much that its tests have nothing to do with.

- `from state import DeltaMapState` stands on the module that has the class, not on all that `state` offers.
- A module whose name is a string, such as a program's (`-m`) or a topology's (`module:build`), is imported, too.
- Of a `conftest` only the fixtures count that the test has, with what these use. Pytest's hooks decide which tests run
  and what they report, not what is right.
- Files that are not Python count with the modules beside them, such as the templates of a page.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable, Iterator
from functools import cache
from itertools import chain
from pathlib import Path, PurePosixPath

from tests.resuming import ROOT
from tests.tidy.files import our_files
from tests.tidy.parsing import lines_for_types, nodes_of, parsed

Need = tuple[str, frozenset[str]]
"""A module, and of a `conftest` the names that are used of it."""
COMMAND_LINE = "transactional.operations.cli.main"
"""It finds stores and states by the entry points of pyproject.toml."""
_NAMED = re.compile(r"""["']([A-Za-z_]\w*(?:\.\w+)+)(?::\w+)?["']""")


class Sources:
    """The modules of a repository, each looked at once."""

    def __init__(self, root: Path = ROOT) -> None:
        names = [path.relative_to(root).as_posix() for path in our_files(root)]
        self._root, self._files = root, {module_of(name): name for name in names if name.endswith(".py")}
        folders = {folder_of(name) for name in self._files.values()}
        self._beside = [(home_of(name, folders), name) for name in names if not name.endswith(".py")]
        self._direct = cache(self._imported)

    def under(self, test: str, fixtures: Iterable[str] = (), loaded: Collection[str] | None = None) -> list[str]:
        """The files that a file of tests stands on, itself included, sorted; `fixtures` are those of its tests. Of the
        modules only those that are among `loaded`, if that is given."""
        used, found = frozenset(fixtures), set[Need]()
        conftests = (module_of(f"{folder}/conftest.py") for folder in PurePosixPath(test).parents)
        waiting = [(module_of(test), used), *((each, used) for each in conftests if each in self._files)]
        while waiting:
            if (need := waiting.pop()) not in found:
                found.add(need)
                waiting += self._direct(need)
        modules = {module for module, _ in found}
        packages = {package for module in modules for package in above(module) if package in self._files}
        files = {self._files[module] for module in modules | packages}
        files = files if loaded is None else files.intersection(loaded)
        folders = {folder_of(name) for name in files}
        return sorted(files | {name for home, name in self._beside if home in folders})

    def _imported(self, need: Need) -> set[Need]:
        """What a module imports itself."""
        module, used = need
        source = self._source(module)
        if module.endswith("conftest"):
            lines, programs = lines_of(parsed(source), used), list[str]()
        else:
            lines, programs = {*range(source.count("\n") + 2)}, _NAMED.findall(source)
        if module == COMMAND_LINE:
            programs += _NAMED.findall((self._root / "pyproject.toml").read_text(encoding="utf-8"))
        known = (self._known(each) for each in programs)
        imports = (self._origin(*name) for line, *name in imports_of(source) if line in lines)
        return {(each, frozenset[str]()) for each in known if each and not self._is_package(each)} | {*chain(*imports)}

    def _origin(self, module: str, name: str) -> Iterator[Need]:
        """Where a name comes from that is imported from a module; without a name the module itself."""
        if f"{module}.{name}" in self._files:
            yield f"{module}.{name}", frozenset()
        elif self._is_package(module) and (doors := self._door(module).get(name)):
            yield from self._origin(*doors)
        elif known := self._known(module):
            yield known, frozenset([name] if known.endswith("conftest") else [])

    def _door(self, package: str) -> dict[str, tuple[str, str]]:
        """Where the names are from that a package imports."""
        return {name: (module, name) for _, module, name in imports_of(self._source(package), types_too=True) if name}

    def _known(self, dotted: str) -> str:
        """The module of that name, or the one that has the attribute of that name; empty: it is none of ours."""
        return next((each for each in (dotted, *above(dotted)) if each in self._files), "")

    def _is_package(self, module: str) -> bool:
        return self._files.get(module, "").endswith("/__init__.py")

    def _source(self, module: str) -> str:
        return (self._root / self._files[module]).read_text(encoding="utf-8")


def module_of(file: str) -> str:
    """`state/delta/state.py` is `state.delta.state`, `state/__init__.py` is `state`."""
    return file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def above(module: str) -> Iterator[str]:
    """The packages that a module is in, from the inside to the outside."""
    while module := module.rpartition(".")[0]:
        yield module


def folder_of(file: str) -> str:
    return PurePosixPath(file).parent.as_posix()


def home_of(file: str, folders: set[str]) -> str:
    """The folder of modules that a file without code is in."""
    return next((each for each in map(str, PurePosixPath(file).parents) if each in folders), "")


def imports_of(source: str, *, types_too: bool = False) -> Iterator[tuple[int, str, str]]:
    """Each import: its line, the module, and the name that is imported from it, or none."""
    left_out = set[int]() if types_too else lines_for_types(source)
    for node in nodes_of(source):
        if node.lineno not in left_out and isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name, "") for alias in node.names)
        elif node.lineno not in left_out and isinstance(node, ast.ImportFrom):
            yield from ((node.lineno, node.module or "", alias.name) for alias in node.names)


def lines_of(conftest: ast.Module, used: Iterable[str]) -> set[int]:
    """The lines of a `conftest` that count for tests which use these fixtures: the fixtures, whatever runs in any case,
    and what these use in turn."""
    bound = {name: node for node in conftest.body for name in bound_by(node)}
    waiting = [node for node in conftest.body if not bound_by(node)]
    waiting += [node for name, node in bound.items() if name in used]
    found = set[ast.stmt]()
    while waiting:
        if (node := waiting.pop()) not in found:
            found.add(node)
            names = (
                each.arg if isinstance(each, ast.arg) else each.id
                for each in ast.walk(node)
                if isinstance(each, ast.arg | ast.Name)
            )
            waiting += [bound[name] for name in names if name in bound]
    return {line for node in found for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)}


def bound_by(node: ast.stmt) -> list[str]:
    """The names that a statement gives a meaning to."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.Import | ast.ImportFrom):
        return [alias.asname or alias.name for alias in node.names]
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)]
