"""What a transaction did by the time that it is committed, for people: no decision depends on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

IN_DRIVER: Final = "in the driver"
IN_WORKERS: Final = "in workers"
ON_SPARK: Final = "on Spark"
"""Where a processing phase runs; stored with transactions."""


@dataclass(frozen=True, slots=True)
class CommitReport:
    """What both phases of one attempt did. It goes with its `CommitSucceeded`, and is stored with the transaction
    commit."""

    edges: Mapping[tuple[str, str, str], int] = field(default_factory=dict)
    """The number of tuples by source, stream and target."""
    states: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Of each committer: after how many milliseconds of the commit phase its step began (`at`), how many it took
    (`ms`), the number of `rows` written to its state, and what that knows of its write (`CommitFacts`)."""
    letters: Mapping[str, int] = field(default_factory=dict)
    """The number of dead letters, by the component that they were set aside from."""
    steps: Mapping[str, str] = field(default_factory=dict)
    """Where the steps ran that may run as jobs, and why."""
    late: Mapping[str, int] = field(default_factory=dict)
    """The number of tuples that were left out as late, by the component that has the windows."""
    processing: str = ""
    """Where the processing phase ran; and why there, if there was a choice."""
    counters: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """What bolts count themselves, by component and name."""
    upkeep: Mapping[str, str] = field(default_factory=dict)
    """The committers whose tables can't be maintained, with what fails."""

    def details(self) -> dict[str, Any]:
        """What the store keeps of it, as JSON values."""
        optional = {"letters_of": self.letters, "steps": self.steps, "late": self.late, "upkeep": self.upkeep}
        return {
            "edges": [[*edge, number] for edge, number in sorted(self.edges.items())],
            "states": dict(self.states),
            "letters": sum(self.letters.values()),
            **{name: dict(values) for name, values in optional.items() if values},
            **({"counters": [[*of, number] for of, number in sorted(self.counters.items())]} if self.counters else {}),
            **({"processing": self.processing} if self.processing else {}),
        }

    @property
    def set_aside(self) -> str:
        """How many tuples were set aside, and of which components, in words; empty: none."""
        count = sum(self.letters.values())
        components = ", ".join(map(repr, self.letters))
        return f"{count} tuple{'' if count == 1 else 's'} set aside, of {components}" if count else ""

    def __str__(self) -> str:
        executors = [f"processed {self.processing}"] if ": " in self.processing else []
        return "; ".join([*executors, *(f"{component}: {executor}" for component, executor in self.steps.items())])
