"""`Leadership`: the right to coordinate a topology, from waiting for it to giving it back, and the writes that need it.

One process leads a topology at a time: the one that holds the lease in the store. Its tables are fenced, so that
whoever led before can't write to them any more.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, Final

from transactional.core.machine.protocol import Action, RecordAttempt, RecordCommit, RecordFailure, RecordProcessed
from transactional.core.ports import Clock
from transactional.core.store import AttemptRecord, CoordinatorStore, Lease, StalledLease, TopologyStatus
from transactional.core.store.history import EndedHow, RunEnd, RunRecord
from transactional.core.store.rules import CARRIED_OUT, STALLED_LEASES, check_fingerprint, lag_in
from transactional.model.attempt import NO_TRANSACTION, AttemptId
from transactional.model.config import TopologyConfig
from transactional.model.errors import (
    Fenced,
    FileReplaced,
    ProtocolError,
    StoreMismatch,
    StoreUnavailable,
    StoreWentBack,
    TopologyInUse,
    TransactionalError,
)
from transactional.model.guarantees import Guarantee
from transactional.model.plumbing.pools import DaemonPool
from transactional.runtime.engine.fencing import SideBySide, fence_tables
from transactional.runtime.engine.history.event_times import event_time_of
from transactional.runtime.engine.history.in_flight import progress_of_program
from transactional.runtime.engine.history.minutes import Minutes
from transactional.runtime.engine.history.observing import Committed, LeaseRenewed, Notice, StoreWritten
from transactional.runtime.engine.history.run_history import about, kept, lags_of
from transactional.runtime.engine.history.timeline import Timeline
from transactional.runtime.engine.streams import fingerprint_as_stored, progress_of_streams
from transactional.topology.topology import Topology

LOOK_EVERY_MS_MAX: Final = 500
"""A standby looks twenty times per lease, and at least so often."""

FENCED_AT_ONCE_MAX: Final = 32
"""How many tables are opened and fenced at once: each one waits for its storage most of the time."""

_log = logging.getLogger(__name__)

Rest = Callable[[int], bool]
"""Waits this many milliseconds, or less; True if the waiting run has to end."""


class Leadership:
    """What one process has to do with the lease of a topology. `lease` is there once it was taken."""

    lease: Lease

    def __init__(
        self,
        topology: Topology,
        store: CoordinatorStore,
        config: TopologyConfig,
        clock: Clock,
        *,
        owner: str | None = None,
        accept_changes: bool = False,
        name: str | None = None,
        sources: Mapping[str, object] | None = None,
        notify: Callable[[Notice], None] = lambda notice: None,
    ) -> None:
        self._sources = sources or {}
        self.topology, self.store, self.config, self.clock = topology, store, config, clock
        self.owner = owner or f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
        self.accept_changes, self.name = accept_changes, name
        self._pause = threading.Event()
        self._side_by_side: SideBySide = _in_threads
        self._minutes = Minutes()
        self._notify = notify
        self._confirmed = (NO_TRANSACTION, AttemptId(0))
        """The newest transaction commit and the newest attempt that the store has confirmed to this leader."""
        self._store_id: str | None = None
        self._fails_alone = topology.guarantee is not Guarantee.EXACTLY_ONCE

    def take(self, stalled: StalledLease | None = None) -> None:
        """Become the one process that coordinates the topology. Raises `TopologyInUse` while another one does, but not
        for a lease that was seen to be `stalled`."""
        at_ms = self.clock.monotonic_ms()
        self.lease = self.store.acquire(
            self.topology.id,
            fingerprint_as_stored(self.topology, self.store, self.topology.fingerprint()),
            owner=self.owner,
            lease_ms=self.config.lease_ms,
            accept_changes=self.accept_changes,
            name=self.name,
            about=about(self.topology, self.config, self._sources),
            stalled=stalled,
        )
        self._renewed_at_ms = at_ms
        try:
            progress = progress_of_streams(
                self.topology, self.store, self.lease.progress, accept_changes=self.accept_changes
            )
            progress = progress_of_program(self.topology, self.store, progress)
        except TransactionalError as error:
            self.give_back(RunEnd(EndedHow.FAILED, error.code, str(error)), is_done=False)
            raise
        self.lease = replace(self.lease, progress=progress)

    def stand_by(self, rest: Rest) -> bool:
        """Wait for the lease, and take it; False when the run is to end without it."""
        standby = Standby(
            self.store, self.topology, self.config, self.clock, owner=self.owner, accepts=self.accept_changes
        )
        while standby.await_turn(rest):
            try:
                self.take(standby.stalled)
                return True
            except (TopologyInUse, StoreUnavailable):
                # Another standby was quicker, or a leader that stands still inside a write holds SQLite's lock.
                if rest(standby.look_every_ms):
                    break
        return False

    def fence_tables(self) -> None:
        """Keep every earlier coordinator from writing to the tables, and check them against the store."""
        try:
            store_id = fence_tables(
                *(self.topology, self.store, self.lease),
                durability=self.config.durability,
                side_by_side=self._side_by_side,
            )
        except StoreMismatch:
            self.renew()  # raises `Fenced` when another coordinator has taken over meanwhile: then that is why
            raise
        self.store.record_start(self.lease, self.topology.fingerprint(), store_id=store_id)
        self._store_id = store_id

    def forget_old_attempts(self) -> None:
        """Delete what the store keeps no longer of attempts and runs."""
        self.store.forget_before(self.lease, at_ms=kept(self.config, self.clock.wall_ms()).since_ms)

    def inherited(self) -> tuple[RunRecord | None, list[AttemptRecord]]:
        """The run before this one, and the attempts that were in flight at its end, as far as the store knows them."""
        store, progress = self.store, self.lease.progress
        try:
            runs = store.runs(self.topology.id, limit=2)
            last = [store.attempts_at(self.topology.id, txid) for txid in progress.recorded]
        except StoreUnavailable:
            return None, []
        before = next((run for run in runs if run.epoch < self.lease.epoch), None)
        return before, [attempts[0] for attempts in last if attempts]

    def renew(self) -> None:
        """Keep the lease for its whole time from now on. Raises `Fenced` when it is another one's, `StoreWentBack` when
        the store is no longer what this leader has written."""
        self._renew()
        self._notify(LeaseRenewed(self.config.lease_ms))

    def _renew(self) -> None:
        at_ms = self.clock.monotonic_ms()
        self.store.renew(self.lease, lease_ms=self.config.lease_ms)
        self.check_kept()  # also while nothing is committed, which would show it
        self._renewed_at_ms = at_ms

    def renew_in_time(self) -> None:
        """Renew the lease when a third of its time is over."""
        if self._is_older_than(self.config.lease_ms // 3):
            self.write("renew", self.renew)

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Renew the lease in time while the body does what may take longer than it: a thread does so.

        Raises what the renewal has raised (`Fenced`, if another process has taken the lead) once the body has ended.
        """
        over = threading.Event()
        pool = DaemonPool(1, "lease")
        renewing = pool.submit(self._keep_until, over)
        try:
            yield
        finally:
            over.set()
            pool.shutdown()
        renewing.result()

    def _keep_until(self, over: threading.Event) -> None:
        """No observer is notified: they are in the driver's thread."""
        while not over.wait(self.config.tick_ms / 1000):
            if self._is_older_than(self.config.lease_ms // 3):
                try:
                    self._renew()
                except StoreUnavailable:
                    if self._is_older_than(self.config.lease_ms):
                        raise

    def _is_older_than(self, duration_ms: int) -> bool:
        """Whether so much time has passed since the lease was taken or renewed."""
        return self.clock.monotonic_ms() - self._renewed_at_ms >= duration_ms

    def give_back(self, end: RunEnd, *, is_done: bool) -> None:
        """Let somebody else lead, and say in the store how the run has ended."""
        with suppress(StoreUnavailable, FileReplaced):  # then the lease ends by itself
            self.store.release(self.lease, is_done=is_done, end=end)

    def record(self, action: Action, timeline: Timeline, at_ms: int) -> None:
        """Write what an action wants to be written. It is durable when this returns."""
        store, lease = self.store, self.lease
        match action:
            case RecordAttempt(attempt, batch, forget_later):
                record = timeline[attempt].record(batch)
                how = {"forget_later": forget_later, "alone": self._fails_alone}
                self.write("attempt", lambda: store.record_attempt(lease, record, **how))
                self._confirmed = (self._confirmed[0], attempt.attempt_id)
            case RecordProcessed(attempt, batch):
                processed_at_ms = timeline[attempt].processed.wall_ms
                self.write("processed", lambda: store.record_processed(lease, attempt, batch, at_ms=processed_at_ms))
            case RecordCommit(attempt, batch, report):
                flight = timeline[attempt]
                details = lags_of(self.topology.spout, batch) | event_time_of(self.topology, batch) | report.details()
                minute = self._minutes.add(flight, batch, lag_in(details))
                self.write(
                    "commit",
                    lambda: store.record_commit(
                        lease,
                        attempt,
                        batch,
                        processed_at_ms=flight.processed.wall_ms,
                        started_at_ms=flight.commit_started.wall_ms,
                        at_ms=at_ms,
                        details=details,
                        minute=minute,
                        keep=kept(self.config, at_ms),
                    ),
                )
                self._confirmed = (attempt.txid, self._confirmed[1])
                self._notify(Committed(flight, batch, details))
            case RecordFailure(attempt, phase, reason, _):
                self._minutes.failures += 1
                failed: dict[str, Any] = {"at_ms": at_ms, "alone": self._fails_alone}
                self.write("failure", lambda: store.record_failure(lease, attempt, phase, reason, **failed))

    def record_recovery(self) -> None:
        """Write that what has failed goes well again, without a transaction commit that would say so."""
        self.write("recovery", lambda: self.store.record_recovery(self.lease))

    def write(self, name: str, write: Callable[[], None]) -> None:
        """Make a write to the store, and make it again as it is while the store does not answer and the lease holds.

        Whatever the first write has done: the store takes the same write twice as one.
        """
        began_s = time.perf_counter()
        self._write(write)
        self._notify(StoreWritten(name, 1_000 * (time.perf_counter() - began_s)))

    def _write(self, write: Callable[[], None]) -> None:
        for tried in range(self.config.lease_ms // self.config.tick_ms):
            try:
                return write()
            except StoreUnavailable:
                if self._is_older_than(self.config.lease_ms):
                    raise
            except (Fenced, ProtocolError):
                self.check_kept()
                raise
            self._pause.wait(self.config.tick_ms / 1000 if tried else 0)
        return write()

    def check_kept(self) -> None:
        """Raise `StoreWentBack` when the store no longer knows what it has confirmed to this leader, or is another."""
        status = next(iter(self.store.status(self.topology.id)), None)
        kept = (0, NO_TRANSACTION, 0) if status is None else (status.epoch, status.committed_txid, status.attempt_id)
        if any(now < then for now, then in zip(kept, (self.lease.epoch, *self._confirmed), strict=True)):
            epoch, committed, attempt_id = kept
            raise StoreWentBack(
                f"the store of topology {self.topology.id!r} has lost writes that it had confirmed: it was at epoch "
                f"{self.lease.epoch}, transaction {self._confirmed[0]}, attempt {self._confirmed[1]}, and is at epoch "
                f"{epoch}, transaction {committed}, attempt {attempt_id}, as after a failover to a copy that was "
                "behind. Nothing more is written; the next start compares it with the tables"
            )
        store_id = None if status is None else status.store_id
        if self._store_id not in (None, store_id):
            raise StoreWentBack(
                f"the store of topology {self.topology.id!r} is another one than at the start of this run: its id was "
                f"{self._store_id}, and is {store_id}. Nothing more is written; the next start compares it with the "
                "tables"
            )


class LeaseWatch:
    """Notices, by this process's own monotonic clock, that nobody renews a lease.

    The end of a lease is by the store's clock. If that was ahead and was set back, a dead leader's lease would last
    as long as the step. So a lease is stalled once it has been seen unchanged for `STALLED_LEASES` times its length.
    Two looks further apart than its length say nothing: this process stood still in between, and the leader may have.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seen: StalledLease | None = None
        self._since_ms = self._looked_at_ms = 0

    def forget(self) -> None:
        """Begin once more: the lease could not be looked at."""
        self._seen = None

    def stalled(self, status: TopologyStatus) -> StalledLease | None:
        """Look at a lease that is valid by its end; the lease, if nobody renews it."""
        now_ms, length_ms, until_ms = self._clock.monotonic_ms(), status.lease_length_ms, status.leased_until_ms
        if length_ms is None or until_ms is None:
            self.forget()
            return None
        lease = StalledLease(status.epoch, until_ms)
        if lease != self._seen or now_ms - self._looked_at_ms > length_ms:
            self._seen, self._since_ms = lease, now_ms
        self._looked_at_ms = now_ms
        return lease if now_ms - self._since_ms >= STALLED_LEASES * length_ms else None


class Standby:
    """Waits for its turn to coordinate one topology. `accepts`: its fingerprint may be any."""

    def __init__(
        self,
        store: CoordinatorStore,
        topology: Topology,
        config: TopologyConfig,
        clock: Clock,
        *,
        owner: str,
        accepts: bool,
    ) -> None:
        self.store, self.topology, self.topology_id, self.owner = store, topology, topology.id, owner
        self.fingerprint = None if accepts else topology.fingerprint()
        self.look_every_ms = max(config.tick_ms, min(config.lease_ms // 20, LOOK_EVERY_MS_MAX))
        self._is_to_end = False
        self._watch = LeaseWatch(clock)
        self.stalled: StalledLease | None = None
        """The lease that nobody renews, if that is why it is this one's turn."""

    def await_turn(self, rest: Rest) -> bool:
        """Wait until the lease is free. False: it is to end, or the leader was drained or killed, by command, and has
        ended: nobody should take over.

        A store that does not respond is queried again. Raises `TopologyChanged` if the topology is not the stored one.
        """
        while True:
            try:
                status = self._status()
            except StoreUnavailable as error:
                _log.warning("a standby of topology %r keeps waiting: %s", self.topology_id, error)
                self._watch.forget()
            else:
                if self._is_free(status):
                    return not self._has_carried_out(status)
            if rest(self.look_every_ms):
                return False

    def _status(self) -> TopologyStatus | None:
        status = next(iter(self.store.status(self.topology_id)), None)
        if status is not None and self.fingerprint is not None and _is_bound(status):
            given = fingerprint_as_stored(self.topology, self.store, self.fingerprint)
            check_fingerprint(self.topology_id, status.fingerprint, given)
        return status

    def _is_free(self, status: TopologyStatus | None) -> bool:
        if status is None or not status.is_leased or status.owner == self.owner:
            return True
        self._is_to_end = status.desired in CARRIED_OUT
        self.stalled = self._watch.stalled(status)
        if self.stalled is not None:
            self._is_to_end = False
            _log.warning(
                "nobody has renewed the lease of topology %r (epoch %d) for %d times its length: a clock that was "
                "ahead has written its end, and this standby takes it",
                *(self.topology_id, status.epoch, STALLED_LEASES),
            )
        return self.stalled is not None

    def _has_carried_out(self, status: TopologyStatus | None) -> bool:
        """A lease that was released in the same write that cleared the desired state; not one that has expired."""
        if status is None or not self._is_to_end:
            return False
        return status.leased_until_ms is None and status.desired not in CARRIED_OUT


def _in_threads(works: Sequence[Callable[[], None]]) -> None:
    """Do all of it, by a thread each."""
    pool = DaemonPool(FENCED_AT_ONCE_MAX - 1, "fencing")
    try:
        pool.side_by_side(works)
    finally:
        pool.shutdown()


def _is_bound(status: TopologyStatus) -> bool:
    """Whether its fingerprint may not change: something is committed, or a run has started successfully and leads."""
    return bool(status.fingerprint) and (status.committed_txid > 0 or status.is_leased)
