"""`PartitionedSpout`: the driver's side of a spout over partitions with offsets. A source adds what its logs hold.

Storm's `IPartitionedTransactionalSpout` and `IOpaquePartitionedTransactionalSpout` (rows T10, T11) in one: the two
kinds plan alike, and differ in what happens when the source has lost something.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping

from spouts.planning import Gap, Limits, Logs, check_ranges, lag, plan_batch
from transactional.batch import BatchLimit, BatchMetadata, Offset, PartitionId
from transactional.ports import PartitionReader
from transactional.schema import Schema

_log = logging.getLogger(__name__)


class PartitionedSpout(ABC):
    """Base of the spouts here, and of your own: say what the logs hold, and what reads a range of them.

    `limits` bounds a batch, and so does, with `target_latency_ms`, what `limit_batches` was told last. The driver plans
    in one thread, and may check replays, ask for the lag and tell of commits in others meanwhile.
    """

    def __init__(self, output: Schema, limits: Limits) -> None:
        self._output = output
        self.limits = limits
        self._limit: BatchLimit | None = None
        self._gaps: dict[tuple[PartitionId, Offset], Gap] = {}
        self._seen: Logs | None = None

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

        `after` is the batch whose positions are going to be compared with the answer.
        """

    @abstractmethod
    def reader(self) -> PartitionReader:
        """What reads the ranges on the executors. May be asked for before `open`."""

    @abstractmethod
    def identity(self) -> Mapping[str, str]:
        """What must stay the same over restarts, for the topology's fingerprint. Asked for after `open`."""

    def open(self) -> None:  # noqa: B027 - optional
        """Connect and check. Raises `ConfigError`, or `SourceUnavailable` within a bounded time."""

    @property
    def batch_records_max(self) -> int | None:
        """The most offsets that a batch takes by `limits`; None: no limit."""
        return self.limits.batch_records_max

    def limit_batches(self, limit: BatchLimit) -> None:
        """Take no more than this from now on, nor more than `limits` allows."""
        self._limit = limit

    def plan(self, after: BatchMetadata, *, replay: bool) -> BatchMetadata | None:
        """The batch that starts where `after` ends, or None when there is nothing new (see `planning.plan_batch`)."""
        logs = self._seen = self.logs(after)
        plan = plan_batch(
            after, logs, self.limits, replays_exactly=self.replays_exactly, replay=replay, limit=self._limit
        )
        if plan is None:
            return None
        for gap in plan.gaps:
            self._note(gap)
        return plan.batch

    def check_replay(self, batch: BatchMetadata) -> None:
        """Raise `BatchLost` when a recorded batch of a transactional spout is no longer there to be read."""
        if self.replays_exactly:
            check_ranges(batch, self.logs(batch))

    def check_read(self, batch: BatchMetadata) -> None:  # noqa: B027 - optional
        """Asked after a batch was read. Raises nothing here."""

    def committed(self, batch: BatchMetadata) -> None:  # noqa: B027 - optional
        """Told after each transaction commit. Does nothing here."""

    def lag(self, after: BatchMetadata) -> int | None:
        """Number of offsets behind the given batch that were there when the last one was planned; None: not known.

        The source is not asked again, so this takes no time, whatever state the source is in.
        """
        return None if self._seen is None else lag(after, self._seen)

    def close(self) -> None:  # noqa: B027 - optional
        """Release what `open` has taken."""

    @property
    def lost_offsets(self) -> int:
        """How many offsets were skipped since the start because the source had lost them; more than 0 only if opaque.

        A gap is counted when a batch with it is planned, and once, however often that batch is replayed.
        """
        return sum(len(gap.lost) for gap in self._gaps.values())

    def _note(self, gap: Gap) -> None:
        key = (gap.partition, gap.lost.start)
        if self._gaps.get(key) != gap:
            self._gaps[key] = gap
            _log.warning("%s; %d offsets were never read and are skipped", gap, len(gap.lost))
