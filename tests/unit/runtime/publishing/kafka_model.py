"""A Kafka of the simulation's own: epochs, open and prepared transactions, unknown outcomes; with confluent's classes.

What clients do is decided here by the rules of Kafka's transactions. Chance decides what goes wrong. Nothing waits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicPartition

ANSWER_LOST = KafkaError(KafkaError._TIMED_OUT, "no answer", retriable=True)
ABORTABLE = KafkaError(KafkaError._TIMED_OUT, "a record was not acknowledged", txn_requires_abort=True)
FENCED = KafkaError(KafkaError._FENCED, "fenced", fatal=True)
WAITS_MAX = 5
"""A reader that waits for a transaction polls so often until it times out."""
SUDDEN_OFFSETS = 4
"""A reader may die at so many offsets before the end. If it could at all of them, none would read a long topic."""
STRANGER = b"stranger"
"""The key of records that others write into the control topic."""


@dataclass
class Entry:
    """One offset of a topic: a record, or the end of a transaction. `txn` is the transaction that it belongs to."""

    key: bytes | None
    value: bytes | None
    headers: dict[str, str]
    txn: Txn | None
    is_control: bool = False


@dataclass
class Txn:
    """A Kafka transaction. `outcome` is None while it is open; one that is prepared will be committed."""

    outcome: bool | None = None
    is_prepared: bool = False
    topics: set[str] = field(default_factory=set)


@dataclass
class Session:
    """What the broker keeps for a transactional id."""

    epoch: int = 0
    txn: Txn | None = None


class FakeKafka:
    """The broker. `point` is called before whatever a client does; it may raise, or let others go on first.

    `strikes` decides by the name of a fault whether it happens.
    """

    def __init__(self, point: Callable[[str], None], strikes: Callable[[str], bool]) -> None:
        self.point, self.strikes = point, strikes
        self.topics: dict[str, list[Entry]] = {}
        self.sessions: dict[str, Session] = {}
        self.stable_ends = Counter[str]()
        self.reached = Counter[str]()
        self.foreign: Txn | None = None
        self.waits = self.inits = 0

    def open_foreign(self, topic: str) -> None:
        """Open a transaction of somebody else in a topic."""
        if self.foreign is None:
            self.foreign = Txn(topics={topic})
            self.topics[topic].append(Entry(STRANGER, b"{}", {}, self.foreign))
            self.reached["a foreign transaction is open"] += 1

    def pass_time(self, topic: str) -> None:
        """Let a reader wait for an open transaction, which times out once it has been waited for."""
        if (end := self.stable_end(topic)) == len(self.topics[topic]):
            return
        self.waits += 1
        if self.waits < WAITS_MAX:
            return
        self.waits, txn = 0, self.topics[topic][end].txn
        assert txn is not None
        self.reached["a transaction times out"] += 1
        for session in self.sessions.values():
            if session.txn is txn:
                session.txn = None
                session.epoch += not txn.is_prepared
        self.end(txn, is_committed=txn.is_prepared)
        if txn is self.foreign:
            self.foreign = None

    def end(self, txn: Txn, *, is_committed: bool) -> None:
        """End a transaction: its records become visible, or never will."""
        txn.outcome = is_committed
        for topic in txn.topics:
            self.topics[topic].append(Entry(None, None, {}, None, is_control=True))

    def stable_end(self, topic: str) -> int:
        """The last stable offset: the first one of an open transaction, or the end."""
        entries, end = self.topics[topic], self.stable_ends[topic]
        while end < len(entries) and ((txn := entries[end].txn) is None or txn.outcome is not None):
            end += 1
        self.stable_ends[topic] = end
        return end

    def visible(self, topic: str) -> list[Entry]:
        """What a reader of read_committed sees."""
        entries = self.topics[topic][: self.stable_end(topic)]
        return [e for e in entries if not e.is_control and (e.txn is None or e.txn.outcome)]


class FakeProducer:
    """A transactional producer with confluent's methods."""

    broker: FakeKafka

    def __init__(self, settings: dict[str, Any]) -> None:
        self.id = settings["transactional.id"]
        self.session: Session | None = None
        self.epoch = -1
        self.is_failed = False

    def init_transactions(self, timeout: float) -> None:
        broker = self.broker
        broker.point("init")
        session = broker.sessions.setdefault(self.id, Session())
        session.epoch += 1
        broker.inits += 1
        if session.txn is not None:
            if session.txn.is_prepared:
                broker.reached["an init completes a prepared commit"] += 1
            broker.end(session.txn, is_committed=session.txn.is_prepared)
            session.txn = None
        self.session, self.epoch = session, session.epoch
        broker.point("init done")

    def begin_transaction(self) -> None:
        self.broker.point("begin")
        self.is_failed = False

    def produce(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        partition: int,
        headers: list[tuple[str, str]] | None = None,
    ) -> None:
        self.broker.point("produce")
        session = self._live()
        if session is None:
            return
        if session.txn is None:
            session.txn = Txn()
        session.txn.topics.add(topic)
        self.broker.topics[topic].append(Entry(key, value, dict(headers or ()), session.txn))
        if self.broker.strikes("a record is not acknowledged"):
            self.is_failed = True

    def poll(self, timeout: float) -> int:
        return 0

    def commit_transaction(self, timeout: float) -> None:
        broker = self.broker
        broker.point("commit")
        session = self._live()
        if session is None:
            raise KafkaException(FENCED)
        if self.is_failed:
            raise KafkaException(ABORTABLE)
        if session.txn is not None and broker.strikes("a commit is prepared, and its answer lost"):
            session.txn.is_prepared = True
            raise KafkaException(ANSWER_LOST)
        if broker.strikes("a commit is lost"):
            raise KafkaException(ANSWER_LOST)
        if session.txn is not None:
            broker.end(session.txn, is_committed=True)
            session.txn = None
        broker.point("commit done")
        if broker.strikes("a commit is done, and its answer lost"):
            raise KafkaException(ANSWER_LOST)
        if broker.strikes("a commit is done, and its answer fatal"):
            raise KafkaException(FENCED)

    def abort_transaction(self, timeout: float) -> None:
        broker = self.broker
        broker.point("abort")
        session = self._live()
        if session is None or broker.strikes("an abort fails"):
            raise KafkaException(FENCED)
        if session.txn is not None:
            broker.end(session.txn, is_committed=False)
            session.txn = None

    def _live(self) -> Session | None:
        """The session, unless a later producer has fenced this one."""
        if self.session is None or self.session.epoch != self.epoch:
            self.broker.reached["a producer is fenced"] += 1
            return None
        return self.session


@dataclass
class FakeMessage:
    """A record, or the end of a partition."""

    at: int
    entry: Entry | None

    def error(self) -> KafkaError | None:
        return KafkaError(KafkaError._PARTITION_EOF) if self.entry is None else None

    def offset(self) -> int:
        return self.at

    def key(self) -> bytes | None:
        return None if self.entry is None else self.entry.key

    def value(self) -> bytes | None:
        return None if self.entry is None else self.entry.value


class FakeConsumer:
    """A consumer of one partition with confluent's methods."""

    broker: FakeKafka

    def __init__(self, settings: dict[str, Any]) -> None:
        self.is_committed = settings["isolation.level"] == "read_committed"
        self.topic, self.next = "", 0

    def get_watermark_offsets(self, partition: TopicPartition, timeout: float) -> tuple[int, int]:
        self.broker.point("watermarks")
        topic = partition.topic
        return 0, self.broker.stable_end(topic) if self.is_committed else len(self.broker.topics[topic])

    def assign(self, partitions: list[TopicPartition]) -> None:
        [partition] = partitions
        self.topic, self.next = partition.topic, partition.offset

    def poll(self, timeout: float) -> FakeMessage | None:
        broker = self.broker
        if self.next + SUDDEN_OFFSETS >= broker.stable_end(self.topic):
            broker.point("poll")
        end = broker.stable_end(self.topic)
        while self.next < end:
            at, entry = self.next, broker.topics[self.topic][self.next]
            self.next += 1
            if not entry.is_control and (entry.txn is None or entry.txn.outcome):
                return FakeMessage(at, entry)
        broker.pass_time(self.topic)
        return FakeMessage(self.next, None)

    def close(self) -> None:
        """Nothing is held."""


class FakeAdmin:
    """An admin client: topics are there once they are created."""

    broker: FakeKafka

    def __init__(self, settings: dict[str, Any]) -> None:
        del settings

    def create_topics(self, topics: list[Any]) -> dict[str, Any]:
        self.broker.point("create topic")
        for topic in topics:
            self.broker.topics.setdefault(topic.topic, [])
        return {topic.topic: Done() for topic in topics}


class Done:
    """A future that has its result."""

    def result(self, timeout: float) -> None:
        """Return at once."""
