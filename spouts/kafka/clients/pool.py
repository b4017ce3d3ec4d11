"""Which consumer reads which partition: the consumers of this process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from os import getpid
from threading import RLock

from spouts.kafka.clients.cluster import KafkaConnection
from spouts.kafka.clients.consumers import Place, Range, SharedConsumer, place_of
from transactional.model.batch import OffsetRange, PartitionId
from transactional.model.errors import ReplayMismatch

ALONE_MAX = 7
"""Up to this number, partitions have a consumer each: one that is shared delivers each partition's records in a burst,
and with four of them one transaction in a hundred took three times as long. With more, the threads cost more than that:
each consumer has four."""

Placed = Mapping[SharedConsumer, list[Range]]
"""Ranges, by what reads them."""


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
        with self._leased(connection, ranges) as placed:
            for consumer, expected in placed.items():
                consumer.expect(expected)

    @contextmanager
    def leased(
        self, connection: KafkaConnection, partition: PartitionId, offsets: OffsetRange
    ) -> Iterator[SharedConsumer]:
        """The consumer for one read."""
        with self._leased(connection, [(partition, offsets)]) as placed:
            [consumer] = placed
            yield consumer

    def close(self, connection: KafkaConnection | None = None) -> None:
        """Close the consumers of a connection, or all: one that is being read, afterwards."""
        with self._lock:
            closing = [each for each in self._consumers if connection in (None, each.connection)]
            idle = self._retired(closing)
        for consumer in idle:
            consumer.close()

    @contextmanager
    def _leased(self, connection: KafkaConnection, ranges: Sequence[Range]) -> Iterator[Placed]:
        """After an error a consumer is given up, since a new one connects at once; unless only offsets were gone."""
        with self._lock:
            placed = self._placed(connection, ranges)
            _lease(placed)
        retiring = list[SharedConsumer]()
        try:
            yield placed
        except ReplayMismatch:
            raise
        except Exception:
            retiring += placed
            raise
        finally:
            with self._lock:
                _release(placed)
                retiring += [each for each in placed if each.is_retired and each not in retiring]
                idle = self._retired(retiring)
            for consumer in idle:
                consumer.close()

    def _retired(self, consumers: Sequence[SharedConsumer]) -> list[SharedConsumer]:
        """Take them out of the pool. Returns those that can be closed now."""
        for consumer in consumers:
            consumer.is_retired = True
        self._consumers = [each for each in self._consumers if not each.is_retired]
        return [consumer for consumer in consumers if not consumer.leases]

    def _placed(self, connection: KafkaConnection, ranges: Sequence[Range]) -> Placed:
        """With the lock held: what has a partition reads on, unless it is being read elsewhere at the same time."""
        ours = [each for each in self._consumers if each.connection == connection]
        placed, rest = dict[SharedConsumer, list[Range]](), dict[Place, list[Range]]()
        for lease in ranges:
            place = place_of(lease[0])
            consumer = next((each for each in ours if place in each.places and each.is_free_for(*lease)), None)
            if consumer is None:
                rest.setdefault(place, []).append(lease)
            else:
                placed.setdefault(consumer, []).append(lease)
        others = [lease for leases in rest.values() for lease in leases]
        free = (each for each in ours if each.is_shared and all(each.is_free_for(*lease) for lease in others))
        shared = next(free, None)
        if shared is None and len(ours) + len(rest) <= ALONE_MAX:
            return placed | {self._opened(connection, 1): leases for leases in rest.values()}
        if others:
            shared = shared or self._opened(connection, max(len(rest), ALONE_MAX + 1))
            placed[shared] = placed.get(shared, []) + others
        return placed

    def _opened(self, connection: KafkaConnection, partitions: int) -> SharedConsumer:
        consumer = SharedConsumer(connection, partitions)
        self._consumers.append(consumer)
        return consumer


def _lease(placed: Placed) -> None:
    for consumer, leases in placed.items():
        for lease in leases:
            place = place_of(lease[0])
            consumer.places.add(place)
            consumer.leases.setdefault(place, []).append(lease)


def _release(placed: Placed) -> None:
    for consumer, leases in placed.items():
        for lease in leases:
            place = place_of(lease[0])
            consumer.leases[place].remove(lease)
            if not consumer.leases[place]:
                del consumer.leases[place]


# A forked process inherits consumers without their threads: they must neither be used nor destroyed there.
_pools = [ConsumerPool()]


def consumer_pool() -> ConsumerPool:
    """The pool of this process."""
    if _pools[-1].process_id != getpid():
        _pools.append(ConsumerPool())
    return _pools[-1]
