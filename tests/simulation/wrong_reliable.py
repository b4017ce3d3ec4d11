"""Wrong coordinators and executors of topologies without exactly once, each with one bug. See `mutants`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import ClassVar

from tests.simulation.process import WatchedCoordinator
from tests.simulation.reliable import Message, ReliableExecutor
from transactional.core.machine.coordinator import ActiveAttempt
from transactional.core.machine.protocol import Action, CommitSucceeded, ProcessingSucceeded
from transactional.core.ports import Processed
from transactional.model.attempt import TransactionAttempt, TxId
from transactional.model.batch import BatchMetadata, Offset, OffsetRange
from transactional.model.guarantees import Guarantee


class _Takes(WatchedCoordinator):
    """Replays what was interrupted as if another guarantee were given."""

    wrong: ClassVar = {guarantee: guarantee for guarantee in Guarantee}

    def _issue_one(self, txid: TxId, after: BatchMetadata) -> Iterator[Action]:
        with self._for_another():
            yield from super()._issue_one(txid, after)

    @contextmanager
    def _for_another(self) -> Iterator[None]:
        guarantee, self.guarantee = self.guarantee, self.wrong[self.guarantee]
        yield
        self.guarantee = guarantee


class RepeatsWhatMayHaveBeenGiven(_Takes):
    """At most once, a batch whose attempt has failed comes again as it was."""

    wrong: ClassVar = _Takes.wrong | {Guarantee.AT_MOST_ONCE: Guarantee.AT_LEAST_ONCE}


class EmptiesWhatHasFailed(_Takes):
    """At least once, a batch whose attempt has failed is given up."""

    wrong: ClassVar = _Takes.wrong | {Guarantee.AT_LEAST_ONCE: Guarantee.AT_MOST_ONCE}


class ForgetsWhichHaveFailed(WatchedCoordinator):
    """A batch in which messages have failed counts as done."""

    def _on_processed(self, current: ActiveAttempt, event: ProcessingSucceeded) -> list[Action]:
        return super()._on_processed(current, replace(event, pending=()))


class ForgetsThoseOfEarlierBatches(WatchedCoordinator):
    """A committed batch carries only what has failed in itself."""

    def _on_committed(self, current: ActiveAttempt, event: CommitSucceeded) -> list[Action]:
        self._committed_batch = replace(self._committed_batch, pending=())
        return super()._on_committed(current, event)


class TellsNoLosses(WatchedCoordinator):
    """What is lost is not told."""

    def _on_processed(self, current: ActiveAttempt, event: ProcessingSucceeded) -> list[Action]:
        return super()._on_processed(current, replace(event, lost=0))


class CountsNoEmptiedBatch(WatchedCoordinator):
    """A batch that is emptied counts as one that has had nothing."""

    def _on_committed(self, current: ActiveAttempt, event: CommitSucceeded) -> list[Action]:
        txid = current.attempt.txid
        batch = self.recorded[txid]
        self.recorded[txid] = replace(batch, lost=0) if batch.is_empty else batch
        return super()._on_committed(current, event)


RELIABLE_COORDINATORS: tuple[type[WatchedCoordinator], ...] = (
    RepeatsWhatMayHaveBeenGiven,
    EmptiesWhatHasFailed,
    ForgetsWhichHaveFailed,
    ForgetsThoseOfEarlierBatches,
    TellsNoLosses,
    CountsNoEmptiedBatch,
)


class SkipsWhatComesAgain(ReliableExecutor):
    """A batch is read by its ranges alone."""

    def _messages(self, batch: BatchMetadata) -> Iterator[Message]:
        return ReliableExecutor._messages(self, replace(batch, again=()))


class ReadsOneMore(ReliableExecutor):
    """A range is read with its end, which belongs to the next batch."""

    def _messages(self, batch: BatchMetadata) -> Iterator[Message]:
        logs = self.source.partitions
        ranges = {
            partition: OffsetRange(offsets.start, Offset(min(offsets.until + 1, logs[partition].end)))
            for partition, offsets in batch.non_empty()
        }
        return ReliableExecutor._messages(self, replace(batch, ranges=ranges))


class FinishesAJobThatWasRepeated(ReliableExecutor):
    """At most once, a job whose task has died is run again in the same attempt, as Spark would by itself."""

    def run(self, attempt: TransactionAttempt, batch: BatchMetadata) -> Processed:
        try:
            return ReliableExecutor.run(self, attempt, batch)
        except Exception:
            return ReliableExecutor.run(self, attempt, batch)


RELIABLE_EXECUTORS: tuple[type[ReliableExecutor], ...] = (
    SkipsWhatComesAgain,
    ReadsOneMore,
    FinishesAJobThatWasRepeated,
)
