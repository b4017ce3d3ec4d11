"""The coordinator's store as the engine sees it: where progress, leases and what people want of a topology are kept.

All implementations pass one contract suite (`tests/contract/test_coordinator_store*.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from transactional.attempt import AttemptId, Epoch, TransactionAttempt, TxId
from transactional.batch import BatchMetadata
from transactional.progress import Phase, Snapshot
from transactional.store_history import Keep, MinuteRecord, RunAbout, RunEnd, RunRecord, Trouble


class DesiredState(Enum):
    """What people want a topology to do. It is kept with its progress; `value` is the word shown."""

    ACTIVE = "active"
    INACTIVE = "inactive"
    """Nothing new is issued, what is in flight is finished; restarts keep to it, until the topology is activated."""
    DRAINING = "draining"
    """Nothing new is issued; once all that is in flight is committed the run ends, and the topology is active again."""
    KILLED = "killed"
    """As inactive, until a time; then the run stops, and the topology is active again: it may be started anew."""


@dataclass(frozen=True, slots=True)
class Desired:
    """What a topology is to do now. `stop_in_ms` of one that is killed: until then it finishes what is in flight."""

    state: DesiredState = DesiredState.ACTIVE
    stop_in_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to coordinate one topology. Every write to the store is checked against `epoch`."""

    topology_id: str
    epoch: Epoch
    owner: str
    snapshot: Snapshot
    fence_id: AttemptId
    """An attempt id drawn with the lease; higher than any that an earlier coordinator can have written to a table."""
    desired: Desired = Desired()


@dataclass(frozen=True, slots=True)
class AttemptRecord:
    """One attempt as the store remembers it. Times are wall-clock milliseconds since 1970, None: not reached.

    `phase` is one of `processing`, `processed`, `committed`, `failed`, and `given up`: the attempt itself did not fail,
    but an earlier transaction did, or its run ended; `error` then may say by what. An attempt at an opaque spout's
    transaction stays `processing` until it is committed: the end of its processing is stored with the transaction
    commit. `details` is what else is known of a committed one, as JSON: its `lag`, for example.
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
class TopologyStatus:
    """One topology as the store knows it. `leased_until_ms` is by the store's clock, None when released.

    `name` is that of the last run. `stop_at_ms`, by the store's clock, is when one that was killed has to stop.
    `committed_at_ms` and `lag` are those of the last transaction commit. `rewinding_to` is where a rewind that was
    begun has to end before anything else is done.
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


class CoordinatorStore(Protocol):
    """Where progress is kept (in Storm: ZooKeeper). Every write but `desire` is a compare-and-set on the lease's epoch.

    A write raises `Fenced` when the lease is not the current one, and then has changed nothing; `StoreUnavailable` when
    the store does not answer, whereupon the same call may be repeated: it succeeds also when it had succeeded before;
    `ProtocolError` when the lease is right and the call is wrong (a bug of ours).
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
    ) -> Lease:
        """Take the lease and draw a fence id, in one write. `name` is what the run is called; None: as its topology.

        A kill whose time has come before is over: it was for a run that has ended. The write also stores that a run
        began, and that earlier ones of which nobody has told the end are lost; their attempts are given up.

        `fingerprint` is compared, not stored: `record_start` does that. Before the first transaction commit it may
        change; batches of another source, of which nothing can be in a table, are forgotten then.

        Raises `TopologyInUse` while another owner's lease holds, `TopologyChanged` when `fingerprint` differs
        from the stored one and `accept_changes` is not given, `StoreTooNew` for a store written by a newer version.
        """

    def record_start(self, lease: Lease, fingerprint: Mapping[str, Any]) -> None:
        """Store the fingerprint of a run whose start went through: its tables are fenced, and it goes on from here."""

    def renew(self, lease: Lease, *, lease_ms: int) -> None:
        """Make the lease hold for `lease_ms` from now, by the store's clock."""

    def release(self, lease: Lease, *, is_done: bool = False, end: RunEnd | None = None) -> None:
        """Give the lease back, so that another coordinator need not wait for its end. Never raises `Fenced`.

        With `is_done` a drain or a kill has been carried out: in the same write the topology is active again. `end` is
        why the run ends, None: stopped. What is still in flight is given up, with the reason of a failed run.
        """

    def desire(self, topology_id: str, state: DesiredState, *, wait_ms: int = 0) -> bool:
        """Say what a topology is to do, from any process: needs no lease. False: the store does not know the topology.

        The last word holds. `wait_ms` is how long one that is killed has to finish what is in flight.
        """

    def desired(self, topology_id: str) -> Desired:
        """What a topology is to do now; active when the store does not know it."""

    def record_attempt(self, lease: Lease, record: AttemptRecord, *, forget_later: bool) -> None:
        """Store a new attempt and its batch as those of its txid; raise the attempt counter to its id.

        Refused with `Fenced` also when the counter already is at or above the attempt id, and with `ProtocolError`
        when the transaction before it is neither committed nor recorded: txids have no holes.
        With `forget_later` the batches of all later txids go in the same write.
        """

    def record_processed(self, lease: Lease, attempt: TransactionAttempt, batch: BatchMetadata, *, at_ms: int) -> None:
        """Store the batch with its digests and the time at which its processing phase ended.

        For what a replay is held against; `record_commit` does not need it to have gone before.
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
    ) -> None:
        """Move the committed txid from `attempt.txid - 1` to `attempt.txid`; `batch`, with its digests, becomes the
        committed one. A trouble that was noted at this transaction or before is over.

        In the same write go the times at which the processing phase ended and the commit phase began and ended, what
        else is known of the transaction, and of a minute that is over; and two of the oldest attempts go that are
        beyond what is to be kept, but none that a table may be at, or that is to be replayed.
        """

    def record_failure(
        self, lease: Lease, attempt: TransactionAttempt, phase: Phase, reason: str, *, at_ms: int
    ) -> None:
        """Store why an attempt failed, and that the topology is in trouble since then, if it was not before.

        Attempts in flight at later txids are given up in the same write. An attempt that was never recorded, because
        its planning failed, leaves the trouble only.
        """

    def record_recovery(self, lease: Lease) -> None:
        """Store that a trouble is over without a transaction commit: there was nothing to commit."""

    def record_fence(self, lease: Lease, component_id: str, txid: TxId) -> None:
        """Note that the table of `component_id`, which is about to get `lease.fence_id` as version, is at `txid`."""

    def txid_of(self, topology_id: str, component_id: str, attempt_id: AttemptId) -> TxId | None:
        """The txid that a table of this component is at when its version is `attempt_id`; None: unknown id."""

    def has_fence(self, topology_id: str, component_id: str) -> bool:
        """Whether a fence was ever noted for this component: False for a committer that joins only now."""

    def status(self, topology_id: str | None = None) -> list[TopologyStatus]:
        """All topologies, or the one named, in order of their ids."""

    def attempts(self, topology_id: str, *, limit: int) -> list[AttemptRecord]:
        """The last attempts, newest first."""

    def runs(self, topology_id: str, *, limit: int) -> list[RunRecord]:
        """The last runs, newest first."""

    def minutes(self, topology_id: str, *, since_ms: int) -> list[MinuteRecord]:
        """The minutes that began at or after `since_ms`, oldest first; one of each run that committed in it."""

    def forget_before(self, lease: Lease, *, at_ms: int) -> int:
        """Drop committed attempts older than `at_ms`, but never the newest committed one; return how many."""

    def reset(self, topology_id: str) -> bool:
        """Forget all progress of a topology: its next run starts anew. False: the store does not know it.

        What is kept is its epoch, which is raised, and its attempt counter: so an earlier coordinator stays shut out,
        and no table of before is ever taken for one of after. Raises `TopologyInUse` while it is leased.
        """

    def close(self) -> None:
        """Release connections."""
