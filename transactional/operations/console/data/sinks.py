"""The sinks of a topology as the store has them: what they have published, and what waits since when."""

from __future__ import annotations

from dataclasses import dataclass

from transactional.core.store import StoreReader
from transactional.core.store.outbox import SinkProgress
from transactional.core.store.rules import COMMITTED
from transactional.model.attempt import TxId


@dataclass(frozen=True, slots=True)
class SinkRow:
    """A sink, and when the first transaction that waits for it was committed, None if nothing waits."""

    name: str
    progress: SinkProgress
    waiting_since_ms: int | None


def read_sinks(store: StoreReader, topology_id: str) -> list[SinkRow]:
    """Read the sinks of a topology, also those that have left it and have something to publish."""
    return [
        SinkRow(name, progress, _committed_at_ms(store, topology_id, progress) if progress.waiting else None)
        for name, progress in sorted(store.sinks(topology_id).items())
    ]


def _committed_at_ms(store: StoreReader, topology_id: str, progress: SinkProgress) -> int | None:
    attempts = store.attempts_at(topology_id, TxId(progress.done_txid + 1))
    return next((attempt.committed_at_ms for attempt in attempts if attempt.phase == COMMITTED), None)
