"""The coordinator: a pure machine that turns events into actions. No I/O, no clock, no thread, no randomness.

Everything else is a shell around `Coordinator.handle`. Its rules (seed 004; Storm's rows where Storm violated them):

 1. Transaction n+1 is planned only once n's batch is known (T49).
 2. A failure aborts every later transaction in flight; they are reissued as new attempts.
 3. An event is compared with the current attempt of its txid first; one of another attempt changes nothing (T48).
 4. A txid is issued again only once nothing of its old attempt is running.
 5. `RecordAttempt` precedes `StartProcessing`, so the batch is durable before any work on it starts.
 6. A transactional spout's batch is replayed as recorded, without the source; an opaque spout plans again.
 7. Attempt ids come from one counter and only increase, across txids, attempts and restarts (T47).
 8. "Nothing there" is an answer for a new txid only: a replay commits a batch, possibly an empty one, since an
    earlier attempt may have written rows to a table.
 9. Replanning an opaque n deletes the recorded batches of all later txids, in the same write.
10. `RecordCommit(n)` precedes `StartCommit(n+1)`: the driver performs actions in order and stops when one fails.
11. What was read is recorded before the commit phase begins if a replay is compared with it (a transactional spout's
    `RecordProcessed`), otherwise with the transaction commit.
12. With windows, only a transaction that nothing in flight precedes may close them without a record, or end a drained
    run: what is in flight may move the watermark.
13. Without exactly once rule 2 does not hold: nothing is ordered, and a batch that fails comes again as recorded,
    so nothing later depends on its attempt. Its new id may overtake theirs: they get a new one, so that ids increase in
    the order in which they are recorded, and from one commit to the next.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from transactional.core.machine.backlog import SinkBacklog
from transactional.core.machine.carrying import add_committed_facts, batch_to_replay, carry_forward
from transactional.core.machine.failures import Failures
from transactional.core.machine.protocol import (
    LATE,
    TRANSITIONS,
    AbortAttempt,
    Action,
    AttemptEvent,
    AttemptFailed,
    BatchPlanned,
    CommitDelayed,
    CommitSucceeded,
    DrainRequested,
    Event,
    Halt,
    PauseRequested,
    PlanBatch,
    ProcessingSucceeded,
    ProgressMade,
    RecordAttempt,
    RecordCommit,
    RecordFailure,
    RecordProcessed,
    ResumeRequested,
    SinksBehind,
    SinksSettled,
    StartCommit,
    StartProcessing,
    StopRequested,
    Tick,
    Trigger,
)
from transactional.core.store.progress import Phase, Progress
from transactional.model.attempt import NO_TRANSACTION, AttemptId, TransactionAttempt, TxId
from transactional.model.batch import BatchMetadata, OffsetRange, PartitionId
from transactional.model.config import TopologyConfig
from transactional.model.errors import CommitStuck, ProtocolError, RetriesExhausted
from transactional.model.guarantees import Guarantee
from transactional.model.letters import Exclusion, merge_exclusions

_UNSTOPPABLE = {Phase.COMMITTING: "the commit phase of", Phase.ABORTING: "the rest of the given-up attempt"}
"""Phases that can't be aborted (any more): after a timeout only ending the process stops them."""


@dataclass(slots=True)
class ActiveAttempt:
    """An attempt in flight. `since_ms` is when it entered its phase, or last made progress; `is_next` whether its batch
    was planned when every earlier transaction was committed. `sink_bytes` is the size of its records for sinks."""

    attempt: TransactionAttempt
    phase: Phase
    since_ms: int
    is_next: bool = False
    sink_bytes: int = 0


class Coordinator:
    """Issues transactions and orders their phases. `handle` is the only entry point.

    `replays_exactly` is True for a transactional spout, False for an opaque one. With `sets_aside`, tuples on which a
    transaction has failed as often as is allowed are skipped from then on, instead of halting. Nothing is issued before
    the first `Tick`, from which all time counts. Without exactly once a batch is never planned a second time: it comes
    again as it was recorded, or, at most once, without anything to read. With `leaves_pending` the messages that have
    failed in earlier runs wait for a later one. `has_windows`: the topology has windows that close as time passes.
    """

    def __init__(
        self,
        progress: Progress,
        config: TopologyConfig,
        *,
        replays_exactly: bool,
        sets_aside: bool = False,
        guarantee: Guarantee = Guarantee.EXACTLY_ONCE,
        leaves_pending: bool = False,
        has_windows: bool = False,
    ) -> None:
        self._failures = Failures(config)
        self.guarantee = guarantee
        self.replays_exactly = replays_exactly
        self.sets_aside = sets_aside
        self.has_windows = has_windows
        self.committed_txid = progress.committed_txid
        self.active: dict[TxId, ActiveAttempt] = {}
        self.recorded: dict[TxId, BatchMetadata] = dict(progress.recorded)
        self.backlog = SinkBacklog()
        self.paused = self.stopping = self.halted = False
        # Nothing new is issued: the source is exhausted (after a failure it is polled again), or by an operator's
        # request.
        self.draining = self.finishing = False
        self._committed_batch = progress.committed_batch
        self._ignored_messages = frozenset(
            message.key for message in progress.committed_batch.pending if leaves_pending
        )
        self._attempt_id = progress.attempt_id
        self.committed_by = AttemptId(0)
        self._now_ms = 0
        self._has_begun = False

    @property
    def config(self) -> TopologyConfig:
        """The options of the topology, some of which change while it runs."""
        return self._failures.config

    @config.setter
    def config(self, config: TopologyConfig) -> None:
        self._failures.config = config

    @property
    def waits_for_sinks(self) -> bool:
        """True if a transaction could be committed, but for what waits in the outbox."""
        head = self.active.get(TxId(self.committed_txid + 1))
        return head is not None and head.phase is Phase.PROCESSED and self.backlog.is_full(self.config)

    @property
    def is_done(self) -> bool:
        """True when nothing is in flight and nothing more will be issued."""
        is_last = self.stopping or self.draining or (self.finishing and not self.recorded)
        return self.halted or (is_last and not self.active)

    def handle(self, event: Event) -> list[Action]:
        """Process one event; return the actions to perform, in order.

        Raises `ProtocolError` for an event that can't come now, and then changes nothing.
        """
        if self.halted:
            return []
        match event:
            case Tick(now_ms):
                actions = self._on_tick(now_ms)
            case StopRequested():
                actions = self._on_stop()
            case SinksBehind(txid, transactions, size_bytes):
                self.backlog.add(txid, size_bytes, transactions)
                actions = []
            case SinksSettled(txid):
                self.backlog.settle(txid)
                actions = []
            case PauseRequested() | ResumeRequested() | DrainRequested():
                self.paused = isinstance(event, PauseRequested)
                self.finishing = isinstance(event, DrainRequested)
                actions = []
            case _:
                actions = self._on_attempt_event(event)
        return actions + list(self._advance())

    # --- events -------------------------------------------------------------------------------------------------

    def _on_attempt_event(self, event: AttemptEvent) -> list[Action]:
        current = self.active.get(event.attempt.txid)
        if current is None or current.attempt != event.attempt:
            return []
        match event:
            case ProgressMade() | CommitDelayed():
                if current.phase is (Phase.PROCESSING if isinstance(event, ProgressMade) else Phase.COMMITTING):
                    current.since_ms = self._now_ms
                return []
            case BatchPlanned(_, batch, _, has_ended):
                if batch is None:
                    return self._on_nothing_there(current, has_ended=has_ended)
                return self._on_planned(current, batch) if self._move(current, Trigger.BATCH_PLANNED) else []
            case ProcessingSucceeded():
                return self._on_processed(current, event) if self._move(current, Trigger.PROCESSING_SUCCEEDED) else []
            case CommitSucceeded():
                return self._on_committed(current, event) if self._move(current, Trigger.COMMIT_SUCCEEDED) else []
            case AttemptFailed():
                phase = current.phase
                return self._on_failed(phase, event) if self._move(current, Trigger.ATTEMPT_FAILED) else []

    def _on_nothing_there(self, current: ActiveAttempt, *, has_ended: bool) -> list[Action]:
        if current.phase is Phase.PLANNING and current.attempt.txid in self.recorded:
            raise ProtocolError(f"the spout had nothing for {current.attempt}, which is a replay and must have a batch")
        if self._move(current, Trigger.NOTHING_THERE):
            if self.has_windows:
                is_settled = current.is_next
            else:
                # Messages that fail in a transaction in flight may come again.
                is_settled = self.guarantee is Guarantee.EXACTLY_ONCE or current.attempt.txid == self.committed_txid + 1
            is_any_waiting = any(message.key not in self._ignored_messages for message in self._committed_batch.pending)
            is_last = self.config.stop_when_drained and has_ended and is_settled and not is_any_waiting
            self.draining = self.draining or is_last
        return []

    def _on_planned(self, current: ActiveAttempt, batch: BatchMetadata) -> list[Action]:
        txid = current.attempt.txid
        if txid in self.recorded:
            previous = self.recorded[txid]
            versions = {**batch.static_versions, **previous.static_versions}
            batch = replace(batch, excluded=previous.excluded, letters=previous.letters, static_versions=versions)
        forget_later = any(later > txid for later in self.recorded)
        self.recorded = {earlier: b for earlier, b in self.recorded.items() if earlier < txid} | {txid: batch}
        work_of = self._renew(current) if current.attempt.attempt_id < self._attempt_id else None
        return [RecordAttempt(current.attempt, batch, forget_later, work_of), StartProcessing(current.attempt, batch)]

    def _on_processed(self, current: ActiveAttempt, event: ProcessingSucceeded) -> list[Action]:
        txid = current.attempt.txid
        batch = self.recorded[txid]
        if event.digests:
            batch = batch.with_digests(event.digests)
        if event.pending or event.lost:
            batch = replace(batch, pending=event.pending, lost=batch.lost + event.lost)
        self.recorded[txid] = batch
        current.sink_bytes = event.sink_bytes
        is_compared = self.replays_exactly and self.guarantee is Guarantee.EXACTLY_ONCE
        return [RecordProcessed(current.attempt, batch)] if is_compared else []

    def _on_committed(self, current: ActiveAttempt, event: CommitSucceeded) -> list[Action]:
        txid = current.attempt.txid
        self.committed_txid, self.committed_by = txid, current.attempt.attempt_id
        self._committed_batch = carry_forward(self._committed_batch, self.recorded.pop(txid))
        self._failures.forget(txid)
        self.backlog.add(txid, event.sink_bytes)
        return [RecordCommit(current.attempt, self._committed_batch, event.report)]

    def _on_failed(self, phase: Phase, event: AttemptFailed) -> list[Action]:
        if phase is Phase.ABORTING:
            return []
        txid = event.attempt.txid
        at_fault = () if event.is_outage else event.at_fault
        self._failures.count(txid, self._now_ms, is_outage=event.is_outage, tries_max=event.tries_max)
        failure, halt = self._failed(event.attempt, phase, event.reason, at_fault, is_outage=event.is_outage)
        return [failure, *self._give_up_dependent(txid, f"transaction {txid} failed"), *halt]

    def _on_tick(self, now_ms: int) -> list[Action]:
        self._now_ms, self._has_begun = max(self._now_ms, now_ms), True
        actions: list[Action] = []
        for txid in sorted(self.active):
            if not self.halted:
                actions += self._expire(txid)
        return actions

    def _expire(self, txid: TxId) -> list[Action]:
        current = self.active.get(txid)
        if current is None:
            return []
        age_ms = self._now_ms - current.since_ms
        if current.phase in _UNSTOPPABLE and age_ms > self.config.commit_timeout_ms:
            return self._halt(
                CommitStuck.code,
                f"{_UNSTOPPABLE[current.phase]} {current.attempt} has run for {age_ms} ms, over commit_timeout_ms "
                f"({self.config.commit_timeout_ms}); start again: the transaction is replayed",
            )
        if current.phase in (Phase.PLANNING, Phase.PROCESSING) and age_ms > self.config.attempt_timeout_ms:
            reason = f"no progress for {age_ms} ms, over attempt_timeout_ms ({self.config.attempt_timeout_ms})"
            # A spout that does not respond at all is an outage as well; no bolt is running yet.
            is_outage = current.phase is Phase.PLANNING
            self._failures.count(txid, self._now_ms, is_outage=is_outage)
            failure, halt = self._failed(current.attempt, current.phase, reason, is_outage=is_outage)
            given_up = self._give_up(txid, reason) + self._give_up_dependent(txid, f"transaction {txid} timed out")
            return [failure, *given_up, *halt]
        return []

    def _on_stop(self) -> list[Action]:
        self.stopping = True
        return self._give_up_after(NO_TRANSACTION, "the topology is being stopped")

    # --- moves --------------------------------------------------------------------------------------------------

    def _move(self, current: ActiveAttempt, trigger: Trigger) -> bool:
        """Make the transition in the table. False if the trigger comes late and changes nothing."""
        if (current.phase, trigger) in LATE:
            return False
        next_phase = TRANSITIONS.get((current.phase, trigger))
        if next_phase is None:
            raise ProtocolError(f"{trigger.value!r} arrived for {current.attempt} in phase {current.phase.name}")
        current.phase, current.since_ms = next_phase, self._now_ms
        if next_phase is Phase.GONE:
            del self.active[current.attempt.txid]
        return True

    def _give_up(self, txid: TxId, reason: str) -> list[Action]:
        current = self.active[txid]
        if current.phase in (Phase.ABORTING, Phase.COMMITTING):
            return []
        waiting = current.phase is Phase.WAITING
        self._move(current, Trigger.GIVEN_UP)
        return [] if waiting else [AbortAttempt(current.attempt, reason)]

    def _give_up_dependent(self, txid: TxId, reason: str) -> list[Action]:
        return self._give_up_after(txid, reason) if self.guarantee is Guarantee.EXACTLY_ONCE else []

    def _give_up_after(self, txid: TxId, reason: str) -> list[Action]:
        later_txids = sorted(later for later in self.active if later > txid)
        return [action for later in later_txids for action in self._give_up(later, reason)]

    def _failed(
        self,
        attempt: TransactionAttempt,
        phase: Phase,
        reason: str,
        at_fault: tuple[Exclusion, ...] = (),
        *,
        is_outage: bool,
    ) -> tuple[RecordFailure, list[Action]]:
        """Return the record of a failure that was counted, and the halt that follows if it was one too many."""
        self.draining = False  # the replay may end elsewhere, and then there is more to read
        halt = self._check_exhausted(attempt.txid, reason, at_fault, is_outage=is_outage)
        # Only now: a batch that skips something from here on is a different one, and waits for nothing.
        return RecordFailure(attempt, phase, reason, self._failures.pause_ms(attempt.txid, self._now_ms)), halt

    def _check_exhausted(
        self, txid: TxId, reason: str, at_fault: tuple[Exclusion, ...], *, is_outage: bool
    ) -> list[Action]:
        if is_outage:
            text = self._failures.outage_text(txid, self._now_ms)
        else:
            text = self._continue_without_tuples(txid, at_fault)
        return [] if text is None else self._halt(RetriesExhausted.code, f"{text}; the last error: {reason}")

    def _continue_without_tuples(self, txid: TxId, at_fault: tuple[Exclusion, ...]) -> str | None:
        """Skip tuples that have failed too often. Return why the transaction is not retried, None if it is."""
        if (repeated_text := self._failures.repeated_failure_text(txid)) is not None:
            if at_fault:
                # The fact is recorded with the batch, so that every later attempt relies on it.
                reason = self._set_aside(txid, at_fault)
                return None if reason is None else self._failures.failure_count_text(txid) + reason
            return None if self._return_letters(txid) else repeated_text
        if self.config.attempts_max is None:
            return None
        if self.sets_aside and at_fault:
            reason = self._set_aside(txid, self._failures.exhausted_tuples(txid, at_fault))
        else:
            reason = "" if self._failures.is_exhausted(txid) else None
        return (
            None if reason is None or self._return_letters(txid) else self._failures.failure_count_text(txid) + reason
        )

    def _return_letters(self, txid: TxId) -> bool:
        """Return dead letters that fail again to their table, and make their transaction an empty one.

        They must not block all later transactions. False if the transaction has no dead letters.
        """
        batch = self.recorded.get(txid)
        if batch is None or not batch.letters:
            return False
        self.recorded[txid] = replace(batch, letters=(), again=())
        self._failures.restart_count(txid)
        return True

    def _set_aside(self, txid: TxId, exclusions: tuple[Exclusion, ...]) -> str | None:
        """Skip these tuples in the next attempts, or return why that is not possible.

        There may be too many of them. Or they are already skipped, so that another attempt would fail in the same way.
        """
        batch, excluded_max = self.recorded[txid], self.config.dead_letters_max
        excluded = merge_exclusions(batch.excluded, exclusions)
        if not exclusions:
            return None
        if len(excluded) == len(merge_exclusions(batch.excluded)):
            return f" on a tuple that it already skips ({exclusions[0].component!r})"
        if len(excluded) > excluded_max:
            return f" on {len(excluded)} tuples (dead_letters_max = {excluded_max})"
        self.recorded[txid] = replace(batch, excluded=excluded)
        self._failures.restart_count(txid)
        return None

    def _halt(self, code: str, reason: str) -> list[Action]:
        self.halted = True
        return [Halt(code, reason)]

    # --- new transactions, and the next commit ------------------------------------------------------------------

    def _advance(self) -> Iterator[Action]:
        if self.halted or not self._has_begun:
            return
        yield from self._commit_head()
        if not self.stopping:
            yield from self._issue()

    def _commit_head(self) -> Iterator[Action]:
        head = self.active.get(TxId(self.committed_txid + 1))
        if head is not None and head.phase is Phase.PROCESSED and not self.backlog.is_full(self.config):
            if head.attempt.attempt_id < self.committed_by:
                batch, work_of = self.recorded[head.attempt.txid], self._renew(head)
                yield RecordAttempt(head.attempt, batch, forget_later=False, work_of=work_of)
            self._move(head, Trigger.ITS_TURN)
            yield StartCommit(head.attempt, self.recorded[head.attempt.txid])

    def _issue(self) -> Iterator[Action]:
        previous_batch = self._committed_batch
        for number in range(self.committed_txid + 1, self.committed_txid + 1 + self.config.max_spout_pending):
            txid = TxId(number)
            current = self.active.get(txid)
            if self._has_too_much_for_sinks() and txid not in self.recorded:
                return
            if current is None:
                yield from self._issue_one(txid, previous_batch)
            elif current.phase is Phase.WAITING:
                yield from self._plan_again(current, previous_batch)
            if not self._can_be_followed(txid):
                return
            previous_batch = self.recorded[txid]

    def _has_too_much_for_sinks(self) -> bool:
        return sum(current.sink_bytes for current in self.active.values()) >= self.config.sink_bytes_max

    def _can_be_followed(self, txid: TxId) -> bool:
        if self.guarantee is not Guarantee.EXACTLY_ONCE:
            return txid in self.recorded
        current = self.active.get(txid)
        return current is not None and current.phase not in (Phase.PLANNING, Phase.WAITING, Phase.ABORTING)

    def _renew(self, current: ActiveAttempt) -> TransactionAttempt:
        """Give an attempt in flight a new id; return the attempt with its old one."""
        old_attempt, current.attempt = current.attempt, self._next_attempt(current.attempt.txid)
        return old_attempt

    def _next_attempt(self, txid: TxId) -> TransactionAttempt:
        self._attempt_id = AttemptId(self._attempt_id + 1)
        return TransactionAttempt(txid, self._attempt_id)

    def _issue_one(self, txid: TxId, previous_batch: BatchMetadata) -> Iterator[Action]:
        replay = txid in self.recorded
        if self._failures.is_pausing(txid, self._now_ms):
            return
        if not replay and self._issues_nothing_new():
            return
        attempt = self._next_attempt(txid)
        if replay and (self.replays_exactly or self.guarantee is not Guarantee.EXACTLY_ONCE):
            batch = self.recorded[txid] = batch_to_replay(self.recorded[txid], self.guarantee)
            self.active[txid] = ActiveAttempt(attempt, Phase.PROCESSING, self._now_ms)
            yield RecordAttempt(attempt, batch, forget_later=False)
            yield StartProcessing(attempt, batch)
        else:
            current = self.active[txid] = ActiveAttempt(attempt, Phase.PLANNING, self._now_ms)
            yield self._plan(current, self._with_starts(txid, previous_batch), replay=replay)

    def _plan(self, current: ActiveAttempt, previous_batch: BatchMetadata, *, replay: bool) -> PlanBatch:
        current.is_next = self._is_next(current)
        return PlanBatch(current.attempt, self._with_committed_facts(previous_batch), replay, current.is_next)

    def _is_next(self, current: ActiveAttempt) -> bool:
        return self.has_windows and current.attempt.txid == self.committed_txid + 1

    def _with_starts(self, txid: TxId, previous_batch: BatchMetadata) -> BatchMetadata:
        """Return `previous_batch` with the start positions of partitions that joined with this transaction or a later
        one.

        The start of a partition is decided once, in the batch that is recorded first. A spout that plans again might
        find another position ("the end"), or miss records that were lost after it. If metadata contain the position,
        the spout uses them.
        """
        joined: dict[PartitionId, OffsetRange] = {}
        for later in sorted(recorded for recorded in self.recorded if recorded >= txid):
            batch = self.recorded[later]
            for partition, offsets in batch.ranges.items():
                if partition not in previous_batch.ranges and partition not in batch.metadata:
                    joined.setdefault(partition, OffsetRange(offsets.start, offsets.start))
        return replace(previous_batch, ranges={**previous_batch.ranges, **joined}) if joined else previous_batch

    def _with_committed_facts(self, previous_batch: BatchMetadata) -> BatchMetadata:
        return add_committed_facts(
            previous_batch, self._committed_batch, self.recorded.values(), self._ignored_messages
        )

    def _issues_nothing_new(self) -> bool:
        return self.paused or self.draining or self.finishing

    def _plan_again(self, current: ActiveAttempt, previous_batch: BatchMetadata) -> Iterator[Action]:
        if self._issues_nothing_new():
            self._move(current, Trigger.GIVEN_UP)
        elif self._now_ms - current.since_ms >= self.config.idle_pause_ms or current.is_next < self._is_next(current):
            self._move(current, Trigger.PLAN_AGAIN)
            yield self._plan(current, previous_batch, replay=False)
