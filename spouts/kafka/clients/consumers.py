"""Consumers that continue reading: Kafka's clients behind the Kafka spouts.

One consumer fetches many partitions. It never seeks as long as ranges follow one another, and what it delivers beyond
a range stays here until the next range takes it. None ever joins, or writes to, a consumer group.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from threading import Lock
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition

from spouts.kafka.clients.cluster import KafkaConnection, Option, described, make_client, topic_of
from spouts.kafka.clients.fetched import PIECE_BYTES_MAX, PIECE_RECORDS_MAX, Fetched, Run
from transactional.model.batch import OffsetRange, PartitionId
from transactional.model.errors import ReplayMismatch, SourceUnavailable, TransactionalError

SKIP_MAX = 20_000
"""Offsets that are read and discarded instead of seeking: that is faster, because they were prefetched."""

PENDING_BYTES_MAX = 128 * 1024 * 1024
"""What a consumer keeps that no range has taken. Above it, only what readers wait for is fetched."""

_WAIT_S = 0.1
_TOGETHER_S = 1.0
_EVENTS = 1_000
"""So many are taken even if fewer records are due: the ends of logs are among them."""
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
    # Of all partitions. Of each one a response may bring whole record batches of a busy producer: with a lower limit
    # for a partition than their size, it brings only one partition's.
    "fetch.max.bytes": _QUEUED_BYTES,
    "fetch.message.max.bytes": 1_000_000,
}

Place = tuple[str | None, int | None]
"""A partition as messages name it: topic and number."""
Range = tuple[PartitionId, OffsetRange]


@dataclass(slots=True)
class _Reading:
    """How far a reader is."""

    partition: PartitionId
    offsets: OffsetRange
    rest: OffsetRange
    delivered_until: int
    begun_s: float = field(default_factory=time.monotonic)


class SharedConsumer:
    """A consumer of some partitions, for readers in several threads: while one of them waits, it fetches for all.

    `places` are its partitions, and `leases` the ranges that are being read; the pool keeps both, with its own lock.
    """

    def __init__(self, connection: KafkaConnection, partitions: int) -> None:
        self.connection = connection
        self.is_shared = partitions > 1
        self.is_retired = False
        self.places: set[Place] = set()
        self.leases: dict[Place, list[Range]] = {}
        self._lock = Lock()
        self._fetched: dict[Place, Fetched] = {}
        self._due: dict[Place, Fetched] = {}
        self._expected: set[Place] = set()
        self._failed: dict[Place, KafkaError] = {}
        self._is_full = False
        self._errors: deque[KafkaError] = deque(maxlen=1)
        settings: dict[str, Any] = connection.client(
            {**_CONSUMER, "queued.min.messages": max(_QUEUED_RECORDS // partitions, 200)}
        ) | {
            "isolation.level": connection.isolation,
            "error_cb": self._errors.append,
        }
        self._consumer = make_client(partial(Consumer, settings), connection)

    def is_free_for(self, partition: PartitionId, offsets: OffsetRange) -> bool:
        """Whether nobody reads the partition elsewhere at the same time: they would send it to and fro."""
        leases = self.leases.get(place_of(partition), ())
        return all(other == partition and _is_near(offsets, read) for other, read in leases)

    def expect(self, ranges: Sequence[Range]) -> None:
        """Begin to fetch these ranges, all at once."""
        with self._lock:
            self._expected = {place_of(partition) for partition, _ in ranges}
            self._begin(ranges)

    def read(self, partition: PartitionId, offsets: OffsetRange) -> Iterator[list[Message]]:
        """Yield the messages of the range in lists of bounded size. Ends only once `until` was definitely passed."""
        with self._lock:
            self._begin([(partition, offsets)])
        reading = _Reading(partition, offsets, offsets, offsets.start)
        ready: list[Message] = []
        size = 0
        while len(reading.rest):
            taken = self._step(reading)
            ready += taken.messages
            size += taken.size
            reading.rest = OffsetRange(taken.offsets.until, offsets.until)
            if ready and (not len(reading.rest) or len(ready) >= PIECE_RECORDS_MAX or size >= PIECE_BYTES_MAX):
                yield ready
                reading.delivered_until, ready, size = reading.rest.start, [], 0

    def check_start(self, partition: PartitionId, offsets: OffsetRange) -> None:
        """Raise `ReplayMismatch` if the log may have lost the beginning of the range by now.

        Called after reading, and only if offsets were missing: if all were there, nothing can have been lost. One
        request answers for all partitions, as far as they have been fetched.
        """
        place = place_of(partition)
        with self._lock:
            mine = self._fetched.get(place)
            asked = {at: self._fetched[at] for at in self._expected if at in self._fetched and at not in self._due}
            seen = {at: fetched.seen for at, fetched in asked.items()}
        if mine is None or mine.low_until < offsets.until:
            lows = self._lows(list({place: None, **seen}))
            for at in lows.keys() & asked.keys():
                asked[at].low, asked[at].low_until = lows[at], seen[at]
            low = lows[place] if place in lows else self._watermarks(partition)[0]
        else:
            low = mine.low
        if low > offsets.start:
            raise _gone(partition, offsets, *self._watermarks(partition), read_until=offsets.until)

    def close(self) -> None:
        """Stop its threads."""
        with self._lock:
            self._consumer.close()

    def _step(self, reading: _Reading) -> Run:
        """What there is of the rest of a range; if nothing, what comes within a moment."""
        place = place_of(reading.partition)
        with self._lock:
            fetched = Fetched(reading.partition, 0) if place in self._failed else self._reached(place, reading)
            error, taken = self._failed.get(place), fetched.take(reading.rest)
        if error is not None:
            raise self._error(error, reading)
        silent_s = time.monotonic() - max(fetched.heard_s, reading.begun_s)
        if not len(taken.offsets) and silent_s >= self.connection.timeout_s:
            raise self._silent(reading)
        return taken

    # --- with the lock held ---------------------------------------------------------------------------------------

    def _reached(self, place: Place, reading: _Reading) -> Fetched:
        """What there is of the partition, after a moment if there was nothing to continue with."""
        self._reach([(reading.partition, reading.rest)], begins=False)
        fetched = self._fetched[place]
        if fetched.seen <= reading.rest.start:
            self._fetch()
        return fetched

    def _begin(self, ranges: Sequence[Range]) -> None:
        self._errors.clear()
        for partition, _ in ranges:
            self._failed.pop(place_of(partition), None)
        self._reach(ranges, begins=True)

    def _reach(self, ranges: Sequence[Range], *, begins: bool) -> None:
        """Make sure that the ranges come. A partition that has to be moved loses what was fetched of it."""
        leaving, places = list[Place](), dict[Place, None]()
        for partition, offsets in ranges:
            place = place_of(partition)
            fetched = self._fetched.get(place)
            # Nothing is skipped that another reader is waiting for, who is behind.
            skip_max = SKIP_MAX if begins and len(self.leases.get(place, ())) <= 1 else math.inf
            if fetched is None or not fetched.reaches(partition, offsets, skip_max):
                leaving += [place] if fetched is not None and fetched.is_assigned else []
                fetched = self._fetched[place] = Fetched(partition, offsets.start)
            fetched.until = max(fetched.until, offsets.until)
            places[place] = None
            self._settle(place)
        self._unassign(leaving)
        self._assign(places)

    def _assign(self, places: Iterable[Place]) -> None:
        """Continue to fetch those that are due."""
        due = ((place, self._due[place]) for place in places if place in self._due)
        joining = [(place, fetched) for place, fetched in due if not fetched.is_assigned]
        if joining:
            self._consumer.incremental_assign([_at(place, fetched.seen) for place, fetched in joining])
        for _, fetched in joining:
            fetched.is_assigned = True

    def _unassign(self, places: Sequence[Place]) -> None:
        if places:
            self._consumer.incremental_unassign([_at(place) for place in places])

    def _settle(self, place: Place) -> None:
        """Note whether a partition is due."""
        fetched = self._fetched[place]
        if fetched.is_due:
            self._due[place] = fetched
        else:
            self._due.pop(place, None)

    def _forget(self, place: Place) -> None:
        """Its next range has to begin by itself."""
        self._due.pop(place, None)
        if self._fetched.pop(place).is_assigned:
            self._unassign([place])

    def _fetch(self) -> None:
        """Add what has come, or comes within a moment."""
        missing = sum(fetched.until - fetched.seen for fetched in self._due.values())
        most = min(max(missing, _EVENTS), PIECE_RECORDS_MAX)
        messages = self._consumer.consume(most, 0) or self._consumer.consume(1, _WAIT_S)
        begin = 0
        if any(map(Message.error, messages)):
            for at in (at for at, message in enumerate(messages) if message.error() is not None):
                self._add(messages[begin:at])
                self._note(messages[at])
                begin = at + 1
        self._add(messages[begin:])
        self._relieve()

    def _add(self, messages: list[Message]) -> None:
        begin = 0
        for place, group in groupby(zip(map(Message.topic, messages), map(Message.partition, messages), strict=True)):
            end = begin + len(list(group))
            fetched = self._fetched.get(place)
            if fetched is not None and fetched.is_assigned:
                fetched.add(messages[begin:end])
                self._settle(place)
            begin = end

    def _note(self, event: Message) -> None:
        """The end of a log; or an error of a partition, or of all that are due."""
        place, error = (event.topic(), event.partition()), event.error()
        assert error is not None
        if error.code() == KafkaError._PARTITION_EOF:
            if place in self._fetched:
                self._fetched[place].add_end(event.offset() or 0)
                self._settle(place)
            return
        for failed in [place] if place in self.places else list(self._due):
            if failed in self._fetched:
                self._failed[failed] = error
                self._forget(failed)

    def _relieve(self) -> None:
        """Bound what is here: while a reader waits for a partition without leader, all others continue to deliver."""
        size = sum(fetched.size for fetched in self._fetched.values())
        if size > PENDING_BYTES_MAX:
            self._is_full = True
            self._park()
        elif self._is_full and size < PENDING_BYTES_MAX // 2:
            self._is_full = False
            self._assign(list(self._due))

    def _park(self) -> None:
        """Fetch only what readers wait for, and forget what nobody expects."""
        parked = {place: fetched for place, fetched in self._fetched.items() if place not in self.leases}
        self._unassign([place for place, fetched in parked.items() if fetched.is_assigned])
        for place, fetched in parked.items():
            fetched.is_assigned = False
            fetched.keep_last(1)
            if place not in self._expected:
                self._forget(place)

    # --- errors ---------------------------------------------------------------------------------------------------

    def _error(self, error: KafkaError, reading: _Reading) -> TransactionalError:
        partition, offsets = reading.partition, reading.offsets
        if error.code() == KafkaError._AUTO_OFFSET_RESET:
            # What was fetched before the error is delivered first, or not at all: the range is then read from `low`.
            low, high = self._watermarks(partition)
            return _gone(partition, offsets, low, high, read_until=reading.delivered_until)
        reason = self.connection.redact(error.str())
        return SourceUnavailable(f"{described(partition)} can't be read over {offsets}: {reason}")

    def _silent(self, reading: _Reading) -> SourceUnavailable:
        last = f" (the last error: {self.connection.redact(self._errors[0].str())})" if self._errors else ""
        return SourceUnavailable(
            f"{described(reading.partition)} at {self.connection.bootstrap_servers} was read up to offset "
            f"{reading.rest.start} of {reading.offsets}, then nothing arrived for {self.connection.timeout_ms} ms{last}"
        )

    def _lows(self, places: Sequence[Place]) -> dict[Place, int]:
        """The earliest offsets. None is here if a leader does not answer within a moment."""
        queried = [_at(place, OFFSET_BEGINNING) for place in places]
        try:
            found = self._consumer.offsets_for_times(queried, timeout=min(_TOGETHER_S, self.connection.timeout_s))
        except KafkaException:
            return {}
        return {(each.topic, each.partition): each.offset for each in found if each.error is None}

    def _watermarks(self, partition: PartitionId) -> tuple[int, int]:
        queried = _at(place_of(partition))
        try:
            low, high = self._consumer.get_watermark_offsets(queried, timeout=self.connection.timeout_s)
        except KafkaException as error:
            raise SourceUnavailable(f"{described(partition)}: {self.connection.redact(error.args[0].str())}") from error
        return low, high


def place_of(partition: PartitionId) -> Place:
    """The partition as messages name it."""
    return topic_of(partition.source), partition.index


def _at(place: Place, offset: int | None = None) -> TopicPartition:
    topic, index = place
    assert topic is not None
    assert index is not None
    return TopicPartition(topic, index) if offset is None else TopicPartition(topic, index, offset)


def _is_near(one: OffsetRange, other: OffsetRange) -> bool:
    """Whether one of them begins soon after the other's end."""
    first, second = sorted((one, other), key=lambda offsets: offsets.start)
    return 0 <= second.start - first.until <= SKIP_MAX


def _gone(partition: PartitionId, offsets: OffsetRange, low: int, high: int, *, read_until: int) -> ReplayMismatch:
    return ReplayMismatch(
        f"{described(partition)}: the offsets {offsets} were planned, but the available ones are [{low}, {high}): "
        "retention or deletion came first",
        available_from=low,
        read_until=read_until,
    )
