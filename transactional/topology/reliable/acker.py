"""`Acker`: the bolt `__acker`, which finds out what messages are finished: for each root one number of 64 bits.

Whoever emits a tuple XORs its random id into the roots that it belongs to, whoever acks it XORs the same id again. So
the number of a root is 0 when all of its tuples are acked, in whatever order the XORs arrive, however many they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from transactional.model.attempt import TransactionAttempt
from transactional.model.messages import Unfinished
from transactional.topology.bolts.bolts import OutputCollector, TopologyContext
from transactional.topology.bolts.following_bolt import FollowingBolt

if TYPE_CHECKING:
    import pyarrow as pa

ACKER = "__acker"
ACK_STREAM = "__ack"
ACK_FIELDS = "root long, value long, error string"
"""A root, what one task XORs into its number, and the reason if its tuples have failed there."""
NOT_ACKED = "not every tuple of the message was acked when its batch ended"


class Ledger:
    """The numbers of roots, as far as known in one place."""

    def __init__(self) -> None:
        self.values: dict[int, int] = {}
        self.errors: dict[int, str] = {}

    def xor(self, root: int, value: int) -> None:
        """A tuple of this root with this id was emitted, or acked."""
        self.values[root] = self.values.get(root, 0) ^ value

    def fail(self, root: int, error: str) -> None:
        """A tuple of this root has failed; the first reason counts."""
        self.errors.setdefault(root, error)

    def unfinished(self) -> dict[int, str]:
        """The roots that have failed or whose number is not 0, with the reason."""
        return {root: NOT_ACKED for root, value in self.values.items() if value} | self.errors

    def rows(self) -> list[tuple[int, int, str | None]]:
        """What the acker has to know of it: nothing of roots that are finished here."""
        roots = [root for root, value in self.values.items() if value]
        roots += [root for root in self.errors if not self.values.get(root)]
        return [(root, self.values.get(root, 0), self.errors.get(root)) for root in roots]


class Acker(FollowingBolt):
    """Combines the ledgers of all tasks; each of its own tasks has some of the roots."""

    def prepare(self, context: TopologyContext, collector: OutputCollector, attempt: TransactionAttempt) -> None:
        """Start with nothing."""
        self.ledger = Ledger()

    def execute_batch(self, batch: pa.RecordBatch) -> None:
        """Take what a task reports."""
        columns: list[list[Any]] = [batch.column(name).to_pylist() for name in ("root", "value", "error")]
        values, fail = self.ledger.values, self.ledger.fail
        for root, value, error in zip(*columns, strict=True):
            values[root] = values.get(root, 0) ^ value
            if error is not None:
                fail(root, error)

    def unfinished(self) -> Unfinished:
        """What is left."""
        return Unfinished(self.ledger.unfinished())
