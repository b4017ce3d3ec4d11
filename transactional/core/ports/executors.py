"""The port of executors, which run processing phases, with what they return, and the port of the clock.

An executor takes an attempt with its batch, and returns a `Processed`, which no longer depends on where it ran: the
commit phase continues from it alone. Each port has several implementations, and one contract suite (`tests/contract`)
that all of them pass.
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
class DeferredTuples:
    """Tuples that the processing phase emitted for one task of a bolt that runs in the commit phase."""

    target: str
    task: int
    source: str
    stream: str
    batches: Sequence[pa.RecordBatch]
    staged: StagedBytes | None = None
    """The part of a file with `staged_rows` further tuples, which a task wrote in place of `batches`."""
    staged_rows: int = 0

    @property
    def rows(self) -> int:
        """The number of tuples, in memory and staged."""
        rows_in_memory: int = sum(batch.num_rows for batch in self.batches)
        return self.staged_rows + rows_in_memory


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A tuple that was set aside, as JSON, with its origin and the reason."""

    exclusion: Exclusion
    source: str
    stream: str
    tuple: str


@dataclass(frozen=True, slots=True)
class Processed:
    """The result of a processing phase, independent of Spark: the input of the commit phase.

    `parts` has one entry per committer: a `Partials` for a `PersistentAggregate`, the pickled instances of its tasks,
    in order, for a bolt that finishes in the commit phase. `digests` describe what was read of each partition.
    """

    digests: Mapping[PartitionId, Digest]
    parts: Mapping[str, Partials | Sequence[bytes | StagedBytes]]
    counts: Mapping[str, int]
    """The number of tuples that each component received."""
    deferred: Sequence[DeferredTuples] = ()
    excluded: Sequence[Exclusion] = ()
    letters: Sequence[DeadLetter] = ()
    tried_again: Sequence[Letter] = ()
    facts: BatchFacts | None = None
    failed: Sequence[FailedMessage] = ()
    """The messages that a bolt failed or did not ack."""
    dropped: int = 0
    """The number of failed tuples that belong to no tracked message. `reason` is the error of the first one."""
    reason: str = ""
    edges: Mapping[tuple[str, str, str], int] = field(default_factory=dict)
    """Tuples sent by source, stream and target, in the processing phase."""
    late_counts: Mapping[str, int] = field(default_factory=dict)
    """The number of tuples that windows skipped as late, by the component that has the windows."""
    counted: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """The counters of bolts, by component and name of the counter."""
    batch: BatchMetadata | None = None
    """The batch that was processed."""
    executor: str = ""
    """The executor, `in the driver`, `in workers` or `on Spark`, followed by the reason if there was a choice."""
    split: Mapping[str, Sequence[pa.Table | SplitRows]] = field(default_factory=dict)
    """Partial aggregates that follow those in `parts`, in order, by committer; some are split by key."""

    def facts_of(self, component: str) -> BatchFacts | None:
        """Return the facts of the batch for the tuples of a component."""
        return None if self.facts is None else self.facts.for_component(component)


class JobExecutor(Protocol):
    """Runs processing phases: Spark, or threads of this process for tests without a JVM."""

    def open(self) -> None:
        """Start, and check that everything needed is available."""

    def run(self, attempt: TransactionAttempt, batch: BatchMetadata) -> Processed:
        """Run the processing phase of one attempt; blocks. Called from several threads at once.

        Raises `OperatingError` or `FailedException` if it fails; nothing of it is running any more when it raises.
        """

    def cancel(self, attempt: TransactionAttempt) -> None:
        """Cancel the running work of the attempt; `run` raises `AttemptLost` once it has ended. Returns immediately."""

    def count_progress(self, attempt: TransactionAttempt) -> int:
        """Return a count that increases while the attempt makes progress, and is 0 once it has ended.

        Its unit is the executor's own: tasks that have started, or tasks that have ended.
        """

    def close(self) -> None:
        """Release the resources that `open` acquired."""


class Clock(Protocol):
    """Provides both kinds of time: one for timeouts, and the time of day."""

    def monotonic_ms(self) -> int:
        """Return milliseconds that never decrease, for timeouts."""

    def wall_ms(self) -> int:
        """Return milliseconds since 1970, for people."""
