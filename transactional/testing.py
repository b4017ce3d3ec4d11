"""For tests of topologies: a coordinator's store in memory, and a clock that moves only when told to."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from transactional.attempt import NO_TRANSACTION, AttemptId, Epoch, TransactionAttempt, TxId
from transactional.batch import EMPTY_BATCH, BatchMetadata
from transactional.coordinator import Snapshot
from transactional.ports import Clock
from transactional.protocol import Phase
from transactional.store import AttemptRecord, Desired, DesiredState, Lease, TopologyStatus
from transactional.store_rules import (
    CARRIED_OUT,
    COMMITTED,
    FAILED,
    GIVEN_UP,
    OPEN,
    PROCESSED,
    check_fingerprint,
    check_free,
    check_same_attempt,
    check_same_commit,
    desired_at_start,
    desired_of,
    failure_text,
    fenced,
    fingerprint_json,
    is_held,
    not_in_flight,
)


class ManualClock:
    """A `Clock` that stands still until `advance` is called. Both of its times move together."""

    def __init__(self, *, wall_ms: int = 0) -> None:
        self._started_at_ms = wall_ms
        self._passed_ms = 0

    def monotonic_ms(self) -> int:
        """Milliseconds since the clock was made."""
        return self._passed_ms

    def wall_ms(self) -> int:
        """Milliseconds since 1970."""
        return self._started_at_ms + self._passed_ms

    def advance(self, duration_ms: int) -> None:
        """Let time pass."""
        if duration_ms < 0:
            raise ValueError(f"time passes forwards only, got {duration_ms} ms")
        self._passed_ms += duration_ms


_NO_EPOCH, _NO_ATTEMPT = Epoch(0), AttemptId(0)


@dataclass(slots=True)
class _Topology:
    """All that the store knows of one topology. `transactions` holds those above the committed one."""

    fingerprint: str
    epoch: Epoch = _NO_EPOCH
    owner: str | None = None
    leased_until_ms: int | None = None
    attempt_id: AttemptId = _NO_ATTEMPT
    committed_txid: TxId = NO_TRANSACTION
    committed_attempt_id: AttemptId | None = None
    transactions: dict[TxId, AttemptId] = field(default_factory=dict)
    attempts: dict[AttemptId, AttemptRecord] = field(default_factory=dict)
    fences: dict[tuple[str, AttemptId], TxId] = field(default_factory=dict)
    name: str | None = None
    desired: DesiredState = DesiredState.ACTIVE
    stop_at_ms: int | None = None

    def desire(self, state: DesiredState, stop_at_ms: int | None = None) -> None:
        self.desired, self.stop_at_ms = state, stop_at_ms


class MemoryCoordinatorStore:
    """The coordinator's store in this process' memory, with every rule of the real ones.

    It outlives the coordinators that use it, so a restart is a second `acquire`. Leases end by `clock`; the default
    is a `ManualClock`, by which a lease holds until it is released or taken again by the same owner.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock: Clock = clock or ManualClock()
        self._topologies: dict[str, _Topology] = {}
        self._lock = threading.Lock()

    # --- leases -------------------------------------------------------------------------------------------------

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
        """Take the lease and draw a fence id.

        With `accept_changes` a differing fingerprint takes the place of the stored one.
        """
        given = fingerprint_json(fingerprint)
        with self._lock:
            topology = self._topologies.setdefault(topology_id, _Topology(given))
            before = self._status(topology_id, topology)
            now_ms = self._clock.wall_ms()
            check_free(before, owner, now_ms)
            if not accept_changes:
                check_fingerprint(topology_id, before.fingerprint, json.loads(given))
            topology.epoch = Epoch(topology.epoch + 1)
            topology.attempt_id = AttemptId(topology.attempt_id + 1)
            topology.owner, topology.fingerprint, topology.name = owner, given, name
            topology.leased_until_ms = now_ms + lease_ms
            desired = desired_at_start(before, now_ms)
            topology.desire(desired.state, topology.stop_at_ms if desired.stop_in_ms else None)
            return Lease(topology_id, topology.epoch, owner, _snapshot(topology), topology.attempt_id, desired)

    def renew(self, lease: Lease, *, lease_ms: int) -> None:
        """Make the lease hold for `lease_ms` from now, by the store's clock."""
        with self._held(lease) as topology:
            topology.leased_until_ms = self._clock.wall_ms() + lease_ms

    def release(self, lease: Lease, *, is_done: bool = False) -> None:
        """Give the lease back; does nothing when it is no longer the current one."""
        with self._lock:
            topology = self._topologies.get(lease.topology_id)
            if topology is not None and is_held(lease, self._status(lease.topology_id, topology)):
                topology.owner = topology.leased_until_ms = None
                if is_done and topology.desired in CARRIED_OUT:
                    topology.desire(DesiredState.ACTIVE)

    def desire(self, topology_id: str, state: DesiredState, *, wait_ms: int = 0) -> bool:
        """Say what a topology is to do; False when it is not known."""
        with self._lock:
            topology = self._topologies.get(topology_id)
            if topology is not None:
                stop_at_ms = self._clock.wall_ms() + wait_ms if state is DesiredState.KILLED else None
                topology.desire(state, stop_at_ms)
            return topology is not None

    def desired(self, topology_id: str) -> Desired:
        """What a topology is to do now."""
        with self._lock:
            topology = self._topologies.get(topology_id, _Topology("{}"))
            return desired_of(topology.desired, topology.stop_at_ms, self._clock.wall_ms())

    # --- transactions -------------------------------------------------------------------------------------------

    def record_attempt(self, lease: Lease, record: AttemptRecord, *, forget_later: bool) -> None:
        """Store a new attempt as that of its txid, and give up those in flight at this and later txids."""
        attempt = record.attempt
        with self._held(lease) as topology:
            if attempt.attempt_id <= topology.attempt_id or attempt.txid <= topology.committed_txid:
                known = topology.attempts.get(attempt.attempt_id)
                recorded_txid = known.attempt.txid if known is not None else None
                return check_same_attempt(lease, attempt, self._status(lease.topology_id, topology), recorded_txid)
            for txid in [txid for txid in topology.transactions if txid >= attempt.txid]:
                _give_up(topology, topology.transactions[txid])
                if forget_later:
                    del topology.transactions[txid]
            topology.attempt_id = topology.transactions[attempt.txid] = attempt.attempt_id
            topology.attempts[attempt.attempt_id] = record
            return None

    def record_processed(self, lease: Lease, attempt: TransactionAttempt, batch: BatchMetadata, *, at_ms: int) -> None:
        """Store the batch with its digests, the number of records and when the processing phase ended."""
        with self._held(lease) as topology:
            record = _in_flight(topology, attempt)
            if record is None:
                raise not_in_flight(lease, attempt)
            topology.attempts[attempt.attempt_id] = _processed(record, batch, at_ms)

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
        """Move the committed txid by one, to `attempt.txid`; `batch`, with its digests, becomes the committed one."""
        with self._held(lease) as topology:
            if topology.committed_txid != attempt.txid - 1:
                status = self._status(lease.topology_id, topology)
                return check_same_commit(attempt, status, topology.committed_attempt_id)
            record = _in_flight(topology, attempt)
            if record is None:
                raise not_in_flight(lease, attempt)
            del topology.transactions[attempt.txid]
            topology.committed_txid, topology.committed_attempt_id = attempt.txid, attempt.attempt_id
            topology.attempts[attempt.attempt_id] = replace(
                _processed(record, batch, processed_at_ms),
                phase=COMMITTED,
                commit_started_at_ms=started_at_ms,
                committed_at_ms=at_ms,
            )
            return None

    def record_failure(
        self, lease: Lease, attempt: TransactionAttempt, phase: Phase, reason: str, *, at_ms: int
    ) -> None:
        """Store in which phase and why an attempt in flight failed; does nothing for any other attempt."""
        del at_ms
        with self._held(lease) as topology:
            record = _in_flight(topology, attempt)
            if record is not None:
                topology.attempts[attempt.attempt_id] = replace(record, phase=FAILED, error=failure_text(phase, reason))

    def record_fence(self, lease: Lease, component_id: str, txid: TxId) -> None:
        """Note that the component's table is at `txid` when its version is `lease.fence_id`."""
        with self._held(lease) as topology:
            topology.fences[component_id, lease.fence_id] = txid

    def forget_before(self, lease: Lease, *, at_ms: int) -> int:
        """Drop committed attempts older than `at_ms` but the newest, and what only they needed."""
        with self._held(lease) as topology:
            committed = [record for record in topology.attempts.values() if record.phase == COMMITTED]
            dropped = {
                record.attempt
                for record in committed
                if (record.committed_at_ms or 0) < at_ms and record.attempt.attempt_id != topology.committed_attempt_id
            }
            oldest = min((record.attempt for record in committed if record.attempt not in dropped), default=None)
            if oldest is not None:
                _drop(topology, dropped, oldest)
            return len(dropped)

    # --- reading ------------------------------------------------------------------------------------------------

    def txid_of(self, topology_id: str, component_id: str, attempt_id: AttemptId) -> TxId | None:
        """The txid that a table of this component is at when its version is `attempt_id`; None: unknown id."""
        with self._lock:
            topology = self._topologies.get(topology_id)
            if topology is None:
                return None
            record = topology.attempts.get(attempt_id)
            return record.attempt.txid if record is not None else topology.fences.get((component_id, attempt_id))

    def has_fence(self, topology_id: str, component_id: str) -> bool:
        """Whether a fence was ever noted for this component."""
        with self._lock:
            topology = self._topologies.get(topology_id)
            return topology is not None and any(noted_for == component_id for noted_for, _ in topology.fences)

    def status(self, topology_id: str | None = None) -> list[TopologyStatus]:
        """All topologies, or the one named, in order of their ids."""
        with self._lock:
            names = sorted(self._topologies) if topology_id is None else [topology_id]
            return [self._status(name, self._topologies[name]) for name in names if name in self._topologies]

    def attempts(self, topology_id: str, *, limit: int) -> list[AttemptRecord]:
        """The last attempts, newest first."""
        with self._lock:
            topology = self._topologies.get(topology_id)
            return list(islice(reversed(topology.attempts.values()), limit)) if topology is not None else []

    def close(self) -> None:
        """Nothing to release; the content stays."""

    # --- details ------------------------------------------------------------------------------------------------

    @contextmanager
    def _held(self, lease: Lease) -> Iterator[_Topology]:
        """The topology, alone, if the lease is the current one. Raises `Fenced` if it is not."""
        with self._lock:
            topology = self._topologies.get(lease.topology_id)
            if topology is None:
                raise fenced(lease, None)
            if (topology.epoch, topology.owner) != (lease.epoch, lease.owner):
                raise fenced(lease, self._status(lease.topology_id, topology))
            yield topology

    def _status(self, topology_id: str, topology: _Topology) -> TopologyStatus:
        until_ms = topology.leased_until_ms
        return TopologyStatus(
            topology_id=topology_id,
            epoch=topology.epoch,
            owner=topology.owner,
            leased_until_ms=until_ms,
            is_leased=until_ms is not None and until_ms > self._clock.wall_ms(),
            committed_txid=topology.committed_txid,
            attempt_id=topology.attempt_id,
            fingerprint=json.loads(topology.fingerprint),
            name=topology.name,
            desired=topology.desired,
            stop_at_ms=topology.stop_at_ms,
        )


def _snapshot(topology: _Topology) -> Snapshot:
    newest = topology.committed_attempt_id
    return Snapshot(
        topology.committed_txid,
        EMPTY_BATCH if newest is None else topology.attempts[newest].batch,
        {txid: topology.attempts[topology.transactions[txid]].batch for txid in sorted(topology.transactions)},
        topology.attempt_id,
    )


def _in_flight(topology: _Topology, attempt: TransactionAttempt) -> AttemptRecord | None:
    record = topology.attempts.get(attempt.attempt_id)
    return record if record is not None and record.attempt == attempt and record.phase in OPEN else None


def _processed(record: AttemptRecord, batch: BatchMetadata, at_ms: int) -> AttemptRecord:
    rows = record.rows if batch.record_count is None else batch.record_count
    return replace(record, phase=PROCESSED, batch=batch, rows=rows, processed_at_ms=at_ms)


def _give_up(topology: _Topology, attempt_id: AttemptId) -> None:
    record = topology.attempts[attempt_id]
    if record.phase in OPEN:
        topology.attempts[attempt_id] = replace(record, phase=GIVEN_UP)


def _drop(topology: _Topology, dropped: set[TransactionAttempt], oldest: TransactionAttempt) -> None:
    """Drop the given attempts, and the tries and fences before the oldest committed attempt that is kept.

    A table is never at an older version than its last committed attempt, so they serve nobody. A component's last
    fence stays: it tells that the component has joined.
    """
    for record in list(topology.attempts.values()):
        if record.attempt in dropped or record.attempt.txid < oldest.txid:
            del topology.attempts[record.attempt.attempt_id]
    newest = dict(sorted(topology.fences))
    for component_id, attempt_id in list(topology.fences):
        if attempt_id < min(oldest.attempt_id, newest[component_id]):
            del topology.fences[component_id, attempt_id]
