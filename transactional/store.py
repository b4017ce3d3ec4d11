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
from transactional.coordinator import Snapshot
from transactional.protocol import Phase


class DesiredState(Enum):
    """What people want a topology to do (rows T32, O5). It is kept with its progress; `value` is the word shown."""

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
    but an earlier transaction did, or its coordinator went away. An attempt at an opaque spout's transaction stays
    `processing` until it is committed: the end of its processing is stored with the transaction commit.
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


@dataclass(frozen=True, slots=True)
class TopologyStatus:
    """One topology as the store knows it. `leased_until_ms` is by the store's clock, None when released.

    `name` is that of the last run. `stop_at_ms`, by the store's clock, is when one that was killed has to stop.
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


class CoordinatorStore(Protocol):
    """Where progress is kept (seed 004: ZooKeeper's part). Every write but `desire` is a compare-and-set on the
    lease's epoch.

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
    ) -> Lease:
        """Take the lease and draw a fence id, in one write. `name` is what the run is called; None: as its topology.

        A kill whose time has come before is over: it was for a run that has ended.

        Raises `TopologyInUse` while another owner's lease holds, `TopologyChanged` when `fingerprint` differs
        from the stored one and `accept_changes` is not given, `StoreTooNew` for a store written by a newer version.
        """

    def renew(self, lease: Lease, *, lease_ms: int) -> None:
        """Make the lease hold for `lease_ms` from now, by the store's clock."""

    def release(self, lease: Lease, *, is_done: bool = False) -> None:
        """Give the lease back, so that another coordinator need not wait for its end. Never raises `Fenced`.

        With `is_done` a drain or a kill has been carried out: in the same write the topology is active again.
        """

    def desire(self, topology_id: str, state: DesiredState, *, wait_ms: int = 0) -> bool:
        """Say what a topology is to do, from any process: needs no lease. False: the store does not know the topology.

        The last word holds. `wait_ms` is how long one that is killed has to finish what is in flight.
        """

    def desired(self, topology_id: str) -> Desired:
        """What a topology is to do now; active when the store does not know it."""

    def record_attempt(self, lease: Lease, record: AttemptRecord, *, forget_later: bool) -> None:
        """Store a new attempt and its batch as those of its txid; raise the attempt counter to its id.

        Refused with `Fenced` also when the counter already is at or above the attempt id.
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
    ) -> None:
        """Move the committed txid from `attempt.txid - 1` to `attempt.txid`; `batch`, with its digests, becomes the
        committed one.

        In the same write go the times at which the processing phase ended and the commit phase began and ended.
        """

    def record_failure(
        self, lease: Lease, attempt: TransactionAttempt, phase: Phase, reason: str, *, at_ms: int
    ) -> None:
        """Store why an attempt failed. Does nothing for an attempt that was never recorded."""

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

    def forget_before(self, lease: Lease, *, at_ms: int) -> int:
        """Drop committed attempts older than `at_ms`, but never the newest committed one; return how many."""

    def close(self) -> None:
        """Release connections."""
