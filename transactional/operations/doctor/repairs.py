"""What `transactional doctor --repair` does: only what is provably right, while holding the topology's lease."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from transactional.core.machine.protocol import ProcessingSucceeded, RecordAttempt, RecordCommit
from transactional.core.ports.examining import Diagnosis, Problem
from transactional.core.store import AttemptRecord, CoordinatorStore, Lease
from transactional.core.store.rules import PROCESSING
from transactional.model.attempt import AttemptId, TransactionAttempt, TxId
from transactional.model.batch import EMPTY_BATCH, BatchMetadata
from transactional.model.errors import ConfigError, StoreMismatch
from transactional.model.names import joining_of
from transactional.operations.doctor.examine import Table, tables_of
from transactional.runtime.engine.clock import SystemClock
from transactional.runtime.engine.fencing import committed_by
from transactional.runtime.engine.history.journal import RewindLine, RunStarted, read_journal
from transactional.topology.topology import Topology

LEASE_MS = 60_000
OWNER = "transactional doctor"
FORGOTTEN_AT_MS = 0
"""The time of committed transactions of which only the number is known; they are deleted at once."""


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a table is: at which transaction, and the attempt that wrote it, or a rewind's fence that has gone back to
    what it wrote."""

    txid: TxId
    attempt_id: AttemptId
    fence_id: AttemptId | None = None

    @property
    def until(self) -> AttemptId:
        """Before this are all attempts that the table may have been written by."""
        return self.attempt_id if self.fence_id is None else self.fence_id


@dataclass(frozen=True, slots=True)
class Journal:
    """The contents of the journal of a topology's runs: each attempt's batch, who committed each transaction (again
    after a rewind), the coordinators' fences, and what the fences of rewinds have taken tables back to."""

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
        """The highest id in it."""
        return max((*self.attempts, *self.fences), default=AttemptId(0))

    def committed_before(self, txid: TxId, attempt_id: AttemptId) -> AttemptId | None:
        """Who committed a transaction on which such an attempt at the next one has built; None: it is not known."""
        return max((each for each in self.committed.get(txid, ()) if each < attempt_id), default=None)


def repair(
    topology: Topology, store: CoordinatorStore, findings: Sequence[Diagnosis], journal: Path | None = None
) -> list[str]:
    """Carry out the possible repairs of the findings, and report what was done.

    Raises `TopologyInUse` if a coordinator is running, `ConfigError` if something required was not given,
    `StoreMismatch` if a repair would not be right; what was done before that is kept.
    """
    done: list[str] = []
    tables = {table.component: table for table in tables_of(topology)}
    wanted = [each for each in findings if each.can_repair]
    if torn := [each for each in wanted if each.problem is Problem.TABLE_TORN]:
        # What else there is to be done to such a table, only its other files show.
        with _lease(topology, store):
            done += [tables[each.component].found.repair(each) for each in torn]
        tables = {table.component: table for table in tables_of(topology)}
        wanted = [each for each in wanted if each not in torn]
    if any(each.problem in (Problem.STORE_WIPED, Problem.TABLE_AHEAD) for each in wanted):
        if journal is None:
            raise ConfigError(
                "the store can only catch up with the tables if the batches are known: pass the journal of the "
                "runs, with --journal FILE"
            )
        done.append(take_over(topology, store, list(tables.values()), Journal.read(journal)))
    of_tables = [each for each in wanted if each.problem not in (Problem.STORE_WIPED, Problem.TABLE_AHEAD)]
    if of_tables:
        with _lease(topology, store):
            # Rows first: they are restored on top of the version that was examined, and any other repair makes a new
            # one.
            of_tables.sort(key=lambda each: each.target is None)
            done += [tables[each.component].found.repair(each) for each in of_tables]
    return done


@contextmanager
def _lease(topology: Topology, store: CoordinatorStore) -> Iterator[Lease]:
    """The lease, so that nobody writes meanwhile. The stored data of a known topology are not changed."""
    lease = _acquire(topology, store)
    try:
        yield lease
    finally:
        store.release(lease)


def _acquire(topology: Topology, store: CoordinatorStore) -> Lease:
    status = next(iter(store.status(topology.id)), None)
    owner = f"{OWNER} {os.getpid()}"
    if status is not None and status.fingerprint:
        return store.acquire(topology.id, status.fingerprint, owner=owner, lease_ms=LEASE_MS, name=status.name)
    with topology.examined() as examined:
        fingerprint = examined.fingerprint()
    lease = store.acquire(topology.id, fingerprint, owner=owner, lease_ms=LEASE_MS)
    store.record_start(lease, fingerprint)
    return lease


# --- the store ----------------------------------------------------------------------------------------------------


def take_over(topology: Topology, store: CoordinatorStore, tables: Sequence[Table], journal: Journal) -> str:
    """Bring the store to where the tables are: their transaction is committed, with the batch in the journal.

    Each step but counting is one that a coordinator makes, and is refused like one; whoever dies in between can do it
    again. Raises `StoreMismatch` if the journal is not of
    these tables, or if the tables differ by more than a crash can cause.
    """
    standings = {table.component: standing_of(table, journal) for table in tables}
    _check_rewound_together(tables, journal)
    last, ahead = _last_and_ahead(standings)
    with _lease(topology, store) as lease:
        before, since = lease.progress.committed_txid, _committed_last(store, lease, journal)
        if before > last.txid or (before == last.txid > 0 and since != last.attempt_id):
            raise StoreMismatch(f"the store is at transaction {before}, no less than the tables, at {last.txid}")
        committed = _committed(lease, since, last, journal)
        # Starts that were refused have drawn the ids of attempts that have written the tables.
        store.recount(lease, since)
        for attempt in sorted({*committed, *_given_up(lease, since, last, journal)}, key=_by_attempt_id):
            _record(store, lease, attempt, journal)
        if ahead is not None:
            # A transactional spout has to read the same again.
            _record(store, lease, TransactionAttempt(ahead.txid, ahead.attempt_id), journal)
        # Nobody has drawn this one, or a higher one. Nothing can start before it is counted from there.
        unused = AttemptId(max(lease.fence_id, journal.highest, *(max(each.found.versions) for each in tables)) + 1)
        for table in tables:
            _record_fences(store, replace(lease, fence_id=unused), table, journal)
        store.recount(lease, unused)
        for attempt in committed:
            at_ms = _known_at_ms(attempt, journal)
            batch = _batch_of(attempt, journal)
            store.record_commit(lease, attempt, batch, processed_at_ms=at_ms, started_at_ms=at_ms, at_ms=at_ms)
        store.forget_before(lease, at_ms=FORGOTTEN_AT_MS + 1)
        if last.fence_id is not None and ahead is None:
            # What was taken back is known to have been, and no batch of it is waited for.
            store.begin_rewind(lease, last.txid)
            store.finish_rewind(lease, last.txid)
    return f"the store of topology {topology.id!r} says again that transaction {last.txid} is committed"


def standing_of(table: Table, journal: Journal) -> Standing:
    """Which transaction a table contains: that of the newest attempt in the journal that has written it.

    After that only fences of the journal's coordinators may follow; that of a rewind says what it has gone back to.
    Raises `StoreMismatch`.
    """
    where = table.found.where
    for version in reversed(table.found.versions):
        if version in journal.rewinds:
            return journal.rewinds[version]
        if version in journal.attempts:
            return Standing(journal.attempts[version][0], version)
        if version not in journal.fences:
            raise StoreMismatch(f"{where}: attempt {version} is not in the journal; pass the one of its last runs")
    raise StoreMismatch(f"{where}: none of the attempts in the journal has written it; pass another journal")


def _last_and_ahead(standings: Mapping[str, Standing]) -> tuple[Standing, Standing | None]:
    """The transaction that all tables contain, and the one that some already contain. Raises `StoreMismatch`."""
    lowest, highest = min(standings.values(), key=_by_txid), max(standings.values(), key=_by_txid)
    shown = ", ".join(f"{name}: {standing.txid}:{standing.attempt_id}" for name, standing in sorted(standings.items()))
    if highest.txid > lowest.txid + 1:
        raise StoreMismatch(
            f"the tables are at {shown}: they differ by more than a crash can cause; restore those that are behind"
        )
    if any(
        standing.txid == lowest.txid and standing.attempt_id != lowest.attempt_id for standing in standings.values()
    ):
        raise StoreMismatch(
            f"the tables are at {shown}: they hold transaction {lowest.txid} as two attempts wrote it, and only the "
            "store knew the batch before it; restore the store"
        )
    return lowest, (highest if highest.txid > lowest.txid else None)


def _check_rewound_together(tables: Sequence[Table], journal: Journal) -> None:
    """Raise `StoreMismatch` if a rewind has taken back some of the tables, and not the others."""
    newest = max(journal.rewinds, default=None)
    if newest is None:
        return
    waiting = sorted(table.component for table in tables if newest not in table.found.versions)
    if waiting and len(waiting) < len(tables):
        raise StoreMismatch(
            f"a rewind to transaction {journal.rewinds[newest].txid} had taken back some tables when the store was "
            f"lost, and not those of {', '.join(waiting)}: restore the store, and finish the rewind"
        )


def _by_txid(standing: Standing) -> TxId:
    return standing.txid


def _committed_last(store: CoordinatorStore, lease: Lease, journal: Journal) -> AttemptId:
    """The attempt that has committed what the store says is committed, 0 if that is nothing.

    Raises `StoreMismatch` if it is not the journal's: then something was committed since the store was lost.
    """
    txid, read = lease.progress.committed_txid, lease.progress.committed_batch.ranges
    by = committed_by(store, lease.topology_id, txid)
    if by is None:
        return AttemptId(0)
    if txid in journal.committed and (by not in journal.committed[txid] or journal.attempts[by][1].ranges != read):
        raise StoreMismatch(
            f"transaction {txid} was committed, by attempt {by}, since the store was lost: the journal has another "
            f"transaction {txid}. What was committed since is not in these tables; `transactional txns "
            f"{lease.topology_id}` shows it. To give it up, run `transactional reset {lease.topology_id}`, and repair "
            "again"
        )
    return by


def _committed(lease: Lease, since: AttemptId, last: Standing, journal: Journal) -> list[TransactionAttempt]:
    """The attempts to be committed, up to the last: from the journal, otherwise with any number that fits in
    between."""
    attempts, before = list[TransactionAttempt](), since
    known = _known_up_to(lease, last, journal)
    first_known = min(known)
    for number in range(lease.progress.committed_txid + 1, last.txid + 1):
        txid = TxId(number)
        if txid not in known and txid > first_known:
            raise StoreMismatch(f"the journal does not contain the batch of transaction {txid}; pass a complete one")
        attempt_id = known.get(txid) or AttemptId(before + 1)
        if attempt_id <= before:
            raise StoreMismatch(
                f"transaction {txid} was written by attempt {attempt_id}, and the one before it by attempt {before}, "
                "which is a later one: pass the journal of the runs that have written these tables"
            )
        attempts.append(TransactionAttempt(txid, attempt_id))
        before = attempt_id
    return attempts


def _known_up_to(lease: Lease, last: Standing, journal: Journal) -> dict[TxId, AttemptId]:
    """Who committed the transactions up to the last, which is known, as far as the journal says."""
    known = {last.txid: last.attempt_id}
    for number in range(last.txid - 1, lease.progress.committed_txid, -1):
        by = journal.committed_before(TxId(number), known.get(TxId(number + 1), last.attempt_id))
        if by is not None:
            known[TxId(number)] = by
    return known


def _given_up(lease: Lease, since: AttemptId, last: Standing, journal: Journal) -> Iterator[TransactionAttempt]:
    """The other attempts: a table may have been written by them temporarily, at later transactions before a rewind."""
    rewound_until = max((fence for fence in journal.rewinds if fence <= last.until), default=0)
    for attempt_id, (txid, _) in journal.attempts.items():
        if not (since < attempt_id < last.until and lease.progress.committed_txid < txid):
            continue
        if txid <= last.txid or attempt_id < rewound_until:
            yield TransactionAttempt(txid, attempt_id)


def _by_attempt_id(attempt: TransactionAttempt) -> AttemptId:
    return attempt.attempt_id


def _known_at_ms(attempt: TransactionAttempt, journal: Journal) -> int:
    """Now; for what the journal does not contain, a time so long ago that it is deleted."""
    return SystemClock().wall_ms() if attempt.attempt_id in journal.attempts else FORGOTTEN_AT_MS


def _batch_of(attempt: TransactionAttempt, journal: Journal) -> BatchMetadata:
    return journal.attempts.get(attempt.attempt_id, (attempt.txid, EMPTY_BATCH))[1]


def _record(store: CoordinatorStore, lease: Lease, attempt: TransactionAttempt, journal: Journal) -> None:
    batch = _batch_of(attempt, journal)
    at_ms = _known_at_ms(attempt, journal)
    record = AttemptRecord(attempt, PROCESSING, batch, batch.record_count, at_ms, at_ms, None, None, None, None)
    store.record_attempt(lease, record, forget_later=True)


def _record_fences(store: CoordinatorStore, lease: Lease, table: Table, journal: Journal) -> None:
    """Record at which transaction the table was when each coordinator took over."""
    txid = TxId(0) if table.found.has_full_history else None
    versions = table.found.versions
    for version in versions:
        if version in journal.attempts:
            txid = journal.attempts[version][0]
        elif version in journal.fences and (txid is not None or version in journal.rewinds):
            txid = journal.rewinds[version].txid if version in journal.rewinds else txid
            assert txid is not None
            fence = replace(lease, fence_id=version)
            if version == versions[0]:
                store.record_fence(fence, joining_of(table.component), txid)
            store.record_fence(fence, table.component, txid)
    if not store.has_fence(lease.topology_id, table.component):
        store.record_fence(lease, table.component, lease.progress.committed_txid)
