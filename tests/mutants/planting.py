"""The list of wrong variants, and how one is planted: old text -> new text, once, at one file."""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
VARIANTS = Path(__file__).parent / "variants"


@dataclass(frozen=True, slots=True)
class Variant:
    """A wrong variant of one file: `old`, which stands there once, is `new` in it.

    `shows` is what a user would notice. `lives` is why no test of `make check` has to catch it; empty: one has to.
    """

    name: str
    file: str
    shows: str
    old: str
    new: str
    lives: str = ""

    def planted(self, text: str) -> str:
        """The text of the file, as it is in the variant. Raises `ValueError` where it does not apply."""
        if (times := text.count(self.old)) != 1:
            raise ValueError(f"{self.name}: {self.file} has the old text {times} times, which has to stand there once")
        if self.old == self.new:
            raise ValueError(f"{self.name} changes nothing")
        return text.replace(self.old, self.new)


def variants(folder: Path = VARIANTS) -> list[Variant]:
    """All variants, file by file, in the order of their names."""
    tables = [tomllib.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.toml"))]
    return [Variant(**each) for table in tables for each in table["variant"]]


def problems_of(every: Iterable[Variant], root: Path = ROOT) -> Iterator[str]:
    """Why variants can't be planted, or told apart."""
    every = list(every)
    yield from (
        f"{times} variants are called {name}" for name, times in Counter(v.name for v in every).items() if times > 1
    )
    for variant in every:
        if not variant.shows:
            yield f"{variant.name} does not say what a user would notice"
        try:
            compile(variant.planted((root / variant.file).read_text(encoding="utf-8")), variant.file, "exec")
        except (OSError, SyntaxError, ValueError) as error:
            yield f"{variant.name}: {error}"
