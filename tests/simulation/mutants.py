"""Wrong coordinators: each has one bug that somebody has shipped, or that would be easy to make. See `wrong_parts`.

They show that the simulation finds what it is there for. They run without the check of invariants, so what finds them
is what they do to the tables, or a rule of the store.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from tests.simulation.process import WatchedCoordinator
from transactional.core.machine.coordinator import ActiveAttempt
from transactional.core.machine.protocol import (
    Action,
    AttemptEvent,
    AttemptFailed,
    Event,
    PlanBatch,
    ProcessingSucceeded,
    RecordAttempt,
    RecordCommit,
    RecordProcessed,
    StartCommit,
    Trigger,
)
from transactional.core.store.progress import Phase
from transactional.errors import RetriesExhausted
from transactional.model.attempt import AttemptId, TxId
from transactional.model.batch import BatchMetadata, OffsetRange, PartitionId


class RemovesBeforeItCompares(WatchedCoordinator):
    """Storm's `fail()` (row T48): a late failure of a dead attempt evicts the current one; later ones live on."""

    def _on_attempt_event(self, event: AttemptEvent) -> list[Action]:
        if not isinstance(event, AttemptFailed):
            return super()._on_attempt_event(event)
        removed = self.active.pop(event.attempt.txid, None)
        if removed is None or removed.attempt != event.attempt:
            return []
        self.active[event.attempt.txid] = removed
        return super()._on_attempt_event(event)


class LeavesLaterOnesAlive(WatchedCoordinator):
    """A failure fails its own transaction alone: seed 004's 41-50 are skipped when 1-50 comes back as 1-40."""

    def _give_up_after(self, txid: TxId, reason: str) -> list[Action]:
        return super()._give_up_after(txid, reason) if self.stopping else []

    def _on_planned(self, current: ActiveAttempt, batch: BatchMetadata) -> list[Action]:
        later = {txid: known for txid, known in self.recorded.items() if txid > current.attempt.txid}
        actions = super()._on_planned(current, batch)
        self.recorded |= later
        return [
            replace(action, forget_later=False) if isinstance(action, RecordAttempt) else action for action in actions
        ]


class RecordsTooLate(WatchedCoordinator):
    """An attempt is durable only with its commit: a process that dies in between leaves tables nobody can explain."""

    def handle(self, event: Event) -> list[Action]:
        kept: list[Action] = []
        for action in super().handle(event):
            if isinstance(action, RecordAttempt | RecordProcessed):
                self._pending().append(action)
                continue
            if isinstance(action, RecordCommit):
                kept += [each for each in self._pending() if each.attempt == action.attempt]
            kept.append(action)
        return kept

    def _pending(self) -> list[RecordAttempt | RecordProcessed]:
        if not hasattr(self, "unrecorded"):
            self.unrecorded: list[RecordAttempt | RecordProcessed] = []
        return self.unrecorded


class RecordsWhatWasReadTooLate(WatchedCoordinator):
    """What a transactional spout read is stored with the transaction commit, as an opaque one's is: a replay that reads
    something else after a crash is not noticed. No table shows it here, where a source is always the same."""

    def _on_processed(self, current: ActiveAttempt, event: ProcessingSucceeded) -> list[Action]:
        super()._on_processed(current, event)
        return []


class CommitsInAnyOrder(WatchedCoordinator):
    """What is processed commits, whoever comes before it."""

    def _commit_head(self) -> Iterator[Action]:
        for txid, current in sorted(self.active.items()):
            if current.phase is Phase.PROCESSED:
                self._move(current, Trigger.ITS_TURN)
                yield StartCommit(current.attempt, self.recorded[txid])


class PlansAhead(WatchedCoordinator):
    """The next transaction is planned before the batch of the one before it is known (row T49)."""

    def _issue(self) -> Iterator[Action]:
        after = self._committed_batch
        first = self.committed_txid + 1
        for txid in (TxId(number) for number in range(first, first + self.config.max_spout_pending)):
            current = self.active.get(txid)
            if current is None:
                yield from self._issue_one(txid, after)
            elif current.phase is Phase.WAITING:
                yield from self._plan_again(current, after)
            after = self.recorded.get(txid, after)


class StartsAttemptsAnew(WatchedCoordinator):
    """Attempt ids start again from 1 after a restart (row T47)."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._attempt_id = AttemptId(0)


class PlansAfterTheCommittedBatch(WatchedCoordinator):
    """A batch is planned from the committed positions although an earlier one in flight has read further (row T50)."""

    def handle(self, event: Event) -> list[Action]:
        return [
            replace(action, after=self._committed_batch) if isinstance(action, PlanBatch) else action
            for action in super().handle(event)
        ]


class ForgetsWhereItBegan(WatchedCoordinator):
    """A replay of a transaction in which a partition has joined is not told where: "the end" is another one by then."""

    def _with_starts(self, txid: TxId, after: BatchMetadata) -> BatchMetadata:
        del txid
        return after


class RecordsOnePartitionOnly(WatchedCoordinator):
    """An attempt's partitions are not stored in one write: who starts anew finds some of them (row T51)."""

    def handle(self, event: Event) -> list[Action]:
        return [
            replace(action, batch=_first_of(action.batch)) if isinstance(action, RecordAttempt) else action
            for action in super().handle(event)
        ]


class StartsTheNextBeforeItRecords(WatchedCoordinator):
    """The commit phase of n+1 is begun before the transaction commit of n is stored: a table gets two ahead (T56)."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.unrecorded: list[Action] = []

    def handle(self, event: Event) -> list[Action]:
        actions = super().handle(event)
        if any(isinstance(action, StartCommit) for action in actions):
            self.unrecorded.extend(action for action in actions if isinstance(action, RecordCommit))
            return [action for action in actions if not isinstance(action, RecordCommit)]
        late, self.unrecorded = self.unrecorded, []
        return [*late, *actions]


class AsksATransactionalSpoutAgain(WatchedCoordinator):
    """The batch of a transactional spout is planned anew on a replay, as an opaque one's is (row T39)."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.replays_exactly = False


class SkipsWhatFailsTooOften(WatchedCoordinator):
    """A transaction that fails as often as is allowed is left out whole, and the next one takes its place."""

    def _halt(self, code: str, reason: str) -> list[Action]:
        if code != RetriesExhausted.code:
            return super()._halt(code, reason)
        txid = TxId(self.committed_txid + 1)
        if txid in self.recorded:
            empty = {p: OffsetRange(each.until, each.until) for p, each in self.recorded[txid].ranges.items()}
            self._committed_batch = BatchMetadata({**self._committed_batch.ranges, **empty})
        return []


class DoesNotRecordWhatIsSetAside(WatchedCoordinator):
    """What a transaction leaves out is not stored with its batch, so nobody knows what was counted."""

    def handle(self, event: Event) -> list[Action]:
        return [
            replace(action, batch=replace(action.batch, excluded=()))
            if isinstance(action, RecordAttempt | RecordProcessed | RecordCommit)
            else action
            for action in super().handle(event)
        ]


def _first_of(batch: BatchMetadata) -> BatchMetadata:
    kept: dict[PartitionId, OffsetRange] = dict(sorted(batch.ranges.items())[:1])
    return replace(batch, ranges=kept)


COORDINATORS: tuple[type[WatchedCoordinator], ...] = (
    RemovesBeforeItCompares,
    LeavesLaterOnesAlive,
    RecordsTooLate,
    CommitsInAnyOrder,
    PlansAhead,
    StartsAttemptsAnew,
    PlansAfterTheCommittedBatch,
    ForgetsWhereItBegan,
    RecordsOnePartitionOnly,
    StartsTheNextBeforeItRecords,
    AsksATransactionalSpoutAgain,
    SkipsWhatFailsTooOften,
    DoesNotRecordWhatIsSetAside,
)
