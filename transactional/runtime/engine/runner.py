"""Runs the phases that the coordinator requests in threads, and answers each request with exactly one event.

There are three pools: one thread plans batches, several wait for processing phases, and one thread runs commit phases,
which are thereby in order. A lock keeps calls to the spout from overlapping. An error becomes an event like any other;
only a `FatalError` or a misconfiguration ends the run. This module decides nothing: the coordinator does.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial

from transactional.core.machine.listing import record_listed
from transactional.core.machine.protocol import (
    AttemptFailed,
    BatchPlanned,
    CommitDelayed,
    CommitSucceeded,
    Event,
    ProcessingSucceeded,
    ProgressMade,
)
from transactional.core.machine.window_assignment import with_outer_watermarks
from transactional.core.ports import Clock, JobExecutor, Partials, Processed
from transactional.model.attempt import TransactionAttempt
from transactional.model.batch import BatchLimit, BatchMetadata, OffsetRange, PartitionId, PendingMessage
from transactional.model.config import TopologyConfig
from transactional.model.errors import BoltFailed, ConfigError, FatalError, TransactionalError
from transactional.model.facts import BatchFacts, Listed, compute_facts
from transactional.model.messages import PENDING_MAX, select_due, sort_failures
from transactional.model.plumbing.pools import DaemonPool
from transactional.model.plumbing.tracebacks import describe_error, text_with_caller, traceback_text
from transactional.runtime.commit.committing import CommitPhase
from transactional.runtime.engine.clock import SystemClock
from transactional.runtime.engine.history.observing import Maintained, Notice
from transactional.runtime.engine.maintenance import Maintenance, Targets
from transactional.runtime.engine.message_letters import letters_of_messages
from transactional.runtime.engine.waiting import PartitionWaitLog
from transactional.runtime.publishing.payload_files import PayloadFolder
from transactional.topology.closing import ClosingRule, find_event_time_inner_windows
from transactional.topology.topology import Topology

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Fatal:
    """An answer that is no event of the protocol: the process has to stop with this error."""

    error: BaseException


class _SpoutMisconfigured(Exception):
    """Planning has shown that the spout is misconfigured."""

    def __init__(self, error: ConfigError) -> None:
        super().__init__(str(error))
        self.error = error


Post = Callable[[Event | Fatal], None]


class PhaseRunner:
    """Plans batches, runs processing and commit phases, and aborts them. `post` takes the answers, `notify` takes other
    notices for observers. Both must be thread-safe."""

    def __init__(
        self,
        topology: Topology,
        executor: JobExecutor,
        post: Post,
        *,
        max_pending: int,
        commit_phase: CommitPhase | None = None,
        payload_files: PayloadFolder | None = None,
        clock: Clock | None = None,
        config: TopologyConfig | None = None,
        notify: Callable[[Notice], None] = lambda notice: None,
    ) -> None:
        self.topology, self.executor, self.post = topology, executor, post
        self.clock, self.config = clock or SystemClock(), config or TopologyConfig()
        self._closing = ClosingRule(topology, self.config)
        self._windows_behind = find_event_time_inner_windows(topology.components)
        self._planning = DaemonPool(1, "planning")
        # An aborted attempt may still occupy a thread.
        self._processing = DaemonPool(2 * max_pending, "processing")
        self._commits = DaemonPool(1, "commit")
        self._running: dict[TransactionAttempt, Future[None]] = {}
        self._aborting: dict[TransactionAttempt, Future[None]] = {}
        self._processed: dict[TransactionAttempt, Processed] = {}
        self._progress: dict[TransactionAttempt, int] = {}
        self._spout_lock = threading.Lock()
        self._wait_log = PartitionWaitLog()
        self._commit_phase = commit_phase or CommitPhase(topology)
        self._payload_files = payload_files or PayloadFolder(None)
        states = {c.id: c.state for c in topology.committers if c.state is not None}
        self._maintenance = Maintenance(states, lambda component, took_ms: notify(Maintained(component, took_ms)))

    def plan(
        self,
        attempt: TransactionAttempt,
        after: BatchMetadata,
        *,
        replay: bool,
        limit: BatchLimit | None = None,
        is_next: bool = False,
    ) -> None:
        """Have the spout plan a batch; answers `BatchPlanned`. A misconfiguration is not retried.

        With `limit` the spout can limit its batches. With `is_next` windows may close if there is nothing to read.
        """
        work = partial(self._plan, attempt, after, limit, replay=replay, is_next=is_next)
        self._submit(self._planning, attempt, work)

    def process(self, attempt: TransactionAttempt, batch: BatchMetadata) -> None:
        """Run a processing phase; answers `ProcessingSucceeded`."""
        self._submit(self._processing, attempt, lambda: self._process(attempt, batch))

    def commit(self, attempt: TransactionAttempt) -> None:
        """Run a commit phase; answers `CommitSucceeded`."""
        self._maintenance.record_waiting_commit(attempt)
        self._submit(self._commits, attempt, lambda: self._commit(attempt))

    def take_over(self, attempt: TransactionAttempt, work_of: TransactionAttempt) -> None:
        """Continue an attempt under another id: the results of `work_of` become those of `attempt`."""
        if (processed := self._processed.get(work_of)) is not None:
            self._processed[attempt] = processed
        self.forget(work_of)

    def notify_committed(self, attempt: TransactionAttempt, batch: BatchMetadata) -> None:
        """Notify the spout of a transaction commit; returns immediately."""
        spout, processed = self.topology.spout, self._processed.get(attempt)
        self._planning.submit(self._notify, attempt, lambda: spout.committed(batch))
        if processed is not None and spout.parts.messages.is_acked:
            failed = processed.failed
            self._planning.submit(self._notify, attempt, lambda: spout.parts.messages.acknowledge(batch, failed))

    def maintain(self, attempt: TransactionAttempt) -> None:
        """Maintain the tables, now that this attempt's transaction is committed; returns immediately."""
        self._commits.submit(self._maintain, attempt, lambda: self._maintenance.run(attempt.txid))

    def hold(self, targets: Targets) -> None:
        """Have the states keep the versions that savepoints refer to, from the next maintenance on."""
        self._maintenance.retain(targets)

    def hurry(self) -> None:
        """The run is ending: start no more table maintenance. A commit phase that would have to wait for maintenance in
        progress is aborted: it answers `AttemptFailed`."""
        self.hurry_maintenance()
        delayed = self._maintenance.delayed_attempt()
        if delayed is not None and self._running[delayed].cancel():
            self.post(AttemptFailed(delayed, "the run is ending while a table is under maintenance", is_outage=True))

    def hurry_maintenance(self) -> None:
        """Begin no more table maintenance, and wait for none that is done beside the commit thread."""
        self._maintenance.hurry()

    def abort(self, attempt: TransactionAttempt, reason: str) -> None:
        """Cancel an attempt; answers `AttemptFailed` once nothing of it is running any more."""
        running = self._running.pop(attempt, None)
        self._processed.pop(attempt, None)
        if running is None:
            self.post(AttemptFailed(attempt, reason))
            return
        self._aborting[attempt] = running
        if not running.cancel():
            self.executor.cancel(attempt)
        running.add_done_callback(lambda _: self.post(AttemptFailed(attempt, reason)))

    def forget(self, attempt: TransactionAttempt) -> None:
        """Drop the results and the progress of an attempt that has ended."""
        self._running.pop(attempt, None)
        self._aborting.pop(attempt, None)
        self._processed.pop(attempt, None)
        self._progress.pop(attempt, None)

    def report_progress(self) -> None:
        """Answer `ProgressMade` for attempts that made progress, and `CommitDelayed` for one whose commit phase can't
        start yet. Aborted attempts that are still running are cancelled again."""
        if (delayed := self._maintenance.delayed_attempt()) is not None:
            self.post(CommitDelayed(delayed))
        for attempt, running in list(self._aborting.items()):
            if not running.done():
                self.executor.cancel(attempt)
        for attempt, running in list(self._running.items()):
            progress = 0 if running.done() else self.executor.count_progress(attempt)
            if progress > self._progress.get(attempt, 0):
                self._progress[attempt] = progress
                self.post(ProgressMade(attempt))

    def close(self, *, wait_s: float | None = None, maintenance_s: float | None = None) -> None:
        """Cancel everything, and wait for the threads until they have ended or `wait_s` is over.

        Without `wait_s` the run has nothing else to do, and table maintenance is finished, within `maintenance_s`. Work
        that is still running afterwards can't be cancelled; it ends with the process, which does not wait for it.
        """
        if wait_s is None:
            self._commits.submit(self._maintain, "the last transaction", self._maintenance.finish)
        else:
            self.hurry()
        for attempt, running in {**self._running, **self._aborting}.items():
            if not running.done() and not running.cancel():
                self.executor.cancel(attempt)
        deadline_s = None if wait_s is None else time.monotonic() + wait_s
        for pool in (self._planning, self._processing, self._commits):
            remaining_s = None if deadline_s is None else deadline_s - time.monotonic()
            if pool is self._commits and deadline_s is None:
                remaining_s = maintenance_s
            pool.shutdown(wait_s=remaining_s, cancel=wait_s is not None)

    # --- run by the threads of the pools ------------------------------------------------------------------------------

    def _submit(self, pool: DaemonPool, attempt: TransactionAttempt, work: Callable[[], Event]) -> None:
        self._running[attempt] = pool.submit(self._answer, attempt, work)

    def _answer(self, attempt: TransactionAttempt, work: Callable[[], Event]) -> None:
        try:
            self.post(work())
        except _SpoutMisconfigured as misconfigured:
            self.post(Fatal(misconfigured.error))
        except FatalError as error:
            self.post(Fatal(error))
        except TransactionalError as error:
            reason = f"{error.code} {text_with_caller(error)}"
            self.post(AttemptFailed(attempt, reason, error.at_fault, error.is_outage, error.tries_max))
        except BaseException as error:
            # Nobody ends these threads with an exception: any exception comes from what they have called.
            self.post(AttemptFailed(attempt, f"{describe_error(error)}\n{traceback_text(error)}"))

    def _notify(self, attempt: TransactionAttempt, notify: Callable[[], None]) -> None:
        try:
            with self._spout_lock:
                notify()
        except BaseException:
            _log.exception("spout %r could not be notified of the commit of %s", self.topology.spout_id, attempt)

    def _maintain(self, after: object, maintain: Callable[[], None]) -> None:
        try:
            maintain()
        except FatalError as error:
            self.post(Fatal(error))
        except BaseException:
            _log.exception("the tables could not be maintained after %s; it will be retried", after)

    def _plan(
        self,
        attempt: TransactionAttempt,
        after: BatchMetadata,
        limit: BatchLimit | None,
        *,
        replay: bool,
        is_next: bool = False,
    ) -> Event:
        spout = self.topology.spout
        try:
            with self._spout_lock:
                if limit is not None:
                    spout.parts.planning.limit_batches(limit)
                batch = spout.plan(after, replay=replay)
                has_ended = batch is not None or spout.parts.planning.has_ended
                listing = spout.parts.backlog.list_partitions(after) if self.topology.event_times else {}
        except ConfigError as error:
            raise _SpoutMisconfigured(error) from error
        now_ms = self.clock.wall_ms()
        times = self.topology.event_times_of(listing)
        listed = record_listed(after, listing, times, now_ms)
        if self.topology.closes_by_event_time:
            self._wait_log.update(listed, times, now_ms)
        facts = self._facts(after, now_ms, listed)
        due_messages = select_due(after.pending, facts.time_ms)
        is_needed = bool(replay or due_messages)
        if batch is None and is_next and not is_needed:
            closing = self._closing.facts_without_records(after, facts, listed.values(), has_ended=has_ended)
            if closing is not None and closing.watermark_us != facts.watermark_us:
                # On request windows close although a partition has no record yet.
                listed = {partition: each._replace(is_awaited=False) for partition, each in listed.items()}
            is_needed, facts = closing is not None, closing or facts
        if batch is None and is_needed:
            ranges = {p: OffsetRange(offset, offset) for p, offset in after.positions().items()}
            batch = BatchMetadata(ranges, metadata=after.metadata)
        has_rows = batch is not None and not (batch.is_empty and not batch.letters)
        facts = self._closing.windows.with_last_rows(facts, after, has_rows=has_rows)
        versions = {} if batch is None else {each.table: each.newest() for each in self.topology.static_tables}
        batch = batch and replace(batch, facts=facts, again=(*batch.again, *due_messages), static_versions=versions)
        batch = batch and replace(batch, listed=listed)
        return BatchPlanned(attempt, batch, limit, has_ended)

    def _facts(self, after: BatchMetadata, now_ms: int, listed: Mapping[PartitionId, Listed]) -> BatchFacts:
        """Return the facts that are decided about a batch when it is planned: its time, watermark and windows."""
        rules = self.topology.event_times_of(after.event_times)
        seen = [(rule, after.event_times[partition]) for partition, rule in rules.items()]
        facts = compute_facts(after.facts, now_ms, seen, listed.values())
        return with_outer_watermarks(facts, after.facts, self._windows_behind)

    def _process(self, attempt: TransactionAttempt, batch: BatchMetadata) -> Event:
        try:
            processed = self.executor.run(attempt, batch)
            with self._spout_lock:
                self.topology.spout.parts.replays.check_read(batch)
        except TransactionalError:
            if self.topology.spout.replays_exactly:
                with self._spout_lock:
                    self.topology.spout.parts.replays.check_replay(batch)
            raise
        self._processed[attempt], pending, lost_count = self._settle_messages(attempt, batch, processed)
        sink_bytes = sum(map(len, self._records_for_sinks(processed)))
        return ProcessingSucceeded(attempt, processed.digests, pending, lost_count, sink_bytes)

    def _records_for_sinks(self, processed: Processed) -> Iterator[bytes]:
        """The bolts with the records of sinks, as far as they are in memory."""
        for sink in self.topology.sinks:
            bolts = processed.parts.get(sink, ())
            if not isinstance(bolts, Partials):
                yield from (bolt for bolt in bolts if isinstance(bolt, bytes))

    def _settle_messages(
        self, attempt: TransactionAttempt, batch: BatchMetadata, processed: Processed
    ) -> tuple[Processed, tuple[PendingMessage, ...], int]:
        """Decide about failed messages: they are processed again later, set aside as dead letters, or left to the
        spout.

        Returns the result with the new dead letters, the messages to process again, and the number of lost ones.
        """
        lost_count, reason = processed.dropped, processed.reason
        pending, exhausted = tuple[PendingMessage, ...](), tuple[PendingMessage, ...]()
        if not self.topology.spout.parts.messages.is_acked:
            if len(processed.failed) + len(batch.pending) > PENDING_MAX:
                raise BoltFailed(
                    f"{len(processed.failed)} messages of one batch failed and {len(batch.pending)} wait, more than "
                    f"the {PENDING_MAX} that are recorded: the whole batch is processed again, without counting their "
                    f"retries; the first error: {processed.failed[0].error}"
                )
            pending, exhausted = sort_failures(batch, processed.failed, self.clock.wall_ms(), self.config)
        if exhausted and self.topology.dead_letters is not None:
            letters = letters_of_messages(self.topology, exhausted)
            return replace(processed, letters=[*processed.letters, *letters]), pending, lost_count
        if lost_count := lost_count + len(exhausted):
            reason = reason or exhausted[0].error
            _log.warning(
                "transaction %s: %d messages or tuples are lost; the first error: %s", attempt, lost_count, reason
            )
        return processed, pending, lost_count

    def _commit(self, attempt: TransactionAttempt) -> Event:
        self._maintenance.record_commit_start()
        report = self._commit_phase.run(attempt, self._processed[attempt])
        outbox = self._payload_files.store_large(attempt, report.outbox)
        report = replace(report, outbox=outbox, upkeep=self._maintenance.lasting_failures())
        sink_bytes = sum(records.size_bytes for records in outbox.values())
        return CommitSucceeded(attempt, str(report), report, sink_bytes)
