"""`Timeline`: how far each attempt in flight is, and when it reached each step. Kept once, for the store's records, for
the sizing of batches, and for whatever shows a run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from transactional.core.machine.protocol import (
    AbortAttempt,
    Action,
    AttemptFailed,
    BatchPlanned,
    Event,
    PlanBatch,
    ProcessingSucceeded,
    RecordAttempt,
    RecordCommit,
    StartCommit,
)
from transactional.core.store import AttemptRecord
from transactional.core.store.rules import PROCESSING
from transactional.model.attempt import TransactionAttempt
from transactional.model.batch import BatchLimit, BatchMetadata

Step = Literal["planning", "idle", "processing", "processed", "committing", "aborting", "committed"]


class Moment(NamedTuple):
    """One moment by both clocks, in milliseconds: since 1970, and monotonic, which is for durations."""

    wall_ms: int
    monotonic_ms: int


NEVER = Moment(0, 0)
"""Of a step that is not reached yet."""


@dataclass(slots=True)
class Flight:
    """One attempt in flight: its step, since when, and when it reached each step. As long as its source has nothing to
    read it is idle, and is issued only when it is planned again."""

    attempt: TransactionAttempt
    issued: Moment
    commits_before: int
    """So many transactions were committed when it was issued, of those that the timeline has seen."""
    step: Step
    since: Moment
    limit: BatchLimit | None = None
    batch: BatchMetadata | None = None
    planned: Moment = NEVER
    processed: Moment = NEVER
    commit_started: Moment = NEVER
    committed: Moment = NEVER

    @property
    def processing_ms(self) -> int:
        """How long it was processed."""
        return self.processed.monotonic_ms - self.planned.monotonic_ms

    @property
    def commit_ms(self) -> int:
        """How long its commit phase took, with what the driver had to do before it saw its end."""
        return self.committed.monotonic_ms - self.commit_started.monotonic_ms

    @property
    def phases_ms(self) -> dict[str, int]:
        """How long a committed attempt took, by phase."""
        return {
            "planning": max(0, self.planned.monotonic_ms - self.issued.monotonic_ms),
            "processing": max(0, self.processing_ms),
            "waiting": max(0, self.commit_started.monotonic_ms - self.processed.monotonic_ms),
            "committing": max(0, self.commit_ms),
        }

    def record(self, batch: BatchMetadata) -> AttemptRecord:
        """What is stored of it once its batch is planned."""
        issued, planned = self.issued.wall_ms, self.planned.wall_ms
        return AttemptRecord(self.attempt, PROCESSING, batch, None, issued, planned, None, None, None, None)


class Timeline:
    """Listens to events, and to actions that are about to be performed. Nothing is kept of what has failed; of what was
    committed, only the last transaction. Iterates over what is in flight, in order."""

    def __init__(self) -> None:
        self._flights: dict[TransactionAttempt, Flight] = {}
        self._last: Flight | None = None
        self._commits = 0

    def __iter__(self) -> Iterator[Flight]:
        return iter([self._flights[attempt] for attempt in sorted(self._flights)])

    def __len__(self) -> int:
        return len(self._flights)

    def find(self, attempt: TransactionAttempt) -> Flight | None:
        """An attempt in flight, or the one that was committed last."""
        if self._last is not None and self._last.attempt == attempt:
            return self._last
        return self._flights.get(attempt)

    def __getitem__(self, attempt: TransactionAttempt) -> Flight:
        flight = self.find(attempt)
        if flight is None:
            raise KeyError(attempt)
        return flight

    def note_event(self, event: Event, at: Moment) -> None:
        """Take in an event; a copy of one, or one that comes late, changes nothing."""
        match event:
            case BatchPlanned(attempt, None) if attempt in self._flights:
                self._reach(attempt, "idle", at)
            case BatchPlanned(attempt, _, limit) if attempt in self._flights:
                self._flights[attempt].limit = limit
            case ProcessingSucceeded(attempt) if attempt in self._flights:
                if self._flights[attempt].processed is NEVER:
                    self._reach(attempt, "processed", at).processed = at
            case AttemptFailed(attempt):  # also how what was given up ends
                self._flights.pop(attempt, None)

    def note_action(self, action: Action, at: Moment) -> None:
        """Take in an action. What is replayed as recorded was never planned: it is issued only then."""
        match action:
            case PlanBatch(attempt):
                flight = self._reach(attempt, "planning", at)
                flight.issued, flight.commits_before = at, self._commits
            case RecordAttempt(attempt, batch, _, work_of):
                if work_of is not None:
                    self._flights[attempt] = replace(self._flights.pop(work_of), attempt=attempt)
                if work_of is None or self._flights[attempt].batch is None:
                    flight = self._reach(attempt, "processing", at)
                    flight.planned, flight.batch = at, batch
            case StartCommit(attempt):
                self._reach(attempt, "committing", at).commit_started = at
            case AbortAttempt(attempt) if attempt in self._flights:
                self._reach(attempt, "aborting", at)
            case RecordCommit(attempt) if attempt in self._flights:
                self._last = self._reach(attempt, "committed", at)
                self._last.committed = at
                self._commits += 1
                self._flights = {later: flight for later, flight in self._flights.items() if later > attempt}

    def _reach(self, attempt: TransactionAttempt, step: Step, at: Moment) -> Flight:
        flight = self._flights.get(attempt)
        if flight is None:
            # An attempt that had no batch and was given up ends in no event.
            self._flights = {other: known for other, known in self._flights.items() if other.txid != attempt.txid}
            flight = self._flights[attempt] = Flight(attempt, at, self._commits, step, at)
        flight.step, flight.since = step, at
        return flight
