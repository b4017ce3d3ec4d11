"""Plans the next batch of a partitioned spout from its positions and the logs of its partitions.

The position of a partition is the offset at which the previous batch ended. A source is described by one
`PartitionLog` per partition; `plan_batch` compares both and returns the offset ranges to read next, within limits on
records and bytes. A batch lists every partition that was ever read. A partition that has nothing new, has disappeared
or does not respond keeps its position as an empty range.

The functions are pure: they read neither clock nor source, so that a batch can be planned again in a test or a
simulation. They must never skip an offset of a transactional spout.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace

from transactional.model.batch import BatchLimit, BatchMetadata, Offset, OffsetRange, PartitionId
from transactional.model.errors import BatchLost, ConfigError, SourceUnavailable
from transactional.model.facts import Listing


@dataclass(frozen=True, slots=True)
class PartitionLog:
    """The offsets that one partition holds now: `earliest <= offset < end`.

    `start` is where to begin as long as no batch has a position for the partition; None: at the earliest offset. A
    partition with a `start` joins the next batch even if it has nothing to read, because that position (such as "the
    end, when the topology first ran") could not be determined again later. `record_bytes` is the approximate size of
    its records, if known from a source other than the last batch. `leader_epoch` counts the leaders that the partition
    has had, in a source that has leaders and reports them.
    """

    earliest: Offset
    end: Offset
    start: Offset | None = None
    record_bytes: float | None = None
    leader_epoch: int | None = None

    def __str__(self) -> str:
        return f"[{self.earliest}, {self.end})"


def cap_log_end(log: PartitionLog, end: Offset | None, position: Offset | None) -> PartitionLog:
    """Return the log with its end lowered to `end`, but not below the position or the first offset to read."""
    if end is None or log.end <= end:
        return log
    readable_end = max(log.earliest, log.start or Offset(0), position or Offset(0))
    return replace(log, end=max(end, min(readable_end, log.end)))


FIRST_RECORD_BYTES = 16 * 1024
"""The assumed size of a record before any was read. A guess that is too large costs a small batch; one that is too
small costs memory."""

Logs = Mapping[PartitionId, PartitionLog | None]
"""The logs of a source by partition. None: the partition exists, but does not respond. A partition that is not in the
mapping does not exist any more."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The maximum number of offsets in a batch, in total and per partition, and of bytes. None: no limit.

    The bytes of a batch are estimated from the size that the records of earlier batches had as Arrow columns. A
    partition that has data always contributes at least one record, however large. Raises `ConfigError` below 1.
    """

    batch_records_max: int | None = None
    partition_records_max: int | None = None
    batch_bytes_max: int | None = None

    def __post_init__(self) -> None:
        for name in (f.name for f in fields(self)):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < 1):
                raise ConfigError(f"{name} takes a whole number of at least 1, or None for no limit; got {value!r}")


@dataclass(frozen=True, slots=True)
class Gap:
    """Offsets that an opaque spout skips because the source had lost them before they were read."""

    partition: PartitionId
    offsets: OffsetRange

    def __str__(self) -> str:
        return f"{self.partition} has lost {self.offsets}"


@dataclass(frozen=True, slots=True)
class Plan:
    """The next batch, and the gaps before it. A gap also shows in the batch: its range starts above the position."""

    batch: BatchMetadata
    gaps: tuple[Gap, ...] = ()


def plan_batch(
    previous_batch: BatchMetadata,
    logs: Logs,
    limits: Limits,
    *,
    replays_exactly: bool,
    replay: bool = False,
    limit: BatchLimit | None = None,
) -> Plan | None:
    """Return the batch that starts where `previous_batch` ends. With `replay` there always is one, else None if there
    is nothing new.

    If a log has lost offsets that were not read yet, an opaque spout (`replays_exactly` False) continues with what is
    available and the gap is reported; a transactional one raises `BatchLost`. A position beyond the end of a log raises
    `SourceUnavailable` for both kinds: the end may only be late (a new leader that is catching up), and if records were
    truncated, new ones under the same offsets can't be distinguished from those already read. A source that knows that
    a partition was recreated gives it a new `PartitionId` instead: then it joins like any other.

    `limit`, which `target_latency_ms` sets, bounds the batch in addition to `limits`.
    """
    positions = _find_positions(previous_batch, logs)
    gaps = tuple(_find_gaps(positions, logs))
    if gaps and replays_exactly:
        raise _lost_offsets_error(gaps[0].partition, gaps[0].offsets, logs)
    starts = positions | {gap.partition: gap.offsets.until for gap in gaps}
    backlog = {partition: _count_backlog(partition, start, logs) for partition, start in starts.items()}
    fair_shares = _share_records(backlog, limits, limit, turn=sum(previous_batch.positions().values()))
    shares = _limit_bytes(fair_shares, _known_record_bytes(previous_batch, logs), limits, limit)
    ranges = {p: OffsetRange(start, Offset(start + shares[p])) for p, start in starts.items()}
    joining = (log for p, log in logs.items() if p not in previous_batch.ranges)
    has_joining_partition = any(log is not None and log.start is not None for log in joining)
    is_unchanged = not any(shares.values()) and not has_joining_partition
    return None if is_unchanged and not replay else Plan(BatchMetadata(ranges), gaps)


def share_records(backlog: Mapping[PartitionId, int], limits: Limits, *, turn: int = 0) -> dict[PartitionId, int]:
    """Return how many offsets each partition contributes to a batch, given the number that it has to read.

    The shares are fair: no partition gets less than another unless it has no more. A remainder goes to one partition
    after the other, starting from `turn`, so that none starves if there are more partitions than records.
    """
    partition_max = limits.partition_records_max
    demands = {
        partition: count if partition_max is None else min(count, partition_max) for partition, count in backlog.items()
    }
    remaining_count = limits.batch_records_max
    if remaining_count is None or sum(demands.values()) <= remaining_count:
        return demands
    shares: dict[PartitionId, int] = {}
    open_partitions = sorted(demands, key=lambda partition: (demands[partition], partition))
    while open_partitions and demands[open_partitions[0]] <= remaining_count // len(open_partitions):
        partition = open_partitions.pop(0)
        shares[partition] = demands[partition]
        remaining_count -= shares[partition]
    return shares | _split_evenly(sorted(open_partitions), remaining_count, turn)


def share_bytes(
    shares: Mapping[PartitionId, int], sizes: Mapping[PartitionId, float], bytes_max: int
) -> dict[PartitionId, int]:
    """Reduce the shares until they take about `bytes_max` bytes; `sizes` are bytes per record.

    The reduced shares are fair in bytes, as those of `share_records` are in records. Each partition with a share keeps
    at least one record: otherwise a partition with large records might never be read.
    """
    demanded_bytes = {partition: round(count * sizes[partition]) for partition, count in shares.items() if count}
    if sum(demanded_bytes.values()) <= bytes_max:
        return dict(shares)
    granted_bytes = share_records(demanded_bytes, Limits(bytes_max))
    return {p: min(count, max(1, int(granted_bytes[p] / sizes[p]))) if count else 0 for p, count in shares.items()}


def mean_record_bytes(batch: BatchMetadata) -> dict[PartitionId, float]:
    """Return the mean size of the batch's records by partition, in bytes, at least 1.

    A partition from which the batch has read no record, or whose records were not measured, is left out.
    """
    return {
        p: max(1.0, digest.bytes / digest.records)
        for p, digest in batch.digests.items()
        if digest.records and digest.bytes
    }


def check_ranges(batch: BatchMetadata, logs: Logs) -> None:
    """Raise `BatchLost` if a range of the batch no longer exists, `SourceUnavailable` if it is only unavailable now."""
    for partition, offsets in batch.non_empty():
        log = logs.get(partition)
        if partition in logs and log is None:
            raise SourceUnavailable(
                f"{_describe(partition)} does not respond; a recorded batch needs its offsets {offsets}"
            )
        if log is None or offsets.start < log.earliest:
            raise _lost_offsets_error(partition, offsets, logs)
        if offsets.until > log.end:
            raise _truncated_log_error(partition, offsets.until, log)


def find_early_ends(previous_batch: BatchMetadata, logs: Logs) -> dict[PartitionId, Offset]:
    """Return the ends of the logs that end below their position, by partition. `plan_batch` refuses such logs."""
    ends = {
        partition: log.end for partition, log in logs.items() if log is not None and partition in previous_batch.ranges
    }
    return {partition: end for partition, end in ends.items() if end < previous_batch.ranges[partition].until}


def compute_lag(previous_batch: BatchMetadata, logs: Logs) -> int | None:
    """Return how many offsets `previous_batch` and earlier batches have not read; None: a log does not respond."""
    unread = compute_lag_by_partition(previous_batch, logs)
    return None if unread is None else sum(unread.values())


def compute_lag_by_partition(previous_batch: BatchMetadata, logs: Logs) -> dict[PartitionId, int] | None:
    """Return the offsets by partition that `compute_lag` adds up."""
    unread, ranges = dict[PartitionId, int](), previous_batch.ranges
    for partition, log in logs.items():
        if log is None:
            return None
        offsets = ranges.get(partition)
        position = (log.start or 0) if offsets is None else offsets.until
        unread[partition] = max(0, log.end - max(log.earliest, position))
    return unread


def list_partitions(previous_batch: BatchMetadata, logs: Logs) -> dict[PartitionId, Listing]:
    """Return for each partition whether it holds offsets that `previous_batch` and earlier batches have not read."""
    return {partition: _listing_of(partition, previous_batch, log) for partition, log in logs.items()}


def _listing_of(partition: PartitionId, previous_batch: BatchMetadata, log: PartitionLog | None) -> Listing:
    if log is None:
        return Listing.AWAY
    position = previous_batch.ranges[partition].until if partition in previous_batch.ranges else log.start
    return Listing.UNREAD if log.end > max(log.earliest, position or Offset(0)) else Listing.EMPTY


def _share_records(
    backlog: Mapping[PartitionId, int], limits: Limits, limit: BatchLimit | None, *, turn: int
) -> dict[PartitionId, int]:
    requested_count = None if limit is None else limit.records
    maxima = [records for records in (limits.batch_records_max, requested_count) if records is not None]
    return share_records(backlog, Limits(min(maxima, default=None), limits.partition_records_max), turn=turn)


def _limit_bytes(
    shares: Mapping[PartitionId, int],
    known_bytes: Mapping[PartitionId, float],
    limits: Limits,
    limit: BatchLimit | None,
) -> Mapping[PartitionId, int]:
    """Reduce the shares to both limits on bytes. An unknown size is assumed to be the largest known one, or large."""
    if limits.batch_bytes_max is not None:
        assumed_bytes = max(known_bytes.values(), default=float(FIRST_RECORD_BYTES))
        shares = share_bytes(shares, {p: known_bytes.get(p, assumed_bytes) for p in shares}, limits.batch_bytes_max)
    if limit is not None and limit.record_bytes is not None and limit.bytes is not None:
        shares = share_bytes(shares, {p: known_bytes.get(p, limit.record_bytes) for p in shares}, limit.bytes)
    return shares


def _known_record_bytes(previous_batch: BatchMetadata, logs: Logs) -> dict[PartitionId, float]:
    """Return the known bytes per record by partition: as the last batch has measured, else as the log reports."""
    reported_bytes = {p: log.record_bytes for p, log in logs.items() if log is not None and log.record_bytes}
    return reported_bytes | mean_record_bytes(previous_batch)


def _find_positions(previous_batch: BatchMetadata, logs: Logs) -> dict[PartitionId, Offset]:
    """Return where to read on, by partition in order. A new partition that does not respond is left out."""
    positions, ranges = dict[PartitionId, Offset](), previous_batch.ranges
    for partition in sorted({*ranges, *logs}):
        if (offsets := ranges.get(partition)) is not None:
            positions[partition] = offsets.until
        elif (log := logs[partition]) is not None:
            positions[partition] = log.earliest if log.start is None else log.start
    return positions


def _find_gaps(positions: Mapping[PartitionId, Offset], logs: Logs) -> Iterator[Gap]:
    for partition, position in positions.items():
        log = logs.get(partition)
        if log is not None and position < log.earliest:
            yield Gap(partition, OffsetRange(position, log.earliest))


def _count_backlog(partition: PartitionId, start: Offset, logs: Logs) -> int:
    log = logs.get(partition)
    if log is None:
        return 0
    if start > log.end:
        raise _truncated_log_error(partition, start, log)
    return log.end - start


def _split_evenly(partitions: list[PartitionId], count: int, turn: int) -> dict[PartitionId, int]:
    if not partitions:
        return {}
    quotient, remainder = divmod(count, len(partitions))
    first_index = turn % len(partitions)
    ordered_partitions = partitions[first_index:] + partitions[:first_index]
    return {partition: quotient + (number < remainder) for number, partition in enumerate(ordered_partitions)}


def _describe(partition: PartitionId) -> str:
    return f"partition {partition.index} of {partition.source!r}"


def _lost_offsets_error(partition: PartitionId, offsets: OffsetRange, logs: Logs) -> BatchLost:
    log = logs.get(partition)
    available = f"the available offsets are {log}" if log else "the partition is gone"
    return BatchLost(
        f"{_describe(partition)}: the offsets {offsets} were not read to the end and no longer can be: {available}. "
        "A transactional spout may not skip them. Restore them (in the source), or continue without them: with the "
        "opaque spout, which takes what is available, or as a topology with a new id; and increase the "
        "source's retention"
    )


def _truncated_log_error(partition: PartitionId, position: Offset, log: PartitionLog) -> SourceUnavailable:
    return SourceUnavailable(
        f"{_describe(partition)}: offset {position} is expected, but the available offsets are {log}. A new leader "
        "may still be catching up, so this is retried. If it persists, records that were read have been truncated (by "
        "an unclean leader election, or with the log): restore the source, or start a topology with a new id"
    )
