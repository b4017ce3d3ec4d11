"""A cluster in memory, and a client that fetches from it as librdkafka does: for consumers that are shared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, KafkaError, KafkaException, Message, TopicPartition

import spouts.kafka.clients.consumers as consumers
from spouts.kafka.clients.cluster import KafkaConnection
from transactional.model.batch import Offset, OffsetRange, PartitionId

ONE, OTHER = KafkaConnection("one:9092"), KafkaConnection("other:9092")


def span(start: int, until: int) -> OffsetRange:
    return OffsetRange(Offset(start), Offset(until))


def partition(index: int, source: str = "t") -> PartitionId:
    return PartitionId(source, index)


@dataclass
class Log:
    """A partition: the offsets that hold a record, out of those below `end`; the others are markers and aborted."""

    end: int
    records: list[int]
    has_leader: bool = True
    error: int | None = None
    """What the next fetch raises."""
    low: int = 0


@dataclass
class Cluster:
    """Partitions by number, all of topic "t". `bytes` is the size of a record."""

    logs: dict[int, Log]
    seed: int = 0
    bytes: int = 10
    burst: int = 7
    clients: list[Client] = field(default_factory=list)
    before_connecting: Callable[[], object] = lambda: None
    value_of: Callable[[int, int], Any] | None = None
    """Makes the value of a record from its partition and its offset."""

    @classmethod
    def of(cls, *ends: int, every: int = 1, **options: Any) -> Cluster:
        """Logs with these ends, in which every so-manieth offset holds a record."""
        return cls({index: Log(end, list(range(0, end, every))) for index, end in enumerate(ends)}, **options)

    def install(self, monkeypatch: pytest.MonkeyPatch) -> Cluster:
        """Connect clients that are made from now on."""
        monkeypatch.setattr(consumers, "make_client", self._connect)
        monkeypatch.setattr(consumers, "_POLL_TIMEOUT_S", 0)
        return self

    def _connect(self, make: Any, connection: KafkaConnection) -> Client:
        self.before_connecting()
        self.clients.append(Client(self, make.args[0] if make.args else {}))
        return self.clients[-1]

    def content(self, index: int, offsets: OffsetRange) -> list[int]:
        """What a range holds."""
        return [offset for offset in self.logs[index].records if offsets.start <= offset < offsets.until]


class Client:
    """Delivers bursts of one partition after the other, and says when it is at the end of a log: once."""

    def __init__(self, cluster: Cluster, settings: dict[str, Any]) -> None:
        self.cluster, self.settings = cluster, settings
        self.at: dict[int, int] = {}
        self.assigned: list[dict[int, int]] = []
        self.unassigned: list[list[int]] = []
        self.queries: list[list[int]] = []
        self.delivered_records = 0
        self.is_closed = False
        self.before_consuming: Callable[[], None] = lambda: None
        self._ended: set[int] = set()
        self._random = Random(cluster.seed)
        self._is_busy = False

    def incremental_assign(self, partitions: list[TopicPartition]) -> None:
        joining = {each.partition: each.offset for each in partitions}
        assert len(joining) == len(partitions)
        assert not joining.keys() & self.at.keys(), "librdkafka refuses it"
        self.assigned.append(joining)
        self.at |= joining

    def incremental_unassign(self, partitions: list[TopicPartition]) -> None:
        for each in partitions:
            del self.at[each.partition]
            self._ended.discard(each.partition)
        self.unassigned.append([each.partition for each in partitions])

    def consume(self, most: int, _: float) -> list[Message]:
        assert not self._is_busy, "two threads at once"
        assert most > 0
        self._is_busy = True
        self.before_consuming()
        events: list[Message] = []
        while len(events) < most and (burst := self._burst(most - len(events))):
            events += burst
            if self._random.random() < 0.5:
                break
        self._is_busy = False
        return events

    def _burst(self, most: int) -> list[Message]:
        ready = [index for index in sorted(self.at) if self._has_something(index)]
        if not ready:
            return []
        index = self._random.choice(ready)
        log, at = self.cluster.logs[index], self.at[index]
        if log.error is not None:
            code, log.error = log.error, None
            return [Message(topic="t", partition=index, offset=at, error=KafkaError(code))]
        offsets = self.cluster.content(index, span(at, log.end))[
            : min(most, self._random.randint(1, self.cluster.burst))
        ]
        if offsets:
            self.at[index] = offsets[-1] + 1
            self.delivered_records += len(offsets)
            value_of = self.cluster.value_of or (lambda _, __: b"x" * self.cluster.bytes)
            return [Message(topic="t", partition=index, offset=each, value=value_of(index, each)) for each in offsets]
        self.at[index] = log.end
        self._ended.add(index)
        return [Message(topic="t", partition=index, offset=log.end, error=KafkaError(KafkaError._PARTITION_EOF))]

    def _has_something(self, index: int) -> bool:
        log = self.cluster.logs[index]
        return log.has_leader and (index not in self._ended or self.at[index] < log.end or log.error is not None)

    def offsets_for_times(self, partitions: list[TopicPartition], timeout: float) -> list[TopicPartition]:
        assert {each.offset for each in partitions} == {OFFSET_BEGINNING}
        self.queries.append([each.partition for each in partitions])
        if not all(self.cluster.logs[each.partition].has_leader for each in partitions):
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        return [TopicPartition("t", each.partition, self.cluster.logs[each.partition].low) for each in partitions]

    def get_watermark_offsets(self, at: TopicPartition, timeout: float) -> tuple[int, int]:
        return self.cluster.logs[at.partition].low, self.cluster.logs[at.partition].end

    def close(self) -> None:
        self.is_closed = True
