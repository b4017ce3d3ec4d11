"""`SinkBacklog`: the committed transactions that sinks have not published yet, and when a commit has to wait for them.

A commit phase never waits for a sink. The coordinator starts none while too much waits, so the outbox stays bounded.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from transactional.model.attempt import TxId
from transactional.model.config import TopologyConfig


@dataclass(slots=True)
class SinkBacklog:
    """The transactions in the outbox: their number, and the size of their payloads in bytes."""

    _waiting: dict[TxId, tuple[int, int]] = field(default_factory=dict)

    def add(self, txid: TxId, size_bytes: int, transactions: int = 1) -> None:
        """Add what waits up to a transaction; nothing waits for one without records."""
        if size_bytes:
            self._waiting[txid] = (transactions, size_bytes)

    def settle(self, txid: TxId) -> None:
        """Remove what is published by every sink: all up to a transaction."""
        self._waiting = {waiting: sizes for waiting, sizes in self._waiting.items() if waiting > txid}

    @property
    def transactions(self) -> int:
        """The number of waiting transactions."""
        return sum(transactions for transactions, _ in self._waiting.values())

    @property
    def size_bytes(self) -> int:
        """The size of the waiting payloads."""
        return sum(size_bytes for _, size_bytes in self._waiting.values())

    def is_full(self, config: TopologyConfig) -> bool:
        """True if another transaction may not be committed before some of these are published."""
        return self.transactions >= config.sink_pending_max or self.size_bytes >= config.sink_pending_bytes_max
