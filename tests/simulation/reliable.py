"""Topologies without exactly once: what their bolts do is outside of the system, once and for all; and what must hold.

There are no tables. A processing phase gives the messages of its batch to bolts, in any order and a few at a time, and
may die in between; a bolt may fail a message. At least once nothing may be lost, at most once nothing may be given to a
bolt a second time, and what is lost has to be told.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from tests.simulation.faults import Faults, demand
from tests.simulation.oracle import Oracle
from tests.simulation.pools import SimulatedExecutor
from tests.simulation.source import Source, digest_of
from transactional.core.ports import Processed
from transactional.model.attempt import TransactionAttempt, TxId
from transactional.model.batch import BatchMetadata, Offset, OffsetRange, PartitionId, PendingMessage
from transactional.model.guarantees import Guarantee
from transactional.model.messages import FailedMessage

Message = tuple[PartitionId, int]


class Effects(Oracle):
    """What bolts were given, which nobody can take back; and whether that is what was promised."""

    def __init__(self, source: Source, faults: Faults, guarantee: Guarantee) -> None:
        super().__init__(source)
        self.faults, self.is_at_most_once = faults, guarantee is Guarantee.AT_MOST_ONCE
        self.given: Counter[Message] = Counter()
        self.done: set[Message] = set()
        self.open: set[Message] = set()
        """Messages of committed batches on which no bolt has succeeded."""
        self.lost = 0
        """Messages of which the committed batches say that they are lost."""
        self.pending: tuple[PendingMessage, ...] = ()

    def give(self, message: Message, *, is_done: bool) -> None:
        """A bolt is given a message, and succeeds on it or not."""
        self.given[message] += 1
        again = self.given[message] > 1
        demand(not (again and self.is_at_most_once), f"{message[0]}@{message[1]} is given to a bolt a second time")
        self.faults.reached["a message is given again"] += again
        if is_done:
            self.done.add(message)

    def commit(self, txid: TxId, batch: BatchMetadata) -> None:
        """A batch is committed: what is open of it waits, or was told to be lost."""
        demand(txid == self.txid + 1, f"transaction {txid} is committed after {self.txid}")
        self.txid = txid
        for partition, offsets in batch.ranges.items():
            ended = self.read_until[partition]
            if not self.is_at_most_once:
                self.check_start(partition, offsets.start, txid)
            demand(offsets.start >= ended, f"{partition}: transaction {txid} reads from {offsets.start} again")
            self.open.update((partition, offset) for offset in range(ended, offsets.until))
            self.read_until[partition] = offsets.until
        self.faults.reached["messages are lost, and that is told"] += batch.lost > 0
        self.lost, self.pending = self.lost + batch.lost, batch.pending
        self.open -= self.done
        waiting = {message.key for message in self.pending}
        gone = self.open - waiting
        demand(
            len(gone) <= self.lost,
            f"{sorted(gone)} are neither done nor waiting once transaction {txid} is committed, and {self.lost} are "
            "told to be lost",
        )

    def is_everything_committed(self) -> bool:
        """Also what has failed."""
        return super().is_everything_committed() and not self.pending


@dataclass(slots=True)
class ReliableExecutor(SimulatedExecutor):
    """Gives messages to bolts."""

    effects: Effects | None = None

    def run(self, attempt: TransactionAttempt, batch: BatchMetadata) -> Processed:
        """Give a batch to the bolts, a few messages at a time; what was given stays given whatever comes then."""
        self.check_goes_on(attempt)
        digests = {
            partition: digest_of(self.source.read(partition, offsets)) for partition, offsets in batch.non_empty()
        }
        messages = list(self._messages(batch))
        self.faults.random.shuffle(messages)
        failed = list[FailedMessage]()
        size = self.faults.random.randint(1, 12)
        for first in range(0, len(messages), size):
            self.scheduler.before(f"give messages of {attempt}")
            self.check_goes_on(attempt)
            for partition, offset in messages[first : first + size]:
                fails = self.faults.strikes("a bolt fails a message")
                self._give((partition, offset), is_done=not fails)
                if fails:
                    failed.append(FailedMessage(partition, Offset(offset), "a bolt has failed it"))
        assert self.effects is not None
        if self.effects.is_at_most_once:
            return Processed(digests, {}, {}, dropped=len(failed), reason="a bolt has failed it" if failed else "")
        return Processed(digests, {}, {}, failed=sorted(failed, key=lambda each: (each.partition, each.offset)))

    def _give(self, message: Message, *, is_done: bool) -> None:
        assert self.effects is not None
        self.effects.give(message, is_done=is_done)

    def _messages(self, batch: BatchMetadata) -> Iterator[Message]:
        for partition, offsets in batch.non_empty():
            yield from ((partition, offset) for offset in range(offsets.start, offsets.until))
        for message in batch.again:
            self.faults.reached["a message that has failed comes again alone"] += 1
            self.source.read(message.partition, OffsetRange(message.offset, Offset(message.offset + 1)))
            yield message.key
