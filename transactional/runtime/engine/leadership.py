"""`Leadership`: the right to coordinate a topology, from waiting for it to releasing it, and all writes that need it.

One process leads a topology at a time: the one that holds the lease in the store. It fences the tables, so that earlier
leaders can't write to them any more. A standby waits for the lease by reading the store (`Standby`), and takes over a
lease that nobody renews (`LeaseWatch`). While the store does not answer, writes are repeated until the lease would have
ended; nothing is ever written without the lease.
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
from transactional.runtime.engine.history.in_flight import usable_progress
from transactional.runtime.engine.history.minutes import Minutes
from transactional.runtime.engine.history.observing import Committed, LeaseRenewed, Notice, StoreWritten
from transactional.runtime.engine.history.run_history import about, read_lags, retention
from transactional.runtime.engine.history.timeline import Timeline
from transactional.runtime.engine.streams import fingerprint_as_stored, progress_of_streams
from transactional.topology.topology import Topology

LOOK_EVERY_MS_MAX: Final = 500
"""Longest time between two looks of a standby, which looks twenty times per lease."""

FENCED_AT_ONCE_MAX: Final = 32
"""Number of tables that are opened and fenced at once: each waits for its storage most of the time."""

_log = logging.getLogger(__name__)

Pause = Callable[[int], bool]
"""Waits this many milliseconds, or less; True if the waiting run has to end."""


class Leadership:
    """The lease of one process on a topology. `lease` is set once it was taken."""

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
        self._retry_pause = threading.Event()
        self._side_by_side: SideBySide = _in_threads
        self._minutes = Minutes()
        self._notify = notify
        self._confirmed = (NO_TRANSACTION, AttemptId(0))
        """The newest transaction commit and the newest attempt that the store has confirmed to this leader."""
        self._store_id: str | None = None
        self._is_start_recorded = False
        self._fails_alone = topology.guarantee is not Guarantee.EXACTLY_ONCE

    def take(self, stalled: StalledLease | None = None) -> None:
        """Take the lease. Raises `TopologyInUse` while another process holds it, unless that lease is the `stalled`
        one."""
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
            progress = usable_progress(self.topology, self.store, progress)
        except TransactionalError as error:
            self.release(RunEnd(EndedHow.FAILED, error.code, str(error)), is_done=False)
            raise
        self.lease = replace(self.lease, progress=progress)

    def stand_by(self, pause: Pause) -> bool:
        """Wait for the lease and take it. Returns False if the run is to end without it."""
        standby = Standby(
            self.store, self.topology, self.config, self.clock, owner=self.owner, accepts=self.accept_changes
        )
        while standby.await_turn(pause):
            try:
                self.take(standby.stalled)
                return True
            except (TopologyInUse, StoreUnavailable):
                # Another standby was quicker, or a suspended leader holds SQLite's lock inside a write.
                if pause(standby.look_every_ms):
                    break
        return False

    def fence_tables(self) -> None:
        """Fence every earlier coordinator off the tables, and check the tables against the store."""
        try:
            self._store_id = fence_tables(
                *(self.topology, self.store, self.lease),
                durability=self.config.durability,
                side_by_side=self._side_by_side,
            )
        except StoreMismatch:
            self.renew()  # raises `Fenced` if another coordinator has taken over meanwhile, which explains the mismatch
            raise

    def record_start(self) -> None:
        """Store the fingerprint of the topology, once its tables and sinks agree with the store.

        A start that one of them refuses leaves the stored fingerprint as it is.
        """
        self.store.record_start(self.lease, self.topology.fingerprint(), store_id=self.store_id)
        self._is_start_recorded = True

    @property
    def store_id(self) -> str:
        """The id of the store, which is known once the tables are fenced."""
        assert self._store_id is not None
        return self._store_id

    def forget_old_attempts(self) -> None:
        """Delete the attempts and runs that are older than the store keeps them."""
        self.store.forget_before(self.lease, at_ms=retention(self.config, self.clock.wall_ms()).since_ms)

    def read_previous_run(self) -> tuple[RunRecord | None, list[AttemptRecord]]:
        """Return the run before this one and the attempts that were in flight at its end; nothing if the store does not
        answer."""
        store, progress = self.store, self.lease.progress
        try:
            runs = store.runs(self.topology.id, limit=2)
            in_flight = [store.attempts_at(self.topology.id, txid) for txid in progress.recorded]
        except StoreUnavailable:
            return None, []
        previous_run = next((run for run in runs if run.epoch < self.lease.epoch), None)
        return previous_run, [attempts[0] for attempts in in_flight if attempts]

    def renew(self) -> None:
        """Renew the lease for its whole length. Raises `Fenced` if another process has taken it, `StoreWentBack` if the
        store has lost writes of this leader."""
        self._renew()
        self._notify(LeaseRenewed(self.config.lease_ms))

    def _renew(self) -> None:
        at_ms = self.clock.monotonic_ms()
        self.store.renew(self.lease, lease_ms=self.config.lease_ms)
        self.check_confirmed()  # while nothing is committed no other write would show it
        self._renewed_at_ms = at_ms

    def renew_if_due(self) -> None:
        """Renew the lease if a third of its length has passed."""
        if self._is_older_than(self.config.lease_ms // 3):
            self.write("renew", self.renew)

    @contextmanager
    def renewing_lease(self) -> Iterator[None]:
        """Renew the lease in a thread while the body runs, which may take longer than the lease lasts.

        Errors of the renewal, such as `Fenced` if another process has taken the lead, are raised when the body has
        ended.
        """
        is_finished = threading.Event()
        pool = DaemonPool(1, "lease")
        renewing = pool.submit(self._renew_until, is_finished)
        try:
            yield
        finally:
            is_finished.set()
            pool.shutdown()
        renewing.result()

    def _renew_until(self, is_finished: threading.Event) -> None:
        """Renew the lease whenever it is due. Observers are not notified, because they run in the driver's thread."""
        while not is_finished.wait(self.config.tick_ms / 1000):
            if self._is_older_than(self.config.lease_ms // 3):
                try:
                    self._renew()
                except StoreUnavailable:
                    if self._is_older_than(self.config.lease_ms):
                        raise

    def _is_older_than(self, duration_ms: int) -> bool:
        """Whether this many milliseconds have passed since the lease was taken or renewed."""
        return self.clock.monotonic_ms() - self._renewed_at_ms >= duration_ms

    def release(self, end: RunEnd, *, is_done: bool) -> None:
        """Release the lease, and record in the store how the run has ended."""
        with suppress(StoreUnavailable, FileReplaced):  # then the lease ends by itself
            self.store.release(self.lease, is_done=is_done, end=end)

    def record(self, action: Action, timeline: Timeline, at_ms: int) -> None:
        """Write what an action records. It is durable when this returns."""
        store, lease = self.store, self.lease
        match action:
            case RecordAttempt(attempt, batch, forget_later):
                record = timeline[attempt].record(batch)
                options = {"forget_later": forget_later, "alone": self._fails_alone}
                self.write("attempt", lambda: store.record_attempt(lease, record, **options))
                self._confirmed = (self._confirmed[0], attempt.attempt_id)
            case RecordProcessed(attempt, batch):
                processed_at_ms = timeline[attempt].processed.wall_ms
                self.write("processed", lambda: store.record_processed(lease, attempt, batch, at_ms=processed_at_ms))
            case RecordCommit(attempt, batch, report):
                flight = timeline[attempt]
                details = read_lags(self.topology.spout, batch) | event_time_of(self.topology, batch) | report.details()
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
                        keep=retention(self.config, at_ms),
                        outbox=report.outbox,
                    ),
                )
                self._confirmed = (attempt.txid, self._confirmed[1])
                self._notify(Committed(flight, batch, details))
            case RecordFailure(attempt, phase, reason, _):
                self._minutes.failures += 1
                failed: dict[str, Any] = {"at_ms": at_ms, "alone": self._fails_alone}
                self.write("failure", lambda: store.record_failure(lease, attempt, phase, reason, **failed))

    def record_recovery(self) -> None:
        """Record that a problem is resolved although no transaction commit shows it."""
        self.write("recovery", lambda: self.store.record_recovery(self.lease))

    def write(self, name: str, write: Callable[[], None]) -> None:
        """Make a write to the store, and repeat it while the store does not answer and the lease holds.

        Repeating is harmless: the store treats two equal writes as one, whether or not the first one succeeded.
        """
        began_s = time.perf_counter()
        self._write(write)
        self._notify(StoreWritten(name, 1_000 * (time.perf_counter() - began_s)))

    def _write(self, write: Callable[[], None]) -> None:
        for tries in range(self.config.lease_ms // self.config.tick_ms):
            try:
                return write()
            except StoreUnavailable:
                if self._is_older_than(self.config.lease_ms):
                    raise
            except (Fenced, ProtocolError):
                self.check_confirmed()
                raise
            self._retry_pause.wait(self.config.tick_ms / 1000 if tries else 0)
        return write()

    def check_confirmed(self) -> None:
        """Raise `StoreWentBack` if the store has lost a write that it had confirmed to this leader, or is another
        store."""
        status = next(iter(self.store.status(self.topology.id)), None)
        stored = (0, NO_TRANSACTION, 0) if status is None else (status.epoch, status.committed_txid, status.attempt_id)
        if any(
            number < confirmed for number, confirmed in zip(stored, (self.lease.epoch, *self._confirmed), strict=True)
        ):
            epoch, committed, attempt_id = stored
            raise StoreWentBack(
                f"the store of topology {self.topology.id!r} has lost writes that it had confirmed: it was at epoch "
                f"{self.lease.epoch}, transaction {self._confirmed[0]}, attempt {self._confirmed[1]}, and is at epoch "
                f"{epoch}, transaction {committed}, attempt {attempt_id}, as after a failover to a copy that was "
                "behind. Nothing more is written; the next start compares it with the tables"
            )
        store_id = None if status is None else status.store_id
        if self._is_start_recorded and self._store_id != store_id:
            raise StoreWentBack(
                f"the store of topology {self.topology.id!r} is another one than at the start of this run: its id was "
                f"{self._store_id}, and is {store_id}. Nothing more is written; the next start compares it with the "
                "tables"
            )


class LeaseWatch:
    """Notices, by this process's own monotonic clock, that nobody renews a lease.

    The store's clock decides when a lease ends. If that clock was ahead and was set back, a dead leader's lease would
    last as long as the step. Therefore a lease counts as stalled once it has been seen unchanged for `STALLED_LEASES`
    times its length. Two looks that are further apart than its length prove nothing: this process was suspended in
    between, and the leader may have been, too.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lease: StalledLease | None = None
        self._since_ms = self._looked_at_ms = 0

    def restart(self) -> None:
        """Start observing again, because the lease could not be read."""
        self._lease = None

    def check_stalled(self, status: TopologyStatus) -> StalledLease | None:
        """Observe a lease that has not ended by the store's clock. Returns the lease if nobody renews it."""
        now_ms, length_ms, end_ms = self._clock.monotonic_ms(), status.lease_length_ms, status.leased_until_ms
        if length_ms is None or end_ms is None:
            self.restart()
            return None
        lease = StalledLease(status.epoch, end_ms)
        if lease != self._lease or now_ms - self._looked_at_ms > length_ms:
            self._lease, self._since_ms = lease, now_ms
        self._looked_at_ms = now_ms
        return lease if now_ms - self._since_ms >= STALLED_LEASES * length_ms else None


class Standby:
    """Waits for its turn to coordinate one topology. With `accepts` the topology may differ from the stored one."""

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
        """The lease that nobody renews, if that is why this standby takes over."""

    def await_turn(self, pause: Pause) -> bool:
        """Wait until the lease is free.

        Returns False if nobody should take over: this run is to end, or the leader was drained or killed by command and
        has ended. A store that does not respond is queried again. Raises `TopologyChanged` if the topology is not the
        stored one.
        """
        while True:
            try:
                status = self._status()
            except StoreUnavailable as error:
                _log.warning("a standby of topology %r keeps waiting: %s", self.topology_id, error)
                self._watch.restart()
            else:
                if self._is_free(status):
                    return not self._has_carried_out(status)
            if pause(self.look_every_ms):
                return False

    def _status(self) -> TopologyStatus | None:
        status = next(iter(self.store.status(self.topology_id)), None)
        if status is not None and self.fingerprint is not None and _is_bound(status):
            fingerprint = fingerprint_as_stored(self.topology, self.store, self.fingerprint)
            check_fingerprint(self.topology_id, status.fingerprint, fingerprint)
        return status

    def _is_free(self, status: TopologyStatus | None) -> bool:
        if status is None or not status.is_leased or status.owner == self.owner:
            return True
        self._is_to_end = status.desired in CARRIED_OUT
        self.stalled = self._watch.check_stalled(status)
        if self.stalled is not None:
            self._is_to_end = False
            _log.warning(
                "nobody has renewed the lease of topology %r (epoch %d) for %d times its length: a clock that was "
                "ahead has written its end, and this standby takes it",
                *(self.topology_id, status.epoch, STALLED_LEASES),
            )
        return self.stalled is not None

    def _has_carried_out(self, status: TopologyStatus | None) -> bool:
        """Whether the leader has ended by command: it released its lease in the write that cleared the desired
        state."""
        if status is None or not self._is_to_end:
            return False
        return status.leased_until_ms is None and status.desired not in CARRIED_OUT


def _in_threads(functions: Sequence[Callable[[], None]]) -> None:
    """Run all functions at once, each in a thread."""
    pool = DaemonPool(FENCED_AT_ONCE_MAX - 1, "fencing")
    try:
        pool.run_concurrently(functions)
    finally:
        pool.shutdown()


def _is_bound(status: TopologyStatus) -> bool:
    """Whether the topology may not change: a transaction is committed, or a run has started successfully and leads."""
    return bool(status.fingerprint) and (status.committed_txid > 0 or status.is_leased)
