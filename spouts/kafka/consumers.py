"""Cached consumers that continue reading: Kafka's clients behind the Kafka spouts.

Consumers are in a pool of the process. One that continues where it stopped has prefetched, and delivers immediately; a
new or reassigned one takes some 20 to 30 ms. None of them ever joins, or writes to, a consumer group.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from os import getpid
from threading import Lock
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from spouts.kafka.cluster import KafkaConnection, Option, described, make_client, topic_of
from transactional.batch import OffsetRange, PartitionId
from transactional.errors import ReplayMismatch, SourceUnavailable

_log = logging.getLogger(__name__)

CONSUMERS_MAX = 1_024
"""How many consumers a process keeps. Each has four threads, and prefetches up to `queued.max.messages.kbytes`."""

SKIP_MAX = 20_000
"""Offsets that are read and discarded instead of seeking: that is faster, because they were prefetched."""

_BATCH_RECORDS_MAX = 10_000
_BATCH_BYTES_MAX = 8 * 1024 * 1024
_MEASURED = 64
_WAIT_MS = 100

_CONSUMER: dict[str, Option] = {
    "group.id": "transactional-reader",  # required by the library; this consumer never joins it
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "auto.offset.reset": "error",
    "enable.partition.eof": True,
    # The default, a second, is how long a consumer that was full or reassigned may wait before it fetches again.
    "fetch.queue.backoff.ms": 5,
    # How long the broker may delay a response if there is nothing new. It does not delay new records; but a consumer
    # that is moved away from the log's end waits for it, and each idle one sends a request this often.
    "fetch.wait.max.ms": 100,
    "queued.min.messages": 50_000,
    "queued.max.messages.kbytes": 8 * 1024,
}


class CachedConsumer:
    """A consumer that remembers its position. Used by one reader at a time."""

    def __init__(self, connection: KafkaConnection) -> None:
        self.connection = connection
        self.partition: PartitionId | None = None
        self.next_offset = 0
        self._pending: list[Message] = []
        self._seen_until = self._delivered_until = 0
        self._errors: deque[KafkaError] = deque(maxlen=1)
        settings: dict[str, Any] = connection.client(_CONSUMER) | {
            "isolation.level": connection.isolation,
            "error_cb": self._errors.append,
        }
        self._consumer = make_client(partial(Consumer, settings), connection)

    def continues(self, partition: PartitionId, offsets: OffsetRange) -> bool:
        """True if the range can be reached by continuing to read."""
        return self.partition == partition and 0 <= offsets.start - self.next_offset <= SKIP_MAX

    def read(self, partition: PartitionId, offsets: OffsetRange) -> Iterator[list[Message]]:
        """Yield the messages of the range in lists of bounded size. Ends only once `until` was definitely passed."""
        if not self.continues(partition, offsets):
            self.move(partition, offsets)
        self.partition = None  # until the end is reached: after an error the next user has to move it
        self._delivered_until = int(offsets.start)
        ready: list[Message] = []
        idle_ms = size = 0
        while True:
            ready += self._take(offsets)
            done = self._seen_until >= offsets.until
            if ready and (done or len(ready) >= _BATCH_RECORDS_MAX or size >= _BATCH_BYTES_MAX):
                yield ready
                self._delivered_until = _offset(ready[-1]) + 1
                ready, size = [], 0
            if done:
                break
            fetched = self._fetch(partition, offsets)
            size += _bytes_of(self._pending)
            idle_ms = 0 if fetched else idle_ms + _WAIT_MS
            if idle_ms >= self.connection.timeout_ms:
                raise self._silent(partition, offsets)
        self.partition, self.next_offset = partition, offsets.until

    def move(self, partition: PartitionId, offsets: OffsetRange) -> None:
        """Seek to the start of the range; prefetched messages are discarded."""
        self._pending, self._seen_until = [], offsets.start
        self._errors.clear()
        self._consumer.assign([TopicPartition(topic_of(partition.source), partition.index, offsets.start)])

    def check_start(self, partition: PartitionId, offsets: OffsetRange) -> None:
        """Raise `ReplayMismatch` if the log may have lost the beginning of the range by now.

        Called after reading, and only if offsets were missing: if all were there, nothing can have been lost.
        """
        low, high = self._watermarks(partition)
        if low > offsets.start:
            raise _gone(partition, offsets, low, high, read_until=offsets.until)

    def close(self) -> None:
        """Stop its threads."""
        self._consumer.close()

    def _take(self, offsets: OffsetRange) -> list[Message]:
        pending, self._pending = self._pending, []
        if not pending or (_offset(pending[0]) >= offsets.start and _offset(pending[-1]) < offsets.until):
            return pending
        self._pending = [message for message in pending if _offset(message) >= offsets.until]
        return [message for message in pending if offsets.start <= _offset(message) < offsets.until]

    def _fetch(self, partition: PartitionId, offsets: OffsetRange) -> bool:
        most = min(offsets.until - self._seen_until, _BATCH_RECORDS_MAX)
        messages = self._consumer.consume(most, 0) or self._consumer.consume(1, _WAIT_MS / 1000)
        if any(map(Message.error, messages)):
            for message in messages:
                self._on_error(message, partition, offsets)
            messages = [message for message in messages if message.error() is None]
        if messages:
            self._pending += messages
            self._seen_until = max(self._seen_until, _offset(messages[-1]) + 1)
        return bool(messages)

    def _on_error(self, message: Message, partition: PartitionId, offsets: OffsetRange) -> None:
        error = message.error()
        if error is None:
            return
        if error.code() == KafkaError._PARTITION_EOF:
            self._seen_until = max(self._seen_until, _offset(message))
        elif error.code() == KafkaError._AUTO_OFFSET_RESET:
            # What was fetched before the error is delivered first, or not at all: the range is then read from `low`.
            low, high = self._watermarks(partition)
            raise _gone(partition, offsets, low, high, read_until=self._delivered_until)
        else:
            reason = self.connection.redact(error.str())
            raise SourceUnavailable(f"{described(partition)} can't be read over {offsets}: {reason}")

    def _watermarks(self, partition: PartitionId) -> tuple[int, int]:
        queried = TopicPartition(topic_of(partition.source), partition.index)
        try:
            low, high = self._consumer.get_watermark_offsets(queried, timeout=self.connection.timeout_s)
        except KafkaException as error:
            raise SourceUnavailable(f"{described(partition)}: {self.connection.redact(error.args[0].str())}") from error
        return low, high

    def _silent(self, partition: PartitionId, offsets: OffsetRange) -> SourceUnavailable:
        last = f" (the last error: {self.connection.redact(self._errors[0].str())})" if self._errors else ""
        return SourceUnavailable(
            f"{described(partition)} at {self.connection.bootstrap_servers} was read up to offset {self._seen_until} "
            f"of {offsets}, then nothing arrived for {self.connection.timeout_ms} ms{last}"
        )


class ConsumerPool:
    """The idle consumers of this process, the least recently used first.

    Partitions are read in turns, so with more of them than consumers the one that was used last is given up: the
    others still continue. The one that was used longest ago is the next to be needed.
    """

    def __init__(self) -> None:
        self.process_id = getpid()
        self._has_warned = False
        self._lock = Lock()
        self._idle: list[CachedConsumer] = []

    def __len__(self) -> int:
        return len(self._idle)

    @contextmanager
    def leased(
        self, connection: KafkaConnection, partition: PartitionId, offsets: OffsetRange
    ) -> Iterator[CachedConsumer]:
        """A consumer for one read: one that can continue, if there is any. It is returned unless reading failed."""
        consumer = self._take(connection, partition, offsets) or CachedConsumer(connection)
        try:
            yield consumer
        except Exception:
            consumer.close()
            raise
        except BaseException:
            self._give_back(consumer)  # a reader that was not exhausted
            raise
        self._give_back(consumer)

    def close(self, connection: KafkaConnection | None = None) -> None:
        """Close the idle consumers of a connection, or all."""
        with self._lock:
            closing = [each for each in self._idle if connection in (None, each.connection)]
            self._idle = [each for each in self._idle if each not in closing]
        for consumer in closing:
            consumer.close()

    def _take(self, connection: KafkaConnection, partition: PartitionId, offsets: OffsetRange) -> CachedConsumer | None:
        with self._lock:
            ours = [each for each in self._idle if each.connection == connection]
            found = [each for each in ours if each.continues(partition, offsets)]
            found.sort(key=lambda each: -each.next_offset)
            # Otherwise one of this partition at another position, or any, if there are enough.
            found += [each for each in ours if each.partition in (partition, None)]
            if not found and len(ours) >= CONSUMERS_MAX:
                self._warn()
                found = ours[-1:]
            if found:
                self._idle.remove(found[0])
            return found[0] if found else None

    def _give_back(self, consumer: CachedConsumer) -> None:
        with self._lock:
            self._idle.append(consumer)
            if len(self._idle) <= CONSUMERS_MAX:
                return
            surplus = next((each for each in self._idle if each.connection != consumer.connection), consumer)
            self._idle.remove(surplus)
        surplus.close()

    def _warn(self) -> None:
        if not self._has_warned:
            self._has_warned = True
            _log.warning(
                "this process reads more than %d partitions of Kafka and keeps no more consumers: those of the other "
                "partitions are moved from one to the next, which costs 20 to 30 ms for each range. Read them in more "
                "processes (executors), or in several topologies.",
                CONSUMERS_MAX,
            )


# A forked process inherits consumers without their threads: they must neither be used nor destroyed there.
_pools = [ConsumerPool()]


def consumer_pool() -> ConsumerPool:
    """The pool of this process."""
    if _pools[-1].process_id != getpid():
        _pools.append(ConsumerPool())
    return _pools[-1]


def _gone(partition: PartitionId, offsets: OffsetRange, low: int, high: int, *, read_until: int) -> ReplayMismatch:
    return ReplayMismatch(
        f"{described(partition)}: the offsets {offsets} were planned, but the available ones are [{low}, {high}): "
        "retention or deletion came first",
        available_from=low,
        read_until=read_until,
    )


def _bytes_of(messages: list[Message]) -> int:
    """The approximate size of their values: with many only a sample is measured, since even that takes time."""
    step = len(messages) // _MEASURED + 1
    return sum(map(len, messages[::step])) * step


def _offset(message: Message) -> int:
    return message.offset() or 0
