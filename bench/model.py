"""A model of a transaction's time: fitted to two measured points, tried on others, then carried further than measured.

    period = planning + job + messages * per message + commit + recording + between

is the time from one transaction to the next with one in flight, for a count by key on two tasks. With several in flight
the ordered part, `commit + recording`, is the least that a period can be, and so is a share of the whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from bench.targets import Documents, formatted
from bench.works import FAR_MS

FITTED_TO = ("keys-8k", "ours-1")
FITTED_AT = (1_000, 200_000)
TASKS = 2
TRIED = (
    ("keys-8k", "ours-1", 20_000, 0),
    ("global", "ours-1", 20_000, 0),
    ("far", "ours-1", 20_000, FAR_MS),
    ("far", "ours-3", 20_000, FAR_MS),
    ("keys-8k", "ours-3", 1_000_000, 0),
)
"""Work, system, messages of a batch, and milliseconds that its commit waits for a far storage: none of them fitted."""

ON_PAPER, CORES = 10_000_000, 24
"""Messages a second, and tasks on as many cores, that the model is carried to."""


@dataclass(frozen=True, slots=True)
class Model:
    """The constants, in milliseconds; `message_ms` is per message, on `TASKS` tasks side by side."""

    planning_ms: float
    job_ms: float
    message_ms: float
    commit_ms: float
    recording_ms: float
    between_ms: float

    def period_ms(self, messages: int, *, in_flight: int = 1, tasks: int = TASKS, waits_ms: float = 0) -> float:
        """From one transaction to the next; `tasks` of them need as many cores, and their own share of the source."""
        ordered = self.commit_ms + waits_ms + self.recording_ms
        processing = self.job_ms + messages * self.message_ms * TASKS / tasks
        alone = self.planning_ms + processing + ordered + self.between_ms
        busy = messages * self.message_ms * TASKS / tasks
        return max(ordered + self.between_ms, busy, alone / in_flight)


def fitted(documents: Documents) -> Model | None:
    """The model of the measured files; None if those two points were not measured."""
    points = [_found(documents, *FITTED_TO, messages) for messages in FITTED_AT]
    small, large = points
    if small is None or large is None:
        return None
    (few, many), phases = FITTED_AT, small["phases_ms"]
    message_ms = (large["phases_ms"]["processing"] - phases["processing"]) / (many - few)
    known = {name: float(phases[name]) for name in ("planning", "commit", "recording")}
    job_ms = phases["processing"] - few * message_ms
    between_ms = _period_ms(small) - phases["processing"] - sum(known.values())
    return Model(known["planning"], job_ms, message_ms, known["commit"], known["recording"], between_ms)


def constants(documents: Documents) -> Iterator[tuple[str, str, str]]:
    """What bounds what, with its figure and what makes it larger."""
    if (model := fitted(documents)) is None:
        return
    yield "planning", f"{formatted(model.planning_ms)} ms", "partitions of the source; one query for all of them"
    yield "a job", f"{formatted(model.job_ms)} ms", "tasks: each is sent and reports; bolts that need an exchange"
    yield "a message", f"{formatted(model.message_ms * TASKS * 1000)} µs of a core", "what the bolts do with it"
    yield (
        "a table's commit",
        f"{formatted(model.commit_ms)} ms",
        "changed keys in the merge layout; files in the log layout",
    )
    yield "the store's write", f"{formatted(model.recording_ms)} ms", "the disk's sync; partitions"
    yield "from one to the next", f"{formatted(model.between_ms)} ms", "nothing that grows"


def tried(documents: Documents) -> Iterator[tuple[str, ...]]:
    """The points that the model was not fitted to: what it says, what was measured, and by how much it is wrong."""
    model = fitted(documents)
    for work, system, messages, waits_ms in TRIED:
        measured = _found(documents, work, system, messages)
        if model is None or measured is None:
            continue
        in_flight = int(system.rpartition("-")[2])
        says = model.period_ms(messages, in_flight=in_flight, waits_ms=waits_ms)
        was = _period_ms(measured)
        what = f"{work}, {messages:,} a batch, {in_flight} in flight"
        yield what, f"{formatted(says)} ms", f"{formatted(was)} ms", f"{100 * (says / was - 1):+.0f} %"


def on_paper(documents: Documents) -> Iterator[tuple[str, ...]]:
    """What `ON_PAPER` messages a second would take, by the size of a batch, on `CORES` tasks and as many cores."""
    if (model := fitted(documents)) is None:
        return
    ordered_ms = model.commit_ms + model.recording_ms + model.between_ms
    for messages in (100_000, 200_000, 500_000, 1_000_000):
        period_ms = 1000 * messages / ON_PAPER
        processing_ms = model.job_ms + messages * model.message_ms * TASKS / CORES
        share = f"{ordered_ms:.0f} of {period_ms:.0f} ms" + (
            ": too many transactions" if ordered_ms > period_ms else ""
        )
        yield f"{messages:,}", f"{ON_PAPER / messages:,.0f}", f"{processing_ms:.0f} ms", share


def _found(documents: Documents, work: str, system: str, messages: int) -> Mapping[str, Any] | None:
    for part in ("pairs", "works", "raw"):
        for each in documents.get(part, {}).get("summaries", []):
            if (each["work"], each["system"], each["batch_messages"]) == (work, system, messages):
                return dict(each)
    return None


def _period_ms(summary: Mapping[str, Any]) -> float:
    return float(1000 * summary["batch_messages"] / summary["messages_per_second"]["median"])
