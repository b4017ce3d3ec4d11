"""What a round of a benchmark is, and what is measured of it: the same words for ours and for the peers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from bench.works import Work


@dataclass(frozen=True, slots=True)
class Stage:
    """What all systems share: one broker, one Spark, one disk, and as many tasks as there are cores."""

    session: SparkSession
    bootstrap: str
    directory: Path
    tasks: int


@dataclass(frozen=True, slots=True)
class BatchTimes:
    """One transaction or micro-batch; wall-clock milliseconds since 1970, durations in milliseconds.

    `started_at_ms` is when it was issued (theirs: the trigger). `whole_ms` goes from there to its end on disk, with
    the record of it (RecordCommit; theirs: the commit log). `planned_ms` leaves out the query of the source.
    `phases` say where the time went, by the system's own names.
    """

    started_at_ms: float
    whole_ms: float
    planned_ms: float
    phases: Mapping[str, float]

    @property
    def ended_at_ms(self) -> float:
        """When it was done."""
        return self.started_at_ms + self.whole_ms


@dataclass(frozen=True, slots=True)
class Round:
    """What one system did in one round.

    `others_share` is which share of the machine others took meanwhile (None: not known), `bytes_written` how large the
    new files of table, checkpoint and store are, data and log. `peaks_mib` are the largest memories, by part.
    """

    work: str
    system: str
    batch_messages: int
    messages: int
    batches: tuple[BatchTimes, ...]
    others_share: float | None
    bytes_written: int = 0
    peaks_mib: Mapping[str, float] = field(default_factory=dict)

    @property
    def messages_per_second(self) -> float:
        """From the start of the first batch to the end of the last one; what comes before the first is not counted.

        Not from the end of the first: with several in flight most of the second is done by then.
        """
        elapsed_ms = max(batch.ended_at_ms for batch in self.batches) - self.batches[0].started_at_ms
        return self.messages / elapsed_ms * 1000

    @property
    def latencies_ms(self) -> list[float]:
        """Of each batch but the first, which pays for the start: from planned to committed."""
        return [batch.planned_ms for batch in self.batches[1:]]


class System(Protocol):
    """Something that reads messages in batches."""

    @property
    def work(self) -> Work:
        """The work that it does, with the topic that it reads."""

    @property
    def name(self) -> str:
        """How reports call it."""

    @property
    def directory(self) -> Path | None:
        """Where it writes; None for one that does not."""

    def run(self, until: Mapping[int, int], batch_messages: int) -> Sequence[BatchTimes]:
        """Continue from where the last run ended up to the given offsets, in batches; return their times in order."""


class Counting(Protocol):
    """Something with a table of counts."""

    @property
    def name(self) -> str:
        """How reports call it."""

    def counts(self) -> dict[str, int]:
        """The table's contents."""


@runtime_checkable
class CountingSystem(System, Counting, Protocol):
    """One that counts words into a Delta table, exactly once."""


class WrongResult(Exception):
    """A table does not hold what was produced. No figure of such a run is worth anything."""


def check_counts(system: Counting, expected: Mapping[str, int]) -> None:
    """Raise `WrongResult` unless the system's table holds exactly the expected counts."""
    found = system.counts()
    wrong = {word: (expected.get(word), found.get(word)) for word in {*expected, *found}}
    wrong = {word: pair for word, pair in wrong.items() if pair[0] != pair[1]}
    if wrong:
        word, (wanted, got) = sorted(wrong.items())[0]
        raise WrongResult(
            f"{system.name}: {len(wrong)} of {len(expected)} words are counted wrong, among them {word!r}: "
            f"{got} instead of {wanted}"
        )


def files_below(directory: Path | None) -> dict[str, int]:
    """Size in bytes of every file, by its path."""
    return dict(_files(directory)) if directory is not None else {}


def _files(directory: Path) -> Iterator[tuple[str, int]]:
    for path in directory.rglob("*"):
        # What is deleted by maintenance between two looks is not there any more.
        with suppress(OSError):
            if path.is_file():
                yield str(path), path.stat().st_size


def bytes_of_new(before: Mapping[str, int], after: Mapping[str, int]) -> int:
    """The bytes of files that came or grew."""
    return sum(max(size - before.get(path, 0), 0) for path, size in after.items())
