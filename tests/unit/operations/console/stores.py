"""Stores with a past to show: transactions in steps, failures, a takeover, and texts that none should trust."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from transactional.core.store import AttemptRecord, Lease
from transactional.core.store.history import RunAbout, RunEnd
from transactional.core.store.outbox import SinkRecords
from transactional.core.store.progress import Phase
from transactional.model.attempt import AttemptId, TransactionAttempt, TxId
from transactional.model.batch import BatchMetadata, Digest, Offset, OffsetRange, PartitionId
from transactional.model.facts import Listed
from transactional.testing import ManualClock, MemoryCoordinatorStore

START_MS = 1_763_800_000_000
HOSTILE = "</script><img src=x onerror=alert(1)>'\"`{{7*7}}\u202e"


def described(topology_id: str, components: int = 4, name: str = "") -> dict[str, Any]:
    """A topology as `describe` tells it: a spout, and bolts that read from the one before; the last two commit."""
    ids = [f"{name}component-{number}" for number in range(components)]
    told: list[dict[str, Any]] = []
    for number, each in enumerate(ids):
        phase = (
            "processing" if number < components - 2 else "processing + commit" if number == components - 2 else "commit"
        )
        inputs = [{"source": ids[number - 1], "stream": "default", "grouping": f"fields{name}", "fields": ["word"]}]
        if number == components - 1 > 1:
            inputs.append({"source": ids[1], "stream": f"late{name}", "grouping": "global", "fields": []})
        told.append(
            {"id": each, "kind": f"Bolt{name}", "parallelism": 4, "phase": phase, "inputs": inputs if number else []}
        )
    return {"topology": topology_id, "components": told}


@dataclass
class Past:
    """A topology in a store, made step by step. `name` is put into every text that it stores."""

    topology_id: str = "words"
    name: str = ""
    partitions: int = 2
    components: int = 4
    clock: ManualClock = field(default_factory=lambda: ManualClock(wall_ms=START_MS))
    store: Any = None
    lease: Lease | None = None
    txid: int = 0
    attempt_id: int = 0
    listed: Mapping[PartitionId, Listed] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.store = self.store or MemoryCoordinatorStore(self.clock)

    def begin(
        self,
        owner: str = "worker-1:4411",
        settings: Mapping[str, Any] | None = None,
        sources: Mapping[str, Any] | None = None,
    ) -> Past:
        """Take the lease."""
        about = RunAbout(
            "0.1.0",
            described(self.topology_id, self.components, self.name),
            settings or {"lease_ms": 15_000},
            sources or {"lease_ms": [[f"--set{self.name}", 15_000], [f"code{self.name}", f"7{self.name}"]]},
        )
        fingerprint = {
            "spout": {"kind": "memory"},
            "committers": {f"count{self.name}": {"table": f"/tables/{self.name}"}},
        }
        self.lease = self.store.acquire(
            self.topology_id, fingerprint, owner=owner + self.name, lease_ms=60_000, name=self.name or None, about=about
        )
        self.store.record_start(self.lease, fingerprint)
        self.attempt_id = self.lease.fence_id
        return self

    def issue(self, txid: int | None = None, *, planning_ms: int = 5) -> TransactionAttempt:
        """Record an attempt, by default at the next transaction."""
        self.txid = self.txid + 1 if txid is None else txid
        self.attempt_id += 1
        attempt = TransactionAttempt(TxId(self.txid), AttemptId(self.attempt_id))
        at_ms = self.clock.wall_ms()
        self.clock.advance(planning_ms)
        record = AttemptRecord(
            attempt, "processing", self.batch(attempt), None, at_ms, self.clock.wall_ms(), None, None, None, None
        )
        self.store.record_attempt(self.held, record, forget_later=False)
        return attempt

    def batch(self, attempt: TransactionAttempt) -> BatchMetadata:
        """A hundred records of each partition."""
        ranges = {
            PartitionId(f"words{self.name}", index): OffsetRange(
                Offset(100 * (attempt.txid - 1)), Offset(100 * attempt.txid)
            )
            for index in range(self.partitions)
        }
        return BatchMetadata(ranges, listed=self.listed)

    def commit(
        self,
        attempt: TransactionAttempt,
        details: Mapping[str, Any] | None = None,
        outbox: Mapping[str, SinkRecords] = MappingProxyType({}),
    ) -> None:
        """Process it for 120 ms, let it wait for 30, commit it in 50."""
        batch = self.batch(attempt)
        done = batch.with_digests({partition: Digest(100, 7, 100) for partition in batch.ranges})
        self.clock.advance(200)
        at_ms = self.clock.wall_ms()
        times = {"processed_at_ms": at_ms - 80, "started_at_ms": at_ms - 50, "at_ms": at_ms}
        self.store.record_commit(self.held, attempt, done, **times, details=details or {"lag": 1_933}, outbox=outbox)

    def fail(self, attempt: TransactionAttempt, error: str = "ValueError: no") -> None:
        """It fails after 90 ms."""
        self.clock.advance(90)
        reason = f"{error}{self.name}\nTraceback (most recent call last):\n  {self.name}"
        self.store.record_failure(self.held, attempt, Phase.PROCESSING, reason, at_ms=self.clock.wall_ms())

    def committed(self, count: int = 1) -> Past:
        """So many more transactions."""
        for _ in range(count):
            self.commit(self.issue())
        return self

    def retried(self) -> Past:
        """A transaction that fails, and is committed at the second attempt."""
        self.fail(self.issue())
        self.commit(self.issue(self.txid))
        return self

    def taken_over(self, owner: str = "worker-2:97") -> Past:
        """The process is gone; another one goes on once the lease has expired."""
        self.clock.advance(70_000)
        return self.begin(owner, settings={"lease_ms": 20_000})

    def end(self, end: RunEnd | None = None) -> Past:
        """Release the lease."""
        self.store.release(self.held, end=end)
        return self

    @property
    def held(self) -> Lease:
        """The lease."""
        assert self.lease is not None
        return self.lease
