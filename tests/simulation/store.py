"""One process' way to the shared store: the real `MemoryCoordinatorStore`, over a line that is not to be trusted."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from tests.simulation.faults import Faults
from tests.simulation.source import shown
from transactional.core.store import (
    AttemptRecord,
    AttemptTimes,
    Desired,
    DesiredState,
    Lease,
    Position,
    StalledLease,
    TopologyStatus,
)
from transactional.core.store.history import MinuteRecord, RunAbout, RunEnd, RunRecord, Savepoint
from transactional.core.store.outbox import Boundary, OutboxRow, Publication, SinkProgress, SinkRecords
from transactional.core.store.progress import Phase
from transactional.errors import Fenced, StoreUnavailable, TopologyInUse
from transactional.model.attempt import NO_TRANSACTION, AttemptId, TransactionAttempt, TxId
from transactional.model.batch import BatchMetadata
from transactional.testing import MemoryCoordinatorStore


class Line:
    """A `CoordinatorStore`. A write may be lost, be made twice, or be done while its answer is lost.

    `before` is called where the process may crash or stand still, `committed` once a transaction commit is stored,
    `fenced` once a table's fence is, `recorded` once a batch is.
    """

    def __init__(
        self,
        store: MemoryCoordinatorStore,
        faults: Faults,
        before: Callable[[str], None],
        committed: Callable[[TransactionAttempt], None],
        is_down: Callable[[], bool],
        fenced: Callable[[str, TxId], None],
        recorded: Callable[[BatchMetadata], None],
    ) -> None:
        self._store, self._faults, self._before, self._committed = store, faults, before, committed
        self._is_down, self._fenced, self._recorded = is_down, fenced, recorded

    @property
    def storage_path(self) -> None:
        """None: the store is no file."""

    def _write(self, what: str, write: Callable[[], Any]) -> Any:
        self._before(what)
        if self._is_down():
            raise StoreUnavailable(f"{what}: the store is down")
        if self._faults.strikes("a store write is lost"):
            raise StoreUnavailable(f"{what}: the store does not answer")
        try:
            answer = write()
            if self._faults.strikes("a store write is made twice"):
                write()
        except Fenced:
            self._faults.reached["the store refuses an old lease"] += 1
            raise
        if self._faults.strikes("a store write is done, its answer is lost"):
            raise StoreUnavailable(f"{what}: the store has not answered")
        return answer

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
        self._before("acquire")
        try:
            lease = self._store.acquire(
                topology_id,
                fingerprint,
                owner=owner,
                lease_ms=lease_ms,
                accept_changes=accept_changes,
                name=name,
                about=about,
                to_rewind=to_rewind,
                stalled=stalled,
            )
        except TopologyInUse:
            self._faults.reached["a lease is refused"] += 1
            raise
        if lease.progress.recorded:
            self._faults.reached["a restart replays what was recorded"] += 1
        if lease.desired.state is not DesiredState.ACTIVE:
            self._faults.reached["a restart finds what was wished"] += 1
        return lease

    def record_start(self, lease: Lease, fingerprint: Mapping[str, Any], *, store_id: str | None = None) -> None:
        self._write(
            "record that the start went through",
            lambda: self._store.record_start(lease, fingerprint, store_id=store_id),
        )

    def renew(self, lease: Lease, *, lease_ms: int) -> None:
        self._write("renew", lambda: self._store.renew(lease, lease_ms=lease_ms))

    def release(self, lease: Lease, *, is_done: bool = False, end: RunEnd | None = None) -> None:
        if is_done:
            self._faults.reached[f"a topology was {self._store.desired(lease.topology_id).state.value}"] += 1
        self._store.release(lease, is_done=is_done, end=end)

    def desire(self, topology_id: str, state: DesiredState, *, wait_ms: int = 0) -> bool:
        return self._store.desire(topology_id, state, wait_ms=wait_ms)

    def desired(self, topology_id: str) -> Desired:
        if self._is_down():
            raise StoreUnavailable("desired: the store is down")
        return self._store.desired(topology_id)

    def record_attempt(self, lease: Lease, record: AttemptRecord, *, forget_later: bool, alone: bool = False) -> None:
        tries = [
            known
            for known in self._store.attempts(lease.topology_id, limit=10)
            if known.attempt.txid == record.attempt.txid
        ]
        if tries and tries[0].batch.ranges != record.batch.ranges:
            self._faults.reached["a replay is another batch"] += 1
        text = f"record {record.attempt}: {shown(record.batch)}{', forget later ones' if forget_later else ''}"

        def write() -> None:
            self._store.record_attempt(lease, record, forget_later=forget_later, alone=alone)
            self._recorded(record.batch)

        self._write(text, write)

    def record_processed(self, lease: Lease, attempt: TransactionAttempt, batch: BatchMetadata, *, at_ms: int) -> None:
        self._write(
            f"record {attempt} as processed", lambda: self._store.record_processed(lease, attempt, batch, at_ms=at_ms)
        )

    def record_commit(self, lease: Lease, attempt: TransactionAttempt, batch: BatchMetadata, **times: Any) -> None:
        def write() -> None:
            self._store.record_commit(lease, attempt, batch, **times)
            self._committed(attempt)

        self._write(f"record {attempt} as committed", write)

    def settle_sink(self, lease: Lease, sink: str, published: Publication) -> None:
        self._write(f"settle {sink} at {published}", lambda: self._store.settle_sink(lease, sink, published))

    def set_aside(self, lease: Lease, row: OutboxRow, letters: SinkRecords, remaining: SinkRecords | None) -> None:
        self._write(f"set aside {row}", lambda: self._store.set_aside(lease, row, letters, remaining))

    def sink_letters(self, topology_id: str) -> list[OutboxRow]:
        return self._store.sink_letters(topology_id)

    def place_sink(self, lease: Lease, sink: str, boundary: Boundary | None) -> None:
        self._write(f"place {sink} at {boundary}", lambda: self._store.place_sink(lease, sink, boundary))

    def sinks(self, topology_id: str) -> Mapping[str, SinkProgress]:
        return self._store.sinks(topology_id)

    def outbox(
        self, topology_id: str, sink: str, *, first: TxId = NO_TRANSACTION, last: TxId, limit: int
    ) -> list[OutboxRow]:
        return self._store.outbox(topology_id, sink, first=first, last=last, limit=limit)

    def outbox_in_files(self, topology_id: str) -> list[OutboxRow]:
        return self._store.outbox_in_files(topology_id)

    def record_failure(
        self, lease: Lease, attempt: TransactionAttempt, phase: Phase, reason: str, *, at_ms: int, alone: bool = False
    ) -> None:
        if "attempt_timeout_ms" in reason:
            self._faults.reached["an attempt times out"] += 1
        self._write(
            f"record {attempt} as failed in {phase.name}: {reason}",
            lambda: self._store.record_failure(lease, attempt, phase, reason, at_ms=at_ms, alone=alone),
        )

    def savepoints(self, topology_id: str) -> list[Savepoint]:
        return self._store.savepoints(topology_id)

    def note_savepoint(self, topology_id: str, name: str, txid: TxId) -> bool:
        return self._store.note_savepoint(topology_id, name, txid)

    def drop_savepoint(self, topology_id: str, name: str) -> bool:
        return self._store.drop_savepoint(topology_id, name)

    def begin_rewind(self, lease: Lease, txid: TxId) -> AttemptId:
        return self._store.begin_rewind(lease, txid)

    def finish_rewind(self, lease: Lease, txid: TxId) -> None:
        self._store.finish_rewind(lease, txid)

    def recount(self, lease: Lease, attempt_id: AttemptId, *, store_id: str | None = None) -> None:
        self._store.recount(lease, attempt_id, store_id=store_id)

    def record_recovery(self, lease: Lease) -> None:
        self._write("record that a trouble is over", lambda: self._store.record_recovery(lease))

    def record_fence(self, lease: Lease, component_id: str, txid: TxId) -> None:
        text = f"record that fence {lease.fence_id} of {component_id} is at {txid}"

        def write() -> None:
            self._store.record_fence(lease, component_id, txid)
            self._fenced(component_id, txid)

        self._write(text, write)

    def forget_before(self, lease: Lease, *, at_ms: int) -> int:
        return int(self._write(f"trim attempts before {at_ms}", lambda: self._store.forget_before(lease, at_ms=at_ms)))

    def txid_of(self, topology_id: str, component_id: str, attempt_id: AttemptId) -> TxId | None:
        return self._store.txid_of(topology_id, component_id, attempt_id)

    def has_fence(self, topology_id: str, component_id: str) -> bool:
        return self._store.has_fence(topology_id, component_id)

    def position(self, topology_id: str) -> Position | None:
        return self._store.position(topology_id)

    def status(self, topology_id: str | None = None) -> list[TopologyStatus]:
        return self._store.status(topology_id)

    def attempts(self, topology_id: str, *, limit: int) -> list[AttemptRecord]:
        return self._store.attempts(topology_id, limit=limit)

    def attempts_at(self, topology_id: str, txid: TxId) -> list[AttemptRecord]:
        return self._store.attempts_at(topology_id, txid)

    def times(
        self, topology_id: str, *, limit: int, before: AttemptId | None = None, phases: Collection[str] = ()
    ) -> list[AttemptTimes]:
        return self._store.times(topology_id, limit=limit, before=before, phases=phases)

    def times_with_letters(self, topology_id: str, *, among: int, limit: int) -> list[AttemptTimes]:
        return self._store.times_with_letters(topology_id, among=among, limit=limit)

    def runs(self, topology_id: str, *, limit: int) -> list[RunRecord]:
        return self._store.runs(topology_id, limit=limit)

    def minutes(self, topology_id: str, *, since_ms: int, each_ms: int | None = None) -> list[MinuteRecord]:
        return self._store.minutes(topology_id, since_ms=since_ms, each_ms=each_ms)

    def reset(self, topology_id: str, *, drop_unsent: bool = False) -> bool:
        return self._store.reset(topology_id, drop_unsent=drop_unsent)

    def close(self) -> None:
        """The store outlives its users."""
