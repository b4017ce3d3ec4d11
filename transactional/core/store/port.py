"""The coordinator's store as the engine sees it: progress, leases and the desired state of each topology.

All implementations pass one contract suite (`tests/contract/test_coordinator_store*.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Any, Protocol

from transactional.core.store.history import Keep, MinuteRecord, RunAbout, RunEnd, RunRecord, Savepoint, Trouble
from transactional.core.store.outbox import Boundary, OutboxRow, Publication, SinkProgress, SinkRecords
from transactional.core.store.progress import Phase, Progress
from transactional.model.attempt import NO_TRANSACTION, AttemptId, Epoch, TransactionAttempt, TxId
from transactional.model.batch import BatchMetadata


class DesiredState(Enum):
    """The state in which operators want a topology to be.

    It is stored with its progress; `value` is the word displayed.
    """

    ACTIVE = "active"
    INACTIVE = "inactive"
    """Nothing new is issued, transactions in flight are finished; restarts keep this, until the topology is
    activated."""
    DRAINING = "draining"
    """Nothing new is issued; once everything in flight is committed the run ends, and the topology is active again."""
    KILLED = "killed"
    """Like inactive, until a deadline; then the run stops, and the topology is active again and may be restarted."""


@dataclass(frozen=True, slots=True)
class Desired:
    """A topology's current desired state. `stop_in_ms` of a killed one: how long it may finish what is in flight."""

    state: DesiredState = DesiredState.ACTIVE
    stop_in_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to coordinate one topology. Every write to the store is checked against `epoch`."""

    topology_id: str
    epoch: Epoch
    owner: str
    progress: Progress
    fence_id: AttemptId
    """An attempt id drawn with the lease; higher than any that an earlier coordinator can have written to a table."""
    desired: Desired = Desired()
    store_id: str | None = None
    """Drawn with the topology's row in the store, and recorded by each table that is created; None: the row
    follows its tables."""


@dataclass(frozen=True, slots=True)
class AttemptRecord:
    """One attempt as recorded in the store. Times are wall-clock milliseconds since 1970, None: not reached.

    `phase` is one of `processing`, `processed`, `committed`, `failed`, and `given up`: the attempt itself did not fail,
    but an earlier transaction did, or its run ended; `error` may then contain the cause. An attempt at an opaque
    spout's transaction stays `processing` until it is committed: the end of its processing is stored with the
    transaction commit. `details` has further information on a committed one, as JSON: its `lag`, for example.
    """

    attempt: TransactionAttempt
    phase: str
    batch: BatchMetadata
    rows: int | None
    issued_at_ms: int
    planned_at_ms: int
    processed_at_ms: int | None
    commit_started_at_ms: int | None
    committed_at_ms: int | None
    error: str | None
    failed_at_ms: int | None = None
    details: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class AttemptTimes:
    """An attempt without its batch, which grows with the number of partitions: what lists and diagrams of many show.

    The fields are those of `AttemptRecord`.
    """

    attempt: TransactionAttempt
    phase: str
    rows: int | None
    issued_at_ms: int
    planned_at_ms: int
    processed_at_ms: int | None
    commit_started_at_ms: int | None
    committed_at_ms: int | None
    failed_at_ms: int | None
    error: str | None
    details: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class StalledLease:
    """A lease that a standby has seen unchanged for so long that nobody can be renewing it, whatever its end says."""

    epoch: Epoch
    leased_until_ms: int


@dataclass(frozen=True, slots=True)
class TopologyStatus:
    """One topology as recorded in the store. `leased_until_ms` is by the store's clock, None if released.

    `name` is that of the last run. `stop_at_ms`, by the store's clock, is when a killed one has to stop.
    `committed_at_ms` and `lag` are those of the last transaction commit. `rewinding_to` is where a rewind in progress
    has to end before anything else is done. `store_id` is what its tables are created with, as far as it is recorded.
    """

    topology_id: str
    epoch: Epoch
    owner: str | None
    leased_until_ms: int | None
    is_leased: bool
    committed_txid: TxId
    attempt_id: AttemptId
    fingerprint: Mapping[str, Any]
    name: str | None = None
    desired: DesiredState = DesiredState.ACTIVE
    stop_at_ms: int | None = None
    committed_at_ms: int | None = None
    lag: int | None = None
    trouble: Trouble | None = None
    run: RunRecord | None = None
    rewinding_to: TxId | None = None
    store_id: str | None = None

    @property
    def lease_length_ms(self) -> int | None:
        """How long each renewal makes the lease last, as stored with the run; None: something other than a run has
        taken it."""
        length = None if self.run is None or self.run.epoch != self.epoch else self.run.about.settings.get("lease_ms")
        return length if isinstance(length, int) else None


@dataclass(frozen=True, slots=True)
class Position:
    """Where a topology stands: its committed transaction, and where a rewind in progress has to end. `store_id` is what
    its tables are created with, as far as it is recorded."""

    committed_txid: TxId
    rewinding_to: TxId | None = None
    store_id: str | None = None

    def can_follow(self, earlier: Position) -> bool:
        """False: the topology was started over or has gone back since then, so its tables may be other ones."""
        is_same = None in (self.store_id, earlier.store_id) or self.store_id == earlier.store_id
        return is_same and self.committed_txid >= earlier.committed_txid


class StoreReader(Protocol):
    """The queries of a store. One that was opened for reading only has no more than this: it is never changed by it.

    Raises `StoreUnavailable` if the store does not respond, `CorruptRecord` for what can't be read.
    """

    @property
    def storage_path(self) -> str | None:
        """The path of the store's file, or None if it is no file."""

    def desired(self, topology_id: str) -> Desired:
        """A topology's current desired state; active if the store does not know it."""

    def txid_of(self, topology_id: str, component_id: str, attempt_id: AttemptId) -> TxId | None:
        """The txid that a table of this component is at when its version is `attempt_id`; None: unknown id."""

    def has_fence(self, topology_id: str, component_id: str) -> bool:
        """Whether a fence was ever recorded for this component: False for a committer that is only joining now."""

    def position(self, topology_id: str) -> Position | None:
        """Where a topology stands, None if the store does not know it: the cheapest of all queries."""

    def status(self, topology_id: str | None = None) -> list[TopologyStatus]:
        """Return the status of all topologies, or of the named one, in order of their ids."""

    def attempts(self, topology_id: str, *, limit: int) -> list[AttemptRecord]:
        """Return the last attempts, newest first."""

    def attempts_at(self, topology_id: str, txid: TxId) -> list[AttemptRecord]:
        """Return all stored attempts at one transaction, newest first."""

    def times(
        self, topology_id: str, *, limit: int, before: AttemptId | None = None, phases: Collection[str] = ()
    ) -> list[AttemptTimes]:
        """The last attempts without their batches, newest first: those older than `before`, in these phases (none
        given: in any)."""

    def times_with_letters(self, topology_id: str, *, among: int, limit: int) -> list[AttemptTimes]:
        """Return those of the last `among` committed attempts that have set tuples aside, without their batches.

        They come newest first, at most `limit`.
        """

    def runs(self, topology_id: str, *, limit: int) -> list[RunRecord]:
        """Return the last runs, newest first."""

    def savepoints(self, topology_id: str) -> list[Savepoint]:
        """The savepoints, oldest transaction first."""

    def minutes(self, topology_id: str, *, since_ms: int, each_ms: int | None = None) -> list[MinuteRecord]:
        """The minutes that started at or after `since_ms`, oldest first; one for each run that committed in it.

        With `each_ms`, those that started in the same part of so many milliseconds, counted from `since_ms`, are summed
        up: `at_ms` is where the part starts, and there are no `latencies`.
        """

    def sinks(self, topology_id: str) -> Mapping[str, SinkProgress]:
        """How far each sink is that has published something, or has to."""

    def outbox(
        self, topology_id: str, sink: str, *, first: TxId = NO_TRANSACTION, last: TxId, limit: int
    ) -> list[OutboxRow]:
        """The outbox rows of a sink for the transactions `first` to `last`, in order of txid; at most `limit`.

        Until a rewind that was begun is finished there are none: nothing that it takes back may be published.
        """

    def sink_letters(self, topology_id: str) -> list[OutboxRow]:
        """The records of sinks that an operator has set aside, in order of sink and txid."""

    def outbox_in_files(self, topology_id: str) -> list[OutboxRow]:
        """The outbox rows of all sinks whose payload is in a file, in order of sink and txid."""

    def close(self) -> None:
        """Release the connections to the store."""


class CoordinatorStore(StoreReader, Protocol):
    """Where progress is stored (in Storm: ZooKeeper). Every write but `desire` is a compare-and-set on the lease's
    epoch.

    A write raises `Fenced` if the lease is not the current one, and then has changed nothing; `StoreUnavailable` if the
    store does not respond, in which case the same call may be repeated: it also succeeds if it had succeeded before;
    `ProtocolError` if the lease is valid and the call is wrong (a bug in the framework).
    """

    def acquire(
        self,
        topology_id: str,
        fingerprint: Mapping[str, Any],
        *,
        owner: str,
        lease_ms: int,
        accept_changes: bool = False,
        name: str | None = None,
        about: RunAbout | None = None,
        to_rewind: bool = False,
        stalled: StalledLease | None = None,
    ) -> Lease:
        """Take the lease and draw a fence id, in one write. `name` is the name of the run; None: that of the topology.

        A lease that is valid is taken as well if it is still the `stalled` one: its epoch and its end are compared in
        the same write. A clock that was ahead has written it.

        A kill whose deadline has passed no longer applies: it was for a run that has ended. The write also records the
        start of a run, and marks earlier runs without a recorded end as lost; their attempts are given up.

        `fingerprint` is compared, not stored: `record_start` does that. Before the first transaction commit it may
        change; batches of another source, of which nothing can be in a table, are then deleted.

        Raises `TopologyInUse` while another owner's lease is valid, `TopologyChanged` if `fingerprint` differs from the
        stored one and `accept_changes` is not set, `RewindUnfinished` if a rewind was begun and the lease is not taken
        `to_rewind`, `StoreTooNew` or `ConfigError` for a store of another schema version.
        """

    def record_start(self, lease: Lease, fingerprint: Mapping[str, Any], *, store_id: str | None = None) -> None:
        """Store the fingerprint of a run that has started successfully: its tables are fenced, and it continues from
        here. `store_id` is stored where the lease has none."""

    def renew(self, lease: Lease, *, lease_ms: int) -> None:
        """Extend the lease to `lease_ms` from now, by the store's clock."""

    def release(self, lease: Lease, *, is_done: bool = False, end: RunEnd | None = None) -> None:
        """Release the lease, so that another coordinator need not wait for it to expire. Never raises `Fenced`.

        With `is_done` a drain or a kill has been carried out: the same write makes the topology active again. `end` is
        why the run ends, None: stopped. Attempts still in flight are given up, with the reason of a failed run.
        """

    def desire(self, topology_id: str, state: DesiredState, *, wait_ms: int = 0) -> bool:
        """Set a topology's desired state, from any process: needs no lease. False: the store does not know the
        topology.

        The most recent call applies. `wait_ms` is how long a killed one may finish what is in flight.
        """

    def record_attempt(self, lease: Lease, record: AttemptRecord, *, forget_later: bool, alone: bool = False) -> None:
        """Store a new attempt and its batch as the current ones of its txid; raise the attempt counter to its id.

        Refused with `Fenced` if the counter already is at or above the attempt id, and with `ProtocolError` if the
        previous transaction is neither committed nor recorded: txids have no gaps. The same write gives up what is in
        flight at this txid and, unless it comes `alone`, at later ones; with `forget_later` it deletes their batches.
        """

    def record_processed(self, lease: Lease, attempt: TransactionAttempt, batch: BatchMetadata, *, at_ms: int) -> None:
        """Store the batch with its digests and the time at which its processing phase ended.

        For comparison with a replay; `record_commit` does not require it.
        """

    def record_commit(
        self,
        lease: Lease,
        attempt: TransactionAttempt,
        batch: BatchMetadata,
        *,
        processed_at_ms: int,
        started_at_ms: int,
        at_ms: int,
        details: Mapping[str, Any] | None = None,
        minute: MinuteRecord | None = None,
        keep: Keep | None = None,
        outbox: Mapping[str, SinkRecords] = MappingProxyType({}),
    ) -> None:
        """Move the committed txid from `attempt.txid - 1` to `attempt.txid`; `batch`, with its digests, becomes the
        committed one. A problem recorded at this transaction or before is resolved.

        The same write stores when the processing phase ended and the commit phase started and ended, further details of
        the transaction, and the statistics of a completed minute; it adds the
        records of each sink to its `outbox`; and it deletes two of the oldest surplus attempts,
        but none that a table may be at or that is to be replayed.
        """

    def settle_sink(self, lease: Lease, sink: str, published: Publication) -> None:
        """Note the newest publication of a sink, and delete its outbox rows up to that transaction, in one write.

        A publication at or before the noted one changes nothing.
        """

    def place_sink(self, lease: Lease, sink: str, boundary: Boundary | None) -> None:
        """Set how far a sink is, whatever was noted, and delete its outbox rows up to that transaction, in one write.

        None: the sink and all of its rows are deleted.
        """

    def set_aside(self, lease: Lease, row: OutboxRow, letters: SinkRecords, remaining: SinkRecords | None) -> None:
        """Move records of an outbox row to the letters of sinks, and leave the remaining ones, in one write.

        Without remaining records the row is deleted. A row that is not in the outbox changes nothing.
        """

    def record_failure(
        self, lease: Lease, attempt: TransactionAttempt, phase: Phase, reason: str, *, at_ms: int, alone: bool = False
    ) -> None:
        """Store why an attempt failed, and since when the topology has had a problem, unless it already had one.

        Unless it fails `alone`, attempts in flight at later txids are given up in the same write. An attempt that was
        never recorded, because its planning failed, only leaves the problem.
        """

    def record_recovery(self, lease: Lease) -> None:
        """Store that a problem was resolved without a transaction commit: there was nothing to commit."""

    def record_fence(self, lease: Lease, component_id: str, txid: TxId) -> None:
        """Record that the table of `component_id`, which is about to get `lease.fence_id` as its version, is at
        `txid`: for one that goes back, the transaction that it goes back to."""

    def begin_rewind(self, lease: Lease, txid: TxId) -> AttemptId:
        """Record that the topology is being taken back to a committed transaction: until `finish_rewind` the lease can
        only be taken to rewind. The same write draws another fence id, for the tables as they will be.

        Another transaction takes the place of the one of a rewind that was begun.
        Raises `ProtocolError` for a transaction whose batch the store does not know.
        """

    def finish_rewind(self, lease: Lease, txid: TxId) -> None:
        """The transaction that the rewind was begun for becomes the committed one again, in one write.

        Attempts that committed later ones are marked as rewound, their recorded batches and outbox rows are deleted,
        savepoints of later ones are dropped, and a problem is resolved. The attempt counter is kept: it only increases.
        A sink that has published later ones gets a boundary after the transaction, for all attempts so far.
        """

    def recount(self, lease: Lease, attempt_id: AttemptId, *, store_id: str | None = None) -> None:
        """Let the attempt counter continue from here, and forget the attempts and fences after it, in one write.

        Only for a store that is brought to where its tables or the targets of its sinks are: the counter then continues
        above whatever any of them has seen. `store_id` is stored; after None the next start stores the one that the
        tables have recorded. Raises `ProtocolError` if one of the attempts that
        would be forgotten has committed the committed transaction.
        """

    def note_savepoint(self, topology_id: str, name: str, txid: TxId) -> bool:
        """Keep what going back to a committed transaction takes of the store, from any process: needs no lease.

        A savepoint of the same name is replaced. False: the store does not know the topology, or no longer the batch
        of the transaction.
        """

    def drop_savepoint(self, topology_id: str, name: str) -> bool:
        """Keep it no longer; False: there is none of this name."""

    def forget_before(self, lease: Lease, *, at_ms: int) -> int:
        """Delete committed attempts older than `at_ms`, but never the newest committed one; return how many."""

    def reset(self, topology_id: str, *, drop_unsent: bool = False) -> bool:
        """Delete all progress of a topology: its next run starts over. False: the store does not know it.

        Sinks get a boundary at the beginning, for all attempts so far. Raises `ConfigError` if some have outbox rows,
        unless they are to be dropped.

        Its epoch is kept and raised, and its attempt counter is kept: so an earlier coordinator remains fenced off, and
        no earlier table is ever mistaken for a later one. Raises `TopologyInUse` while it is leased.
        """
