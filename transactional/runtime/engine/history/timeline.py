"""`Timeline`: how far each attempt in flight is, and when it reached each step.

The times are recorded once, for the store's records, for the sizing of batches, and for observers that show a run. No
decision about a transaction depends on them.
"""

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
    """One moment by two clocks, in milliseconds: `wall_ms` since 1970, and `monotonic_ms` for durations."""

    wall_ms: int
    monotonic_ms: int


NEVER = Moment(0, 0)
"""The moment of a step that was not reached yet."""


@dataclass(slots=True)
class Flight:
    """One attempt in flight: its current step, `since` when, and the moment of each step.

    While its source has nothing to read the attempt is idle. It counts as issued when it is planned again.
    """

    attempt: TransactionAttempt
    issued: Moment
    commits_before: int
    """Number of transactions that the timeline had seen committed when the attempt was issued."""
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
        """The duration of the processing phase."""
        return self.processed.monotonic_ms - self.planned.monotonic_ms

    @property
    def commit_ms(self) -> int:
        """The duration of the commit phase, including the time until the driver handled its end."""
        return self.committed.monotonic_ms - self.commit_started.monotonic_ms

    @property
    def phases_ms(self) -> dict[str, int]:
        """The durations of a committed attempt by phase."""
        return {
            "planning": max(0, self.planned.monotonic_ms - self.issued.monotonic_ms),
            "processing": max(0, self.processing_ms),
            "waiting": max(0, self.commit_started.monotonic_ms - self.processed.monotonic_ms),
            "committing": max(0, self.commit_ms),
        }

    def record(self, batch: BatchMetadata) -> AttemptRecord:
        """Return the store's record of the attempt once its batch is planned."""
        issued, planned = self.issued.wall_ms, self.planned.wall_ms
        return AttemptRecord(self.attempt, PROCESSING, batch, None, issued, planned, None, None, None, None)


class Timeline:
    """Follows events, and actions that are about to be performed. Iterates over the attempts in flight, in order.

    Failed attempts are dropped, and so are committed ones except for the last.
    """

    def __init__(self) -> None:
        self._flights: dict[TransactionAttempt, Flight] = {}
        self._last: Flight | None = None
        self._commits = 0

    def __iter__(self) -> Iterator[Flight]:
        return iter([self._flights[attempt] for attempt in sorted(self._flights)])

    def __len__(self) -> int:
        return len(self._flights)

    def find(self, attempt: TransactionAttempt) -> Flight | None:
        """Return an attempt in flight or the one that was committed last, or None for any other."""
        if self._last is not None and self._last.attempt == attempt:
            return self._last
        return self._flights.get(attempt)

    def __getitem__(self, attempt: TransactionAttempt) -> Flight:
        flight = self.find(attempt)
        if flight is None:
            raise KeyError(attempt)
        return flight

    def note_event(self, event: Event, moment: Moment) -> None:
        """Take in an event. Duplicates and late events change nothing."""
        match event:
            case BatchPlanned(attempt, None) if attempt in self._flights:
                self._reach(attempt, "idle", moment)
            case BatchPlanned(attempt, _, limit) if attempt in self._flights:
                self._flights[attempt].limit = limit
            case ProcessingSucceeded(attempt) if attempt in self._flights:
                if self._flights[attempt].processed is NEVER:
                    self._reach(attempt, "processed", moment).processed = moment
            case AttemptFailed(attempt):  # attempts that were given up end like this, too
                self._flights.pop(attempt, None)

    def note_action(self, action: Action, moment: Moment) -> None:
        """Take in an action. A recorded batch that is replayed is never planned: it is issued when it is recorded."""
        match action:
            case PlanBatch(attempt):
                flight = self._reach(attempt, "planning", moment)
                flight.issued, flight.commits_before = moment, self._commits
            case RecordAttempt(attempt, batch, _, work_of):
                if work_of is not None:
                    self._flights[attempt] = replace(self._flights.pop(work_of), attempt=attempt)
                if work_of is None or self._flights[attempt].batch is None:
                    flight = self._reach(attempt, "processing", moment)
                    flight.planned, flight.batch = moment, batch
            case StartCommit(attempt):
                self._reach(attempt, "committing", moment).commit_started = moment
            case AbortAttempt(attempt) if attempt in self._flights:
                self._reach(attempt, "aborting", moment)
            case RecordCommit(attempt) if attempt in self._flights:
                self._last = self._reach(attempt, "committed", moment)
                self._last.committed = moment
                self._commits += 1
                self._flights = {later: flight for later, flight in self._flights.items() if later > attempt}

    def _reach(self, attempt: TransactionAttempt, step: Step, moment: Moment) -> Flight:
        flight = self._flights.get(attempt)
        if flight is None:
            # An attempt that had no batch and was given up ends in no event.
            self._flights = {key: older for key, older in self._flights.items() if key.txid != attempt.txid}
            flight = self._flights[attempt] = Flight(attempt, moment, self._commits, step, moment)
        flight.step, flight.since = step, moment
        return flight
