"""Carries out the repairs of `transactional doctor --repair`, while holding the topology's lease.

Only what is provably right is done. A lost or outdated store is brought to the transaction of the tables with the
batches in the journal of the runs; each step is one that a coordinator makes, so that the store refuses a wrong one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from transactional.core.machine.protocol import ProcessingSucceeded, RecordAttempt, RecordCommit
from transactional.core.ports.examining import Diagnosis, Problem
from transactional.core.ports.state_parts import RewindTarget
from transactional.core.store import AttemptRecord, CoordinatorStore, Lease
from transactional.core.store.rules import PROCESSING
from transactional.model.attempt import AttemptId, TransactionAttempt, TxId
from transactional.model.batch import EMPTY_BATCH, BatchMetadata
from transactional.model.errors import ConfigError, StoreMismatch
from transactional.model.names import joining_of
from transactional.operations.doctor.examine import Table, examine_states
from transactional.operations.doctor.sink_ends import SinkEnds
from transactional.runtime.engine.clock import SystemClock
from transactional.runtime.engine.fencing import committed_by
from transactional.runtime.engine.history.journal import JournalWriter, RewindLine, RunStarted, read_journal
from transactional.runtime.engine.rewinding import committed_batch, rewind
from transactional.runtime.engine.streams import stream_names
from transactional.topology.topology import Topology

LEASE_MS = 60_000
OWNER = "transactional doctor"
FORGOTTEN_AT_MS = 0
"""The time given to committed transactions of which only the number is known, so that they are deleted at once."""


@dataclass(frozen=True, slots=True)
class Standing:
    """The transaction that a table contains, and the attempt that wrote it. `fence_id` is that of the rewind which took
    the table back to it, if one did."""

    txid: TxId
    attempt_id: AttemptId
    fence_id: AttemptId | None = None

    @property
    def newest_writer(self) -> AttemptId:
        """The newest attempt or fence that may have written the table."""
        return self.attempt_id if self.fence_id is None else self.fence_id


@dataclass(frozen=True, slots=True)
class Journal:
    """The contents of the journal of a topology's runs.

    `attempts` has each attempt's batch, `committed` the attempts that committed each transaction (several after a
    rewind), `fences` those of the coordinators, and `rewinds` the standing to which the fence of a rewind took tables.
    """

    attempts: Mapping[AttemptId, tuple[TxId, BatchMetadata]] = field(default_factory=dict)
    committed: Mapping[TxId, Sequence[AttemptId]] = field(default_factory=dict)
    fences: frozenset[AttemptId] = frozenset()
    rewinds: Mapping[AttemptId, Standing] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path | str) -> Journal:
        """Read a journal (`transactional run --journal FILE`). Raises `ConfigError`, `CorruptRecord`."""
        attempts: dict[AttemptId, tuple[TxId, BatchMetadata]] = {}
        committed: dict[TxId, list[AttemptId]] = {}
        fences, rewinds = set[AttemptId](), dict[AttemptId, Standing]()
        if not Path(path).is_file():
            raise ConfigError(f"there is no journal {path}")
        for _, event, actions in read_journal(path):
            if isinstance(event, RunStarted):
                fences.add(event.progress.attempt_id)
            if isinstance(event, RewindLine):
                fences.add(event.fence_id)
                if event.attempt_id:
                    attempts[event.attempt_id] = event.txid, event.batch
                if event.goes_back:
                    rewinds[event.fence_id] = Standing(event.txid, event.attempt_id, event.fence_id)
            if isinstance(event, ProcessingSucceeded) and event.attempt.attempt_id in attempts:
                # The only record of what an opaque spout's transaction has read, if its commit is not in the journal.
                txid, batch = attempts[event.attempt.attempt_id]
                attempts[event.attempt.attempt_id] = txid, batch.with_digests(event.digests)
            for action in actions:
                if isinstance(action, RecordAttempt | RecordCommit):
                    attempts[action.attempt.attempt_id] = (action.attempt.txid, action.batch)
                if isinstance(action, RecordCommit):
                    committed.setdefault(action.attempt.txid, []).append(action.attempt.attempt_id)
        return cls(attempts, committed, frozenset(fences), rewinds)

    @property
    def highest(self) -> AttemptId:
        """The highest attempt id in the journal."""
        return max((*self.attempts, *self.fences), default=AttemptId(0))

    def predecessor(self, txid: TxId, attempt_id: AttemptId) -> AttemptId | None:
        """Return the attempt whose commit of `txid` was read by this attempt at `txid + 1`, or None if the journal does
        not say."""
        return max((candidate for candidate in self.committed.get(txid, ()) if candidate < attempt_id), default=None)


def repair(
    topology: Topology,
    store: CoordinatorStore,
    findings: Sequence[Diagnosis],
    journal: Path | None = None,
    *,
    accepts_sent: bool = False,
) -> list[str]:
    """Carry out the possible repairs of the findings, and report what was done.

    With `accepts_sent` sinks may publish again what their targets have.
    Raises `TopologyInUse` if a coordinator is running, `ConfigError` if something required was not given,
    `StoreMismatch` if a repair would not be right; what was done before that is kept.
    """
    repairs_done: list[str] = []
    tables = {table.component: table for table in examine_states(topology)}
    repairable = [finding for finding in findings if finding.can_repair]
    if torn_tables := [finding for finding in repairable if finding.problem is Problem.TABLE_TORN]:
        # Only the table's other files show which further repairs it needs.
        with _hold_lease(topology, store):
            repairs_done += [tables[finding.component].examined.repair(finding) for finding in torn_tables]
        tables = {table.component: table for table in examine_states(topology)}
        repairable = [finding for finding in repairable if finding not in torn_tables]
    if any(finding.problem in (Problem.STORE_WIPED, Problem.TABLE_AHEAD) for finding in repairable):
        if journal is None:
            raise ConfigError(
                "the store can only catch up with the tables if the batches are known: pass the journal of the "
                "runs, with --journal FILE"
            )
        repairs_done += _restore_store_and_sinks(
            topology, store, list(tables.values()), journal, accepts_sent=accepts_sent
        )
    table_findings = [
        finding for finding in repairable if finding.problem not in (Problem.STORE_WIPED, Problem.TABLE_AHEAD)
    ]
    if table_findings:
        with _hold_lease(topology, store):
            # Rows first: they are restored on top of the version that was examined, and other repairs make a new one.
            table_findings.sort(key=lambda finding: finding.target is None)
            repairs_done += [tables[finding.component].examined.repair(finding) for finding in table_findings]
    return repairs_done


@contextmanager
def _hold_lease(topology: Topology, store: CoordinatorStore, *, to_rewind: bool = False) -> Iterator[Lease]:
    """Hold the lease, so that nothing else writes meanwhile. The stored data of a known topology are not changed."""
    lease = _acquire_lease(topology, store, to_rewind=to_rewind)
    try:
        yield lease
    finally:
        store.release(lease)


def _acquire_lease(topology: Topology, store: CoordinatorStore, *, to_rewind: bool = False) -> Lease:
    status = next(iter(store.status(topology.id)), None)
    owner = _owner()
    if status is not None and status.fingerprint:
        return store.acquire(
            *(topology.id, status.fingerprint),
            owner=owner,
            lease_ms=LEASE_MS,
            name=status.name,
            to_rewind=to_rewind,
        )
    with topology.with_open_spout() as examined:
        fingerprint = examined.fingerprint()
    lease = store.acquire(topology.id, fingerprint, owner=owner, lease_ms=LEASE_MS)
    store.record_start(lease, fingerprint)
    return lease


def _owner() -> str:
    return f"{OWNER} {os.getpid()}"


# --- the store ----------------------------------------------------------------------------------------------------


def _restore_store_and_sinks(
    topology: Topology, store: CoordinatorStore, tables: Sequence[Table], path: Path, *, accepts_sent: bool
) -> Iterator[str]:
    """Restore the store, and go back as far as the sinks need, yielding what was done.

    If the process dies before the end of the rewind, nothing can start until the rewind is finished.
    """
    ends = restore_store(topology, store, tables, Journal.read(path), accepts_sent=accepts_sent)
    yield f"the store of topology {topology.id!r} says again that transaction {ends.last_txid} is committed"
    if ends.rewind_txid is not None:
        with closing(JournalWriter(path)) as journal:
            rewind(topology, store, ends.rewind_txid, owner=_owner(), journal=journal, accepts_sent=accepts_sent)
        yield f"topology {topology.id!r} went back to transaction {ends.rewind_txid}, because {ends.missing_records}"


def restore_store(
    topology: Topology,
    store: CoordinatorStore,
    tables: Sequence[Table],
    journal: Journal,
    *,
    accepts_sent: bool = False,
) -> SinkEnds:
    """Commit the tables' transaction in the store, with the batches in the journal, and return how far the sinks are.

    Each step but counting is one that a coordinator makes, and is refused like one. After a crash in the middle the
    repair can be repeated. If a sink lacks records, the rewind to its end is begun, and the caller finishes it. Raises
    `StoreMismatch` if the journal is not of these tables, if the tables differ by more than a crash can cause, or if
    that rewind is impossible.
    """
    standings = {table.component: standing_of(table, journal) for table in tables}
    _check_rewound_together(tables, journal)
    last, ahead = _last_and_next_standing(standings)
    finished = {fence: target.txid for fence, target in journal.rewinds.items() if fence <= last.newest_writer}
    ends = SinkEnds.read(topology, last.txid, finished)
    ends.check_sent(accepts_sent=accepts_sent)
    with _hold_lease(topology, store, to_rewind=ends.rewind_txid is not None) as lease:
        committed_txid, committed_attempt = (
            lease.progress.committed_txid,
            _last_committed_attempt(store, lease, journal),
        )
        if committed_txid > last.txid or (committed_txid == last.txid > 0 and committed_attempt != last.attempt_id):
            raise StoreMismatch(
                f"the store is at transaction {committed_txid}, no less than the tables, at {last.txid}"
            )
        attempts_to_commit = _attempts_to_commit(lease, committed_attempt, last, journal)
        if ends.rewind_txid is not None:
            batch = journal.attempts[last.attempt_id][1]
            _check_rewind(ends, store, tables, journal, attempts_to_commit, batch)
            # Nothing may start between a commit and the rewind: it would publish without the missing records.
            store.begin_rewind(lease, min(ends.rewind_txid, committed_txid))
        # Refused starts may have drawn the ids of attempts that have written the tables.
        store.recount(lease, committed_attempt)
        for attempt in sorted(
            {*attempts_to_commit, *_uncommitted_attempts(lease, committed_attempt, last, journal)}, key=_by_attempt_id
        ):
            _record_attempt(store, lease, attempt, journal)
        if ahead is not None:
            # A transactional spout has to read the same records in the replay.
            _record_attempt(store, lease, TransactionAttempt(ahead.txid, ahead.attempt_id), journal)
        # No coordinator has drawn this id or a higher one. Nothing can start before the counter is set to it.
        unused = AttemptId(
            max(lease.fence_id, journal.highest, *(max(table.examined.versions) for table in tables)) + 1
        )
        for table in tables:
            _record_fences(store, replace(lease, fence_id=unused), table, journal)
        store.recount(lease, unused)
        # First the sinks: once the last transaction is committed, the repair is not repeated.
        for name, boundary in ends.boundaries.items():
            store.place_sink(lease, name, boundary)
        for attempt in attempts_to_commit:
            at_ms = _time_ms_of(attempt, journal)
            batch = _batch_of(attempt, journal)
            store.record_commit(lease, attempt, batch, processed_at_ms=at_ms, started_at_ms=at_ms, at_ms=at_ms)
            if attempt.txid == ends.rewind_txid:
                store.begin_rewind(lease, attempt.txid)
        store.forget_before(lease, at_ms=FORGOTTEN_AT_MS + 1)
        if last.fence_id is not None and ahead is None and ends.rewind_txid is None:
            # The rewound transactions are recorded as such, and no start waits for their batches.
            store.begin_rewind(lease, last.txid)
            store.finish_rewind(lease, last.txid)
    return ends


def _check_rewind(
    ends: SinkEnds,
    store: CoordinatorStore,
    tables: Sequence[Table],
    journal: Journal,
    attempts_to_commit: Sequence[TransactionAttempt],
    current: BatchMetadata,
) -> None:
    """Raise `StoreMismatch` if the topology can't go back as far as its sinks need. `current` is the batch of the
    tables' transaction."""
    txid, topology = ends.rewind_txid, ends.topology
    assert txid is not None
    attempt = next((attempt for attempt in attempts_to_commit if attempt.txid == txid), None)
    attempt_id = committed_by(store, topology.id, txid) if attempt is None else attempt.attempt_id
    if attempt_id is not None and attempt_id in journal.attempts:
        batch = journal.attempts[attempt_id][1]
    elif attempt is None:
        batch = committed_batch(store, topology.id, txid)
    else:
        raise StoreMismatch(
            f"{ends.missing_records}. The journal does not contain the batch of transaction {txid}, from which they "
            "would be computed again: pass a complete one, or restore the store; nothing was changed"
        )
    names = stream_names(topology, store)
    targets = {table.component: RewindTarget(txid, attempt_id, _txid_lookup(table, journal)) for table in tables}
    ends.check_rewind(names.with_current_names(current, ends.last_txid), names.with_current_names(batch, txid), targets)


def _txid_lookup(table: Table, journal: Journal) -> Callable[[AttemptId], TxId | None]:
    """Return a function that maps a version of a table to its transaction, or to None if the journal does not say."""
    txids = {attempt_id: txid for attempt_id, (txid, _) in journal.attempts.items()}
    return {**txids, **dict(_fence_txids(table, journal))}.get


def standing_of(table: Table, journal: Journal) -> Standing:
    """Return the transaction that a table contains: that of the newest attempt in the journal which has written it.

    Only fences of the journal's coordinators may follow that attempt; the fence of a rewind names the transaction that
    it went back to. Raises `StoreMismatch`.
    """
    address = table.examined.where
    for version in reversed(table.examined.versions):
        if version in journal.rewinds:
            return journal.rewinds[version]
        if version in journal.attempts:
            return Standing(journal.attempts[version][0], version)
        if version not in journal.fences:
            raise StoreMismatch(f"{address}: attempt {version} is not in the journal; pass the one of its last runs")
    raise StoreMismatch(f"{address}: none of the attempts in the journal has written it; pass another journal")


def _last_and_next_standing(standings: Mapping[str, Standing]) -> tuple[Standing, Standing | None]:
    """Return the transaction that all tables contain, and the next one if some contain it. Raises `StoreMismatch`."""
    lowest, highest = min(standings.values(), key=_by_txid), max(standings.values(), key=_by_txid)
    listed = ", ".join(f"{name}: {standing.txid}:{standing.attempt_id}" for name, standing in sorted(standings.items()))
    if highest.txid > lowest.txid + 1:
        raise StoreMismatch(
            f"the tables are at {listed}: they differ by more than a crash can cause; restore those that are behind"
        )
    if any(
        standing.txid == lowest.txid and standing.attempt_id != lowest.attempt_id for standing in standings.values()
    ):
        raise StoreMismatch(
            f"the tables are at {listed}: they hold transaction {lowest.txid} as two attempts wrote it, and only the "
            "store knew the batch before it; restore the store"
        )
    return lowest, (highest if highest.txid > lowest.txid else None)


def _check_rewound_together(tables: Sequence[Table], journal: Journal) -> None:
    """Raise `StoreMismatch` if a rewind has taken back some of the tables, and not the others."""
    newest = max(journal.rewinds, default=None)
    if newest is None:
        return
    waiting = sorted(table.component for table in tables if newest not in table.examined.versions)
    if waiting and len(waiting) < len(tables):
        raise StoreMismatch(
            f"a rewind to transaction {journal.rewinds[newest].txid} had taken back some tables when the store was "
            f"lost, and not those of {', '.join(waiting)}: restore the store, and finish the rewind"
        )


def _by_txid(standing: Standing) -> TxId:
    return standing.txid


def _last_committed_attempt(store: CoordinatorStore, lease: Lease, journal: Journal) -> AttemptId:
    """Return the attempt that committed the store's last transaction, or 0 if the store has none.

    Raises `StoreMismatch` if the journal has another one: then something was committed after the store was lost.
    """
    txid, ranges = lease.progress.committed_txid, lease.progress.committed_batch.ranges
    attempt_id = committed_by(store, lease.topology_id, txid)
    if attempt_id is None:
        return AttemptId(0)
    if txid in journal.committed and (
        attempt_id not in journal.committed[txid] or journal.attempts[attempt_id][1].ranges != ranges
    ):
        raise StoreMismatch(
            f"transaction {txid} was committed, by attempt {attempt_id}, since the store was lost: the journal has "
            f"another transaction {txid}. What was committed since is not in these tables; `transactional txns "
            f"{lease.topology_id}` shows it. To give it up, run `transactional reset {lease.topology_id}`, and repair "
            "again"
        )
    return attempt_id


def _attempts_to_commit(
    lease: Lease, committed_attempt: AttemptId, last: Standing, journal: Journal
) -> list[TransactionAttempt]:
    """Return the attempts to be committed, up to the last: those in the journal, and for earlier transactions any ids
    that fit in between."""
    attempts, previous_id = list[TransactionAttempt](), committed_attempt
    attempt_by_txid = _committing_attempts(lease, last, journal)
    first_txid_in_journal = min(attempt_by_txid)
    for number in range(lease.progress.committed_txid + 1, last.txid + 1):
        txid = TxId(number)
        if txid not in attempt_by_txid and txid > first_txid_in_journal:
            raise StoreMismatch(f"the journal does not contain the batch of transaction {txid}; pass a complete one")
        attempt_id = attempt_by_txid.get(txid) or AttemptId(previous_id + 1)
        if attempt_id <= previous_id:
            raise StoreMismatch(
                f"transaction {txid} was written by attempt {attempt_id}, and the one before it by attempt "
                f"{previous_id}, which is a later one: pass the journal of the runs that have written these tables"
            )
        attempts.append(TransactionAttempt(txid, attempt_id))
        previous_id = attempt_id
    return attempts


def _committing_attempts(lease: Lease, last: Standing, journal: Journal) -> dict[TxId, AttemptId]:
    """Return by transaction, from the last one down, the attempt that committed it, if the journal says so."""
    attempt_by_txid = {last.txid: last.attempt_id}
    for number in range(last.txid - 1, lease.progress.committed_txid, -1):
        attempt_id = journal.predecessor(TxId(number), attempt_by_txid.get(TxId(number + 1), last.attempt_id))
        if attempt_id is not None:
            attempt_by_txid[TxId(number)] = attempt_id
    return attempt_by_txid


def _uncommitted_attempts(
    lease: Lease, committed_attempt: AttemptId, last: Standing, journal: Journal
) -> Iterator[TransactionAttempt]:
    """Yield the attempts that were not committed, or rewound: they may have written a table temporarily."""
    rewound_until = max((fence for fence in journal.rewinds if fence <= last.newest_writer), default=0)
    for attempt_id, (txid, _) in journal.attempts.items():
        if not (committed_attempt < attempt_id < last.newest_writer and lease.progress.committed_txid < txid):
            continue
        if txid <= last.txid or attempt_id < rewound_until:
            yield TransactionAttempt(txid, attempt_id)


def _by_attempt_id(attempt: TransactionAttempt) -> AttemptId:
    return attempt.attempt_id


def _time_ms_of(attempt: TransactionAttempt, journal: Journal) -> int:
    """Return the present time; for an attempt that is not in the journal a time so early that it is deleted."""
    return SystemClock().wall_ms() if attempt.attempt_id in journal.attempts else FORGOTTEN_AT_MS


def _batch_of(attempt: TransactionAttempt, journal: Journal) -> BatchMetadata:
    return journal.attempts.get(attempt.attempt_id, (attempt.txid, EMPTY_BATCH))[1]


def _record_attempt(store: CoordinatorStore, lease: Lease, attempt: TransactionAttempt, journal: Journal) -> None:
    batch = _batch_of(attempt, journal)
    at_ms = _time_ms_of(attempt, journal)
    record = AttemptRecord(attempt, PROCESSING, batch, batch.record_count, at_ms, at_ms, None, None, None, None)
    store.record_attempt(lease, record, forget_later=True)


def _record_fences(store: CoordinatorStore, lease: Lease, table: Table, journal: Journal) -> None:
    """Record the table's transaction at each take-over by a coordinator."""
    for version, txid in _fence_txids(table, journal):
        fence = replace(lease, fence_id=version)
        if version == table.examined.versions[0]:
            store.record_fence(fence, joining_of(table.component), txid)
        store.record_fence(fence, table.component, txid)
    if not store.has_fence(lease.topology_id, table.component):
        store.record_fence(lease, table.component, lease.progress.committed_txid)


def _fence_txids(table: Table, journal: Journal) -> Iterator[tuple[AttemptId, TxId]]:
    """Yield the fences in the history of a table, each with the transaction of the table at that time."""
    txid = TxId(0) if table.examined.has_full_history else None
    for version in table.examined.versions:
        if version in journal.attempts:
            txid = journal.attempts[version][0]
        elif version in journal.fences:
            txid = journal.rewinds[version].txid if version in journal.rewinds else txid
            if txid is not None:
                yield version, txid
