"""`AttemptTimes`: when what is in flight was issued, processed and begun to be committed, for the driver's records."""

from __future__ import annotations

from dataclasses import dataclass

from transactional.attempt import TransactionAttempt
from transactional.batch import BatchMetadata
from transactional.core.protocol import (
    Action,
    AttemptFailed,
    Event,
    PlanBatch,
    ProcessingSucceeded,
    RecordAttempt,
    StartCommit,
)
from transactional.store import AttemptRecord
from transactional.store_rules import PROCESSING


@dataclass(slots=True)
class Times:
    """Of one attempt, in wall-clock milliseconds since 1970; 0: not reached."""

    issued_at_ms: int
    processed_at_ms: int = 0
    commit_started_at_ms: int = 0


class AttemptTimes:
    """Listens to the driver's events and actions. Nothing is kept of what has failed or was committed."""

    def __init__(self) -> None:
        self._of: dict[TransactionAttempt, Times] = {}

    def __len__(self) -> int:
        return len(self._of)

    def tell_event(self, event: Event, at_ms: int) -> None:
        """Take in an event; a copy of one, or one that comes late, changes nothing."""
        match event:
            case ProcessingSucceeded(attempt) if attempt in self._of:
                times = self._of[attempt]
                times.processed_at_ms = times.processed_at_ms or at_ms
            case AttemptFailed(attempt):  # also how what was given up ends
                self._of.pop(attempt, None)

    def tell_action(self, action: Action, at_ms: int) -> None:
        """Take in what is about to be done. What is replayed as recorded was never planned: it is issued only then."""
        match action:
            case PlanBatch(attempt) | RecordAttempt(attempt):
                self._of.setdefault(attempt, Times(at_ms))
            case StartCommit(attempt):
                self._of[attempt].commit_started_at_ms = at_ms

    def record_of(self, attempt: TransactionAttempt, batch: BatchMetadata, at_ms: int) -> AttemptRecord:
        """The record of an attempt whose batch was planned at `at_ms`."""
        issued_at_ms = self._of[attempt].issued_at_ms
        return AttemptRecord(attempt, PROCESSING, batch, None, issued_at_ms, at_ms, None, None, None, None)

    def of_processed(self, attempt: TransactionAttempt) -> int:
        """When the processing phase ended."""
        return self._of[attempt].processed_at_ms

    def of_commit(self, attempt: TransactionAttempt) -> tuple[int, int]:
        """When the processing phase ended and when the commit phase began, of a transaction that is committed.

        Its times are forgotten, and those of all before it: an attempt that had no batch and was given up ends in
        no event.
        """
        times = self._of[attempt]
        self._of = {later: kept for later, kept in self._of.items() if later > attempt}
        return times.processed_at_ms, times.commit_started_at_ms
