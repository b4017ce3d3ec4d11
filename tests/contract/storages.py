"""The places that a coordinator's store can keep its progress in, and what tests write there."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Engine, create_engine

from transactional.core.store import AttemptRecord, Lease
from transactional.core.store.outbox import Publication
from transactional.core.store.progress import Phase
from transactional.core.store.sql.sql_store import SqlCoordinatorStore
from transactional.model.attempt import AttemptId, TransactionAttempt, TxId
from transactional.model.batch import BatchMetadata, Digest, Offset, OffsetRange, PartitionId
from transactional.testing import ManualClock, MemoryCoordinatorStore

Store = MemoryCoordinatorStore | SqlCoordinatorStore

POLL_SECONDS = 0.01
WAIT_SECONDS_MAX = 30


def wait_until(condition: Callable[[], bool]) -> None:
    """Ask again and again until the condition holds; fail when it does not in time."""
    deadline, pause = time.monotonic() + WAIT_SECONDS_MAX, threading.Event()
    while not condition():
        assert time.monotonic() < deadline, "it did not come true in time"
        pause.wait(POLL_SECONDS)


@dataclass
class Storage:
    """One place to keep progress in, that any number of stores can be opened on."""

    url: str | None
    clock: ManualClock = field(default_factory=lambda: ManualClock(wall_ms=1_700_000_000_000))
    opened: list[Store] = field(default_factory=list)

    @property
    def short_ms(self) -> int:
        """A lease soon to end. PostgreSQL gives up what takes half as long, so a slow moment has to fit into it."""
        return 2_000 if self.url is not None and self.url.startswith("postgresql") else 400

    def open(self, *, timeout_ms: int = 10_000) -> Store:
        """A store as another process would open it; for memory always the same."""
        if self.url is not None:
            self.opened.append(SqlCoordinatorStore(self.url, timeout_ms=timeout_ms))
        elif not self.opened:
            self.opened.append(MemoryCoordinatorStore(self.clock))
        return self.opened[-1]

    def wait_for_end_of_lease(self, topology_id: str) -> None:
        """Return once the topology's lease has run out by the store's clock."""
        [status] = self.open().status(topology_id)
        if self.url is None and status.leased_until_ms is not None:
            self.clock.advance(max(0, status.leased_until_ms - self.clock.wall_ms()))
        wait_until(lambda: not self.opened[-1].status(topology_id)[0].is_leased)

    def close(self) -> None:
        """Close every store that was opened."""
        for store in self.opened:
            store.close()


def engine_of(storage: Storage) -> Engine:
    """The database, opened without a store."""
    return create_engine((storage.url or "").replace("postgresql:", "postgresql+psycopg:"))


def execute(storage: Storage, *statements: str) -> None:
    """Change the database behind the store's back."""
    engine = engine_of(storage)
    with engine.begin() as connection:
        for statement in filter(str.strip, statements):
            connection.exec_driver_sql(statement)
    engine.dispose()


TOPOLOGY = "carriers"
FINGERPRINT: Mapping[str, Any] = {
    "spout": {"kind": "kafka", "topics": ["flights"]},
    "committers": {"total": {"table": "tables/total"}},
}
LONG_MS = 60_000
FLIGHTS = PartitionId("flights", 0)


def acquire(
    store: Store, owner: str = "first", *, topology_id: str = TOPOLOGY, lease_ms: int = LONG_MS, **options: Any
) -> Lease:
    """Take the lease, and note that the start went through."""
    fingerprint = options.pop("fingerprint", FINGERPRINT)
    lease = store.acquire(topology_id, fingerprint, owner=owner, lease_ms=lease_ms, **options)
    store.record_start(lease, fingerprint)
    return lease


def tried(txid: int, attempt_id: int) -> TransactionAttempt:
    return TransactionAttempt(TxId(txid), AttemptId(attempt_id))


def batch_of(start: int, until: int | None = None) -> BatchMetadata:
    return BatchMetadata({FLIGHTS: OffsetRange(Offset(start), Offset(start + 10 if until is None else until))})


def record_commit(
    store: Store, lease: Lease, attempt: TransactionAttempt, batch: BatchMetadata, *, at_ms: int = 1_004, **others: Any
) -> None:
    """Store a transaction commit; its processing ended at 1,002, its commit phase began at 1,003."""
    store.record_commit(lease, attempt, batch, processed_at_ms=1_002, started_at_ms=1_003, at_ms=at_ms, **others)


def read(batch: BatchMetadata, checksum: int = 7) -> BatchMetadata:
    """The batch as it is known once it was processed."""
    return batch.with_digests({partition: Digest(len(batch.ranges[partition]), checksum) for partition in batch.ranges})


def record_of(attempt: TransactionAttempt, batch: BatchMetadata) -> AttemptRecord:
    return AttemptRecord(attempt, "processing", batch, None, 1_000, 1_001, None, None, None, None)


def record_attempt(
    store: Store, lease: Lease, txid: int, attempt_id: int, start: int = 0, *, forget_later: bool = False
) -> TransactionAttempt:
    attempt = tried(txid, attempt_id)
    store.record_attempt(lease, record_of(attempt, batch_of(start)), forget_later=forget_later)
    return attempt


def commit(store: Store, lease: Lease, txid: int, attempt_id: int, *, at_ms: int = 1_004) -> TransactionAttempt:
    """Take a transaction through both of its phases."""
    attempt = record_attempt(store, lease, txid, attempt_id, start=10 * txid)
    store.record_processed(lease, attempt, read(batch_of(10 * txid)), at_ms=1_002)
    record_commit(store, lease, attempt, read(batch_of(10 * txid)), at_ms=at_ms)
    return attempt


def content(store: Store) -> tuple[object, ...]:
    """All that the store tells of the topology, apart from how the clock stands to its lease."""
    attempts = store.attempts(TOPOLOGY, limit=1_000)
    known = [store.txid_of(TOPOLOGY, "total", AttemptId(number)) for number in range(1, 20)]
    return (store.status(TOPOLOGY), attempts, known, store.sinks(TOPOLOGY))


WRITES: dict[str, Callable[[Store, Lease], object]] = {
    "renew": lambda store, lease: store.renew(lease, lease_ms=LONG_MS),
    "record_attempt": lambda store, lease: record_attempt(store, lease, 2, 9),
    "record_processed": lambda store, lease: store.record_processed(lease, tried(2, 3), read(batch_of(20)), at_ms=5),
    "record_commit": lambda store, lease: record_commit(store, lease, tried(2, 3), read(batch_of(20))),
    "record_failure": lambda store, lease: store.record_failure(lease, tried(2, 3), Phase.PROCESSING, "x", at_ms=5),
    "record_fence": lambda store, lease: store.record_fence(lease, "total", TxId(1)),
    "settle_sink": lambda store, lease: store.settle_sink(lease, "alerts", Publication("run", tried(1, 2))),
    "record_start": lambda store, lease: store.record_start(lease, FINGERPRINT),
    "record_recovery": lambda store, lease: store.record_recovery(lease),
    "forget_before": lambda store, lease: store.forget_before(lease, at_ms=10_000),
}


def in_flight(store: Store) -> Lease:
    """A coordinator that has committed transaction 1 and has 2 in flight."""
    lease = acquire(store)
    commit(store, lease, 1, 2)
    record_attempt(store, lease, 2, 3, start=20)
    return lease
