"""What the engine needs from its surroundings: spouts, states, executors, the clock.

Each port has several implementations, and one contract suite (`tests/contract`) that all of them pass.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from transactional.absent import Absent
from transactional.attempt import AttemptId, TransactionAttempt, TxId
from transactional.batch import BatchLimit, BatchMetadata, Digest, OffsetRange, PartitionId
from transactional.bolts import Key
from transactional.facts import BatchFacts, EventTime
from transactional.letters import Exclusion, Letter
from transactional.messages import FailedMessage, Unfinished
from transactional.schema import Schema
from transactional.staged import StagedBytes, StagedFile

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa

# --- spouts -----------------------------------------------------------------------------------------------------


class PartitionReader(Protocol):
    """Reads ranges, on an executor. Picklable; lives as long as the Python worker, so it may cache consumers."""

    def read(self, partition: PartitionId, offsets: OffsetRange, metadata: Any = None) -> Iterator[pa.RecordBatch]:
        """Yield the records of exactly this range, with the columns of the spout's `output`, in order of offset.

        `metadata` is what the batch stores for the partition; None for spouts that only need offsets.

        Raises an `OperatingError` if the range can't be read to its end: never silently yields less.
        """


@dataclass(frozen=True, slots=True)
class RefusedRecord:
    """A record that a reader can't convert to a tuple, and sets aside as a dead letter: its fields, and why."""

    values: Mapping[str, Any]
    error: str


@runtime_checkable
class RefusingReader(Protocol):
    """A reader that sets records aside, instead of failing the attempt."""

    def read_or_refuse(
        self, partition: PartitionId, offsets: OffsetRange, metadata: Any = None
    ) -> Iterator[pa.RecordBatch | RefusedRecord]:
        """As `PartitionReader.read`; whether a record is refused depends only on the record."""

    def read_again(self, values: Mapping[str, Any]) -> Iterator[pa.RecordBatch | RefusedRecord]:
        """The tuples of a record that was refused earlier, from its fields. Never raises because of the record."""


class Spout(Protocol):
    """A source of batches, as the driver sees it."""

    @property
    def output(self) -> Schema:
        """The fields of the tuples."""

    @property
    def replays_exactly(self) -> bool:
        """True: transactional, a recorded batch can be read again. False: opaque, a replay may be a different batch."""

    def identity(self) -> Mapping[str, str]:
        """What must stay the same across restarts (kind, cluster id, topics …), for the topology's fingerprint."""

    def open(self) -> None:
        """Connect and check. Raises `ConfigError` (no such topic) or `SourceUnavailable` within a bounded time."""

    def plan(self, after: BatchMetadata, *, replay: bool) -> BatchMetadata | None:
        """The batch that starts where `after` ends, or None if there is nothing to read.

        With `replay` (opaque spouts only; a transactional batch is replayed as recorded) there is always a batch,
        possibly an empty one. A partition that is new in the recorded batch then has an empty range in `after`, which
        is where that batch started to read it: the replay starts there too. Raises `OperatingError`, or `BatchLost` if
        a gap is not allowed.
        """

    def check_replay(self, batch: BatchMetadata) -> None:
        """Raise `BatchLost` if a recorded batch of a transactional spout can no longer be read."""

    def check_read(self, batch: BatchMetadata) -> None:
        """Called after a batch was read: raise `ReplayMismatch` if what was read is not, or not certainly, what was
        planned, which no task can detect by itself (a source that was recreated under the same name)."""

    def reader(self) -> PartitionReader:
        """The reader of the batches' ranges, for the executors."""

    def committed(self, batch: BatchMetadata) -> None:
        """Called after each transaction commit, and again for the last one when a run starts: the process may have died
        before the call. May mirror the positions for lag tools. Must not raise."""

    def lag(self, after: BatchMetadata) -> int | None:
        """Number of offsets behind the given batch, as of the last planning; None: unknown.

        Called in the driver's thread, so it must be fast and must not raise.
        """

    def close(self) -> None:
        """Release what `open` acquired."""


@runtime_checkable
class PartitionedSpout(Protocol):
    """A spout that knows its lag by partition."""

    def lags(self, after: BatchMetadata) -> Mapping[PartitionId, int] | None:
        """As `Spout.lag`, by partition. Called in the driver's thread as well."""


@runtime_checkable
class SizedSpout(Protocol):
    """A spout whose batches can be limited dynamically: what `target_latency_ms` requires."""

    @property
    def batch_records_max(self) -> int | None:
        """The spout's own limit on the records of a batch; None: there is no such limit."""

    def limit_batches(self, limit: BatchLimit) -> None:
        """Plan no batch above this limit from now on, nor above the spout's own limits. Called before `plan`, rarely
        twice with the same limit. Raises `ConfigError` if the spout can't respect it."""


@runtime_checkable
class EventTimeSpout(Protocol):
    """A spout that knows which of its fields, timestamps, are the times at which something happened."""

    @property
    def event_times(self) -> Mapping[str, EventTime]:
        """The field by stream."""


@runtime_checkable
class ManyStreamsSpout(Protocol):
    """A spout that emits on several streams, the default one among them. Its reader is a `ManyStreamsReader`."""

    @property
    def outputs(self) -> Mapping[str, Schema]:
        """The fields by stream."""


@runtime_checkable
class ManyStreamsReader(Protocol):
    """A reader of such a spout: what it reads from a partition is emitted on one stream."""

    def stream_of(self, partition: PartitionId) -> str:
        """The stream of a partition."""


@runtime_checkable
class MessageReader(Protocol):
    """A reader that knows the offset of each record: what a topology that is at least once needs."""

    def read_with_offsets(
        self, partition: PartitionId, offsets: OffsetRange, metadata: Any = None
    ) -> Iterator[tuple[pa.RecordBatch, pa.Array]]:
        """As `PartitionReader.read`, with an array of 64-bit integers beside each record batch: the offsets of its
        records. A record whose offset is NULL is not followed."""


@runtime_checkable
class AckedSpout(Protocol):
    """A spout that is notified which of its messages were processed and which have failed, and that decides itself
    which of them it emits again."""

    def ack_at_once(self) -> None:
        """Called before `open` if the topology is at most once: no message is emitted a second time."""

    def settle(self, batch: BatchMetadata, failed: Sequence[FailedMessage]) -> None:
        """Called once after each transaction commit: every other message of the batch was processed. Must not raise."""


class SpoutMaker(Protocol):
    """What a user implements for a custom source: it can turn itself into a `Spout`."""

    def as_spout(self, parallelism: int) -> Spout:
        """The spout, to be read by this many tasks."""


# --- states -----------------------------------------------------------------------------------------------------


class StateKind(Enum):
    """How a state protects itself against a replay. `value` is the word used in messages."""

    NON_TRANSACTIONAL = "non-transactional"
    TRANSACTIONAL = "transactional"
    OPAQUE = "opaque"


class TransactionState(Protocol):
    """A table that one committer keeps: key → values, each row with `txid`, `prev_txid` and the previous values.

    Only used from the driver's commit thread. Every writing method checks and writes through one handle of the table;
    a table whose fence is above the caller's attempt id is not touched: `Fenced` is raised.
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
        """What must stay the same across restarts: location, key, values, kind."""

    def open(self, owner: str, txid_of: Callable[[AttemptId], TxId]) -> None:
        """Create the table, or check the existing one. `owner` is `<topology id>/<component id>`.

        `txid_of` returns the txid of an attempt id (or a fence) of this table. Raises `SchemaMismatch` if a table of
        another shape exists there.
        """

    def version(self) -> AttemptId | None:
        """Load the table; the attempt id that was last written to it, or None if there is none."""

    def fence(self, attempt_id: AttemptId) -> None:
        """Write `attempt_id` as the table's version, through the handle that `version()` loaded, changing no row.

        Raises `TableConflict` if the table has changed since `version()`, `Fenced` if its version is higher; an equal
        one is this fence's own earlier write, whose outcome was unknown. Raises `StoreMismatch` if another writer has
        changed rows since the owner's last write, where the table can detect it: a start would build on that.
        """

    def get(self, attempt: TransactionAttempt, keys: Sequence[Key]) -> dict[Key, tuple[Any, ...]]:
        """The values before `attempt.txid` of the existing keys (for this transaction's own row, the previous
        value)."""

    def items(self, attempt: TransactionAttempt) -> Iterable[tuple[Key, tuple[Any, ...]]]:
        """All keys with their values before `attempt.txid`, in any order."""

    def is_replay(self, attempt: TransactionAttempt) -> bool:
        """Whether an earlier attempt at this transaction has written the table. Raises `Fenced`."""

    def rows_before(self, attempt: TransactionAttempt, keys: pa.Table) -> pa.Table:
        """As `get`, in Arrow: key and value columns of the rows with these keys that exist; maybe of more rows."""

    def rows_after(self, attempt: TransactionAttempt, keys: pa.Table) -> pa.Table:
        """As `rows_before`, as the rows are once this attempt has written them."""

    def rows_between(self, attempt: TransactionAttempt, column: str, after: int | None, until: int) -> pa.Table:
        """Key and value columns of the rows with `after < column <= until`: a timestamp column, in microseconds since
        1970; `after` None: from the beginning.

        The rows are those that a reader of the transaction before sees: also those that expire only now.
        """

    def put(self, attempt: TransactionAttempt, rows: Mapping[Key, tuple[Any, ...] | Absent]) -> None:
        """Set new values for the given keys as transaction `attempt.txid`, even if `rows` is empty; `ABSENT` deletes a
        key.

        Rows that an earlier attempt at this txid has changed, and that are not given, are rolled back. A transactional
        state that already is at this txid changes no row. Either way the table's version is `attempt.attempt_id`
        afterwards. Raises `Fenced`, or `TableConflict` if another writer got in between (nothing was written then).
        """

    def merge(self, attempt: TransactionAttempt, partials: Partials) -> None:
        """As `put`, for partial aggregates that are combined with the values before this transaction."""

    def tidy(self, committed_txid: TxId, may_go_on: Callable[[], bool]) -> None:
        """Maintain the table between two transactions: compact, fold, delete old files. Often does nothing.

        Called in the commit thread, once `committed_txid`, the last transaction written, is committed in the
        coordinator's store. Neither readers nor a replay see a difference. Calls `may_go_on` between two long steps.
        Failures are logged, and retried some later time.
        """

    def close(self) -> None:
        """Release what `open` acquired."""


@runtime_checkable
class DiskState(Protocol):
    """A state that may be on a disk of this machine, where a power failure loses what was written and not synced.

    A state in a database or an object store is durable once written, and need not be one.
    """

    def set_durability(self, durability: str) -> None:
        """Called before `open`: `disk`, or `process`, with which nothing needs to be synced."""

    def unsynced(self) -> Collection[Path]:
        """The files and folders to sync so that everything written is durable. Called before the transaction commit,
        for all states at once. Raises `OperatingError`."""

    def synced(self) -> None:
        """Called once everything that `unsynced` returned is synced."""


@runtime_checkable
class ExpiringState(Protocol):
    """A state whose rows may expire: each transaction has a floor, a time at or below which rows do not exist for it.

    The floor follows from the batch's facts, is recorded in the same write as the rows, and never goes back from one
    transaction to the next.
    """

    def begin(self, attempt: TransactionAttempt, facts: BatchFacts | None) -> None:
        """Called before anything is read or written for an attempt, with the facts of its batch."""


COMBINES = ("sum", "min", "max", "last")
"""How a state can combine a partial aggregate with the stored value. For anything else its new value is computed before
it is merged, as `last`."""


@dataclass(frozen=True, slots=True)
class Partials:
    """Partial aggregates of one batch: one row per key (keys are unique).

    `combine` says for each value column how it is combined with the stored value: `sum`, `min`, `max`, `last`.
    `staged` are files with more of them, which tasks have written for this state; their keys may repeat.
    """

    combine: Mapping[str, str]
    table: pa.Table
    staged: Sequence[StagedFile] = ()


class PersistentAggregate(Protocol):
    """A committer without user code: aggregates a batch and merges it into a state (Trident's persistentAggregate)."""

    @property
    def state(self) -> TransactionState:
        """The state that is updated."""

    @property
    def input_fields(self) -> tuple[str, ...]:
        """The fields that the input must have."""

    def check_input(self, input: Schema, *, used_by: str) -> None:
        """Raise `ConfigError` if the input's fields or types do not match."""

    def aggregator(self) -> Aggregator:
        """The picklable part, which runs on executors."""


@runtime_checkable
class WindowedAggregate(PersistentAggregate, Protocol):
    """A `PersistentAggregate` whose state keeps windows that are open. Those that close in a transaction are emitted on
    a stream of their own: they are read from the state as it was before the transaction, to which no tuple of it can
    belong."""

    @property
    def closed_fields(self) -> Schema:
        """The fields of that stream."""

    @property
    def windows_shown(self) -> str:
        """Their length and what else a row's meaning depends on; kept with the topology's progress."""

    @property
    def closes_without_input(self) -> bool:
        """Whether windows close also if nothing is read, because time passes."""

    def closing(self, facts: BatchFacts | None) -> tuple[str, int | None, int] | None:
        """Which rows a transaction reads for it: a timestamp column, and `after` and `until` as `rows_between` takes
        them. None: no window closes."""

    def closed(self, rows: pa.Table, facts: BatchFacts | None) -> pa.Table:
        """The windows that close, of these rows."""


class Aggregator(Protocol):
    """Reduces record batches to one row per key. Associative and commutative, so it may be applied in steps."""

    @property
    def combine_kinds(self) -> Mapping[str, str]:
        """How the partial values of each value column are combined: `sum`, `min`, `max`, `last`."""

    def partial(self, batches: Iterable[pa.RecordBatch]) -> pa.Table:
        """Input tuples → partial aggregates: key columns and value columns, one row per key. May raise for values that
        the state would refuse; it is then called again for one tuple at a time."""

    def combine(self, partials: Iterable[pa.Table]) -> pa.Table:
        """Partial aggregates → partial aggregates, one row per key."""


@runtime_checkable
class FollowsMessages(Protocol):
    """A bolt that knows, after `finish_batch`, which messages are not finished."""

    def unfinished(self) -> Unfinished:
        """What its task has found."""


# --- where jobs run ---------------------------------------------------------------------------------------------


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
