"""How many of all crash points were reached, by their numbers and by what the effect was."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from tests.proof.effects import WHENS, Effects


@dataclass
class Coverage:
    """The crash points of several settings. A point is before or after one numbered effect of one setting."""

    what: str
    seed: int
    total: int = 0
    covered: int = 0
    twice: int = 0
    kinds: Counter[str] = field(default_factory=Counter)

    def add_total(self, effects: int) -> None:
        """So many effects has a run that does not crash."""
        self.total += effects * len(WHENS)

    def reached(self, crashed: Effects) -> None:
        """A process has crashed where it should."""
        assert crashed.crash_at is not None
        number, when, name = crashed.crash_at
        self.covered += 1
        self.kinds[f"{when} {name or crashed.names[number - 1]}"] += 1

    def __str__(self) -> str:
        again = f"; {self.twice:,} more crashed again while they recovered" if self.twice else ""
        return (
            f"{self.what}: {self.covered:,} of {self.total:,} covered (seed {self.seed}), "
            f"of {len(self.kinds)} kinds{again}"
        )
