"""Where processing phases run: what an executor takes and returns; and the clock.

Each port has several implementations, and one contract suite (`tests/contract`) that all of them pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from transactional.core.ports.partials import Partials
from transactional.core.ports.staged import SplitRows, StagedBytes
from transactional.model.attempt import TransactionAttempt
from transactional.model.batch import BatchMetadata, Digest, PartitionId
from transactional.model.facts import BatchFacts
from transactional.model.letters import Exclusion, Letter
from transactional.model.messages import FailedMessage

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class LateTuples:
    """Tuples that were emitted in the processing phase for a task of a bolt that runs in the commit phase."""

    target: str
    task: int
    source: str
    stream: str
    batches: Sequence[pa.RecordBatch]
    staged: StagedBytes | None = None
    """Where a task has left the `staged_rows` tuples, in place of `batches`."""
    staged_rows: int = 0

    @property
    def rows(self) -> int:
        """How many there are."""
        here: int = sum(batch.num_rows for batch in self.batches)
        return self.staged_rows + here


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A tuple that was set aside, as JSON, with its origin and the reason."""

    exclusion: Exclusion
    source: str
    stream: str
    tuple: str


@dataclass(frozen=True, slots=True)
class Processed:
    """The result of a processing phase, independent of Spark: the input of the commit phase, and what was read.

    The part of a `PersistentAggregate` is a `Partials`, that of a bolt that finishes in the commit phase the pickled
    instances of its tasks, in order.
    """

    digests: Mapping[PartitionId, Digest]
    parts: Mapping[str, Partials | Sequence[bytes | StagedBytes]]
    counts: Mapping[str, int]
    """Tuples received per component."""
    late: Sequence[LateTuples] = ()
    excluded: Sequence[Exclusion] = ()
    letters: Sequence[DeadLetter] = ()
    tried_again: Sequence[Letter] = ()
    facts: BatchFacts | None = None
    failed: Sequence[FailedMessage] = ()
    """Messages that some bolt has failed or has not acked."""
    dropped: int = 0
    """Failed tuples that belong to no message that is followed; `reason` is that of the first one."""
    reason: str = ""
    edges: Mapping[tuple[str, str, str], int] = field(default_factory=dict)
    """Tuples sent by source, stream and target, in the processing phase."""
    left_out: Mapping[str, int] = field(default_factory=dict)
    """Tuples that windows have left out as late, by the component that has the windows."""
    counted: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """What bolts count themselves, by component and name."""
    batch: BatchMetadata | None = None
    """What was processed."""
    executor: str = ""
    """The executor, `in the driver`, `in workers` or `on Spark`, followed by the reason if there was a choice."""
    split: Mapping[str, Sequence[pa.Table | SplitRows]] = field(default_factory=dict)
    """Partial aggregates that follow those in `parts`, in order, where a task has left some split by key."""

    def facts_of(self, component: str) -> BatchFacts | None:
        """The facts of the batch for the tuples of a component."""
        return None if self.facts is None else self.facts.of(component)


class JobExecutor(Protocol):
    """Runs processing phases: Spark, or threads of this process for tests without a JVM."""

    def open(self) -> None:
        """Start, and check that everything needed is available."""

    def run(self, attempt: TransactionAttempt, batch: BatchMetadata) -> Processed:
        """Run the processing phase of one attempt; blocks. Called from several threads at once.

        Raises `OperatingError` or `FailedException` if it fails; nothing of it is running any more when it raises.
        """

    def cancel(self, attempt: TransactionAttempt) -> None:
        """Cancel what is running of the attempt; `run` raises `AttemptLost` once all has ended. Returns immediately."""

    def progress(self, attempt: TransactionAttempt) -> int:
        """A number that increases while the attempt makes progress."""

    def close(self) -> None:
        """Release what `open` acquired."""


class Clock(Protocol):
    """Provides the two kinds of time."""

    def monotonic_ms(self) -> int:
        """Milliseconds that only increase, for timeouts."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970, for people."""
