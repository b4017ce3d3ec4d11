"""The files of the repository: what git tracks, and nothing that a run, a tool or a person has left beside them."""

from __future__ import annotations

import functools
import subprocess
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).parents[2]


@functools.cache
def our_files(root: Path = ROOT) -> tuple[Path, ...]:
    """Every file of the repository, sorted. Without git, as in an archive, all that `.gitignore` does not name."""
    tracked = _tracked(root)
    return tuple(sorted(path for path in (tracked or _not_ignored(root)) if path.is_file()))


def python_files(folders: tuple[str, ...], root: Path = ROOT) -> list[Path]:
    """The Python files below the folders named."""
    return [path for path in our_files(root) if path.suffix == ".py" and path.relative_to(root).parts[0] in folders]


def text_files(root: Path = ROOT) -> Iterator[tuple[Path, str]]:
    """Every text file and its text."""
    for path in our_files(root):
        try:
            yield path, path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue


def _tracked(root: Path) -> list[Path]:
    """What git tracks here; nothing without git, or where an archive lies in another repository."""
    try:
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, check=False)
    except FileNotFoundError:
        return []
    return [root / name for name in listed.stdout.decode().split("\0") if name]


def _not_ignored(root: Path) -> Iterator[Path]:
    lines = (root / ".gitignore").read_text(encoding="utf-8").splitlines()
    ignored = [".git", *(line.strip("/") for line in lines if line and not line.startswith("#"))]

    def walk(folder: Path) -> Iterator[Path]:
        for path in folder.iterdir():
            if any(fnmatch(path.name, pattern) for pattern in ignored):
                continue
            if path.is_dir():
                yield from walk(path)
            else:
                yield path

    return walk(root)
