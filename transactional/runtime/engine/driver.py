"""`TopologyDriver`: the shell around the coordinator: feeds it events and performs its actions, as long as it leads.

One thread owns the coordinator and the store's writes; `step` takes one event in and performs its actions in order.
What is written to the store, and the lease that allows it, is `Leadership`'s; what runs in threads is `PhaseRunner`'s.
"""

from __future__ import annotations

import logging
import queue
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass

from transactional.core.machine.coordinator import Coordinator
from transactional.core.machine.protocol import (
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
    ResumeRequested,
    SinksBehind,
    SinksSettled,
    StartCommit,
    StartProcessing,
    StopRequested,
    Tick,
)
from transactional.core.ports import Clock, JobExecutor
from transactional.core.store import CoordinatorStore, Desired, DesiredState
from transactional.core.store.history import RunEnd
from transactional.model.attempt import TransactionAttempt, TxId
from transactional.model.config import TopologyConfig
from transactional.model.config_sources import ResolvedConfig
from transactional.model.errors import (
    CommitStuck,
    ConfigError,
    FatalError,
    OperatingError,
    SinkUnavailable,
    StoreMismatch,
    StoreUnavailable,
    fatal_error,
)
from transactional.model.guarantees import Guarantee
from transactional.runtime.commit.committing import CommitPhase
from transactional.runtime.engine.audience import Audience
from transactional.runtime.engine.clock import SystemClock
from transactional.runtime.engine.fencing import close_tables
from transactional.runtime.engine.history.observing import Ended, Leading, Notice, Observer, StandingBy
from transactional.runtime.engine.history.run_history import RunSummary, end_of
from transactional.runtime.engine.history.timeline import Moment, Timeline
from transactional.runtime.engine.history.troubles import Troubles
from transactional.runtime.engine.leadership import Leadership
from transactional.runtime.engine.letter_spout import LetterSpout, check_retries
from transactional.runtime.engine.runner import Fatal, PhaseRunner
from transactional.runtime.engine.savepoints import SavepointWatch
from transactional.runtime.engine.sizing import make_sizer
from transactional.runtime.publishing.payload_files import PayloadFolder, outbox_folder
from transactional.runtime.publishing.relays import RETRY_S, Outage, Relays
from transactional.runtime.tasks.step_work import StepExecutor
from transactional.topology.closing import windows_left_open
from transactional.topology.locations import check_locations
from transactional.topology.topology import Topology

_log = logging.getLogger(__name__)

LOOK_EVERY_MS = 1_000
"""How often a running driver checks for progress, and for the desired state."""

WARN_EVERY_MS = 60_000
"""How often a driver logs that commits wait for sinks."""

LEAVING_S = 3.0
"""How long a driver that must exit waits for its threads: one may hang in user code or in a storage client."""

REQUESTS: Mapping[DesiredState, Callable[[], Event]] = {
    DesiredState.ACTIVE: ResumeRequested,
    DesiredState.INACTIVE: PauseRequested,
    DesiredState.DRAINING: DrainRequested,
    DesiredState.KILLED: PauseRequested,
}


@dataclass(frozen=True, slots=True)
class QueuedNotice:
    """A notice of another thread for the observers, which is no event of the protocol."""

    notice: Notice


_Queued = Event | Fatal | QueuedNotice


class TopologyDriver:
    """Runs one topology until it is stopped, drained, fenced or out of retries.

    `commit_phase` replaces the one that is made for the topology. With `inactive` the topology is
    deactivated before it issues anything.
    """

    def __init__(
        self,
        topology: Topology,
        store: CoordinatorStore,
        executor: JobExecutor,
        config: TopologyConfig | ResolvedConfig | None = None,
        *,
        clock: Clock | None = None,
        observers: Sequence[Observer] = (),
        owner: str | None = None,
        accept_changes: bool = False,
        name: str | None = None,
        standby: bool = False,
        inactive: bool = False,
        commit_phase: CommitPhase | None = None,
    ) -> None:
        if topology.has_queries_alone:
            raise ConfigError(
                f"topology {topology.id!r} has queries alone ({', '.join(topology.queries)}), so there is nothing to "
                "run: `transactional query` and QueryClient answer them"
            )
        self.topology, self.store, self.executor = topology, store, executor
        resolved = config if isinstance(config, ResolvedConfig) else ResolvedConfig(config or TopologyConfig(), ())
        self.config = resolved.config
        self.payload_files = PayloadFolder(outbox_folder(self.config, store) if topology.sinks else None)
        check_locations(topology, store, observers, self.payload_files)
        self.clock = clock or SystemClock()
        self._audience = Audience(observers, self.clock)
        if inactive and standby:
            raise ConfigError("a run that begins inactive can't stand by: deactivate the topology instead")
        self.standby, self.inactive = standby, inactive
        jobs = executor if isinstance(executor, StepExecutor) else None
        self.commit_phase = commit_phase or CommitPhase(topology, jobs=jobs, choice=self.config.commit_steps)
        self.leadership = Leadership(
            topology,
            store,
            self.config,
            self.clock,
            owner=owner,
            accept_changes=accept_changes,
            name=name,
            sources=resolved.redacted_sources(),
            notify=self._audience.notify,
        )
        self.relays = Relays(topology.sinks, store, self.config, self.payload_files, topology.sending_sinks.values())
        self.failures = 0
        self._warned_at_ms: int | None = None
        self.sizer = make_sizer(topology, self.config)
        self._halt: FatalError | None = None
        self._end: RunEnd | None = None
        self._current_state = DesiredState.ACTIVE
        self._is_performed = False
        self._events: queue.SimpleQueue[_Queued] = queue.SimpleQueue()
        self._is_ending = False
        self.timeline = Timeline()
        self._troubles = Troubles(self._audience.notify)
        self._savepoints = SavepointWatch(topology, store)

    def stop(self) -> None:
        """Stop the run: the running commit phase finishes, everything else is aborted. May be called from any
        thread."""
        self._events.put(StopRequested())
        if self._is_ending:
            self.runner.hurry_maintenance()

    def drain(self) -> None:
        """Issue nothing new, commit what is in flight, then end. May be called from any thread."""
        self._events.put(DrainRequested())

    def run(self) -> RunSummary:
        """Run until the topology is done. With `standby`, first wait until no other process coordinates it.

        Raises a `FatalError` or `ConfigError`; transactions that were committed before are not affected.
        """
        run_error: BaseException | None = None
        try:
            check_retries(self.topology, self.config)
            self.topology.spout.open()
            with closing(self.topology.spout):
                if not self._wait_for_sinks(self.relays.prepare):
                    return self._empty_summary()
                return self._take_lease_and_run()
        except BaseException as error:
            run_error = error
            raise
        finally:
            end = self._end or end_of(run_error, desired=None, is_drained=False)
            self._audience.notify(Ended(end, self._committed_txid(), run_error))

    def _committed_txid(self) -> TxId | None:
        return self.coordinator.committed_txid if hasattr(self, "coordinator") else None

    def _take_lease_and_run(self) -> RunSummary:
        """Take the lease, or stand by for it, coordinate the topology until the run ends, and release the lease."""
        with ExitStack() as stack, ExitStack() as standby_stack:
            if self.standby:
                # Opening the executor takes long, so it is done while another process leads.
                standby_stack.callback(self.executor.close)
                self.executor.open()
                self._audience.notify(StandingBy())
                if not self.leadership.stand_by(self._pause):
                    return self._empty_summary()
            else:
                self.leadership.take()
            stack.push(lambda _kind, error, _trace: self.release(error))
            stack.callback(close_tables, self.topology)
            stack.callback(self.relays.close, LEAVING_S)
            stack.callback(self.executor.close)
            standby_stack.pop_all()
            with self.leadership.renewing_lease():
                if not self.standby:
                    self.executor.open()
                self.leadership.renew()
                self.relays.check(self.leadership.lease, self.topology.fingerprint())
                self.leadership.fence_tables()
            if not self._wait_for_sinks(self._settle_sinks):
                return self._empty_summary()
            return self._loop()

    def _settle_sinks(self) -> None:
        self.leadership.renew_if_due()
        with self.leadership.renewing_lease():
            self.relays.settle(self.leadership.lease, self.leadership.store_id)
            self.leadership.record_start()
            self.leadership.forget_old_attempts()

    def _wait_for_sinks(self, work: Callable[[], None]) -> bool:
        """Do what the targets of sinks are needed for, and repeat it while one is away.

        Returns False if the run has to end before that. Raises `OperatingError` after `outage_timeout_ms`.
        """
        outage, later_events = Outage("the start of a sink", self.config.outage_timeout_ms), list[_Queued]()
        pause_s = min(RETRY_S, self.config.lease_ms / 3_000)
        while True:
            try:
                work()
            except SinkUnavailable as error:
                outage.note(error)
            else:
                for event in later_events:
                    self._events.put(event)
                return True
            with suppress(queue.Empty):
                later_events.append(self._events.get(timeout=pause_s))
            if any(isinstance(event, StopRequested) for event in later_events) or self._is_killed():
                return False

    def _is_killed(self) -> bool:
        """Return whether this run, which has not begun its loop, was killed from outside."""
        with suppress(StoreUnavailable):
            return hasattr(self.leadership, "lease") and self.store.desired(self.topology.id).stop_in_ms == 0
        return False

    def _pause(self, duration_ms: int) -> bool:
        """Wait for `duration_ms`. Returns True, at once, if the run has to end."""
        with suppress(queue.Empty):
            return isinstance(self._events.get(timeout=duration_ms / 1000), StopRequested | DrainRequested)
        return False

    def _empty_summary(self) -> RunSummary:
        committed = max((status.committed_txid for status in self.store.status(self.topology.id)), default=TxId(0))
        return RunSummary(TxId(committed + 1), committed, 0)

    def release(self, error: BaseException | None = None) -> None:
        """Release the lease, and store how the run ended: with an error, as requested, or drained."""
        has_carried_out = self.has_carried_out
        is_drained = self._is_performed and self.coordinator.is_done and not self.coordinator.stopping
        end = end_of(error, desired=self._current_state if has_carried_out else None, is_drained=is_drained)
        self._end = end
        self.leadership.release(end, is_done=has_carried_out)

    @property
    def has_carried_out(self) -> bool:
        """True if the run has ended as requested from outside: it was drained or killed."""
        if not self._is_performed or not self.coordinator.is_done or self.coordinator.halted:
            return False
        drained = self._current_state is DesiredState.DRAINING and not self.coordinator.stopping
        return drained or self._current_state is DesiredState.KILLED

    def _loop(self) -> RunSummary:
        progress = self.leadership.lease.progress
        guarantee, replays_exactly = self.topology.guarantee, self.topology.spout.replays_exactly
        sets_aside = self.topology.dead_letters is not None and guarantee is Guarantee.EXACTLY_ONCE
        coordinator = Coordinator(
            progress,
            self.config,
            replays_exactly=replays_exactly,
            sets_aside=sets_aside,
            guarantee=guarantee,
            leaves_pending=isinstance(self.topology.spout, LetterSpout),
            has_windows=self.topology.has_windows,
        )
        self.runner = PhaseRunner(
            self.topology,
            self.executor,
            self._events.put,
            max_pending=self.config.max_spout_pending,
            commit_phase=self.commit_phase,
            payload_files=self.payload_files,
            clock=self.clock,
            config=self.config,
            notify=lambda notice: self._events.put(QueuedNotice(notice)),
        )
        if progress.committed_txid:
            # Notify again: the process that committed it may have died before it notified the spout.
            attempt = TransactionAttempt(progress.committed_txid, self.leadership.lease.fence_id)
            self.runner.notify_committed(attempt, progress.committed_batch)
        try:
            self.begin(coordinator, self.runner)
            self.relays.start(
                lambda txid: self._events.put(SinksSettled(txid)), lambda error: self._events.put(Fatal(error))
            )
            while not self.coordinator.is_done:
                self._handle_next()
            is_drained = not self.coordinator.stopping
            while not (self.coordinator.stopping or self.relays.have_settled_all):
                self._handle_next()
        except BaseException as error:
            # A commit phase that does not end is fenced off, so nobody has to wait for it.
            self.runner.close(wait_s=0 if isinstance(error, CommitStuck) else LEAVING_S)
            raise
        if is_drained and self.coordinator.stopping and self._current_state is not DesiredState.KILLED:
            self.relays.close(LEAVING_S)
            if unsent := self.relays.read_unsent():
                self.runner.close(wait_s=LEAVING_S)
                raise OperatingError(
                    f"the run was stopped before everything was published: {'; '.join(unsent)}; the next run sends them"
                )
        self._is_ending = True
        # Nothing depends on table maintenance, so a stopping run does not wait for it for long.
        self.runner.close(maintenance_s=LEAVING_S if self.coordinator.stopping else None)
        self._notify_remaining()
        if self.config.close_windows and self.coordinator.draining:
            left_open = ", ".join(f"{name} ({reason})" for name, reason in windows_left_open(self.topology).items())
            if left_open:
                _log.warning("these windows stay open, for no event time closes them: %s", left_open)
        return RunSummary(TxId(progress.committed_txid + 1), self.coordinator.committed_txid, self.failures)

    def _notify_remaining(self) -> None:
        """Pass on the notices since the last event, such as that of the maintenance after the last commit."""
        with suppress(queue.Empty):
            while True:
                if isinstance(event := self._events.get_nowait(), QueuedNotice):
                    self._audience.notify(event.notice)

    def begin(self, coordinator: Coordinator, runner: PhaseRunner) -> None:
        """Notify the observers of the start, then pass the desired state and the time to the coordinator.

        A desired state from before the run comes first: a deactivated topology issues nothing new.
        """
        self.coordinator, self.runner = coordinator, runner
        self._ticked_at_ms = self._looked_at_ms = self.clock.monotonic_ms()
        lease = self.leadership.lease
        self._audience.begin(
            lease.progress, self.config, coordinator, lambda: Leading(lease, *self.leadership.read_previous_run())
        )
        self._check_savepoints()
        if self.inactive:
            self.store.desire(self.topology.id, DesiredState.INACTIVE)
            self._follow(self.store.desired(self.topology.id))
        else:
            self._follow(self.leadership.lease.desired)
        transactions, size_bytes = self.relays.backlog(lease)
        if transactions:
            self.step(SinksBehind(lease.progress.committed_txid, transactions, size_bytes))
        self.step(Tick(self._ticked_at_ms))

    def _check_store(self, error: BaseException) -> None:
        """Raise `StoreWentBack` if a mismatch of a table is explained by it: a table in the store's database has gone
        back together with the store."""
        if isinstance(error, StoreMismatch):
            with suppress(StoreUnavailable):
                self.leadership.check_confirmed()

    def _follow(self, desired: Desired) -> None:
        if desired.state is not self._current_state:
            self._current_state = desired.state
            self.step(REQUESTS[desired.state]())
        if desired.stop_in_ms == 0 and not self.coordinator.stopping:
            self.step(StopRequested())

    def _handle_next(self) -> None:
        """Wait for one event, at most until the next tick is due."""
        wait_ms = self._ticked_at_ms + self.config.tick_ms - self.clock.monotonic_ms()
        try:
            event = self._events.get(timeout=max(wait_ms, 0) / 1000) if wait_ms > 0 else self._events.get_nowait()
        except queue.Empty:
            self.tick()
            return
        if isinstance(event, Fatal):
            self._check_store(event.error)
            raise event.error
        if isinstance(event, QueuedNotice):
            self._audience.notify(event.notice)
        else:
            self.step(event)
        if self.clock.monotonic_ms() - self._ticked_at_ms >= self.config.tick_ms:
            self.tick()

    def tick(self) -> None:
        """Do what depends on time: renew the lease, check the store about once a second, pass the time on."""
        self._ticked_at_ms = now_ms = self.clock.monotonic_ms()
        self.leadership.renew_if_due()
        if now_ms - self._looked_at_ms >= LOOK_EVERY_MS:
            self._looked_at_ms = now_ms
            self.runner.report_progress()
            self._check_desired_state()
            self._check_savepoints()
            self._warn_of_sinks(now_ms)
        self.step(Tick(now_ms))

    def _warn_of_sinks(self, now_ms: int) -> None:
        """Log that commits wait for sinks, once a minute."""
        if not self.coordinator.waits_for_sinks:
            return
        if self._warned_at_ms is None or now_ms - self._warned_at_ms >= WARN_EVERY_MS:
            self._warned_at_ms, backlog = now_ms, self.coordinator.backlog
            _log.warning(
                "no transaction is committed before sink %r has published more: %d transactions wait, of %d bytes "
                "(sink_pending_max = %d, sink_pending_bytes_max = %d)",
                self.relays.slowest.sink_id,
                *(backlog.transactions, backlog.size_bytes),
                *(self.config.sink_pending_max, self.config.sink_pending_bytes_max),
            )

    def _check_desired_state(self) -> None:
        try:
            desired = self.store.desired(self.topology.id)
        except StoreUnavailable:
            return  # a change of the state can wait; writes notice a store that is unavailable for too long
        self._follow(desired)

    def _check_savepoints(self) -> None:
        with suppress(StoreUnavailable):
            if (targets := self._savepoints.read_changes()) is not None:
                self.runner.hold(targets)

    def step(self, event: Event) -> None:
        """Pass one event to the coordinator, and perform its actions in order. If an action raises, the later ones are
        not performed."""
        self._is_performed = False
        self.timeline.note_event(event, Moment(self.clock.wall_ms(), self.clock.monotonic_ms()))
        if isinstance(event, AttemptFailed):
            self.runner.forget(event.attempt)
        if isinstance(event, StopRequested):
            self.runner.hurry()
        if self._troubles.resolves(event, self.clock.wall_ms()):
            self.leadership.record_recovery()
        actions = self.coordinator.handle(event)
        for action in actions:
            self._perform(action)
        if isinstance(event, CommitSucceeded):
            self.runner.forget(event.attempt)
        self._audience.observe(event, actions)
        if self._halt is not None:
            raise self._halt
        self._is_performed = True

    def _perform(self, action: Action) -> None:
        now_ms = self.clock.wall_ms()
        self.timeline.note_action(action, Moment(now_ms, self.clock.monotonic_ms()))
        self.leadership.record(action, self.timeline, now_ms)
        match action:
            case PlanBatch(attempt, after, replay, is_next):
                limit = None if self.sizer is None else self.sizer.limit
                self.runner.plan(attempt, after, replay=replay, limit=limit, is_next=is_next)
            case RecordAttempt(attempt, _, _, work_of) if work_of is not None:
                self.runner.take_over(attempt, work_of)
            case StartProcessing(attempt, batch):
                self.runner.process(attempt, batch)
            case StartCommit(attempt, _):
                self.runner.commit(attempt)
            case RecordCommit(attempt, batch):
                self.relays.confirm(attempt.txid)
                if self.sizer is not None:
                    self.sizer.learn(self.timeline[attempt], batch)
                self.runner.notify_committed(attempt, batch)
                if self._savepoints.is_answered and not self.coordinator.stopping:
                    self.runner.maintain(attempt)
            case RecordFailure():
                self.failures += 1
            case AbortAttempt(attempt, reason):
                self.runner.abort(attempt, reason)
            case Halt(code, reason):
                self._halt = fatal_error(code, reason)
        self._troubles.note_action(action, now_ms)
