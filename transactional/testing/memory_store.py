"""The coordinator's store in memory, with every rule of the real ones."""

from __future__ import annotations

import json
import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from types import MappingProxyType

from transactional.core.ports import Clock
from transactional.core.store import (
    AttemptRecord,
    AttemptTimes,
    Desired,
    DesiredState,
    Lease,
    Position,
    StalledLease,
    TopologyStatus,
)
from transactional.core.store.history import (
    EndedHow,
    Keep,
    MinuteRecord,
    RunAbout,
    RunEnd,
    RunRecord,
    Savepoint,
    summed_up,
)
from transactional.core.store.outbox import Boundary, OutboxRow, Publication, SinkProgress, SinkRecords
from transactional.core.store.progress import Phase
from transactional.core.store.rules import (
    CARRIED_OUT,
    COMMITTED,
    FAILED,
    can_not_recount,
    can_not_rewind,
    check_free,
    check_free_to_reset,
    check_not_rewinding,
    check_same_attempt,
    check_same_commit,
    desired_at_start,
    desired_of,
    failure_text,
    fenced,
    fingerprint_json,
    is_held,
    keeps_recorded,
    lag_in,
    letters_in,
    not_in_flight,
    times_of,
    trouble_after,
)
from transactional.core.store.sink_rules import boundary_at_reset, check_nothing_unsent, new_rows
from transactional.model.attempt import NO_TRANSACTION, AttemptId, Epoch, TransactionAttempt, TxId
from transactional.model.batch import BatchMetadata
from transactional.testing.clock import ManualClock
from transactional.testing.memory_topology import (
    NO_ATTEMPT,
    MemoryTopology,
    committed_at,
    drop,
    end_runs,
    forget_after,
    give_up,
    in_flight,
    newest_first,
    outbox_of,
    place,
    processed,
    progress_of,
    rewind,
    set_aside,
    settle,
    sinks_of,
    trim,
)
from transactional.testing.memory_topology import (
    is_held as is_held_by_savepoint,
)


class MemoryCoordinatorStore:
    """The coordinator's store in this process' memory, with every rule of the real ones.

    It outlives the coordinators that use it, so a restart is a second `acquire`. Leases expire by `clock`; the default
    is a `ManualClock`, with which a lease is valid until it is released or taken again by the same owner.
    """

    storage_path = None

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock: Clock = clock or ManualClock()
        self._topologies: dict[str, MemoryTopology] = {}
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    def acquire(
        self,
        topology_id: str,
        fingerprint: Mapping[str, object],
        *,
        owner: str,
        lease_ms: int,
        accept_changes: bool = False,
        name: str | None = None,
        about: RunAbout | None = None,
        to_rewind: bool = False,
        stalled: StalledLease | None = None,
    ) -> Lease:
        """Take the lease and draw a fence id; delete batches of another source, of which nothing is in a table."""
        given = json.loads(fingerprint_json(fingerprint))
        with self._lock:
            topology = self._topologies.setdefault(topology_id, MemoryTopology("{}"))
            status = self._status(topology_id, topology)
            now_ms = self._clock.wall_ms()
            check_free(status, owner, now_ms, stalled)
            if not to_rewind:
                check_not_rewinding(status)
            recorded = [topology.attempts[attempt_id].batch for attempt_id in topology.transactions.values()]
            is_kept = keeps_recorded(status, given, recorded, accept_changes=accept_changes)
            end_runs(topology, RunEnd(EndedHow.LOST), now_ms)
            if not is_kept:
                topology.transactions.clear()
            topology.epoch = Epoch(topology.epoch + 1)
            topology.attempt_id = AttemptId(topology.attempt_id + 1)
            topology.owner, topology.name = owner, name
            topology.leased_until_ms = now_ms + lease_ms
            desired = desired_at_start(status, now_ms)
            topology.desire(desired.state, topology.stop_at_ms if desired.stop_in_ms else None)
            run = RunRecord(topology.epoch, owner, name, about or RunAbout(), now_ms, topology.committed_txid)
            topology.runs[topology.epoch] = run
            progress, store_id = progress_of(topology), topology.store_id
            return Lease(topology_id, topology.epoch, owner, progress, topology.attempt_id, desired, store_id)

    def record_start(self, lease: Lease, fingerprint: Mapping[str, object], *, store_id: str | None = None) -> None:
        """Store the fingerprint of a run that has started successfully, and the `store_id` if there is none yet."""
        with self._check_lease(lease) as topology:
            topology.fingerprint = fingerprint_json(fingerprint)
            topology.store_id = topology.store_id or store_id

    def renew(self, lease: Lease, *, lease_ms: int) -> None:
        """Extend the lease to `lease_ms` from now, by the store's clock."""
        with self._check_lease(lease) as topology:
            topology.leased_until_ms = self._clock.wall_ms() + lease_ms

    def release(self, lease: Lease, *, is_done: bool = False, end: RunEnd | None = None) -> None:
        """Release the lease, and store why the run ends; does nothing if it is no longer the current one."""
        with self._lock:
            topology = self._topologies.get(lease.topology_id)
            if topology is not None and is_held(lease, self._status(lease.topology_id, topology)):
                topology.owner = topology.leased_until_ms = None
                end_runs(topology, end or RunEnd(EndedHow.STOPPED), self._clock.wall_ms())
                if is_done and topology.desired in CARRIED_OUT:
                    topology.desire(DesiredState.ACTIVE)

    def desire(self, topology_id: str, state: DesiredState, *, wait_ms: int = 0) -> bool:
        """Set a topology's desired state; False if the topology is not known."""
        with self._lock:
            topology = self._topologies.get(topology_id)
            if topology is not None:
                stop_at_ms = self._clock.wall_ms() + wait_ms if state is DesiredState.KILLED else None
                topology.desire(state, stop_at_ms)
            return topology is not None

    def desired(self, topology_id: str) -> Desired:
        """A topology's current desired state."""
        with self._lock:
            topology = self._topologies.get(topology_id, MemoryTopology("{}"))
            return desired_of(topology.desired, topology.stop_at_ms, self._clock.wall_ms())

    def record_attempt(self, lease: Lease, record: AttemptRecord, *, forget_later: bool, alone: bool = False) -> None:
        """Store a new attempt as the current one of its txid; give up those in flight at this and, unless it comes
        `alone`, at later txids."""
        attempt = record.attempt
        with self._check_lease(lease) as topology:
            follows = attempt.txid - 1 in topology.transactions or attempt.txid - 1 == topology.committed_txid
            if attempt.attempt_id <= topology.attempt_id or not follows:
                recorded = topology.attempts.get(attempt.attempt_id)
                recorded_txid = recorded.attempt.txid if recorded is not None else None
                return check_same_attempt(lease, attempt, self._status(lease.topology_id, topology), recorded_txid)
            for txid in [txid for txid in topology.transactions if txid >= attempt.txid]:
                if txid == attempt.txid or not alone:
                    give_up(topology, topology.transactions[txid])
                if forget_later:
                    del topology.transactions[txid]
            topology.attempt_id = topology.transactions[attempt.txid] = attempt.attempt_id
            topology.attempts[attempt.attempt_id] = record
            return None

    def record_processed(self, lease: Lease, attempt: TransactionAttempt, batch: BatchMetadata, *, at_ms: int) -> None:
        """Store the batch with its digests, the number of records and when the processing phase ended."""
        with self._check_lease(lease) as topology:
            record = in_flight(topology, attempt)
            if record is None:
                raise not_in_flight(lease, attempt)
            topology.attempts[attempt.attempt_id] = processed(record, batch, at_ms)

    def record_commit(
        self,
        lease: Lease,
        attempt: TransactionAttempt,
        batch: BatchMetadata,
        *,
        processed_at_ms: int,
        started_at_ms: int,
        at_ms: int,
        details: Mapping[str, object] | None = None,
        minute: MinuteRecord | None = None,
        keep: Keep | None = None,
        outbox: Mapping[str, SinkRecords] = MappingProxyType({}),
    ) -> None:
        """Move the committed txid by one, to `attempt.txid`; `batch`, with its digests, becomes the committed one."""
        with self._check_lease(lease) as topology:
            if topology.committed_txid != attempt.txid - 1:
                status = self._status(lease.topology_id, topology)
                return check_same_commit(attempt, status, topology.committed_attempt_id)
            record = in_flight(topology, attempt)
            if record is None:
                raise not_in_flight(lease, attempt)
            del topology.transactions[attempt.txid]
            topology.committed_txid, topology.committed_attempt_id = attempt.txid, attempt.attempt_id
            topology.attempts[attempt.attempt_id] = replace(
                processed(record, batch, processed_at_ms),
                phase=COMMITTED,
                commit_started_at_ms=started_at_ms,
                committed_at_ms=at_ms,
                details=None if details is None else json.loads(json.dumps(details)),
            )
            topology.outbox += new_rows(lease, attempt, outbox)
            if topology.trouble is not None and topology.trouble.txid <= attempt.txid:
                topology.trouble = None
            if minute is not None:
                topology.minutes.append(minute)
            if keep is not None:
                trim(topology, keep)
            return None

    def settle_sink(self, lease: Lease, sink: str, published: Publication) -> None:
        """Note the newest publication of a sink, and delete its outbox rows up to that transaction."""
        with self._check_lease(lease) as topology:
            settle(topology, sink, published)

    def place_sink(self, lease: Lease, sink: str, boundary: Boundary | None) -> None:
        """Set how far a sink is, or delete it with all of its rows."""
        with self._check_lease(lease) as topology:
            place(topology, sink, boundary)

    def set_aside(self, lease: Lease, row: OutboxRow, letters: SinkRecords, remaining: SinkRecords | None) -> None:
        """Move records of an outbox row to the letters of the sink."""
        with self._check_lease(lease) as topology:
            set_aside(topology, row, letters, remaining)

    def sink_letters(self, topology_id: str) -> list[OutboxRow]:
        """The records of sinks that an operator has set aside, in order of sink and txid."""
        with self._lock:
            letters = self._topologies.get(topology_id, MemoryTopology("{}")).sink_letters
            return sorted(letters, key=lambda row: (row.sink, row.publication.attempt.txid))

    def record_failure(
        self, lease: Lease, attempt: TransactionAttempt, phase: Phase, reason: str, *, at_ms: int, alone: bool = False
    ) -> None:
        """Store why an attempt failed and in which phase; give up later ones in flight, unless it fails `alone`."""
        error = failure_text(phase, reason)
        with self._check_lease(lease) as topology:
            topology.trouble = trouble_after(topology.trouble, attempt.txid, error, at_ms)
            record = in_flight(topology, attempt)
            if record is not None:
                topology.attempts[attempt.attempt_id] = replace(record, phase=FAILED, error=error, failed_at_ms=at_ms)
                for txid in [txid for txid in topology.transactions if txid > attempt.txid and not alone]:
                    give_up(topology, topology.transactions[txid])

    def record_recovery(self, lease: Lease) -> None:
        """Store that a problem was resolved without a transaction commit."""
        with self._check_lease(lease) as topology:
            topology.trouble = None

    def record_fence(self, lease: Lease, component_id: str, txid: TxId) -> None:
        """Record that the component's table is at `txid` when its version is `lease.fence_id`."""
        with self._check_lease(lease) as topology:
            topology.fences[component_id, lease.fence_id] = txid

    def begin_rewind(self, lease: Lease, txid: TxId) -> AttemptId:
        """Record that the topology is being taken back to a committed transaction."""
        with self._check_lease(lease) as topology:
            is_known = txid == NO_TRANSACTION or committed_at(topology, txid) is not None
            if txid > topology.committed_txid or not is_known:
                raise can_not_rewind(self._status(lease.topology_id, topology), txid)
            topology.rewinding_to = txid
            topology.attempt_id = AttemptId(topology.attempt_id + 1)
            return topology.attempt_id

    def finish_rewind(self, lease: Lease, txid: TxId) -> None:
        """Make the transaction the committed one again."""
        with self._check_lease(lease) as topology:
            if topology.rewinding_to != txid:
                if (topology.rewinding_to, topology.committed_txid) == (None, txid):
                    return
                raise can_not_rewind(self._status(lease.topology_id, topology), txid)
            rewind(topology, txid)

    def recount(self, lease: Lease, attempt_id: AttemptId, *, store_id: str | None = None) -> None:
        """Let the attempt counter continue from here, and forget the attempts and fences after it."""
        with self._check_lease(lease) as topology:
            if (topology.committed_attempt_id or NO_ATTEMPT) > attempt_id:
                raise can_not_recount(self._status(lease.topology_id, topology), attempt_id)
            topology.attempt_id, topology.store_id = attempt_id, store_id
            forget_after(topology, attempt_id)

    def forget_before(self, lease: Lease, *, at_ms: int) -> int:
        """Delete committed attempts older than `at_ms` except the newest, and what only they needed."""
        with self._check_lease(lease) as topology:
            committed = [record for record in topology.attempts.values() if record.phase == COMMITTED]
            dropped = {
                record.attempt
                for record in committed
                if (record.committed_at_ms or 0) < at_ms
                and record.attempt.attempt_id != topology.committed_attempt_id
                and not is_held_by_savepoint(topology, record.attempt.txid)
            }
            oldest = min((record.attempt for record in committed if record.attempt not in dropped), default=None)
            if oldest is not None:
                drop(topology, dropped, oldest)
            return len(dropped)

    def txid_of(self, topology_id: str, component_id: str, attempt_id: AttemptId) -> TxId | None:
        """The txid that a table of this component is at when its version is `attempt_id`; None: unknown id."""
        with self._lock:
            topology = self._topologies.get(topology_id)
            if topology is None:
                return None
            record = topology.attempts.get(attempt_id)
            return record.attempt.txid if record is not None else topology.fences.get((component_id, attempt_id))

    def has_fence(self, topology_id: str, component_id: str) -> bool:
        """Whether a fence was ever recorded for this component."""
        with self._lock:
            topology = self._topologies.get(topology_id)
            return topology is not None and any(noted_for == component_id for noted_for, _ in topology.fences)

    def position(self, topology_id: str) -> Position | None:
        """Return the position of a topology."""
        for status in self.status(topology_id):
            return Position(status.committed_txid, status.rewinding_to, status.store_id)
        return None

    def status(self, topology_id: str | None = None) -> list[TopologyStatus]:
        """Return the status of all topologies, or of the named one, in order of their ids."""
        with self._lock:
            names = sorted(self._topologies) if topology_id is None else [topology_id]
            return [self._status(name, self._topologies[name]) for name in names if name in self._topologies]

    def attempts(self, topology_id: str, *, limit: int) -> list[AttemptRecord]:
        """The last attempts, newest first."""
        with self._lock:
            topology = self._topologies.get(topology_id)
            return list(islice(reversed(topology.attempts.values()), limit)) if topology is not None else []

    def attempts_at(self, topology_id: str, txid: TxId) -> list[AttemptRecord]:
        """Return all stored attempts at one transaction, newest first."""
        with self._lock:
            topology = self._topologies.get(topology_id)
            records = () if topology is None else newest_first(topology)
            return [record for record in records if record.attempt.txid == txid]

    def times(
        self, topology_id: str, *, limit: int, before: AttemptId | None = None, phases: Collection[str] = ()
    ) -> list[AttemptTimes]:
        """The last attempts without their batches, newest first."""
        with self._lock:
            topology = self._topologies.get(topology_id)
            records = () if topology is None else newest_first(topology, before=before, phases=phases)
            return [times_of(record) for record in islice(records, limit)]

    def times_with_letters(self, topology_id: str, *, among: int, limit: int) -> list[AttemptTimes]:
        """Return those of the last `among` committed attempts that have set tuples aside, newest first."""
        committed = self.times(topology_id, limit=among, phases=(COMMITTED,))
        return [attempt for attempt in committed if letters_in(attempt.details)][:limit]

    def runs(self, topology_id: str, *, limit: int) -> list[RunRecord]:
        """The last runs, newest first."""
        with self._lock:
            topology = self._topologies.get(topology_id)
            return list(islice(reversed(topology.runs.values()), limit)) if topology is not None else []

    def savepoints(self, topology_id: str) -> list[Savepoint]:
        """The savepoints, oldest transaction first."""
        with self._lock:
            topology = self._topologies.get(topology_id)
            savepoints = topology.savepoints.values() if topology is not None else ()
            return sorted(savepoints, key=lambda savepoint: savepoint.txid)

    def note_savepoint(self, topology_id: str, name: str, txid: TxId) -> bool:
        """Keep what going back to a committed transaction takes of the store."""
        with self._lock:
            topology = self._topologies.get(topology_id)
            if topology is None or committed_at(topology, txid) is None:
                return False
            topology.savepoints[name] = Savepoint(name, txid, self._clock.wall_ms())
            return True

    def drop_savepoint(self, topology_id: str, name: str) -> bool:
        """Drop a savepoint, and what is kept for it."""
        with self._lock:
            topology = self._topologies.get(topology_id)
            return topology is not None and topology.savepoints.pop(name, None) is not None

    def minutes(self, topology_id: str, *, since_ms: int, each_ms: int | None = None) -> list[MinuteRecord]:
        """The minutes that started at or after `since_ms`, oldest first; summed up by parts of `each_ms`."""
        with self._lock:
            topology = self._topologies.get(topology_id)
            minutes = (
                [minute for minute in topology.minutes if minute.at_ms >= since_ms] if topology is not None else []
            )
        return minutes if each_ms is None else summed_up(minutes, since_ms, each_ms)

    def sinks(self, topology_id: str) -> Mapping[str, SinkProgress]:
        """How far each sink is that has published something, or has to."""
        with self._lock:
            topology = self._topologies.get(topology_id)
            return {} if topology is None else sinks_of(topology)

    def outbox(
        self, topology_id: str, sink: str, *, first: TxId = NO_TRANSACTION, last: TxId, limit: int
    ) -> list[OutboxRow]:
        """The outbox rows of a sink for the transactions `first` to `last`, none while a rewind is under way."""
        with self._lock:
            topology = self._topologies.get(topology_id)
            rows = [] if topology is None or topology.rewinding_to is not None else outbox_of(topology, sink)
            return [row for row in rows if first <= row.publication.attempt.txid <= last][:limit]

    def outbox_in_files(self, topology_id: str) -> list[OutboxRow]:
        """The outbox rows of all sinks whose payload is in a file."""
        with self._lock:
            topology = self._topologies.get(topology_id)
            rows = [] if topology is None else [row for row in topology.outbox if row.file is not None]
            return sorted(rows, key=lambda row: (row.sink, row.publication.attempt.txid))

    def reset(self, topology_id: str, *, drop_unsent: bool = False) -> bool:
        """Delete all progress of a topology, but not its epoch and its attempt counter."""
        with self._lock:
            topology = self._topologies.get(topology_id)
            if topology is None:
                return False
            check_free_to_reset(self._status(topology_id, topology), self._clock.wall_ms())
            sinks = sinks_of(topology)
            if not drop_unsent:
                check_nothing_unsent(topology_id, sinks)
            new = MemoryTopology("{}", Epoch(topology.epoch + 1), attempt_id=topology.attempt_id)
            new.sinks = {name: boundary_at_reset(new.attempt_id, progress) for name, progress in sinks.items()}
            new.store_id = topology.store_id
            self._topologies[topology_id] = new
            return True

    def close(self) -> None:
        """Nothing to release; the content stays."""

    # --- details ------------------------------------------------------------------------------------------------

    @contextmanager
    def _check_lease(self, lease: Lease) -> Iterator[MemoryTopology]:
        """Lock the store and return the topology. Raises `Fenced` if the lease is not the current one."""
        with self._lock:
            topology = self._topologies.get(lease.topology_id)
            if topology is None:
                raise fenced(lease, None)
            if (topology.epoch, topology.owner) != (lease.epoch, lease.owner):
                raise fenced(lease, self._status(lease.topology_id, topology))
            yield topology

    def _status(self, topology_id: str, topology: MemoryTopology) -> TopologyStatus:
        until_ms = topology.leased_until_ms
        newest = topology.attempts.get(topology.committed_attempt_id or NO_ATTEMPT)
        return TopologyStatus(
            topology_id=topology_id,
            epoch=topology.epoch,
            owner=topology.owner,
            leased_until_ms=until_ms,
            is_leased=until_ms is not None and until_ms > self._clock.wall_ms(),
            committed_txid=topology.committed_txid,
            attempt_id=topology.attempt_id,
            fingerprint=json.loads(topology.fingerprint),
            name=topology.name,
            desired=topology.desired,
            stop_at_ms=topology.stop_at_ms,
            committed_at_ms=newest.committed_at_ms if newest is not None else None,
            lag=lag_in(newest.details) if newest is not None else None,
            trouble=topology.trouble,
            run=topology.runs.get(topology.epoch),
            rewinding_to=topology.rewinding_to,
            store_id=topology.store_id,
        )
