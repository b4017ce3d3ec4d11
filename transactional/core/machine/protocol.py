"""The protocol between the coordinator and its surroundings: events in, actions out, and one transition table.

A transaction has two phases (seed 004, "Design 3"). The *processing phase* may run for many transactions at once; the
*commit phase* runs for one at a time, in txid order. An attempt at a transaction is always in exactly one `Phase`;
what may happen to it is defined in `TRANSITIONS` and nowhere else.

    PLANNING    the spout is planning the batch
      out: the batch is known -> PROCESSING; the source has nothing -> WAITING
    WAITING     a new transaction whose source had no data; the same attempt plans again later
      out: time to plan again -> PLANNING
    PROCESSING  the batch is recorded, its Spark jobs run
      out: all of them succeeded -> PROCESSED
    PROCESSED   finished, and waits until every earlier transaction is committed
      out: its turn -> COMMITTING
    COMMITTING  committers finish their batch
      out: all committers succeeded -> gone, the transaction is committed
    ABORTING    aborted; parts of it may still be running, so its txid is not issued again
      out: nothing of it is running any more -> gone

`diagram` draws the table for `docs/state-machine.md`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from transactional.core.machine.report import CommitReport
from transactional.core.store.progress import Phase
from transactional.model.attempt import TransactionAttempt, TxId
from transactional.model.batch import BatchLimit, BatchMetadata, Digest, PartitionId, PendingMessage
from transactional.model.letters import Exclusion
from transactional.model.plumbing.redaction import without_login

# --- events: what is reported to the coordinator ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BatchPlanned:
    """The spout answered `PlanBatch`. `batch` is None if the source has no data, and no window is to close without:
    which is only allowed for a new txid.

    `limit` is the limit that it was given, if there was a target; for display only. `has_ended` is False if there is no
    batch because the source is not ready.
    """

    attempt: TransactionAttempt
    batch: BatchMetadata | None
    limit: BatchLimit | None = None
    has_ended: bool = True


@dataclass(frozen=True, slots=True)
class ProcessingSucceeded:
    """The processing phase succeeded. `digests` describes what was read from each partition.

    `pending` are the messages that have failed in it and are processed again by a later transaction, `lost` is the
    number of those that are not. `sink_bytes` is the size of the records for sinks, which wait in memory.
    """

    attempt: TransactionAttempt
    digests: Mapping[PartitionId, Digest] = field(default_factory=dict)
    pending: tuple[PendingMessage, ...] = ()
    lost: int = 0
    sink_bytes: int = 0


@dataclass(frozen=True, slots=True)
class ProgressMade:
    """A part of the attempt made progress: its timeout starts again."""

    attempt: TransactionAttempt


@dataclass(frozen=True, slots=True)
class CommitDelayed:
    """The attempt's commit phase has not started yet: a table is under maintenance. Its timeout starts again."""

    attempt: TransactionAttempt


@dataclass(frozen=True, slots=True)
class CommitSucceeded:
    """Every committer has finished the transaction's batch.

    `steps` says, for people, where those steps ran that may run as jobs, and why; `report` is all that is stored of
    the transaction for them. The coordinator passes it on, and the journal leaves it out. `sink_bytes` is the size of
    what the transaction commit adds to the outbox.
    """

    attempt: TransactionAttempt
    steps: str = ""
    report: CommitReport = field(default_factory=CommitReport, compare=False, repr=False)
    sink_bytes: int = 0


@dataclass(frozen=True, slots=True)
class AttemptFailed:
    """The attempt failed, or was aborted, **and nothing of it is running any more**.

    `reason` loses its logins here, because stores, journals, logs and pages take it from here. `at_fault`: the tuples
    that caused the failure, if it can be attributed to tuples. `is_outage`: something that it needs was unavailable,
    which is not its batch's fault. `tries_max`: after so many attempts that fail like this
    the transaction is not tried again, however many may fail otherwise.
    """

    attempt: TransactionAttempt
    reason: str
    at_fault: tuple[Exclusion, ...] = ()
    is_outage: bool = False
    tries_max: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "reason", without_login(self.reason))


@dataclass(frozen=True, slots=True)
class SinksBehind:
    """The outbox at the start of a run: so many transactions up to `txid`, of so many bytes, are not published yet."""

    txid: TxId
    transactions: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class SinksSettled:
    """Every sink has published everything up to `txid`."""

    txid: TxId


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed: `now_ms` is a monotonic time in milliseconds."""

    now_ms: int


@dataclass(frozen=True, slots=True)
class PauseRequested:
    """Issue no new transaction; finish and retry those in flight (`deactivate`)."""


@dataclass(frozen=True, slots=True)
class ResumeRequested:
    """Issue new transactions again (`activate`); a drain that has not ended is cancelled."""


@dataclass(frozen=True, slots=True)
class DrainRequested:
    """Issue no new transaction; finish and retry those in flight or recorded, then end."""


@dataclass(frozen=True, slots=True)
class StopRequested:
    """Let the running commit phase finish, abort everything else, then end. What was aborted is replayed later."""


AttemptEvent = BatchPlanned | ProcessingSucceeded | ProgressMade | CommitDelayed | CommitSucceeded | AttemptFailed
Event = (
    AttemptEvent | SinksBehind | SinksSettled | Tick | PauseRequested | ResumeRequested | DrainRequested | StopRequested
)


# --- actions: what the coordinator has performed, in list order -----------------------------------------------------


@dataclass(frozen=True, slots=True)
class PlanBatch:
    """Plan the batch that starts where `after` ends. A `replay` always has a batch, possibly an empty one.

    For a replay `after` also has an empty range for each partition that joined with the replayed batch: it starts
    there. `is_next`: nothing is in flight before it, so that windows may be closed if there is nothing to read.
    """

    attempt: TransactionAttempt
    after: BatchMetadata
    replay: bool
    is_next: bool = False


@dataclass(frozen=True, slots=True)
class RecordAttempt:
    """Store the attempt and its batch; durable before the next action. `forget_later`: the recorded batches of all
    later txids were built on a batch other than this one and are deleted in the same write.

    `work_of` is the same attempt under the id that it had so far, which another transaction's attempt has overtaken.
    """

    attempt: TransactionAttempt
    batch: BatchMetadata
    forget_later: bool
    work_of: TransactionAttempt | None = None


@dataclass(frozen=True, slots=True)
class StartProcessing:
    """Run the processing phase. Ends in exactly one `ProcessingSucceeded` or `AttemptFailed`."""

    attempt: TransactionAttempt
    batch: BatchMetadata


@dataclass(frozen=True, slots=True)
class RecordProcessed:
    """Store what was read (the batch with its digests), so that a replay can be compared with it: only for a
    transactional spout."""

    attempt: TransactionAttempt
    batch: BatchMetadata


@dataclass(frozen=True, slots=True)
class StartCommit:
    """Run the commit phase. Ends in exactly one `CommitSucceeded` or `AttemptFailed`."""

    attempt: TransactionAttempt
    batch: BatchMetadata


@dataclass(frozen=True, slots=True)
class RecordCommit:
    """Move the store's committed txid by one, from n-1 to n; `batch`, with its digests, becomes the committed one.

    Confirmed by the store before the next action. `report` is that of the attempt's `CommitSucceeded`.
    """

    attempt: TransactionAttempt
    batch: BatchMetadata
    report: CommitReport = field(default_factory=CommitReport, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class RecordFailure:
    """Store why the attempt failed, for operators. `retry_in_ms`: the pause before the next attempt."""

    attempt: TransactionAttempt
    phase: Phase
    reason: str
    retry_in_ms: int


@dataclass(frozen=True, slots=True)
class AbortAttempt:
    """Cancel what is running of the attempt, wait until it has ended, then answer `AttemptFailed`."""

    attempt: TransactionAttempt
    reason: str


@dataclass(frozen=True, slots=True)
class Halt:
    """Stop the process with this reason. `code` is the code of the error to raise."""

    code: str
    reason: str


Action = (
    PlanBatch
    | RecordAttempt
    | StartProcessing
    | RecordProcessed
    | StartCommit
    | RecordCommit
    | RecordFailure
    | AbortAttempt
    | Halt
)


# --- transitions ------------------------------------------------------------------------------------------------


class Trigger(Enum):
    """The triggers that move an attempt from phase to phase: five kinds of event, three decisions of the
    coordinator."""

    BATCH_PLANNED = "batch planned"
    NOTHING_THERE = "nothing there"
    PROCESSING_SUCCEEDED = "processing succeeded"
    COMMIT_SUCCEEDED = "commit succeeded"
    ATTEMPT_FAILED = "attempt failed"
    PLAN_AGAIN = "time to plan again"
    ITS_TURN = "its turn"
    GIVEN_UP = "given up"


TRANSITIONS: Final[Mapping[tuple[Phase, Trigger], Phase]] = {
    (Phase.PLANNING, Trigger.BATCH_PLANNED): Phase.PROCESSING,
    (Phase.PLANNING, Trigger.NOTHING_THERE): Phase.WAITING,
    (Phase.PLANNING, Trigger.ATTEMPT_FAILED): Phase.GONE,
    (Phase.PLANNING, Trigger.GIVEN_UP): Phase.ABORTING,
    (Phase.WAITING, Trigger.PLAN_AGAIN): Phase.PLANNING,
    (Phase.WAITING, Trigger.ATTEMPT_FAILED): Phase.GONE,
    (Phase.WAITING, Trigger.GIVEN_UP): Phase.GONE,
    (Phase.PROCESSING, Trigger.PROCESSING_SUCCEEDED): Phase.PROCESSED,
    (Phase.PROCESSING, Trigger.ATTEMPT_FAILED): Phase.GONE,
    (Phase.PROCESSING, Trigger.GIVEN_UP): Phase.ABORTING,
    (Phase.PROCESSED, Trigger.ITS_TURN): Phase.COMMITTING,
    (Phase.PROCESSED, Trigger.ATTEMPT_FAILED): Phase.GONE,
    (Phase.PROCESSED, Trigger.GIVEN_UP): Phase.ABORTING,
    (Phase.COMMITTING, Trigger.COMMIT_SUCCEEDED): Phase.GONE,
    (Phase.COMMITTING, Trigger.ATTEMPT_FAILED): Phase.GONE,
    (Phase.ABORTING, Trigger.ATTEMPT_FAILED): Phase.GONE,
}

LATE: Final[frozenset[tuple[Phase, Trigger]]] = frozenset(
    {
        # An answer that arrives twice, or after the attempt was aborted, changes nothing.
        (Phase.WAITING, Trigger.NOTHING_THERE),
        (Phase.WAITING, Trigger.BATCH_PLANNED),
        (Phase.PROCESSING, Trigger.BATCH_PLANNED),
        (Phase.PROCESSED, Trigger.BATCH_PLANNED),
        (Phase.PROCESSED, Trigger.PROCESSING_SUCCEEDED),
        (Phase.COMMITTING, Trigger.BATCH_PLANNED),
        (Phase.COMMITTING, Trigger.PROCESSING_SUCCEEDED),
        # A second copy of "nothing there" may arrive after planning was requested again and has answered.
        (Phase.PROCESSING, Trigger.NOTHING_THERE),
        (Phase.PROCESSED, Trigger.NOTHING_THERE),
        (Phase.COMMITTING, Trigger.NOTHING_THERE),
        (Phase.ABORTING, Trigger.BATCH_PLANNED),
        (Phase.ABORTING, Trigger.NOTHING_THERE),
        (Phase.ABORTING, Trigger.PROCESSING_SUCCEEDED),
    }
)


def diagram() -> str:
    """Return the transitions as a Mermaid state diagram."""
    rows = [
        f"    {phase.name} --> {'[*]' if after is Phase.GONE else after.name}: {trigger.value}"
        for (phase, trigger), after in TRANSITIONS.items()
    ]
    return "\n".join(
        ["stateDiagram-v2", "    [*] --> PLANNING: issued", "    [*] --> PROCESSING: replayed as recorded", *rows]
    )
