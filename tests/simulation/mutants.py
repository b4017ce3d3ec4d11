"""Wrong coordinators and wrong tables, each with one bug that was made before or would be easy to make.

They show that the simulation finds what it is there for. They run without the check of invariants, so what finds them
is what they do to the tables, or a rule of the store.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from state.base import Verdict
from state.memory import MemoryTable
from state.values import StoredValue
from tests.simulation.process import WatchedCoordinator
from tests.simulation.tables import SimulatedState
from transactional.attempt import AttemptId, TransactionAttempt, TxId
from transactional.batch import BatchMetadata
from transactional.bolts import Key
from transactional.coordinator import ActiveAttempt
from transactional.errors import Fenced
from transactional.ports import StateKind
from transactional.protocol import (
    Action,
    AttemptEvent,
    AttemptFailed,
    Event,
    Phase,
    RecordAttempt,
    RecordCommit,
    RecordProcessed,
    StartCommit,
    Trigger,
)


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
                yield from self._ask_again(current, after)
            after = self.recorded.get(txid, after)


class StartsAttemptsAnew(WatchedCoordinator):
    """Attempt ids start again from 1 after a restart (row T47)."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._attempt_id = AttemptId(0)


class UnfencedState(SimulatedState):
    """The table compares txids alone, so a zombie of the same txid overwrites what the newer attempt wrote."""

    def _check_not_moved(self, loaded: AttemptId | None) -> None:
        """Writes through whatever is there."""

    def _judge(self, version: AttemptId | None, attempt: TransactionAttempt) -> Verdict:
        if version is not None and self._txid_at(version) > attempt.txid:
            raise Fenced(f"table {self.stored.name} is at a later transaction")
        return Verdict.WRITE


class KeepsRowsOfDeadAttempts(SimulatedState):
    """Keys that only the dead attempt had touched keep what it wrote (row T60)."""

    def _written(self, txid: TxId, rows: Mapping[Key, tuple[Any, ...]], *combine: Any) -> dict[Key, StoredValue]:
        touched = {key: row for key, row in self.stored.rows.items() if row.txid == txid and key not in rows}
        return super()._written(txid, rows, *combine) | touched


class SkipsEveryReplay(SimulatedState):
    """A transactional state behind an opaque spout (row T39): the replay is skipped though it holds other records."""

    def __init__(self, table: MemoryTable, kind: StateKind, *others: Any) -> None:
        super().__init__(table, StateKind.TRANSACTIONAL, *others)


COORDINATORS: tuple[type[WatchedCoordinator], ...] = (
    RemovesBeforeItCompares,
    LeavesLaterOnesAlive,
    RecordsTooLate,
    CommitsInAnyOrder,
    PlansAhead,
    StartsAttemptsAnew,
)
STATES: tuple[type[SimulatedState], ...] = (UnfencedState, KeepsRowsOfDeadAttempts, SkipsEveryReplay)
