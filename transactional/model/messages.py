"""Messages: the records of a source, followed one by one where a topology is at least once. Pure.

A message has a *root*, a number of 64 bits that its tuples carry and that names it: computed from its partition and its
offset, so that the driver finds the message of a root again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Final

from transactional.model.batch import BatchMetadata, Offset, PartitionId, PendingMessage
from transactional.model.config import TopologyConfig
from transactional.model.errors import CorruptRecord
from transactional.model.plumbing.redaction import without_login

PENDING_MAX = 10_000
"""More failed messages are not recorded: a batch in which that many fail is replayed as a whole."""
ERROR_CHARACTERS = 200
STRIDE = 0x9E3779B97F4A7C15
"""The distance between the roots of two adjacent offsets: odd, so that no two offsets of a partition share a root."""
_BITS = (1 << 64) - 1
_STRIDE_BACK = pow(STRIDE, -1, 1 << 64)


@dataclass(frozen=True, slots=True)
class FailedMessage:
    """A message that some bolt has failed, or has not acked, and why."""

    partition: PartitionId
    offset: Offset
    error: str


@dataclass(frozen=True, slots=True)
class Unfinished:
    """What bolts report once a batch is processed: the roots that failed, or were not acked, with the reasons; and how
    many tuples failed that belong to no message that is followed."""

    roots: Mapping[int, str] = field(default_factory=dict)
    dropped: int = 0
    reason: str = ""


MESSAGE: Final = "$message"
"""What the tuple of a dead letter has beside its fields if it is a message: its place, as text."""


def place_of(message: PendingMessage) -> str:
    """Partition and offset as text."""
    return f"{message.partition}@{message.offset}"


def message_at(place: object, error: str) -> PendingMessage:
    """The inverse of `place_of`: a message to process again, as if it had never failed. Raises `CorruptRecord`."""
    partition, _, offset = str(place).rpartition("@")
    source, _, index = partition.removesuffix("]").rpartition("[")
    if not (source and index.isdecimal() and offset.isdecimal()):
        raise CorruptRecord(f"{place!r} is not the place of a message, such as 'orders[0]@17'")
    return PendingMessage(PartitionId(source, int(index)), Offset(int(offset)), 0, 0, error)


@cache
def first_root(partition: PartitionId) -> int:
    """The root of offset 0 of a partition."""
    name = f"{partition.source}\0{partition.index}".encode()
    return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "big")


def signed(value: int) -> int:
    """The lowest 64 bits of a number, as a signed one."""
    value &= _BITS
    return value - (1 << 64) if value >> 63 else value


def messages_of(batch: BatchMetadata, roots: Mapping[int, str]) -> tuple[FailedMessage, ...]:
    """The messages of a batch that have these roots, sorted.

    Two messages share a root with a probability of 2^-64; both are named then.
    """
    again = {message.key for message in batch.again}
    found = [
        FailedMessage(partition, Offset(offset), without_login(error)[:ERROR_CHARACTERS])
        for partition, offsets in batch.ranges.items()
        for root, error in roots.items()
        for offset in [(root - first_root(partition)) * _STRIDE_BACK & _BITS]
        if offsets.start <= offset < offsets.until or (partition, offset) in again
    ]
    return tuple(sorted(found, key=lambda message: (message.partition, message.offset)))


def due(pending: Iterable[PendingMessage], now_ms: int) -> tuple[PendingMessage, ...]:
    """Those that have waited for long enough."""
    return tuple(message for message in pending if message.not_before_ms <= now_ms)


def tried(
    batch: BatchMetadata, failed: Iterable[FailedMessage], now_ms: int, config: TopologyConfig
) -> tuple[tuple[PendingMessage, ...], tuple[PendingMessage, ...]]:
    """The failed messages that are processed again, after a pause that doubles each time; and those that have failed
    more often than they may be retried (`message_retries_max`)."""
    tries = {message.key: message.tries for message in batch.again}
    pending, given_up = list[PendingMessage](), list[PendingMessage]()
    for message in failed:
        count = tries.get((message.partition, message.offset), 0) + 1
        not_before_ms = now_ms + config.retry_pause_after(count)
        one = PendingMessage(message.partition, message.offset, count, not_before_ms, message.error)
        is_over = config.message_retries_max is not None and count > config.message_retries_max
        (given_up if is_over else pending).append(one)
    return tuple(pending), tuple(given_up)


def joined(before: Iterable[PendingMessage], batch: BatchMetadata) -> tuple[PendingMessage, ...]:
    """The messages that wait once a batch is committed: those from before, without what it has processed again, and
    those that have failed in it, which `batch.pending` holds until then."""
    waiting = {message.key: message for message in before}
    for message in batch.again:
        waiting.pop(message.key, None)
    waiting |= {message.key: message for message in batch.pending}
    return tuple(sorted(waiting.values()))


def emptied(batch: BatchMetadata) -> BatchMetadata:
    """A batch of which nothing is read any more: what it held may have been given to bolts, and is counted as lost.

    One that was processed before its attempt failed has lost nothing more than what was counted then.
    """
    ranges = {p: replace(offsets, start=offsets.until) for p, offsets in batch.ranges.items()}
    lost = batch.lost if batch.digests else batch.lost + batch.offset_count
    return replace(batch, ranges=ranges, digests={}, again=(), pending=(), lost=lost)
