"""`TopologyDriver`: the shell around the coordinator: takes the lease, fences tables, feeds events, performs actions.

One thread owns the coordinator and the store's writes; `step` takes one event in and performs its actions in order.
"""

from __future__ import annotations

import os
import queue
import socket
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass

from transactional.attempt import TransactionAttempt, TxId
from transactional.config import TopologyConfig
from transactional.core.coordinator import Coordinator
from transactional.core.protocol import (
    AbortAttempt,
    Action,
    AttemptFailed,
    CommitSucceeded,
    DrainRequested,
    Event,
    Halt,
    PauseRequested,
    PlanBatch,
    RecordAttempt,
    RecordCommit,
    RecordFailure,
    RecordProcessed,
    ResumeRequested,
    StartCommit,
    StartProcessing,
    StopRequested,
    Tick,
)
from transactional.engine.clock import SystemClock
from transactional.engine.fencing import close_tables, fence_tables
from transactional.engine.observing import Observer, RunObserver
from transactional.engine.run_history import about, end_of, kept, lag_of
from transactional.engine.runner import Fatal, PhaseRunner
from transactional.engine.sizing import BatchSizer
from transactional.engine.standby import Standby
from transactional.engine.timeline import Moment, Timeline
from transactional.engine.troubles import TroubleTeller
from transactional.errors import (
    CommitStuck,
    ConfigError,
    FatalError,
    StoreMismatch,
    StoreUnavailable,
    TopologyInUse,
    by_code,
)
from transactional.execution.committing import CommitPhase
from transactional.ports import Clock, JobExecutor, SizedSpout
from transactional.store import CoordinatorStore, Desired, DesiredState
from transactional.topology.places import check_places
from transactional.topology.topology import Topology

LOOK_EVERY_MS = 1_000
"""How often a running driver looks what goes forward, and what people wish."""

LEAVING_S = 3.0
"""How long a driver that has to leave waits for its threads: one may hang in a bolt's or a storage's code."""

REQUESTS: Mapping[DesiredState, Callable[[], Event]] = {
    DesiredState.ACTIVE: ResumeRequested,
    DesiredState.INACTIVE: PauseRequested,
    DesiredState.DRAINING: DrainRequested,
    DesiredState.KILLED: PauseRequested,
}


@dataclass(frozen=True, slots=True)
class RunSummary:
    """What one run has done."""

    first_txid: TxId
    committed_txid: TxId
    failures: int

    @property
    def transactions(self) -> int:
        """Number of transactions committed by this run."""
        return self.committed_txid - self.first_txid + 1


class TopologyDriver:
    """Runs one topology until it is stopped, drained, fenced or out of retries.

    `commit_phase` runs commit phases in place of the one that is made for the topology.
    """

    def __init__(
        self,
        topology: Topology,
        store: CoordinatorStore,
        executor: JobExecutor,
        config: TopologyConfig | None = None,
        *,
        clock: Clock | None = None,
        observers: Sequence[Observer] = (),
        owner: str | None = None,
        accept_changes: bool = False,
        name: str | None = None,
        standby: bool = False,
        commit_phase: CommitPhase | None = None,
    ) -> None:
        check_places(topology, store, observers)
        self.topology, self.store, self.executor = topology, store, executor
        self.config = config or TopologyConfig()
        self.clock = clock or SystemClock()
        self.observers = observers
        self.owner = owner or f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
        self.accept_changes, self.name, self.standby = accept_changes, name, standby
        self.commit_phase = commit_phase or CommitPhase(topology)
        self.failures = 0
        self.sizer = sizer_of(topology, self.config)
        self._halt: FatalError | None = None
        self._obeyed = DesiredState.ACTIVE
        self._is_performed = False
        self._pause = threading.Event()
        self._events: queue.SimpleQueue[Event | Fatal] = queue.SimpleQueue()
        self.timeline = Timeline()
        self._troubles = TroubleTeller(topology.id)

    def stop(self) -> None:
        """Ask the run to end: what is in its commit phase ends, all else is given up. May be called from any thread."""
        self._events.put(StopRequested())

    def run(self) -> RunSummary:
        """Run until done; with `standby` wait before, until nobody else coordinates the topology.

        Raises a `FatalError` or `ConfigError`; what was committed by then stays right.
        """
        if self.topology.dead_letters is not None and self.config.attempts_max is None:
            raise ConfigError(
                f"topology {self.topology.id!r} has a table of dead letters, but attempts_max is not set, so that what "
                "fails is tried for ever: give attempts_max=3, for example"
            )
        self.topology.spout.open()
        try:
            return self._run_with_lease()
        finally:
            self.topology.spout.close()

    def _run_with_lease(self) -> RunSummary:
        with ExitStack() as stack, ExitStack() as warm:
            if self.standby:
                # What takes long is done while another one leads.
                warm.callback(self.executor.close)
                self.executor.open()
                if not self._stand_by():
                    return self._nothing_done()
            else:
                self.take_lease()
            stack.push(self._release_after)
            stack.callback(close_tables, self.topology)
            stack.callback(self.executor.close)
            warm.pop_all()
            if not self.standby:
                self.executor.open()
            self.store.renew(self.lease, lease_ms=self.config.lease_ms)
            self.fence_tables()
            self.store.forget_before(self.lease, at_ms=kept(self.config, self.clock.wall_ms()).since_ms)
            return self._loop()

    def take_lease(self) -> None:
        """Become the one process that coordinates the topology."""
        self.lease = self.store.acquire(
            self.topology.id,
            self.topology.fingerprint(),
            owner=self.owner,
            lease_ms=self.config.lease_ms,
            accept_changes=self.accept_changes,
            name=self.name,
            about=about(self.topology, self.config),
        )

    def _stand_by(self) -> bool:
        """Wait for the lease, and take it; False when the run is to end without it."""
        fingerprint = None if self.accept_changes else self.topology.fingerprint()
        standby = Standby(self.store, self.topology.id, fingerprint, self.config, owner=self.owner)
        while standby.await_turn(self._rest):
            try:
                self.take_lease()
                return True
            except (TopologyInUse, StoreUnavailable):
                # Another standby was quicker, or a leader that stands still inside a write holds SQLite's lock.
                if self._rest(standby.look_every_ms):
                    break
        return False

    def _rest(self, duration_ms: int) -> bool:
        """Wait; True, and at once, when the run was asked to end."""
        with suppress(queue.Empty):
            return isinstance(self._events.get(timeout=duration_ms / 1000), StopRequested)
        return False

    def _nothing_done(self) -> RunSummary:
        committed = max((status.committed_txid for status in self.store.status(self.topology.id)), default=TxId(0))
        return RunSummary(TxId(committed + 1), committed, 0)

    def fence_tables(self) -> None:
        """Keep every earlier coordinator from writing to the tables, and check them against the store."""
        try:
            fence_tables(self.topology, self.store, self.lease, durability=self.config.durability)
        except StoreMismatch:
            # Raises `Fenced` when another coordinator has taken over meanwhile: then that is why.
            self.store.renew(self.lease, lease_ms=self.config.lease_ms)
            raise
        self.store.record_start(self.lease, self.topology.fingerprint())

    def release(self, error: BaseException | None = None) -> None:
        """Give the lease back, and say in the store why: by an error, or as has come to pass."""
        has_carried_out = self.has_carried_out
        is_drained = self._is_performed and self.coordinator.done and not self.coordinator.stopping
        end = end_of(error, wish=self._obeyed if has_carried_out else None, is_drained=is_drained)
        with suppress(StoreUnavailable):  # then the lease ends by itself
            self.store.release(self.lease, is_done=has_carried_out, end=end)

    def _release_after(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        self.release(error)

    @property
    def has_carried_out(self) -> bool:
        """True when the run has ended as was wished from outside: it was drained or killed."""
        if not self._is_performed or not self.coordinator.done or self.coordinator.halted:
            return False
        drained = self._obeyed is DesiredState.DRAINING and not self.coordinator.stopping
        return drained or self._obeyed is DesiredState.KILLED

    def _loop(self) -> RunSummary:
        snapshot = self.lease.snapshot
        coordinator = Coordinator(
            snapshot,
            self.config,
            replays_exactly=self.topology.spout.replays_exactly,
            sets_aside=self.topology.dead_letters is not None,
        )
        pending = self.config.max_spout_pending
        self.runner = PhaseRunner(
            self.topology, self.executor, self._events.put, max_pending=pending, commit_phase=self.commit_phase
        )
        if snapshot.committed_txid:
            # Told again: who has committed it may have died before the spout was told.
            attempt = TransactionAttempt(snapshot.committed_txid, self.lease.fence_id)
            self.runner.tell_committed(attempt, snapshot.committed_batch)
        try:
            self.begin(coordinator, self.runner)
            while not self.coordinator.done:
                self._turn()
        except BaseException as error:
            # What can't be waited for is fenced.
            self.runner.close(wait_s=0 if isinstance(error, CommitStuck) else LEAVING_S)
            raise
        # Nothing depends on what looks after the tables, so whoever was asked to stop does not wait for it for long.
        self.runner.close(tidy_s=LEAVING_S if self.coordinator.stopping else None)
        return RunSummary(TxId(snapshot.committed_txid + 1), self.coordinator.committed_txid, self.failures)

    def begin(self, coordinator: Coordinator, runner: PhaseRunner) -> None:
        """Tell the observers how the run begins, then the coordinator what people wish and what time it is.

        What was wished before the run began comes first: one that is deactivated issues nothing new.
        """
        self.coordinator, self.runner = coordinator, runner
        self._renewed_at_ms = self._ticked_at_ms = self._looked_at_ms = self.clock.monotonic_ms()
        at_ms, snapshot = self.clock.wall_ms(), self.lease.snapshot
        for observer in self.observers:
            if isinstance(observer, RunObserver):
                observer.begin(
                    at_ms,
                    snapshot,
                    self.config,
                    replays_exactly=coordinator.replays_exactly,
                    sets_aside=coordinator.sets_aside,
                )
        self._obey(self.lease.desired)
        self.step(Tick(self._ticked_at_ms))

    def _obey(self, desired: Desired) -> None:
        if desired.state is not self._obeyed:
            self._obeyed = desired.state
            self.step(REQUESTS[desired.state]())
        if desired.stop_in_ms == 0 and not self.coordinator.stopping:
            self.step(StopRequested())

    def _turn(self) -> None:
        """Wait for one event, at most until the next tick is due."""
        wait_ms = self._ticked_at_ms + self.config.tick_ms - self.clock.monotonic_ms()
        try:
            event = self._events.get(timeout=max(wait_ms, 0) / 1000) if wait_ms > 0 else self._events.get_nowait()
        except queue.Empty:
            self.tick()
            return
        if isinstance(event, Fatal):
            raise event.error
        self.step(event)
        if self.clock.monotonic_ms() - self._ticked_at_ms >= self.config.tick_ms:
            self.tick()

    def tick(self) -> None:
        """Do what is a matter of time: renew the lease, look around about once a second, tell the coordinator."""
        self._ticked_at_ms = now_ms = self.clock.monotonic_ms()
        if now_ms - self._renewed_at_ms >= self.config.lease_ms // 3:
            self._write(lambda: self.store.renew(self.lease, lease_ms=self.config.lease_ms))
            self._renewed_at_ms = now_ms
        if now_ms - self._looked_at_ms >= LOOK_EVERY_MS:
            self._looked_at_ms = now_ms
            self.runner.look_for_progress()
            self._look_what_is_desired()
        self.step(Tick(now_ms))

    def _look_what_is_desired(self) -> None:
        try:
            desired = self.store.desired(self.topology.id)
        except StoreUnavailable:
            return  # a wish can wait; writes find out when the store is away for too long
        self._obey(desired)

    def step(self, event: Event) -> None:
        """Give the coordinator one event, perform its actions in order. An action that raises stops all later ones."""
        self._is_performed = False
        self.timeline.tell_event(event, Moment(self.clock.wall_ms(), self.clock.monotonic_ms()))
        if isinstance(event, AttemptFailed):
            self.runner.forget(event.attempt)
        if isinstance(event, StopRequested):
            self.runner.hurry()
        if self._troubles.is_over(event, self.clock.wall_ms()):
            self._write(lambda: self.store.record_recovery(self.lease))
        actions = self.coordinator.handle(event)
        for action in actions:
            self._perform(action)
        if isinstance(event, CommitSucceeded):
            self.runner.forget(event.attempt)
        at_ms = self.clock.wall_ms()
        for observe in self.observers:
            observe(at_ms, event, actions)
        if self._halt is not None:
            raise self._halt
        self._is_performed = True

    def _perform(self, action: Action) -> None:
        now_ms = self.clock.wall_ms()
        self.timeline.tell_action(action, Moment(now_ms, self.clock.monotonic_ms()))
        match action:
            case PlanBatch(attempt, after, replay):
                limit = None if self.sizer is None else self.sizer.limit
                self.runner.plan(attempt, after, replay=replay, limit=limit)
            case RecordAttempt(attempt, batch, forget_later):
                record = self.timeline[attempt].record(batch)
                self._write(lambda: self.store.record_attempt(self.lease, record, forget_later=forget_later))
            case StartProcessing(attempt, batch):
                self.runner.process(attempt, batch)
            case RecordProcessed(attempt, batch):
                processed = self.timeline[attempt].processed.wall_ms
                self._write(lambda: self.store.record_processed(self.lease, attempt, batch, at_ms=processed))
            case StartCommit(attempt, _):
                self.runner.commit(attempt)
            case RecordCommit(attempt, batch):
                flight = self.timeline[attempt]
                if self.sizer is not None:
                    self.sizer.learn(flight, batch)
                details = {"lag": lag_of(self.topology.spout, batch)}
                self._write(
                    lambda: self.store.record_commit(
                        self.lease,
                        attempt,
                        batch,
                        processed_at_ms=flight.processed.wall_ms,
                        started_at_ms=flight.commit_started.wall_ms,
                        at_ms=now_ms,
                        details=details,
                        keep=kept(self.config, now_ms),
                    )
                )
                self.runner.tell_committed(attempt, batch)
                if not self.coordinator.stopping:
                    self.runner.tidy(attempt)
            case RecordFailure(attempt, phase, reason, _):
                self.failures += 1
                self._write(lambda: self.store.record_failure(self.lease, attempt, phase, reason, at_ms=now_ms))
            case AbortAttempt(attempt, reason):
                self.runner.abort(attempt, reason)
            case Halt(code, reason):
                self._halt = fatal_error(code, reason)
        self._troubles.tell_action(action, now_ms)

    def _write(self, write: Callable[[], None]) -> None:
        """Make a write to the store, and make it again as it is while the store does not answer and the lease holds.

        Whatever the first write has done: the store takes the same write twice as one.
        """
        for tried in range(self.config.lease_ms // self.config.tick_ms):
            try:
                return write()
            except StoreUnavailable:
                if self.clock.monotonic_ms() - self._renewed_at_ms >= self.config.lease_ms:
                    raise
            self._pause.wait(self.config.tick_ms / 1000 if tried else 0)
        return write()


def sizer_of(topology: Topology, config: TopologyConfig) -> BatchSizer | None:
    """What sizes the batches, where there is a target. Raises `ConfigError` for a spout that can't be told a limit."""
    if config.target_latency_ms is None:
        return None
    spout = topology.spout
    if not isinstance(spout, SizedSpout):
        raise ConfigError(
            f"target_latency_ms is set, but the batches of spout {topology.spout_id!r} can't be limited: give "
            f"{type(spout).__name__} the methods of SizedSpout, or leave the target away"
        )
    return BatchSizer(
        config.target_latency_ms,
        in_flight=config.max_spout_pending,
        records_min=config.batch_records_min,
        records_max=spout.batch_records_max,
    )


def fatal_error(code: str, reason: str) -> FatalError:
    """What the coordinator halts with."""
    error = by_code(code)
    assert error is not None
    assert issubclass(error, FatalError)
    return error(reason)
