"""What the in-memory coordinator's store knows about one topology, and how it changes."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from uuid import uuid4

from transactional.core.store import AttemptRecord, DesiredState
from transactional.core.store.history import (
    TRIMMED_PER_COMMIT,
    Keep,
    MinuteRecord,
    RunEnd,
    RunRecord,
    Savepoint,
    Trouble,
)
from transactional.core.store.outbox import Boundary, OutboxRow, Publication, SinkProgress, SinkRecords
from transactional.core.store.progress import Progress
from transactional.core.store.rules import COMMITTED, GIVEN_UP, OPEN, PROCESSED, REWOUND, given_up_text, storable
from transactional.model.attempt import NO_TRANSACTION, AttemptId, Epoch, TransactionAttempt, TxId
from transactional.model.batch import EMPTY_BATCH, BatchMetadata

NO_EPOCH, NO_ATTEMPT = Epoch(0), AttemptId(0)


@dataclass(slots=True)
class MemoryTopology:
    """The stored progress and history of one topology. `transactions` holds those above the committed one."""

    fingerprint: str
    epoch: Epoch = NO_EPOCH
    owner: str | None = None
    leased_until_ms: int | None = None
    attempt_id: AttemptId = NO_ATTEMPT
    committed_txid: TxId = NO_TRANSACTION
    committed_attempt_id: AttemptId | None = None
    transactions: dict[TxId, AttemptId] = field(default_factory=dict)
    attempts: dict[AttemptId, AttemptRecord] = field(default_factory=dict)
    fences: dict[tuple[str, AttemptId], TxId] = field(default_factory=dict)
    name: str | None = None
    desired: DesiredState = DesiredState.ACTIVE
    stop_at_ms: int | None = None
    trouble: Trouble | None = None
    rewinding_to: TxId | None = None
    savepoints: dict[str, Savepoint] = field(default_factory=dict)
    runs: dict[Epoch, RunRecord] = field(default_factory=dict)
    minutes: list[MinuteRecord] = field(default_factory=list)
    outbox: list[OutboxRow] = field(default_factory=list)
    sinks: dict[str, Publication | Boundary] = field(default_factory=dict)
    sink_letters: list[OutboxRow] = field(default_factory=list)
    store_id: str | None = field(default_factory=lambda: uuid4().hex)

    def desire(self, state: DesiredState, stop_at_ms: int | None = None) -> None:
        self.desired, self.stop_at_ms = state, stop_at_ms


def progress_of(topology: MemoryTopology) -> Progress:
    """Return the progress from which a coordinator starts."""
    newest = topology.committed_attempt_id
    return Progress(
        topology.committed_txid,
        EMPTY_BATCH if newest is None else topology.attempts[newest].batch,
        {txid: topology.attempts[topology.transactions[txid]].batch for txid in sorted(topology.transactions)},
        topology.attempt_id,
    )


def sinks_of(topology: MemoryTopology) -> dict[str, SinkProgress]:
    """How far each sink is that has published something, or has to."""
    return {
        sink: _progress_of_sink(topology, sink) for sink in {*topology.sinks, *(row.sink for row in topology.outbox)}
    }


def _progress_of_sink(topology: MemoryTopology, sink: str) -> SinkProgress:
    rows, newest = outbox_of(topology, sink), topology.sinks.get(sink)
    return SinkProgress(
        TxId(rows[0].publication.attempt.txid - 1) if rows else topology.committed_txid,
        newest if isinstance(newest, Publication) else None,
        len(rows),
        sum(row.count for row in rows),
        sum(row.size_bytes for row in rows),
        newest if isinstance(newest, Boundary) else None,
    )


def _noted_txid(newest: Publication | Boundary) -> TxId:
    return newest.txid if isinstance(newest, Boundary) else newest.attempt.txid


def outbox_of(topology: MemoryTopology, sink: str) -> list[OutboxRow]:
    """The outbox rows of a sink, in order of txid."""
    return [row for row in topology.outbox if row.sink == sink]


def settle(topology: MemoryTopology, sink: str, published: Publication) -> None:
    """Note a publication unless the noted one is as new, and delete the rows up to its transaction."""
    txid, newest = published.attempt.txid, topology.sinks.get(sink)
    if newest is None or _noted_txid(newest) < txid:
        topology.sinks[sink] = published
        topology.outbox = [row for row in topology.outbox if row.sink != sink or row.publication.attempt.txid > txid]


def place(topology: MemoryTopology, sink: str, new: Boundary | None) -> None:
    """Set how far a sink is, and delete its rows up to there; without a boundary all of it."""
    topology.sinks.pop(sink, None)
    if new is not None:
        topology.sinks[sink] = new
    topology.outbox = [
        row
        for row in topology.outbox
        if row.sink != sink or (new is not None and row.publication.attempt.txid > new.txid)
    ]


def set_aside(topology: MemoryTopology, row: OutboxRow, letters: SinkRecords, remaining: SinkRecords | None) -> None:
    """Move records of a row to the letters of sinks, and put the remaining ones in its place."""
    for number, stored in enumerate(topology.outbox):
        if (stored.sink, stored.publication) == (row.sink, row.publication):
            topology.sink_letters.append(OutboxRow(row.sink, row.publication, letters.count, letters.payload))
            topology.outbox[number : number + 1] = [] if remaining is None else [_with_records(row, remaining)]
            return


def _with_records(row: OutboxRow, records: SinkRecords) -> OutboxRow:
    return OutboxRow(row.sink, row.publication, records.count, records.payload, records.file)


def forget_after(topology: MemoryTopology, attempt_id: AttemptId) -> None:
    """Forget the attempts after one, and the fences."""
    topology.transactions = {txid: latest for txid, latest in topology.transactions.items() if latest <= attempt_id}
    topology.attempts = {recorded: record for recorded, record in topology.attempts.items() if recorded <= attempt_id}
    topology.fences = {key: txid for key, txid in topology.fences.items() if key[1] <= attempt_id}


def newest_first(
    topology: MemoryTopology, *, before: AttemptId | None = None, phases: Collection[str] = ()
) -> Iterator[AttemptRecord]:
    """The attempts older than `before`, in these phases (none given: in any)."""
    for record in reversed(topology.attempts.values()):
        if (before is None or record.attempt.attempt_id < before) and (not phases or record.phase in phases):
            yield record


def in_flight(topology: MemoryTopology, attempt: TransactionAttempt) -> AttemptRecord | None:
    """The record of an attempt, if it is in flight."""
    record = topology.attempts.get(attempt.attempt_id)
    return record if record is not None and record.attempt == attempt and record.phase in OPEN else None


def processed(record: AttemptRecord, batch: BatchMetadata, at_ms: int) -> AttemptRecord:
    """The record of an attempt whose processing phase has ended."""
    rows = record.rows if batch.record_count is None else batch.record_count
    return replace(record, phase=PROCESSED, batch=batch, rows=rows, processed_at_ms=at_ms)


def give_up(topology: MemoryTopology, attempt_id: AttemptId, error: str | None = None) -> None:
    """Give an attempt up, if it is in flight."""
    record = topology.attempts[attempt_id]
    if record.phase in OPEN:
        topology.attempts[attempt_id] = replace(record, phase=GIVEN_UP, error=error)


def committed_at(topology: MemoryTopology, txid: TxId) -> AttemptId | None:
    """The attempt that has committed a transaction; None if it is not known."""
    return next(
        (
            record.attempt.attempt_id
            for record in newest_first(topology, phases=[COMMITTED])
            if record.attempt.txid == txid
        ),
        None,
    )


def rewind(topology: MemoryTopology, txid: TxId) -> None:
    """Make an earlier transaction the committed one again."""
    for later in [later for later in topology.transactions if later > txid]:
        give_up(topology, topology.transactions.pop(later))
    for record in list(newest_first(topology, phases=[COMMITTED])):
        if record.attempt.txid > txid:
            topology.attempts[record.attempt.attempt_id] = replace(record, phase=REWOUND)
    topology.outbox = [row for row in topology.outbox if row.publication.attempt.txid <= txid]
    for sink, newest in topology.sinks.items():
        if _noted_txid(newest) > txid:
            voided = newest.attempt_id if isinstance(newest, Boundary) else topology.attempt_id
            topology.sinks[sink] = Boundary(txid, voided)
    topology.committed_txid, topology.committed_attempt_id = txid, committed_at(topology, txid)
    topology.rewinding_to = topology.trouble = None
    topology.savepoints = {name: savepoint for name, savepoint in topology.savepoints.items() if savepoint.txid <= txid}


def end_runs(topology: MemoryTopology, end: RunEnd, at_ms: int) -> None:
    """End every run that has not ended, and give up what is in flight."""
    stored = RunEnd(end.how, end.code, None if end.reason is None else storable(end.reason))
    for run in [run for run in topology.runs.values() if run.end is None]:
        topology.runs[run.epoch] = replace(run, ended_at_ms=at_ms, ended_at_txid=topology.committed_txid, end=stored)
    for attempt_id in topology.transactions.values():
        give_up(topology, attempt_id, given_up_text(end))


def is_held(topology: MemoryTopology, txid: TxId) -> bool:
    """Return whether a savepoint needs the attempts at a transaction."""
    return any(savepoint.txid <= txid for savepoint in topology.savepoints.values())


def trim(topology: MemoryTopology, keep: Keep) -> None:
    """Delete the oldest surplus attempts, a few at a time; none that may still be needed."""
    newest = topology.committed_attempt_id or NO_ATTEMPT
    needed = {newest, *topology.transactions.values()}
    needed |= {
        record.attempt.attempt_id for record in topology.attempts.values() if is_held(topology, record.attempt.txid)
    }
    for attempt_id in list(islice(topology.attempts, TRIMMED_PER_COMMIT)):
        is_old = topology.attempts[attempt_id].issued_at_ms < keep.since_ms
        if attempt_id < newest and attempt_id not in needed and (is_old or attempt_id <= newest - keep.attempts_max):
            del topology.attempts[attempt_id]


def drop(topology: MemoryTopology, dropped: set[TransactionAttempt], oldest: TransactionAttempt) -> None:
    """Delete the given attempts, and the failures and fences before the oldest committed attempt that is kept.

    A table is never at an older version than its last committed attempt, so they are not needed. A component's last
    fence is kept: it shows that the component has joined.
    """
    for record in list(topology.attempts.values()):
        if record.attempt in dropped or record.attempt.txid < oldest.txid:
            del topology.attempts[record.attempt.attempt_id]
    newest = dict(sorted(topology.fences))
    for component_id, attempt_id in list(topology.fences):
        if attempt_id < min(oldest.attempt_id, newest[component_id]):
            del topology.fences[component_id, attempt_id]
