"""What the engine asks of the world: spouts, states, the place where jobs run, the clock.

Each port has several implementations and one contract suite (`tests/contract`) that all of them pass.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from transactional.attempt import AttemptId, TransactionAttempt, TxId
from transactional.batch import BatchLimit, BatchMetadata, Digest, OffsetRange, PartitionId
from transactional.bolts import Key
from transactional.letters import Exclusion, Letter
from transactional.schema import Schema

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa

# --- spouts -----------------------------------------------------------------------------------------------------


class PartitionReader(Protocol):
    """Reads ranges, on an executor. Picklable; lives as long as the Python worker, so it may cache consumers."""

    def read(self, partition: PartitionId, offsets: OffsetRange, metadata: Any = None) -> Iterator[pa.RecordBatch]:
        """Yield the records of exactly this range, with the columns of the spout's `output`, in order of offset.

        `metadata` is what the batch keeps for the partition; None for spouts to which offsets say all.

        Raises an `OperatingError` when the range can't be read to its end: never yields less in silence.
        """


@dataclass(frozen=True, slots=True)
class RefusedRecord:
    """A record that a reader can make no tuple of, and sets aside as a dead letter: its fields, and why."""

    values: Mapping[str, Any]
    error: str


@runtime_checkable
class RefusingReader(Protocol):
    """A reader that sets records aside, instead of failing the attempt."""

    def read_or_refuse(
        self, partition: PartitionId, offsets: OffsetRange, metadata: Any = None
    ) -> Iterator[pa.RecordBatch | RefusedRecord]:
        """As `PartitionReader.read`; which records are refused depends on nothing but themselves."""

    def read_again(self, values: Mapping[str, Any]) -> Iterator[pa.RecordBatch | RefusedRecord]:
        """The tuples of a record that was refused once, from its fields. Never raises because of the record."""


class Spout(Protocol):
    """A source of batches, as the driver sees it."""

    @property
    def output(self) -> Schema:
        """The fields of the tuples."""

    @property
    def replays_exactly(self) -> bool:
        """True: transactional, a recorded batch can be read again. False: opaque, a replay may be another batch."""

    def identity(self) -> Mapping[str, str]:
        """What must stay the same over restarts (kind, cluster id, topics …), for the topology's fingerprint."""

    def open(self) -> None:
        """Connect and check. Raises `ConfigError` (no such topic) or `SourceUnavailable` within a bounded time."""

    def plan(self, after: BatchMetadata, *, replay: bool) -> BatchMetadata | None:
        """The batch that starts where `after` ends, or None when there is nothing to read.

        With `replay` (opaque spouts only; a transactional batch is replayed as recorded) there is always a batch,
        if need be an empty one. A partition that is new in the recorded batch has an empty range in `after` then, which
        says where that batch has begun to read it: the replay begins there too. Raises `OperatingError`, or
        `BatchLost` when a gap can't be allowed.
        """

    def check_replay(self, batch: BatchMetadata) -> None:
        """Raise `BatchLost` when a recorded batch of a transactional spout is no longer there to be read."""

    def check_read(self, batch: BatchMetadata) -> None:
        """Asked after a batch was read: raise `ReplayMismatch` when what was read is not, or not surely, what was
        planned, which no task can see for itself (a source that was made anew under the same name)."""

    def reader(self) -> PartitionReader:
        """What reads the batches' ranges on the executors."""

    def committed(self, batch: BatchMetadata) -> None:
        """Told after each transaction commit, and of the last one again when a run begins: the process may have died
        before it could tell. May mirror the positions to where lag tools look. Must not raise."""

    def lag(self, after: BatchMetadata) -> int | None:
        """Number of offsets behind the given batch, as far as was seen when the last one was planned; None: not known.

        Asked for by the driver's thread, so it takes no time and must not raise.
        """

    def close(self) -> None:
        """Release what `open` has taken."""


@runtime_checkable
class SizedSpout(Protocol):
    """A spout whose batches can be limited from one to the next: what `target_latency_ms` needs."""

    @property
    def batch_records_max(self) -> int | None:
        """The most records that a batch has by the spout's own limits; None: there is no such limit."""

    def limit_batches(self, limit: BatchLimit) -> None:
        """Plan no batch above this from now on, nor above the spout's own limits. Called before `plan`, and seldom
        twice with the same. Raises `ConfigError` when the spout can't keep to it."""


class SpoutContract(Protocol):
    """What a user implements for a source of their own: it makes a `Spout` of itself."""

    def as_spout(self, parallelism: int) -> Spout:
        """The spout, to be read by so many tasks."""


# --- states -----------------------------------------------------------------------------------------------------


class StateKind(Enum):
    """How a state guards itself against a replay. `value` is the word used in messages."""

    NON_TRANSACTIONAL = "non-transactional"
    TRANSACTIONAL = "transactional"
    OPAQUE = "opaque"


class TransactionState(Protocol):
    """A table that one committer keeps: key → values, each row with `txid`, `prev_txid` and the previous values.

    Only used from the driver's commit thread. Every writing method checks and writes through one handle of the table;
    a table whose fence is above the caller's attempt id is left alone: `Fenced` is raised.
    """

    @property
    def kind(self) -> StateKind:
        """Transactional or opaque."""

    @property
    def key(self) -> Schema:
        """The key columns."""

    @property
    def values(self) -> Schema:
        """The value columns."""

    def identity(self) -> Mapping[str, str]:
        """What must stay the same over restarts: location, key, values, kind."""

    def open(self, owner: str, txid_of: Callable[[AttemptId], TxId]) -> None:
        """Create the table, or check the one that is there. `owner` is `<topology id>/<component id>`.

        `txid_of` tells to which txid an attempt id (or a fence) of this table belongs.
        Raises `SchemaMismatch` when a table of another shape stands there.
        """

    def version(self) -> AttemptId | None:
        """Load the table; the attempt id that was last written to it, or None when nothing was."""

    def fence(self, attempt_id: AttemptId) -> None:
        """Write `attempt_id` as the table's version, through the handle that `version()` loaded, changing no row.

        Raises `TableConflict` when the table has moved since `version()`, `Fenced` when its version is higher; one that
        is equal is this fence's own earlier write, whose outcome was not known. Raises `StoreMismatch` when something
        else has changed rows since the owner has written last, where the table tells: a start would build on that.
        """

    def get(self, attempt: TransactionAttempt, keys: Sequence[Key]) -> dict[Key, tuple[Any, ...]]:
        """The values before `attempt.txid` of those keys that exist (of an own row, the previous value)."""

    def put(self, attempt: TransactionAttempt, rows: Mapping[Key, tuple[Any, ...]]) -> None:
        """Set new values for the given keys as transaction `attempt.txid`, also when `rows` is empty.

        Rows that an earlier attempt of this txid has touched, and that are not given, go back to what they were.
        A transactional state that already is at this txid changes no row. Either way the table's version is
        `attempt.attempt_id` afterwards.
        Raises `Fenced`, or `TableConflict` when another writer came between (nothing was written then).
        """

    def merge(self, attempt: TransactionAttempt, partials: Partials) -> None:
        """As `put`, for partial aggregates that are combined with the values before this transaction."""

    def tidy(self, committed_txid: TxId, may_go_on: Callable[[], bool]) -> None:
        """Look after the table between two transactions: put together, fold, delete what is old. Often does nothing.

        Called in the commit thread, once `committed_txid`, the transaction that was written last, is committed in the
        coordinator's store. Readers see no difference, and neither does a replay. Between two steps that take long it
        asks `may_go_on`. What fails is logged, and tried again some later time.
        """

    def close(self) -> None:
        """Release what `open` has taken."""


@runtime_checkable
class DiskState(Protocol):
    """A state that may lie on a disk of this machine, where what is written is lost in a power cut until it is synced.

    A state in a database or an object store is durable when it is written, and need not be one.
    """

    def set_durability(self, durability: str) -> None:
        """Told before `open`: `disk`, or `process`: then nothing need be synced."""

    def unsynced(self) -> Collection[Path]:
        """The files and folders to be synced before all that was written is durable. Asked for before the transaction
        commit, for all states at once. Raises `OperatingError`."""

    def synced(self) -> None:
        """Told once all that `unsynced` gave is synced."""


@dataclass(frozen=True, slots=True)
class Partials:
    """Partial aggregates of one batch: one row per key (keys are unique), in memory or in files of the attempt.

    `combine` names for each value column how it meets the stored value: `sum`, `min`, `max`, `last`.
    Exactly one of `table` and `parquet_files` is set. Rows in files are not yet unique by key.
    """

    combine: Mapping[str, str]
    table: pa.Table | None = None
    parquet_files: tuple[str, ...] = ()


class StateUpdate(Protocol):
    """A committer without user code: aggregates a batch and merges it into a state (Trident's persistentAggregate)."""

    @property
    def state(self) -> TransactionState:
        """The state that is updated."""

    @property
    def input_fields(self) -> tuple[str, ...]:
        """The fields that have to be in the input."""

    def check_input(self, input: Schema, *, used_by: str) -> None:
        """Raise `ConfigError` when the input's fields or types don't fit."""

    def aggregator(self) -> Aggregator:
        """The picklable part, which runs on executors."""


class Aggregator(Protocol):
    """Reduces record batches to one row per key. Associative and commutative, so it may be applied in steps."""

    @property
    def combine_kinds(self) -> Mapping[str, str]:
        """For each value column how partial values meet: `sum`, `min`, `max`, `last`."""

    def partial(self, batches: Iterable[pa.RecordBatch]) -> pa.Table:
        """Input tuples → partial aggregates: key columns and value columns, one row per key. May raise for values that
        the state would refuse; it is asked again for one tuple at a time then."""

    def combine(self, partials: Iterable[pa.Table]) -> pa.Table:
        """Partial aggregates → partial aggregates, one row per key."""


# --- where jobs run ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LateTuples:
    """Tuples that were emitted in the processing phase for a task of a bolt that works in the commit phase."""

    target: str
    task: int
    source: str
    stream: str
    batches: Sequence[pa.RecordBatch]


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A tuple that was set aside, as JSON, with where it came from, and why."""

    exclusion: Exclusion
    source: str
    stream: str
    tuple: str


@dataclass(frozen=True, slots=True)
class Processed:
    """What a processing phase leaves behind, free of lineage: what the commit phase goes on with, and what was read.

    The part of a `StateUpdate` is a `Partials`, that of a bolt that finishes in the commit phase the pickled instances
    of its tasks, in order.
    """

    digests: Mapping[PartitionId, Digest]
    parts: Mapping[str, Partials | Sequence[bytes]]
    counts: Mapping[str, int]
    """Tuples received per component."""
    late: Sequence[LateTuples] = ()
    excluded: Sequence[Exclusion] = ()
    letters: Sequence[DeadLetter] = ()
    tried_again: Sequence[Letter] = ()


class JobExecutor(Protocol):
    """Runs processing phases: Spark, or threads of this process for tests without a JVM."""

    def open(self) -> None:
        """Start, and check that what is needed is there."""

    def run(self, attempt: TransactionAttempt, batch: BatchMetadata) -> Processed:
        """Run the processing phase of one attempt; blocks. Called from several threads at once.

        Raises `OperatingError` or `FailedException` when it fails; nothing of it runs any more when it raises.
        """

    def cancel(self, attempt: TransactionAttempt) -> None:
        """Cancel what runs of the attempt; `run` then raises `AttemptLost` when all has ended. Returns at once."""

    def progress(self, attempt: TransactionAttempt) -> int:
        """A number that grows while the attempt goes forward."""

    def close(self) -> None:
        """Release what `open` has taken."""


class Clock(Protocol):
    """The two times there are."""

    def monotonic_ms(self) -> int:
        """Milliseconds that only grow, for time-outs."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970, for people."""
