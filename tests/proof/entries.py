"""docs/proof.json: how each part of the proof has ended last, and over which code."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

UNKNOWN_S = 60.0
"""What a part is taken to need of whose kind none has passed."""


@dataclass(frozen=True, slots=True)
class Entry:
    """How a part has ended: over which code, when, with which seed, after which time, and what it has proved."""

    passed: bool
    digest: str
    commit: str
    at: str
    seed: int
    took_s: float
    processors_s: float = 0.0
    counts: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Proof:
    """What the file says. Of each part how it has ended last, None: never; and of each function how many of its parts
    have passed over code that was another one at this commit and time."""

    parts: Mapping[str, Entry | None] = field(default_factory=dict)
    stale: Mapping[str, int] = field(default_factory=dict)
    commit: str = ""
    at: str = ""

    @classmethod
    def read(cls, file: Path) -> Proof:
        """That of nothing where there is no file."""
        if not file.exists():
            return cls()
        kept = json.loads(file.read_text(encoding="utf-8"))
        parts = {name: Entry(**entry) if entry else None for name, entry in kept["parts"].items()}
        return cls(parts, kept["stale"], kept["commit"], kept["at"])

    def text(self) -> str:
        """A line for each part, so that what changes in the file is what was run."""
        said = [f'"{name}": {json.dumps(getattr(self, name), sort_keys=True)}' for name in ("at", "commit", "stale")]
        entries = ((name, asdict(entry) if entry else None) for name, entry in sorted(self.parts.items()))
        lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(entry)}" for name, entry in entries)
        return "{\n " + ",\n ".join([*said, f'"parts": {{\n{lines}\n }}']) + "\n}\n"

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
    """The function that a part is of."""
    return name.partition("[")[0]
