"""`Conversation`: a coordinator that tests talk to in short words, its invariants checked after each event."""

from __future__ import annotations

import copy
from typing import Any

from transactional.core.machine.coordinator import Coordinator
from transactional.core.machine.invariants import check
from transactional.core.machine.protocol import (
    Action,
    AttemptFailed,
    BatchPlanned,
    CommitSucceeded,
    Event,
    ProcessingSucceeded,
    Tick,
)
from transactional.core.store.progress import Phase, Progress
from transactional.model.attempt import AttemptId, TransactionAttempt, TxId
from transactional.model.batch import BatchMetadata, Digest, Offset, OffsetRange, PartitionId
from transactional.model.config import TopologyConfig

WORDS = PartitionId("words", 0)
THREE_AT_ONCE = TopologyConfig(max_spout_pending=3, retry_pause_ms=100, idle_pause_ms=50)


def batch(start: int, until: int) -> BatchMetadata:
    """A batch of the one partition of these tests."""
    return BatchMetadata({WORDS: OffsetRange(Offset(start), Offset(until))})


def attempt(txid: int, attempt_id: int) -> TransactionAttempt:
    return TransactionAttempt(TxId(txid), AttemptId(attempt_id))


def digest(records: int) -> dict[PartitionId, Digest]:
    return {WORDS: Digest(records, 7)}


def kinds(actions: list[Action]) -> list[str]:
    """The names of the actions, for tests that care about the order alone."""
    return [type(action).__name__ for action in actions]


class Conversation:
    """Talks to one coordinator about batches of one partition, ten offsets each unless told otherwise."""

    def __init__(self, progress: Progress | None = None, config: TopologyConfig = THREE_AT_ONCE, **given: Any) -> None:
        how: Any = {"replays_exactly": True, **given}
        self.coordinator = Coordinator(progress or Progress(), config, **how)
        self.now_ms = 0

    def tell(self, event: Event) -> list[Action]:
        actions = self.coordinator.handle(event)
        check(self.coordinator)
        return actions

    def wait(self, ms: int) -> list[Action]:
        """Let time pass, in one tick."""
        self.now_ms += ms
        return self.tell(Tick(self.now_ms))

    def start(self) -> list[Action]:
        return self.wait(0)

    def current(self, txid: int) -> TransactionAttempt:
        return self.coordinator.active[TxId(txid)].attempt

    def phase(self, txid: int) -> Phase:
        """GONE as well when nothing of the txid is in flight."""
        current = self.coordinator.active.get(TxId(txid))
        return current.phase if current else Phase.GONE

    def phases(self) -> dict[int, Phase]:
        return {int(txid): current.phase for txid, current in self.coordinator.active.items()}

    def plan(self, txid: int, start: int | None = None, until: int | None = None) -> list[Action]:
        """The spout has a batch for the current attempt: by default ten offsets."""
        start = 10 * (txid - 1) if start is None else start
        return self.tell(BatchPlanned(self.current(txid), batch(start, start + 10 if until is None else until)))

    def nothing(self, txid: int) -> list[Action]:
        return self.tell(BatchPlanned(self.current(txid), None))

    def process(self, txid: int, sink_bytes: int = 0) -> list[Action]:
        return self.tell(ProcessingSucceeded(self.current(txid), digest(10), sink_bytes=sink_bytes))

    def committed(self, txid: int, sink_bytes: int = 0) -> list[Action]:
        return self.tell(CommitSucceeded(self.current(txid), sink_bytes=sink_bytes))

    def fail(self, txid: int, reason: str = "no luck") -> list[Action]:
        return self.tell(AttemptFailed(self.current(txid), reason))

    def away(self, txid: int, reason: str = "no broker answers") -> list[Action]:
        """An attempt fails because something that it needs is away."""
        return self.tell(AttemptFailed(self.current(txid), reason, is_outage=True))

    def start_processing(self, count: int) -> None:
        """Start, and plan the first `count` transactions: all of them are in their processing phase then."""
        self.start()
        for txid in range(1, count + 1):
            self.plan(txid)

    def state(self) -> dict[str, Any]:
        """A deep copy of all that the coordinator holds."""
        return copy.deepcopy(vars(self.coordinator))
