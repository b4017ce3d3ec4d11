"""The rules for messages: the records of a source, which an at-least-once topology acknowledges one by one.

A message has a *root*, a number of 64 bits, which its tuples carry. The root is computed from partition and offset, so
that the driver can compute the message from the root. Failed messages are recorded with the batch, and processed again
by later batches until they succeed or become dead letters. The functions are pure.
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
"""The maximum number of failed messages to record. A batch in which more messages fail is replayed as a whole."""
ERROR_CHARACTERS = 200
STRIDE = 0x9E3779B97F4A7C15
"""The distance between the roots of two adjacent offsets: odd, so that no two offsets of a partition share a root."""
_BITS = (1 << 64) - 1
_STRIDE_INVERSE = pow(STRIDE, -1, 1 << 64)


@dataclass(frozen=True, slots=True)
class FailedMessage:
    """A message that a bolt has failed, or has not acked, with the reason."""

    partition: PartitionId
    offset: Offset
    error: str


@dataclass(frozen=True, slots=True)
class Unfinished:
    """The failures that bolts report once a batch is processed.

    `roots` are the roots that failed or were not acked, with the reasons. `dropped` is the number of failed tuples that
    belong to no message.
    """

    roots: Mapping[int, str] = field(default_factory=dict)
    dropped: int = 0
    reason: str = ""


MESSAGE: Final = "$message"
"""The name of the field that a dead letter has in addition if it is a message: its position, as text."""


def format_position(message: PendingMessage) -> str:
    """Return the partition and the offset of a message as text."""
    return f"{message.partition}@{message.offset}"


def parse_position(position: object, error: str) -> PendingMessage:
    """Return the message at a position, as if it had never failed, to process it again. Raises `CorruptRecord`."""
    partition, _, offset = str(position).rpartition("@")
    source, _, index = partition.removesuffix("]").rpartition("[")
    if not (source and index.isdecimal() and offset.isdecimal()):
        raise CorruptRecord(f"{position!r} is not the place of a message, such as 'orders[0]@17'")
    return PendingMessage(PartitionId(source, int(index)), Offset(int(offset)), 0, 0, error)


@cache
def first_root(partition: PartitionId) -> int:
    """Return the root of offset 0 of a partition."""
    name = f"{partition.source}\0{partition.index}".encode()
    return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "big")


def to_signed(number: int) -> int:
    """Return the lowest 64 bits of a number as a signed integer."""
    number &= _BITS
    return number - (1 << 64) if number >> 63 else number


def find_messages(batch: BatchMetadata, roots: Mapping[int, str]) -> tuple[FailedMessage, ...]:
    """Return the messages of a batch that have these roots, sorted.

    Two messages share a root with a probability of 2^-64; both are returned then.
    """
    retried_keys = {message.key for message in batch.again}
    messages = [
        FailedMessage(partition, Offset(offset), without_login(error)[:ERROR_CHARACTERS])
        for partition, offsets in batch.ranges.items()
        for root, error in roots.items()
        for offset in [(root - first_root(partition)) * _STRIDE_INVERSE & _BITS]
        if offsets.start <= offset < offsets.until or (partition, offset) in retried_keys
    ]
    return tuple(sorted(messages, key=lambda message: (message.partition, message.offset)))


def select_due(pending: Iterable[PendingMessage], now_ms: int) -> tuple[PendingMessage, ...]:
    """Return the pending messages that have waited for long enough."""
    return tuple(message for message in pending if message.not_before_ms <= now_ms)


def sort_failures(
    batch: BatchMetadata, failed: Iterable[FailedMessage], now_ms: int, config: TopologyConfig
) -> tuple[tuple[PendingMessage, ...], tuple[PendingMessage, ...]]:
    """Return the failed messages to process again, and those that have failed more often than `message_retries_max`.

    A message is processed again after a pause that doubles with each failure.
    """
    tries = {message.key: message.tries for message in batch.again}
    pending, exhausted = list[PendingMessage](), list[PendingMessage]()
    for message in failed:
        count = tries.get((message.partition, message.offset), 0) + 1
        not_before_ms = now_ms + config.retry_pause_after(count)
        retried = PendingMessage(message.partition, message.offset, count, not_before_ms, message.error)
        is_exhausted = config.message_retries_max is not None and count > config.message_retries_max
        (exhausted if is_exhausted else pending).append(retried)
    return tuple(pending), tuple(exhausted)


def merge_pending(pending: Iterable[PendingMessage], batch: BatchMetadata) -> tuple[PendingMessage, ...]:
    """Return the messages that wait once a batch is committed.

    They are the `pending` ones of the previous batch without those that `batch` has processed again, and the messages
    that have failed in it, which are in `batch.pending`.
    """
    waiting_by_key = {message.key: message for message in pending}
    for message in batch.again:
        waiting_by_key.pop(message.key, None)
    waiting_by_key |= {message.key: message for message in batch.pending}
    return tuple(sorted(waiting_by_key.values()))


def without_records(batch: BatchMetadata) -> BatchMetadata:
    """Return the batch with empty ranges, and its records counted as lost: bolts may already have received them.

    If the batch was processed before its attempt failed, the lost messages were counted then.
    """
    ranges = {p: replace(offsets, start=offsets.until) for p, offsets in batch.ranges.items()}
    lost = batch.lost if batch.digests else batch.lost + batch.offset_count
    return replace(batch, ranges=ranges, digests={}, again=(), pending=(), lost=lost)
