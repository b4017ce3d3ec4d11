"""docs/proof.json: how each part of the proof has ended last, and over which code.

Parts stand on hundreds of files, and mostly on the same: the file names each of them once, and a part's entry has their
numbers, as `0-211,214`. A file keeps its number as long as any part stands on it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

UNKNOWN_S = 60.0
"""What a part is taken to need of whose kind none has passed."""


@dataclass(frozen=True, slots=True)
class Entry:
    """How a part has ended: over which code, when, with which seed, after which time, what it has proved, and on which
    files it stands."""

    passed: bool
    digest: str
    commit: str
    at: str
    seed: int
    took_s: float
    processors_s: float = 0.0
    counts: Mapping[str, int] = field(default_factory=dict)
    files: frozenset[str] = field(default=frozenset())


@dataclass(frozen=True, slots=True)
class Proof:
    """What the file says. Of each part how it has ended last, None: never; and of each function how many of its parts
    have passed over code that was another one at this commit and time. `files` have their numbers by their order."""

    parts: Mapping[str, Entry | None] = field(default_factory=dict)
    stale: Mapping[str, int] = field(default_factory=dict)
    commit: str = ""
    at: str = ""
    files: tuple[str, ...] = ()

    @classmethod
    def read(cls, file: Path) -> Proof:
        """That of nothing where there is no file."""
        if not file.exists():
            return cls()
        kept = json.loads(file.read_text(encoding="utf-8"))
        files = tuple(kept["files"])

        def entry_of(fields: Mapping[str, Any]) -> Entry:
            return Entry(**{**fields, "files": frozenset(files[number] for number in read_numbers(fields["files"]))})

        parts = {name: entry_of(fields) if fields else None for name, fields in kept["parts"].items()}
        return cls(parts, kept["stale"], kept["commit"], kept["at"], files)

    def text(self) -> str:
        """A line for each part, so that what changes in the file is what was run."""
        used = frozenset[str]().union(*(entry.files for entry in self.parts.values() if entry))
        files = [*(name for name in self.files if name in used), *sorted(used.difference(self.files))]
        number_of = {name: number for number, name in enumerate(files)}

        def fields_of(entry: Entry) -> dict[str, Any]:
            return {**asdict(entry), "files": write_numbers(map(number_of.__getitem__, entry.files))}

        said = [f'"{name}": {json.dumps(getattr(self, name), sort_keys=True)}' for name in ("at", "commit", "stale")]
        entries = ((name, fields_of(entry) if entry else None) for name, entry in sorted(self.parts.items()))
        lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(entry)}" for name, entry in entries)
        names = ",\n".join(f"  {json.dumps(name)}" for name in files)
        return "{\n " + ",\n ".join([*said, f'"parts": {{\n{lines}\n }}', f'"files": [\n{names}\n ]']) + "\n}\n"

    def takes_s(self, name: str) -> float:
        """How long a part takes, as it did last; one that has not passed as long as the longest of its kind."""
        entry = self.parts.get(name)
        if entry is not None and entry.passed:
            return entry.took_s
        passed = [
            each for other, each in self.parts.items() if each and each.passed and kind_of(other) == kind_of(name)
        ]
        return max((each.took_s for each in passed), default=UNKNOWN_S)


def kind_of(name: str) -> str:
    """The function that a part is of, or the file."""
    return name.partition("[")[0]


def write_numbers(numbers: Iterable[int]) -> str:
    """Numbers that follow each other as a range: `0-3,5`."""
    ranges = list[list[int]]()
    for number in sorted(numbers):
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ",".join(f"{first}-{last}" if last > first else f"{first}" for first, last in ranges)


def read_numbers(text: str) -> Iterator[int]:
    """The numbers of `write_numbers`."""
    for each in filter(None, text.split(",")):
        first, _, last = each.partition("-")
        yield from range(int(first), int(last or first) + 1)
