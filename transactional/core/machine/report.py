"""The report of a committed transaction, for people: no decision depends on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from transactional.core.store.outbox import SinkRecords
from transactional.model.names import SINKS

IN_DRIVER: Final = "in the driver"
IN_WORKERS: Final = "in workers"
ON_SPARK: Final = "on Spark"
"""Where a processing phase runs; stored with transactions."""


@dataclass(frozen=True, slots=True)
class CommitReport:
    """The report of both phases of one attempt, sent with its `CommitSucceeded` and stored with the commit."""

    edges: Mapping[tuple[str, str, str], int] = field(default_factory=dict)
    """The number of tuples by source, stream and target."""
    states: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """The figures of each committer's step and of its state's write (`CommitFacts`).

    `at` is the beginning of the step and `ms` its length, both in milliseconds of the commit phase; `rows` is the
    number of rows written.
    """
    letters: Mapping[str, int] = field(default_factory=dict)
    """The number of dead letters, by the component that they were set aside from."""
    steps: Mapping[str, str] = field(default_factory=dict)
    """Where the steps ran that may run as jobs, and why."""
    late: Mapping[str, int] = field(default_factory=dict)
    """The number of tuples that were left out as late, by the component that has the windows."""
    processing: str = ""
    """Where the processing phase ran; and why there, if there was a choice."""
    counters: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """The counters of bolts, by component and name of the counter."""
    upkeep: Mapping[str, str] = field(default_factory=dict)
    """The committers whose tables can't be maintained, with the failure."""

    outbox: Mapping[str, SinkRecords] = field(default_factory=dict)
    """The records of each sink, which the transaction commit adds to the outbox; a sink without records has none."""

    def details(self) -> dict[str, Any]:
        """Return the report as the JSON values that are stored."""
        optional = {"letters_of": self.letters, "steps": self.steps, "late": self.late, "upkeep": self.upkeep}
        return {
            "edges": [[*edge, number] for edge, number in sorted(self.edges.items())],
            "states": dict(self.states),
            "letters": sum(self.letters.values()),
            **{name: dict(values) for name, values in optional.items() if values},
            **(
                {"counters": [[*key, number] for key, number in sorted(self.counters.items())]} if self.counters else {}
            ),
            **({"processing": self.processing} if self.processing else {}),
            **({SINKS: {sink: records.details for sink, records in self.outbox.items()}} if self.outbox else {}),
        }

    @property
    def set_aside(self) -> str:
        """The number of tuples that were set aside, with their components, in words; empty if there are none."""
        count = sum(self.letters.values())
        components = ", ".join(map(repr, self.letters))
        return f"{count} tuple{'' if count == 1 else 's'} set aside, of {components}" if count else ""

    def __str__(self) -> str:
        executors = [f"processed {self.processing}"] if ": " in self.processing else []
        return "; ".join([*executors, *(f"{component}: {executor}" for component, executor in self.steps.items())])
