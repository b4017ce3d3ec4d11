"""What the run beside a console is doing now, which the store does not know: planning, committing, the next retry."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from transactional.core.machine.protocol import (
    AbortAttempt,
    Action,
    AttemptFailed,
    BatchPlanned,
    DrainRequested,
    Event,
    Halt,
    PauseRequested,
    PlanBatch,
    ProcessingSucceeded,
    RecordCommit,
    RecordFailure,
    StartCommit,
    StartProcessing,
    StopRequested,
)
from transactional.model.attempt import TransactionAttempt, TxId
from transactional.operations.console.data.recent import Recent
from transactional.runtime.engine.history.observing import Committed, Ended, Leading, Notice, Recorded


@dataclass(frozen=True, slots=True)
class Now:
    """A transaction in flight: what its attempt is doing since when. `retry_at_ms`: it failed, and is retried then."""

    attempt: TransactionAttempt
    doing: str
    since_ms: int
    retry_at_ms: int | None = None


IDLE: Final = "idle"
"""What one does whose source has nothing to read."""
_ENDINGS: Final = (RecordFailure, AbortAttempt, Halt)
"""Actions that end attempts, this one's and perhaps others'."""


class Live:
    """An observer of the run of one topology. Pages read it from other threads."""

    def __init__(self, topology_id: str) -> None:
        self.topology_id = topology_id
        self.version = 0
        """Another one after each change."""
        self.recent = Recent(topology_id)
        self.leads = False
        """Whether nobody else changes the topology's attempts: the run has begun, and has not ended."""
        self._now: dict[TxId, Now] = {}
        self._lock = threading.Lock()

    def __call__(self, at_ms: int, event: Event, actions: Sequence[Action]) -> None:
        """Note what has begun, and what is over."""
        with self._lock:
            before = dict(self._now)
            self._note_event(at_ms, event)
            for action in actions:
                self._note_action(at_ms, action)
            self.version += before != self._now
        if isinstance(event, AttemptFailed) or any(isinstance(action, _ENDINGS) for action in actions):
            self.recent.doubt()

    def notice(self, at_ms: int, notice: Notice) -> None:
        """Note what is stored, and the begin and the end of the run."""
        match notice:
            case Recorded(flight, batch):
                self.recent.recorded(flight, batch)
            case Committed(flight, batch, details):
                self.recent.committed(flight, batch, details)
            case Leading() | Ended():
                self.recent.doubt(is_new=True)
                self.leads = isinstance(notice, Leading)
                with self._lock:
                    self._now.clear()
                    self.version += 1

    def rows(self) -> list[Now]:
        """What is in flight, in the order of the transactions."""
        with self._lock:
            return [self._now[txid] for txid in sorted(self._now)]

    def _note_event(self, at_ms: int, event: Event) -> None:
        match event:
            case ProcessingSucceeded(attempt=attempt):
                self._set(Now(attempt, "waiting", at_ms))
            case BatchPlanned(attempt=attempt, batch=None) if not self._is_idle(attempt.txid):
                self._set(Now(attempt, IDLE, at_ms))
            case AttemptFailed(attempt=attempt):
                self._remove(attempt)
            case PauseRequested() | DrainRequested() | StopRequested():
                self._now = {txid: now for txid, now in self._now.items() if now.doing != IDLE}

    def _note_action(self, at_ms: int, action: Action) -> None:
        match action:
            case PlanBatch(attempt=attempt) if not self._is_idle(attempt.txid):
                self._set(Now(attempt, "planning", at_ms))
            case StartProcessing(attempt=attempt):
                self._set(Now(attempt, "processing", at_ms))
            case StartCommit(attempt=attempt):
                self._set(Now(attempt, "committing", at_ms))
            case AbortAttempt(attempt=attempt):
                self._set(Now(attempt, "aborting", at_ms))
            case RecordFailure(attempt=attempt, retry_in_ms=retry_in_ms):
                self._set(Now(attempt, "failed", at_ms, at_ms + retry_in_ms))
            case RecordCommit(attempt=attempt):
                self._remove(attempt)
            case Halt():
                self._now.clear()

    def _is_idle(self, txid: TxId) -> bool:
        """Whether its source had nothing: to plan again and again is no change."""
        return txid in self._now and self._now[txid].doing == IDLE

    def _set(self, now: Now) -> None:
        self._now[now.attempt.txid] = now

    def _remove(self, attempt: TransactionAttempt) -> None:
        if (now := self._now.get(attempt.txid)) is not None and now.attempt == attempt:
            del self._now[attempt.txid]
