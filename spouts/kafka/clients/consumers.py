"""Kafka's consumers behind the Kafka spouts, shared by the tasks of a process.

One `SharedConsumer` fetches many partitions. It never seeks as long as ranges follow one another: messages that it
delivers beyond a range are buffered (`spouts.kafka.clients.fetched`) until the next range takes them. Readers are
threads, and a lock serializes them: a reader that waits fetches for all others. No consumer ever joins a consumer
group, or writes to one.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import groupby
from threading import Lock
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition

from spouts.kafka.clients.cluster import KafkaConnection, Option, describe_partition, make_client, topic_of
from spouts.kafka.clients.fetched import PIECE_BYTES_MAX, PIECE_RECORDS_MAX, FetchedPartition, Run
from transactional.model.batch import OffsetRange, PartitionId
from transactional.model.errors import ReplayMismatch, SourceUnavailable, TransactionalError

SKIP_MAX = 20_000
"""The maximum number of offsets that are read and discarded instead of seeking, which is slower than prefetching."""

PENDING_BYTES_MAX = 128 * 1024 * 1024
"""The maximum size of a consumer's buffers, in bytes. Above it, only the partitions that readers wait for are
fetched."""

_KEYS_MAX = 10_000
_POLL_TIMEOUT_S = 0.1
_AT_ONCE_S = 1.0
_EVENTS_MIN = 1_000
"""The minimum number of messages and events to poll for, even if fewer records are due: the ends of logs are among
them."""
_QUEUED_BYTES = 8 * 1024 * 1024
_QUEUED_RECORDS = 50_000

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
    "queued.max.messages.kbytes": _QUEUED_BYTES // 1024,
    # The limit of a response over all partitions. A busy producer writes large record batches, and a response brings
    # whole ones: with a limit per partition below their size, it would bring those of one partition only.
    "fetch.max.bytes": _QUEUED_BYTES,
}
_FETCH_BYTES_MIN, _FETCH_BYTES_MAX = 64 * 1024, 1_000_000
_BYTES_PER_FETCHED_BYTE = 8
"""The size of small messages in memory, by their size in a response."""

PartitionKey = tuple[str | None, int | None]
"""A partition as Kafka's messages name it: topic and number."""
Range = tuple[PartitionId, OffsetRange]


@dataclass(slots=True)
class _Reading:
    """The progress of a reader in its range: `remaining` was not taken yet, below `delivered_until` all was yielded."""

    partition: PartitionId
    offsets: OffsetRange
    remaining: OffsetRange
    delivered_until: int
    started_s: float = field(default_factory=time.monotonic)


class SharedConsumer:
    """A consumer of some partitions, for readers in several threads: while one of them waits, it fetches for all.

    `keys_read` are its partitions, and `leases` the ranges that are being read. The pool changes both, under its own
    lock.
    """

    def __init__(self, connection: KafkaConnection, partitions: int) -> None:
        self.connection = connection
        self.is_shared = partitions > 1
        self.is_retired = False
        self.keys_read: set[PartitionKey] = set()
        self.leases: dict[PartitionKey, list[Range]] = {}
        self._lock = Lock()
        self._partitions: dict[PartitionKey, FetchedPartition] = {}
        self._due: dict[PartitionKey, FetchedPartition] = {}
        self._expected: set[PartitionKey] = set()
        self._failed: dict[PartitionKey, KafkaError] = {}
        self._is_full = False
        self._errors: deque[KafkaError] = deque(maxlen=1)
        settings: dict[str, Any] = connection.client_settings({**_CONSUMER, **_limit_fetches(partitions)}) | {
            "isolation.level": connection.isolation,
            "error_cb": self._errors.append,
        }
        self._consumer = make_client(partial(Consumer, settings), connection)

    def is_free_for(self, partition: PartitionId, offsets: OffsetRange) -> bool:
        """Return True unless a range of the partition far from this one is being read: the two would seek in turn."""
        leases = self.leases.get(partition_key(partition), ())
        return all(
            other_partition == partition and _is_near(offsets, offsets_read) for other_partition, offsets_read in leases
        )

    def expect(self, ranges: Sequence[Range]) -> None:
        """Begin to fetch these ranges, all together."""
        with self._lock:
            self._expected = {partition_key(partition) for partition, _ in ranges}
            self._start_fetching(ranges)

    def read(self, partition: PartitionId, offsets: OffsetRange) -> Iterator[list[Message]]:
        """Yield the messages of the range in lists of bounded size. Ends only once `offsets.until` was passed for
        certain."""
        with self._lock:
            if (run := self._take_fetched(partition, offsets)) is None:
                self._start_fetching([(partition, offsets)])
        if run is not None:
            if run.messages:
                yield run.messages
            return
        reading = _Reading(partition, offsets, offsets, offsets.start)
        ready: list[Message] = []
        size = 0
        while len(reading.remaining):
            piece = self._take_piece(reading)
            ready += piece.messages
            size += piece.size
            reading.remaining = OffsetRange(piece.offsets.until, offsets.until)
            if ready and (not len(reading.remaining) or len(ready) >= PIECE_RECORDS_MAX or size >= PIECE_BYTES_MAX):
                yield ready
                reading.delivered_until, ready, size = reading.remaining.start, [], 0

    def take_whole(self, ranges: Iterable[Range]) -> list[Run]:
        """Remove and return the first of these ranges, up to one that is read elsewhere, or was not fetched to its end,
        or lacks the message of an offset. Their messages are about as many as make a piece."""
        runs, records, size = list[Run](), 0, 0
        with self._lock:
            for partition, offsets in ranges:
                key = partition_key(partition)
                buffer = None if key in self.leases else self._partitions.get(key)
                run = None if buffer is None or buffer.partition != partition else buffer.take_whole(offsets)
                if run is None:
                    break
                runs.append(run)
                records, size = records + len(run.messages), size + run.size
                if records >= PIECE_RECORDS_MAX or size >= PIECE_BYTES_MAX:
                    break
        return runs

    def check_start(self, partition: PartitionId, offsets: OffsetRange) -> None:
        """Raise `ReplayMismatch` if the log may have lost the beginning of the range by now.

        Called after reading, and only if offsets were missing: if there was a record for each, none can have been lost.
        One request queries all partitions, and its answer counts for what each has fetched by then.
        """
        key = partition_key(partition)
        with self._lock:
            partition_buffer = self._partitions.get(key)
            buffers = {
                other_key: self._partitions[other_key]
                for other_key in self._expected
                if other_key in self._partitions and other_key not in self._due
            }
            fetched_until = {other_key: buffer.fetched_until for other_key, buffer in buffers.items()}
        if partition_buffer is None or partition_buffer.log_start_checked_until < offsets.until:
            log_starts = self._query_log_starts(list({key: None, **fetched_until}))
            for other_key in log_starts.keys() & buffers.keys():
                buffers[other_key].log_start = log_starts[other_key]
                buffers[other_key].log_start_checked_until = fetched_until[other_key]
            log_start = log_starts[key] if key in log_starts else self._query_watermarks(partition)[0]
        else:
            log_start = partition_buffer.log_start
        if log_start > offsets.start:
            raise _lost_range_error(partition, offsets, *self._query_watermarks(partition), read_until=offsets.until)

    def close(self) -> None:
        """Close the client, and stop its threads."""
        with self._lock:
            self._consumer.close()

    def _take_piece(self, reading: _Reading) -> Run:
        """Return the next piece of a range. It may be empty, after a short wait. Raises `SourceUnavailable`."""
        key = partition_key(reading.partition)
        with self._lock:
            buffer = (
                FetchedPartition(reading.partition, 0) if key in self._failed else self._fetch_if_needed(key, reading)
            )
            error, piece = self._failed.get(key), buffer.take(reading.remaining)
        if error is not None:
            raise self._fetch_error(error, reading)
        silent_s = time.monotonic() - max(buffer.last_answer_s, reading.started_s)
        if not len(piece.offsets) and silent_s >= self.connection.timeout_s:
            raise self._timeout_error(reading)
        return piece

    # --- with the lock held ---------------------------------------------------------------------------------------

    def _take_fetched(self, partition: PartitionId, offsets: OffsetRange) -> Run | None:
        """Return a whole range that was fetched already, as all but the first of many short ranges are.

        None if the range has to be fetched, or comes in several pieces.
        """
        key = partition_key(partition)
        buffer = self._partitions.get(key)
        if buffer is None or buffer.partition != partition or key in self._failed:
            return None
        return buffer.take(offsets) if buffer.has_in_one_piece(offsets) else None

    def _fetch_if_needed(self, key: PartitionKey, reading: _Reading) -> FetchedPartition:
        """Return the partition's buffer, after a poll if it has nothing of the remaining range."""
        self._ensure_fetching([(reading.partition, reading.remaining)], is_start=False)
        buffer = self._partitions[key]
        if buffer.fetched_until <= reading.remaining.start:
            self._poll()
        return buffer

    def _start_fetching(self, ranges: Sequence[Range]) -> None:
        self._errors.clear()
        for partition, _ in ranges:
            self._failed.pop(partition_key(partition), None)
        self._ensure_fetching(ranges, is_start=True)

    def _ensure_fetching(self, ranges: Sequence[Range], *, is_start: bool) -> None:
        """Assign the partitions of the ranges, at offsets from which the ranges will be delivered.

        A partition that has to be moved to another offset loses its buffer.
        """
        moved_keys, keys = list[PartitionKey](), dict[PartitionKey, None]()
        for partition, offsets in ranges:
            key = partition_key(partition)
            buffer = self._partitions.get(key)
            # Offsets that another reader waits for, which is behind, must not be discarded.
            skip_max = SKIP_MAX if is_start and len(self.leases.get(key, ())) <= 1 else math.inf
            if buffer is None or not buffer.can_deliver(partition, offsets, skip_max):
                moved_keys += [key] if buffer is not None and buffer.is_assigned else []
                buffer = self._partitions[key] = FetchedPartition(partition, offsets.start)
            buffer.expected_until = max(buffer.expected_until, offsets.until)
            keys[key] = None
            self._update_due(key)
        self._unassign(moved_keys)
        self._assign(keys)

    def _assign(self, keys: Iterable[PartitionKey]) -> None:
        """Assign the partitions that are due."""
        due_buffers = ((key, self._due[key]) for key in keys if key in self._due)
        unassigned = [(key, buffer) for key, buffer in due_buffers if not buffer.is_assigned]
        if unassigned:
            self._consumer.incremental_assign(
                [_topic_partition(key, buffer.fetched_until) for key, buffer in unassigned]
            )
        for _, buffer in unassigned:
            buffer.is_assigned = True

    def _unassign(self, keys: Sequence[PartitionKey]) -> None:
        if keys:
            self._consumer.incremental_unassign([_topic_partition(key) for key in keys])

    def _update_due(self, key: PartitionKey) -> None:
        """Record whether a partition is due: whether a range expects messages that were not fetched yet."""
        buffer = self._partitions[key]
        if buffer.is_due:
            self._due[key] = buffer
        else:
            self._due.pop(key, None)

    def _stop_fetching(self, key: PartitionKey) -> None:
        """Unassign a partition and drop its buffer. Its next range starts fetching again."""
        self._due.pop(key, None)
        if self._partitions.pop(key).is_assigned:
            self._unassign([key])

    def _poll(self) -> None:
        """Add the messages and events that have arrived, or arrive within `_POLL_TIMEOUT_S`, to the buffers."""
        missing = sum(buffer.expected_until - buffer.fetched_until for buffer in self._due.values())
        messages_max = min(max(missing, _EVENTS_MIN), PIECE_RECORDS_MAX)
        messages = self._consumer.consume(messages_max, 0) or self._consumer.consume(1, _POLL_TIMEOUT_S)
        start, grown_keys = 0, set[PartitionKey]()
        if any(map(Message.error, messages)):
            for index in (index for index, message in enumerate(messages) if message.error() is not None):
                grown_keys |= self._add_messages(messages[start:index])
                self._handle_event(messages[index])
                start = index + 1
        grown_keys |= self._add_messages(messages[start:])
        self._limit_buffers(grown_keys)

    def _add_messages(self, messages: list[Message]) -> set[PartitionKey]:
        """Add the messages to the buffers of their partitions, which are returned."""
        start, grown_keys = 0, set[PartitionKey]()
        for key, group in groupby(zip(map(Message.topic, messages), map(Message.partition, messages), strict=True)):
            end = start + len(list(group))
            buffer = self._partitions.get(key)
            if buffer is not None and buffer.is_assigned:
                buffer.add(messages[start:end])
                self._update_due(key)
                grown_keys.add(key)
            start = end
        return grown_keys

    def _handle_event(self, event: Message) -> None:
        """Handle a message without a record: the end of a log, or an error of a partition or of all that are due."""
        key, error = (event.topic(), event.partition()), event.error()
        assert error is not None
        if error.code() == KafkaError._PARTITION_EOF:
            if key in self._partitions:
                self._partitions[key].record_log_end(event.offset() or 0)
                self._update_due(key)
            return
        for failed_key in [key] if key in self.keys_read else list(self._due):
            if failed_key in self._partitions:
                self._failed[failed_key] = error
                self._stop_fetching(failed_key)

    def _limit_buffers(self, grown_keys: Iterable[PartitionKey]) -> None:
        """Bound the buffers: while a reader waits for a partition without a leader, the other partitions deliver."""
        self._pause_ahead(grown_keys)
        size = sum(buffer.size for buffer in self._partitions.values())
        if size > PENDING_BYTES_MAX:
            self._is_full = True
            self._pause_unread()
        elif self._is_full and size < PENDING_BYTES_MAX // 2:
            self._is_full = False
            self._assign(list(self._due))

    def _pause_ahead(self, grown_keys: Iterable[PartitionKey]) -> None:
        """Stop fetching the partitions that are not due and fill their share of the buffers, until they are due."""
        share = PENDING_BYTES_MAX // 2 // len(self._partitions) if self._partitions else 0
        ahead = {
            key: buffer
            for key, buffer in ((key, self._partitions[key]) for key in grown_keys if key in self._partitions)
            if buffer.ahead_size > share and buffer.is_assigned and not buffer.is_due
        }
        self._unassign(list(ahead))
        for buffer in ahead.values():
            buffer.is_assigned = False

    def _pause_unread(self) -> None:
        """Fetch only the partitions that readers wait for, and drop the buffers that no range expects."""
        unread = {key: buffer for key, buffer in self._partitions.items() if key not in self.leases}
        self._unassign([key for key, buffer in unread.items() if buffer.is_assigned])
        for key, buffer in unread.items():
            buffer.is_assigned = False
            buffer.keep_last(1)
            if key not in self._expected:
                self._stop_fetching(key)

    # --- errors ---------------------------------------------------------------------------------------------------

    def _fetch_error(self, error: KafkaError, reading: _Reading) -> TransactionalError:
        partition, offsets = reading.partition, reading.offsets
        if error.code() == KafkaError._AUTO_OFFSET_RESET:
            # Messages fetched before the error are delivered first, or not at all: the range is then read from `low`.
            low, high = self._query_watermarks(partition)
            return _lost_range_error(partition, offsets, low, high, read_until=reading.delivered_until)
        reason = self.connection.redact(error.str())
        return SourceUnavailable(f"{describe_partition(partition)} can't be read over {offsets}: {reason}")

    def _timeout_error(self, reading: _Reading) -> SourceUnavailable:
        last_error = f" (the last error: {self.connection.redact(self._errors[0].str())})" if self._errors else ""
        return SourceUnavailable(
            f"{describe_partition(reading.partition)} at {self.connection.bootstrap_servers} was read up to offset "
            f"{reading.remaining.start} of {reading.offsets}, then nothing arrived for {self.connection.timeout_ms} ms"
            f"{last_error}"
        )

    def _query_log_starts(self, keys: Sequence[PartitionKey]) -> dict[PartitionKey, int]:
        """Return the earliest offsets by partition; none at all unless all leaders answer within `_AT_ONCE_S`."""
        queried = [_topic_partition(key, OFFSET_BEGINNING) for key in keys]
        try:
            answers = self._consumer.offsets_for_times(queried, timeout=min(_AT_ONCE_S, self.connection.timeout_s))
        except KafkaException:
            return {}
        return {(answer.topic, answer.partition): answer.offset for answer in answers if answer.error is None}

    def _query_watermarks(self, partition: PartitionId) -> tuple[int, int]:
        queried = _topic_partition(partition_key(partition))
        try:
            low, high = self._consumer.get_watermark_offsets(queried, timeout=self.connection.timeout_s)
        except KafkaException as error:
            raise SourceUnavailable(
                f"{describe_partition(partition)}: {self.connection.redact(error.args[0].str())}"
            ) from error
        return low, high


def _limit_fetches(partitions: int) -> dict[str, Option]:
    """Return limits with which one response for each of the partitions fits into the buffers of their consumer.

    A response brings at least the next record batch of a partition. A limit below the record batches of a busy producer
    would bring those of one partition only, so it is not lowered further than to a large record batch.
    """
    share = PENDING_BYTES_MAX // _BYTES_PER_FETCHED_BYTE // partitions
    return {
        "fetch.message.max.bytes": min(max(share, _FETCH_BYTES_MIN), _FETCH_BYTES_MAX),
        "queued.min.messages": max(_QUEUED_RECORDS // partitions, 200),
    }


@lru_cache(_KEYS_MAX)
def partition_key(partition: PartitionId) -> PartitionKey:
    """Return the partition as messages name it."""
    return topic_of(partition.source), partition.index


def _topic_partition(key: PartitionKey, offset: int | None = None) -> TopicPartition:
    topic, index = key
    assert topic is not None
    assert index is not None
    return TopicPartition(topic, index) if offset is None else TopicPartition(topic, index, offset)


def _is_near(first_range: OffsetRange, second_range: OffsetRange) -> bool:
    """Return True if one of the ranges begins at most `SKIP_MAX` offsets after the end of the other."""
    earlier, later = sorted((first_range, second_range), key=lambda offsets: offsets.start)
    return 0 <= later.start - earlier.until <= SKIP_MAX


def _lost_range_error(
    partition: PartitionId, offsets: OffsetRange, low: int, high: int, *, read_until: int
) -> ReplayMismatch:
    return ReplayMismatch(
        f"{describe_partition(partition)}: the offsets {offsets} were planned, but the available ones are "
        f"[{low}, {high}): retention or deletion came first",
        available_from=low,
        read_until=read_until,
    )
