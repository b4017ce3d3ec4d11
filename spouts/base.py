"""`PartitionedSpout`: the driver's side of a spout over partitions whose records have offsets.

A subclass reports what the logs of its partitions hold, and provides a reader for ranges of them. This class plans the
batches, counts the offsets that the source has lost, and computes the lag from the logs of the last planning. It is
Storm's `IPartitionedTransactionalSpout` and `IOpaquePartitionedTransactionalSpout` in one: both kinds plan in the same
way, and differ in what happens when the source has lost offsets. It must read no records: that is the reader's task,
on the executors.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import Self

from spouts.planning import (
    Gap,
    Limits,
    Logs,
    check_ranges,
    compute_lag,
    compute_lag_by_partition,
    find_early_ends,
    list_partitions,
    plan_batch,
)
from transactional.core.ports import PartitionReader, Spout
from transactional.core.ports.spout_parts import Backlog, Planning, Replays, SpoutParts
from transactional.model.batch import BatchLimit, BatchMetadata, Offset, PartitionId
from transactional.model.facts import Listing
from transactional.model.schema import Schema

_log = logging.getLogger(__name__)


class PartitionedSpout(Spout, Planning, Backlog, Replays):
    """The base class of the built-in spouts, and of your own: report what the logs hold, and provide a reader.

    A batch stays within `limits` and, with `target_latency_ms`, within the limit of the last call of `limit_batches`.
    The driver plans in one thread. Meanwhile it may check replays, read the lag and report commits in other threads.
    """

    def __init__(self, output: Schema, limits: Limits) -> None:
        self._output = output
        self.limits = limits
        self._limit: BatchLimit | None = None
        self._gaps: dict[tuple[PartitionId, Offset], Gap] = {}
        self._latest_logs: Logs | None = None
        self._planned_logs: Logs | None = None
        self._early_ends: dict[PartitionId, Offset] = {}
        """The earliest end of each log that ends below its position, until it reaches the position again."""

    @property
    def output(self) -> Schema:
        """The fields of the tuples."""
        return self._output

    @property
    @abstractmethod
    def replays_exactly(self) -> bool:
        """True for a transactional spout, False for an opaque one."""

    @property
    def parts(self) -> SpoutParts:
        """The spout's own planning, backlog and checks."""
        return replace(super().parts, planning=self, backlog=self, replays=self)

    @abstractmethod
    def logs(self, previous_batch: BatchMetadata) -> Logs:
        """Return what the partitions hold now. Takes a bounded time, else raises `SourceUnavailable`.

        `previous_batch` is the batch whose positions will be compared with the logs.
        """

    @abstractmethod
    def reader(self) -> PartitionReader:
        """Return the reader of the ranges, for the executors. May be called before `open`."""

    @abstractmethod
    def identity(self) -> Mapping[str, str]:
        """Return what must stay the same across restarts, for the topology's fingerprint. Called after `open`."""

    def copy_unopened(self) -> Self:
        """Return a copy that counts its own gaps."""
        spout = super().copy_unopened()
        spout._gaps, spout._early_ends = {}, {}
        return spout

    @property
    def can_limit_batches(self) -> bool:
        """True: a batch ends where it is planned to."""
        return True

    @property
    def batch_records_max(self) -> int | None:
        """The maximum number of offsets per batch, out of `limits`; None: no limit."""
        return self.limits.batch_records_max

    def limit_batches(self, limit: BatchLimit) -> None:
        """Plan no batch above `limit` from now on, nor above `limits`."""
        self._limit = limit

    def plan(self, previous_batch: BatchMetadata, *, replay: bool) -> BatchMetadata | None:
        """Return the batch that starts where `previous_batch` ends, or None if nothing is new (see `plan_batch`)."""
        logs = self._latest_logs = self._planned_logs = self.logs(previous_batch)
        self._warn_of_early_ends(previous_batch, logs)
        plan = plan_batch(
            previous_batch, logs, self.limits, replays_exactly=self.replays_exactly, replay=replay, limit=self._limit
        )
        if plan is None:
            return None
        for gap in plan.gaps:
            self._record_gap(gap)
        return plan.batch

    def check_replay(self, batch: BatchMetadata) -> None:
        """Raise `BatchLost` if a recorded batch of a transactional spout can no longer be read."""
        if self.replays_exactly:
            check_ranges(batch, self.logs(batch))

    def lag(self, previous_batch: BatchMetadata) -> int | None:
        """Return the number of offsets behind the given batch, as of the last planning; None: unknown.

        The source is not queried again, so this is fast, whatever state the source is in.
        """
        return None if self._latest_logs is None else compute_lag(previous_batch, self._latest_logs)

    def lag_by_partition(self, previous_batch: BatchMetadata) -> dict[PartitionId, int] | None:
        """Return the offsets by partition that `lag` adds up; None: unknown."""
        return None if self._latest_logs is None else compute_lag_by_partition(previous_batch, self._latest_logs)

    def list_partitions(self, previous_batch: BatchMetadata) -> dict[PartitionId, Listing]:
        """Return all partitions as the last planning has seen them; without a planning since the last call, as they
        are now."""
        logs, self._planned_logs = self._planned_logs, None
        return list_partitions(previous_batch, self.logs(previous_batch) if logs is None else logs)

    @property
    def lost_offsets(self) -> int:
        """The number of offsets skipped since the start because the source had lost them; above 0 only if opaque.

        A gap is counted when a batch with it is planned, and only once, however often that batch is replayed.
        """
        return sum(len(gap.offsets) for gap in self._gaps.values())

    def _warn_of_early_ends(self, previous_batch: BatchMetadata, logs: Logs) -> None:
        """Warn of a log that ended below its position earlier and has grown past it since.

        The leader of the partition may have been behind, or the log was cut off: the offsets do not say which.
        """
        current_ends = find_early_ends(previous_batch, logs)
        warned = [partition for partition in previous_batch.ranges if partition in self._early_ends]
        for partition in [p for p in warned if p not in current_ends and logs.get(p) is not None]:
            end, position = self._early_ends.pop(partition), previous_batch.ranges[partition].until
            message = (
                "%s ended at offset %d, before the position %d, and has %s now. If a new leader was only behind, "
                "nothing is lost; if the log was cut off, its new records below the position are never read. "
                "Compare it with the source"
            )
            _log.warning(message, partition, end, position, logs[partition])
        for partition, end in current_ends.items():
            self._early_ends[partition] = min(end, self._early_ends.get(partition, end))

    def _record_gap(self, gap: Gap) -> None:
        key = (gap.partition, gap.offsets.start)
        if self._gaps.get(key) != gap:
            self._gaps[key] = gap
            _log.warning("%s; %d offsets were never read and are skipped", gap, len(gap.offsets))
