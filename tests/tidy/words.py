"""Counts the names and docstrings of a file that a stranger does not understand.

`python -m tests.tidy.words` writes today's counts to words.toml, which `test_plain_words` holds as ceilings. It does so
only if no sum has grown, so that the ceilings fall. A file that is not listed may have none.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Final

from tests.tidy.files import ROOT, python_files
from tests.tidy.parsing import parsed

PACKAGES: Final = ("transactional", "spouts", "state", "sinks", "verifier")
RECORD: Final = ROOT / "tests" / "tidy" / "words.toml"
_WORDS: Final = """
    found told tell tells known knows wanted kept left gone met touched reached written noted given taken made shown
    said named seen done past held begun lost meant settled stays goes
    at on of off over under before after behind beside between by into out up within without
    all each every one ones other others rest own its it them this that those these so there here where
    which what who whose how why now then once anew again alone near
"""
NO_NOUNS: Final = frozenset(_WORDS.split())
"""Participles, prepositions and pronouns, which say nothing of what a name stands for."""
VAGUE: Final = frozenset({"result", "res", "item", "value", "data", "obj", "tmp", "info", "x"})
_MIDDLE: Final = re.compile(
    r"(What|Those|Of|As|Which|It|So|By|They|Them|These|That|Whoever|Whatever|Who|Whose|Its|Their|In|On|At|For|From|To|"
    r"With|Without|Over|Before|After|Until|Also|Only|But|And|Or|Then|Now|Not|No|Each|All|Both|Some|Others?)\b"
)
"""The first word of a docstring that begins in the middle: its subject is not named."""
KINDS: Final = ("names", "vague names", "docstrings that begin in the middle", "docstrings of four words or fewer")
Counts = tuple[int, ...]


def names_bound(tree: ast.Module) -> Iterator[str]:
    """Yield every name that a module binds: functions, classes, arguments, variables, attributes of `self`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.id if isinstance(node, ast.Name) else node.attr
        elif isinstance(node, ast.ExceptHandler | ast.alias):
            yield (node.name if isinstance(node, ast.ExceptHandler) else node.asname) or ""


def docstrings(tree: ast.Module) -> Iterator[str]:
    """Yield the docstrings of functions and classes, and the strings under what is assigned."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module):
            for above, statement in pairwise([None, *node.body]):
                text = _text_of(statement)
                if (
                    text is not None
                    and isinstance(above, ast.Assign | ast.AnnAssign | None)
                    and statement is not tree.body[0]
                ):
                    yield text


def _text_of(statement: ast.stmt | None) -> str | None:
    is_text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    return statement.value.value if is_text and isinstance(statement.value.value, str) else None  # type: ignore[union-attr]


def counts_of(tree: ast.Module) -> Counts:
    """Return how many of each of `KINDS` a module has."""
    names = Counter(name.strip("_") for name in names_bound(tree))
    texts = list(docstrings(tree))
    return (
        sum(number for name, number in names.items() if name in NO_NOUNS),
        sum(number for name, number in names.items() if name in VAGUE),
        sum(_MIDDLE.match(text) is not None for text in texts),
        sum(len(text.split()) <= 4 for text in texts),
    )


def counts_by_file(root: Path = ROOT) -> dict[str, Counts]:
    """Return the counts of every file that has any."""
    counts = {
        path.relative_to(root).as_posix(): counts_of(parsed(path.read_text("utf-8"))) for path in python_files(PACKAGES)
    }
    return {file: each for file, each in counts.items() if any(each)}


def read_ceilings() -> dict[str, Counts]:
    """Return the ceilings by file."""
    return {file: tuple(counts) for file, counts in tomllib.loads(RECORD.read_text("utf-8")).items()}


def sums(counts: dict[str, Counts]) -> Counts:
    """Return the sum of each kind."""
    return tuple(map(sum, zip(*counts.values(), strict=True))) or (0,) * len(KINDS)


def main() -> None:
    """Write today's counts, and print their sums by folder."""
    counts = counts_by_file()
    if RECORD.exists() and any(now > before for now, before in zip(sums(counts), sums(read_ceilings()), strict=True)):
        sys.exit(f"a sum has grown: {sums(read_ceilings())} before, {sums(counts)} now, of {', '.join(KINDS)}")
    lines = [f'"{file}" = {list(each)}\n' for file, each in sorted(counts.items())]
    RECORD.write_text(f"# {', '.join(KINDS)}\n{''.join(lines)}", encoding="utf-8")
    folders: dict[str, Counts] = {}
    for file, each in counts.items():
        folder = file.rpartition("/")[0]
        folders[folder] = tuple(map(sum, zip(folders.get(folder, (0,) * len(KINDS)), each, strict=True)))
    for folder, each in sorted(folders.items()):
        sys.stdout.write(f"{folder:45} {'  '.join(f'{number:5}' for number in each)}\n")
    sys.stdout.write(f"{'all':45} {'  '.join(f'{number:5}' for number in sums(counts))}\n")


if __name__ == "__main__":
    main()
