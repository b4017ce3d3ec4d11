"""`PartitionedSpout`: the driver's side of a spout over partitions with offsets. Subclasses provide the logs.

Storm's `IPartitionedTransactionalSpout` and `IOpaquePartitionedTransactionalSpout` in one: both kinds plan in the
same way, and differ in what happens when the source has lost something.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Mapping
from typing import Self

from spouts.planning import Gap, Limits, Logs, check_ranges, early_ends, lag, lags, listed, plan_batch
from transactional.core.ports import PartitionReader, Spout
from transactional.model.batch import BatchLimit, BatchMetadata, Offset, PartitionId
from transactional.model.facts import Listing
from transactional.model.schema import Schema

_log = logging.getLogger(__name__)


class PartitionedSpout(Spout):
    """Base of the built-in spouts, and of your own: report what the logs hold, and provide a reader for their ranges.

    `limits` bounds a batch, and so does, with `target_latency_ms`, the last call of `limit_batches`. The driver plans
    in one thread, and may meanwhile check replays, read the lag and report commits in others.
    """

    def __init__(self, output: Schema, limits: Limits) -> None:
        self._output = output
        self.limits = limits
        self._limit: BatchLimit | None = None
        self._gaps: dict[tuple[PartitionId, Offset], Gap] = {}
        self._seen: Logs | None = None
        self._planned: Logs | None = None
        self._early_ends: dict[PartitionId, Offset] = {}
        """The earliest end of each log that has ended before its position, and has not come back since."""

    @property
    def output(self) -> Schema:
        """The fields of the tuples."""
        return self._output

    @property
    @abstractmethod
    def replays_exactly(self) -> bool:
        """True for a transactional spout, False for an opaque one."""

    @abstractmethod
    def logs(self, after: BatchMetadata) -> Logs:
        """What the partitions hold now. Takes a bounded time, else raises `SourceUnavailable`.

        `after` is the batch whose positions will be compared with the result.
        """

    @abstractmethod
    def reader(self) -> PartitionReader:
        """The reader of the ranges, for the executors. May be called before `open`."""

    @abstractmethod
    def identity(self) -> Mapping[str, str]:
        """What must stay the same across restarts, for the topology's fingerprint. Called after `open`."""

    def apart(self) -> Self:
        """A copy that counts its own gaps."""
        apart = super().apart()
        apart._gaps, apart._early_ends = {}, {}
        return apart

    @property
    def can_limit_batches(self) -> bool:
        """True: a batch ends where it is planned to."""
        return True

    @property
    def batch_records_max(self) -> int | None:
        """The maximum number of offsets per batch by `limits`; None: no limit."""
        return self.limits.batch_records_max

    def limit_batches(self, limit: BatchLimit) -> None:
        """Take no more than this from now on, nor more than `limits` allows."""
        self._limit = limit

    def plan(self, after: BatchMetadata, *, replay: bool) -> BatchMetadata | None:
        """The batch that starts where `after` ends, or None if there is nothing new (see `planning.plan_batch`)."""
        logs = self._seen = self._planned = self.logs(after)
        self._warn_of_early_ends(after, logs)
        plan = plan_batch(
            after, logs, self.limits, replays_exactly=self.replays_exactly, replay=replay, limit=self._limit
        )
        if plan is None:
            return None
        for gap in plan.gaps:
            self._note(gap)
        return plan.batch

    def check_replay(self, batch: BatchMetadata) -> None:
        """Raise `BatchLost` if a recorded batch of a transactional spout can no longer be read."""
        if self.replays_exactly:
            check_ranges(batch, self.logs(batch))

    def lag(self, after: BatchMetadata) -> int | None:
        """Number of offsets behind the given batch, as of the last planning; None: unknown.

        The source is not queried again, so this is fast, whatever state the source is in.
        """
        return None if self._seen is None else lag(after, self._seen)

    def lags(self, after: BatchMetadata) -> dict[PartitionId, int] | None:
        """The same by partition."""
        return None if self._seen is None else lags(after, self._seen)

    def listed(self, after: BatchMetadata) -> dict[PartitionId, Listing]:
        """All partitions, as they were planned with; where nothing was planned, as they are now."""
        logs, self._planned = self._planned, None
        return listed(after, self.logs(after) if logs is None else logs)

    @property
    def lost_offsets(self) -> int:
        """How many offsets were skipped since the start because the source had lost them; above 0 only if opaque.

        A gap is counted when a batch with it is planned, and only once, however often that batch is replayed.
        """
        return sum(len(gap.lost) for gap in self._gaps.values())

    def _warn_of_early_ends(self, after: BatchMetadata, logs: Logs) -> None:
        """Warn of a log that has ended before its position and has grown past it since.

        Its leader may have been behind, or the log was cut off: the offsets look alike.
        """
        early = early_ends(after, logs)
        read = [partition for partition in after.ranges if partition in self._early_ends]
        for partition in [each for each in read if each not in early and logs.get(each) is not None]:
            end, position = self._early_ends.pop(partition), after.ranges[partition].until
            text = (
                "%s ended at offset %d, before the position %d, and has %s now. If a new leader was only behind, "
                "nothing is lost; if the log was cut off, its new records below the position are never read. "
                "Compare it with the source"
            )
            _log.warning(text, partition, end, position, logs[partition])
        for partition, end in early.items():
            self._early_ends[partition] = min(end, self._early_ends.get(partition, end))

    def _note(self, gap: Gap) -> None:
        key = (gap.partition, gap.lost.start)
        if self._gaps.get(key) != gap:
            self._gaps[key] = gap
            _log.warning("%s; %d offsets were never read and are skipped", gap, len(gap.lost))
