"""Planning of batches: from positions and the current contents of the partitions' logs to the next ranges. Pure.

A partition's position is where the previous batch ended. A batch lists every partition ever seen: one that has nothing
new, has disappeared or does not respond keeps its position as an empty range. All that a partitioned spout must know
about its source for planning is a `PartitionLog` per partition.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace

from transactional.model.batch import BatchLimit, BatchMetadata, Offset, OffsetRange, PartitionId
from transactional.model.errors import BatchLost, ConfigError, SourceUnavailable
from transactional.model.facts import Listing


@dataclass(frozen=True, slots=True)
class PartitionLog:
    """What one partition holds now: the offsets `earliest <= offset < end`.

    `start` is where to begin as long as no batch has a position for the partition; None: at the earliest offset. A
    partition with a `start` joins with the next batch even if it has nothing to read, because that position (such as
    "the end, when the topology first ran") could not be determined again later. `record_bytes` is the approximate size
    of its records, if known from a source other than the last batch. `leader_epoch` counts the leaders that the
    partition has had, in a source that has leaders and reports them.
    """

    earliest: Offset
    end: Offset
    start: Offset | None = None
    record_bytes: float | None = None
    leader_epoch: int | None = None

    def __str__(self) -> str:
        return f"[{self.earliest}, {self.end})"


def bounded(log: PartitionLog, end: Offset | None, position: Offset | None) -> PartitionLog:
    """The log as if it ended at `end`, if that is earlier; but never before what was read, or where it begins."""
    if end is None or log.end <= end:
        return log
    begun = max(log.earliest, log.start or Offset(0), position or Offset(0))
    return replace(log, end=max(end, min(begun, log.end)))


FIRST_RECORD_BYTES = 16 * 1024
"""The assumed size of a record before any was read: too large a guess costs a small batch, too small one memory."""

Logs = Mapping[PartitionId, PartitionLog | None]
"""The partitions of a source. None: the partition exists, but does not respond; one not in the mapping is gone."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How many offsets a batch takes, in total and per partition, and how many bytes. None: no limit.

    The bytes are an estimate, from what the records of earlier batches took as Arrow columns. A partition that has data
    always contributes at least one record, however large. Raises `ConfigError` below 1.
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
    lost: OffsetRange

    def __str__(self) -> str:
        return f"{self.partition} has lost {self.lost}"


@dataclass(frozen=True, slots=True)
class Plan:
    """The next batch and the gaps before it. A gap also shows in the batch: a range starts above the last one's end."""

    batch: BatchMetadata
    gaps: tuple[Gap, ...] = ()


def plan_batch(
    after: BatchMetadata,
    logs: Logs,
    limits: Limits,
    *,
    replays_exactly: bool,
    replay: bool = False,
    limit: BatchLimit | None = None,
) -> Plan | None:
    """The batch that starts where `after` ends, or None if there is nothing new; with `replay` always a batch.

    If a log has lost offsets that were not read yet, an opaque spout (`replays_exactly` False) continues with what is
    available and the gap is reported; a transactional one raises `BatchLost`. A position beyond the end of a log raises
    `SourceUnavailable` for both kinds: the end may only be late (a new leader that is catching up), and if records were
    truncated, new ones under the same offsets can't be distinguished from those already read. A source that knows that
    a partition was recreated gives it a new `PartitionId` instead: then it joins like any other.

    `limit`, which `target_latency_ms` sets, bounds the batch in addition to `limits`.
    """
    positions = {partition: _position(partition, after, logs) for partition in sorted({*after.ranges, *logs})}
    known = {partition: position for partition, position in positions.items() if position is not None}
    gaps = tuple(_gaps(known, logs))
    if gaps and replays_exactly:
        raise _lost(gaps[0].partition, gaps[0].lost, logs)
    starts = known | {gap.partition: gap.lost.until for gap in gaps}
    backlog = {partition: _backlog(partition, start, logs) for partition, start in starts.items()}
    in_turn = _shares(backlog, limits, limit, turn=sum(after.positions().values()))
    shares = _within_bytes(in_turn, _record_bytes(after, logs), limits, limit)
    ranges = {p: OffsetRange(start, Offset(start + shares[p])) for p, start in starts.items()}
    joins = any(log is not None and log.start is not None and p not in after.ranges for p, log in logs.items())
    nothing_new = not any(shares.values()) and not joins
    return None if nothing_new and not replay else Plan(BatchMetadata(ranges), gaps)


def share(backlog: Mapping[PartitionId, int], limits: Limits, *, turn: int = 0) -> dict[PartitionId, int]:
    """How many offsets each partition contributes to a batch, out of what it has.

    Fair: no partition gets less than another unless it has no more. A remainder goes to one partition after the other,
    starting from `turn`, so that none starves if there are more partitions than records.
    """
    most = limits.partition_records_max
    wanted = {partition: count if most is None else min(count, most) for partition, count in backlog.items()}
    left = limits.batch_records_max
    if left is None or sum(wanted.values()) <= left:
        return wanted
    shares: dict[PartitionId, int] = {}
    waiting = sorted(wanted, key=lambda partition: (wanted[partition], partition))
    while waiting and wanted[waiting[0]] <= left // len(waiting):
        modest = waiting.pop(0)
        shares[modest] = wanted[modest]
        left -= shares[modest]
    return shares | _split_evenly(sorted(waiting), left, turn)


def share_bytes(
    shares: Mapping[PartitionId, int], sizes: Mapping[PartitionId, float], most: int
) -> dict[PartitionId, int]:
    """The shares, reduced until they take about `most` bytes; `sizes` are bytes per record.

    Fair like `share`, in bytes. Each partition with a share keeps at least one record of it: otherwise one with large
    records might never be read.
    """
    wanted = {partition: round(count * sizes[partition]) for partition, count in shares.items() if count}
    if sum(wanted.values()) <= most:
        return dict(shares)
    allowed = share(wanted, Limits(most))
    return {p: min(count, max(1, int(allowed[p] / sizes[p]))) if count else 0 for p, count in shares.items()}


def record_bytes(batch: BatchMetadata) -> dict[PartitionId, float]:
    """The approximate size of a record in each partition from which the batch has read records, in bytes, at least
    1."""
    return {
        p: max(1.0, digest.bytes / digest.records)
        for p, digest in batch.digests.items()
        if digest.records and digest.bytes
    }


def check_ranges(batch: BatchMetadata, logs: Logs) -> None:
    """Raise `BatchLost` if a range of the batch is gone, `SourceUnavailable` if it is only unavailable now."""
    for partition, wanted in batch.non_empty():
        log = logs.get(partition)
        if partition in logs and log is None:
            raise SourceUnavailable(f"{_name(partition)} does not respond; a recorded batch needs its offsets {wanted}")
        if log is None or wanted.start < log.earliest:
            raise _lost(partition, wanted, logs)
        if wanted.until > log.end:
            raise _beyond(partition, wanted.until, log)


def early_ends(after: BatchMetadata, logs: Logs) -> dict[PartitionId, Offset]:
    """Where the logs end that end before the position, which `plan_batch` refuses."""
    ends = {partition: log.end for partition, log in logs.items() if log is not None and partition in after.ranges}
    return {partition: end for partition, end in ends.items() if end < after.ranges[partition].until}


def lag(after: BatchMetadata, logs: Logs) -> int | None:
    """How many offsets exist that `after` and earlier batches have not read; None: a log does not respond."""
    found = lags(after, logs)
    return None if found is None else sum(found.values())


def lags(after: BatchMetadata, logs: Logs) -> dict[PartitionId, int] | None:
    """The same by partition."""
    found = dict[PartitionId, int]()
    for partition, log in logs.items():
        if log is None:
            return None
        position = _position(partition, after, logs)
        found[partition] = max(0, log.end - max(log.earliest, position or Offset(0)))
    return found


def listed(after: BatchMetadata, logs: Logs) -> dict[PartitionId, Listing]:
    """What there is of each partition that `after` and earlier batches have not read."""
    return {partition: _listing(partition, after, log) for partition, log in logs.items()}


def _listing(partition: PartitionId, after: BatchMetadata, log: PartitionLog | None) -> Listing:
    if log is None:
        return Listing.AWAY
    position = after.ranges[partition].until if partition in after.ranges else log.start
    return Listing.UNREAD if log.end > max(log.earliest, position or Offset(0)) else Listing.EMPTY


def _shares(
    backlog: Mapping[PartitionId, int], limits: Limits, limit: BatchLimit | None, *, turn: int
) -> dict[PartitionId, int]:
    asked = None if limit is None else limit.records
    most = [records for records in (limits.batch_records_max, asked) if records is not None]
    return share(backlog, Limits(min(most, default=None), limits.partition_records_max), turn=turn)


def _within_bytes(
    shares: Mapping[PartitionId, int], known: Mapping[PartitionId, float], limits: Limits, limit: BatchLimit | None
) -> Mapping[PartitionId, int]:
    """The shares within both limits on bytes. Unknown sizes are assumed to be large, or those of the records so far."""
    if limits.batch_bytes_max is not None:
        guess = max(known.values(), default=float(FIRST_RECORD_BYTES))
        shares = share_bytes(shares, {p: known.get(p, guess) for p in shares}, limits.batch_bytes_max)
    if limit is not None and limit.record_bytes is not None and limit.bytes is not None:
        shares = share_bytes(shares, {p: known.get(p, limit.record_bytes) for p in shares}, limit.bytes)
    return shares


def _record_bytes(after: BatchMetadata, logs: Logs) -> dict[PartitionId, float]:
    """Bytes per record, if known: from the last batch, otherwise from the log."""
    told = {p: log.record_bytes for p, log in logs.items() if log is not None and log.record_bytes}
    return told | record_bytes(after)


def _position(partition: PartitionId, after: BatchMetadata, logs: Logs) -> Offset | None:
    if partition in after.ranges:
        return after.ranges[partition].until
    log = logs[partition]
    if log is None:
        return None
    return log.earliest if log.start is None else log.start


def _gaps(positions: Mapping[PartitionId, Offset], logs: Logs) -> Iterator[Gap]:
    for partition, position in positions.items():
        log = logs.get(partition)
        if log is not None and position < log.earliest:
            yield Gap(partition, OffsetRange(position, log.earliest))


def _backlog(partition: PartitionId, start: Offset, logs: Logs) -> int:
    log = logs.get(partition)
    if log is None:
        return 0
    if start > log.end:
        raise _beyond(partition, start, log)
    return log.end - start


def _split_evenly(partitions: list[PartitionId], count: int, turn: int) -> dict[PartitionId, int]:
    if not partitions:
        return {}
    each, over = divmod(count, len(partitions))
    first = turn % len(partitions)
    in_turn = partitions[first:] + partitions[:first]
    return {partition: each + (number < over) for number, partition in enumerate(in_turn)}


def _name(partition: PartitionId) -> str:
    return f"partition {partition.index} of {partition.source!r}"


def _lost(partition: PartitionId, wanted: OffsetRange, logs: Logs) -> BatchLost:
    log = logs.get(partition)
    there = f"the available offsets are {log}" if log else "the partition is gone"
    return BatchLost(
        f"{_name(partition)}: the offsets {wanted} were not read to the end and no longer can be: {there}. A "
        "transactional spout may not skip them. Restore them (in the source), or continue without them: with the "
        "opaque spout, which takes what is available, or as a topology with a new id; and increase the "
        "source's retention"
    )


def _beyond(partition: PartitionId, position: Offset, log: PartitionLog) -> SourceUnavailable:
    return SourceUnavailable(
        f"{_name(partition)}: offset {position} is expected, but the available offsets are {log}. A new leader may "
        "still be catching up, so this is retried. If it persists, records that were read have been truncated (by an "
        "unclean leader election, or with the log): restore the source, or start a topology with a new id"
    )
