"""`Acker`: the bolt `__acker`, which finds out which messages are finished. It has a number of 64 bits for each root.

The emitter of a tuple XORs its random id into the roots that the tuple belongs to. The receiver that acks it XORs the
same id again. So the number of a root is 0 when all of its tuples are acked, in whatever order the XORs arrive.
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
"""A root, the number that one task XORs into it, and the reason if tuples of it have failed there."""
NOT_ACKED = "not every tuple of the message was acked when its batch ended"


class Ledger:
    """The numbers of roots, as far as one task, or the acker, knows them."""

    def __init__(self) -> None:
        self.values: dict[int, int] = {}
        self.errors: dict[int, str] = {}

    def xor(self, root: int, id_: int) -> None:
        """Record that a tuple of this root with this id was emitted, or acked."""
        self.values[root] = self.values.get(root, 0) ^ id_

    def fail(self, root: int, error: str) -> None:
        """Record that a tuple of this root has failed. The first reason counts."""
        self.errors.setdefault(root, error)

    def unfinished(self) -> dict[int, str]:
        """Return the roots that have failed or whose number is not 0, each with the reason."""
        return {root: NOT_ACKED for root, xor in self.values.items() if xor} | self.errors

    def rows(self) -> list[tuple[int, int, str | None]]:
        """Return the rows to report to the acker. Roots that are finished in this task are left out."""
        roots = [root for root, xor in self.values.items() if xor]
        roots += [root for root in self.errors if not self.values.get(root)]
        return [(root, self.values.get(root, 0), self.errors.get(root)) for root in roots]


class Acker(FollowingBolt):
    """Combines the ledgers of all tasks. Each task of the acker has some of the roots."""

    def prepare(self, context: TopologyContext, collector: OutputCollector, attempt: TransactionAttempt) -> None:
        self.ledger = Ledger()

    def execute_batch(self, batch: pa.RecordBatch) -> None:
        """Add the rows that tasks report."""
        columns: list[list[Any]] = [batch.column(name).to_pylist() for name in ("root", "value", "error")]
        values, fail = self.ledger.values, self.ledger.fail
        for root, xor, error in zip(*columns, strict=True):
            values[root] = values.get(root, 0) ^ xor
            if error is not None:
                fail(root, error)

    def unfinished(self) -> Unfinished:
        return Unfinished(self.ledger.unfinished())
