"""The pool of a process's consumers: it decides which consumer reads which partition.

A few partitions have a consumer each; many share one. A consumer that has read a partition reads its next range, too,
because it has fetched ahead. After an error a consumer is closed and replaced. `consumer_pool` returns the pool of this
process; a forked process gets an empty one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from os import getpid
from threading import RLock

from spouts.kafka.clients.cluster import KafkaConnection
from spouts.kafka.clients.consumers import PartitionKey, Range, SharedConsumer, partition_key
from spouts.kafka.clients.fetched import Run
from transactional.model.batch import OffsetRange, PartitionId
from transactional.model.errors import ReplayMismatch

UNSHARED_MAX = 7
"""The maximum number of partitions that have a consumer each. A shared consumer delivers the records of each partition
in a burst: with four partitions one transaction in a hundred took three times as long. With more partitions the threads
cost more than that, since each consumer has four."""

RangesByConsumer = Mapping[SharedConsumer, list[Range]]
"""The ranges to read, by the consumer that reads them."""


class ConsumerPool:
    """The consumers of a process: one for each of a few partitions, or one that many share."""

    def __init__(self) -> None:
        self.process_id = getpid()
        # Not a `Lock`: the garbage collector may close a reader that was given up while this thread holds it.
        self._lock = RLock()
        self._consumers: list[SharedConsumer] = []

    def __len__(self) -> int:
        return len(self._consumers)

    def expect(self, connection: KafkaConnection, ranges: Sequence[Range]) -> None:
        """Begin to fetch ranges that are going to be read."""
        with self._leasing(connection, ranges) as ranges_by_consumer:
            for consumer, expected in ranges_by_consumer.items():
                consumer.expect(expected)

    @contextmanager
    def leasing(
        self, connection: KafkaConnection, partition: PartitionId, offsets: OffsetRange
    ) -> Iterator[SharedConsumer]:
        """Return the consumer for one range, which is leased until the context ends."""
        with self._leasing(connection, [(partition, offsets)]) as ranges_by_consumer:
            [consumer] = ranges_by_consumer
            yield consumer

    def take_whole(self, connection: KafkaConnection, ranges: Sequence[Range]) -> list[Run]:
        """Remove and return the first of these ranges, as far as one consumer has all their messages.

        Nothing is leased, and nobody is waited for: a range that is not returned is read with `leasing`.
        """
        key = partition_key(ranges[0][0])
        with self._lock:
            consumers = [
                consumer
                for consumer in self._consumers
                if consumer.connection == connection and key in consumer.keys_read
            ]
        return consumers[0].take_whole(ranges) if consumers else []

    def close(self, connection: KafkaConnection | None = None) -> None:
        """Close the consumers of a connection, or all of them. A consumer that is in use is closed after its use."""
        with self._lock:
            to_close = [consumer for consumer in self._consumers if connection in (None, consumer.connection)]
            idle = self._retire(to_close)
        for consumer in idle:
            consumer.close()

    @contextmanager
    def _leasing(self, connection: KafkaConnection, ranges: Sequence[Range]) -> Iterator[RangesByConsumer]:
        """Lease the consumers of the ranges until the context ends.

        After an error the consumers are closed, since a new one connects at once; but not if only offsets were lost.
        """
        with self._lock:
            ranges_by_consumer = self._assign_consumers(connection, ranges)
            _lease(ranges_by_consumer)
        retiring = list[SharedConsumer]()
        try:
            yield ranges_by_consumer
        except ReplayMismatch:
            raise
        except Exception:
            retiring += ranges_by_consumer
            raise
        finally:
            with self._lock:
                _release(ranges_by_consumer)
                retiring += [
                    consumer for consumer in ranges_by_consumer if consumer.is_retired and consumer not in retiring
                ]
                idle = self._retire(retiring)
            for consumer in idle:
                consumer.close()

    def _retire(self, consumers: Sequence[SharedConsumer]) -> list[SharedConsumer]:
        """Take consumers out of the pool, and return those that can be closed now."""
        for consumer in consumers:
            consumer.is_retired = True
        self._consumers = [consumer for consumer in self._consumers if not consumer.is_retired]
        return [consumer for consumer in consumers if not consumer.leases]

    def _assign_consumers(self, connection: KafkaConnection, ranges: Sequence[Range]) -> RangesByConsumer:
        """Choose a consumer for each range, with the lock held.

        A consumer that has a partition continues to read it, unless another range of the partition is being read far
        from this one.
        """
        candidates = [candidate for candidate in self._consumers if candidate.connection == connection]
        ranges_by_consumer, unplaced = dict[SharedConsumer, list[Range]](), dict[PartitionKey, list[Range]]()
        for lease in ranges:
            key = partition_key(lease[0])
            consumer = next(
                (candidate for candidate in candidates if key in candidate.keys_read and candidate.is_free_for(*lease)),
                None,
            )
            if consumer is None:
                unplaced.setdefault(key, []).append(lease)
            else:
                ranges_by_consumer.setdefault(consumer, []).append(lease)
        if not unplaced:
            return ranges_by_consumer
        unplaced_leases = [lease for leases in unplaced.values() for lease in leases]
        free_consumers = (
            candidate
            for candidate in candidates
            if candidate.is_shared and all(candidate.is_free_for(*lease) for lease in unplaced_leases)
        )
        shared = next(free_consumers, None)
        if shared is None and len(candidates) + len(unplaced) <= UNSHARED_MAX:
            return ranges_by_consumer | {self._open_consumer(connection, 1): leases for leases in unplaced.values()}
        shared = shared or self._open_consumer(connection, max(len(unplaced), UNSHARED_MAX + 1))
        ranges_by_consumer[shared] = ranges_by_consumer.get(shared, []) + unplaced_leases
        return ranges_by_consumer

    def _open_consumer(self, connection: KafkaConnection, partitions: int) -> SharedConsumer:
        consumer = SharedConsumer(connection, partitions)
        self._consumers.append(consumer)
        return consumer


def _lease(ranges_by_consumer: RangesByConsumer) -> None:
    for consumer, leases in ranges_by_consumer.items():
        for lease in leases:
            key = partition_key(lease[0])
            consumer.keys_read.add(key)
            consumer.leases.setdefault(key, []).append(lease)


def _release(ranges_by_consumer: RangesByConsumer) -> None:
    for consumer, leases in ranges_by_consumer.items():
        for lease in leases:
            key = partition_key(lease[0])
            consumer.leases[key].remove(lease)
            if not consumer.leases[key]:
                del consumer.leases[key]


# A forked process inherits consumers without their threads: they must neither be used nor destroyed there.
_pools = [ConsumerPool()]


def consumer_pool() -> ConsumerPool:
    """Return the pool of this process."""
    if _pools[-1].process_id != getpid():
        _pools.append(ConsumerPool())
    return _pools[-1]
