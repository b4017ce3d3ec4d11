"""Leaders of one topology with two Kafka sinks, over the real relay, sink and rules, and over a Kafka of their own.

One of the sinks has two topics.

Everything runs in one thread. At each call of a client or of the store, a leader may die, or stand still while another
one takes over and goes on; then it continues, which is what a suspended process does.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import fields, replace
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

from sinks.kafka import connection as kafka_connection
from sinks.kafka import control, topics
from sinks.kafka import sink as kafka_sink
from sinks.kafka.record_encoding import KEY, TOPIC, VALUE
from sinks.kafka.sink import KafkaSink
from tests.unit.runtime.publishing.kafka_model import STRANGER, FakeAdmin, FakeConsumer, FakeKafka, FakeProducer
from tests.unit.runtime.publishing.simulated_rewind import rewind_simulated
from transactional.core.store import AttemptRecord, Lease
from transactional.core.store.outbox import SinkRecords
from transactional.core.store.progress import Progress
from transactional.core.store.rules import COMMITTED, REWOUND
from transactional.errors import ConfigError, Fenced, OperatingError, RewindUnfinished, StoreMismatch, TopologyInUse
from transactional.model.attempt import AttemptId, TransactionAttempt, TxId
from transactional.model.batch import EMPTY_BATCH
from transactional.runtime.publishing import payloads
from transactional.runtime.publishing.payload_files import PayloadFolder
from transactional.runtime.publishing.payloads import encode_payload
from transactional.runtime.publishing.relay import Relay
from transactional.runtime.publishing.settling import settle_sinks
from transactional.testing import MemoryCoordinatorStore
from transactional.testing.memory_topology import MemoryTopology

TOPOLOGY, STORE_ID = "simulated", "store"
NAMES = ("alerts", "copy")
TOPICS = {"alerts": ("alerts",), "copy": ("copy", "more")}
"""By sink. The records of a transaction go to the topics of their sink in turns."""
TRANSACTIONS = 8
POINTS_MAX = 10_000
RATES = {
    "death": 0.04,
    "standing still": 0.03,
    "a record is not acknowledged": 0.02,
    "a commit is prepared, and its answer lost": 0.3,
    "a commit is lost": 0.1,
    "a commit is done, and its answer lost": 0.1,
    "an abort fails": 0.2,
    "a commit is done, and its answer fatal": 0.05,
    "a foreign transaction": 0.01,
    "the store is copied": 0.1,
    "a copy of the store is started": 0.1,
    "a rewind": 0.03,
    "a rewind is only begun": 0.4,
}


class Death(BaseException):
    """SIGKILL."""


class World:
    """The store, the broker and the leaders. `commit` and `step` are what a leader does."""

    def __init__(self, seed: int) -> None:
        self.chance, self.depth = random.Random(seed), 0
        self.store = MemoryCoordinatorStore()
        self.kafka = FakeKafka(self.point, self.strikes)
        self.kafka.topics = {topic: [] for topics in TOPICS.values() for topic in topics}
        self.planned: dict[TransactionAttempt, dict[str, list[bytes]]] = {}
        """The values of each attempt, by sink."""
        self.points = 0
        self.faults_end = False
        self.leaders = 0
        self.leader: Leader | None = None
        self.must_rewind = False
        self.copied = dict[str, MemoryTopology]()
        """What the store held when it was copied."""
        self.rewound: dict[str, set[bytes | None]] = {name: set() for name in NAMES}
        """By sink, the visible records of rewound attempts when their rewind was finished."""

    def strikes(self, fault: str) -> bool:
        """Decide whether something goes wrong."""
        happens = not self.faults_end and self.chance.random() < RATES[fault]
        self.kafka.reached[fault] += happens
        return happens

    def point(self, name: str) -> None:
        """A moment in which a leader may die or stand still."""
        self.points += 1
        assert self.points < POINTS_MAX, f"it does not come to an end: {name}"
        if self.strikes("a foreign transaction") and (topic := control.control_topic(TOPOLOGY)) in self.kafka.topics:
            self.kafka.open_foreign(topic)
        if self.strikes("death"):
            raise Death(name)
        if self.depth < 2 and self.strikes("standing still"):
            self.depth += 1
            current = self.leader
            self.leader = None
            self.act()
            if self.leader is None:
                self.leader = current
            self.depth -= 1

    def run(self) -> None:
        """Commit some transactions, then publish the rest without faults, and check what readers see."""
        while len(self.store_txids()) < TRANSACTIONS:
            self.act()
        self.faults_end, self.leader = True, None
        for _ in range(50):
            self.act(commits=False)
        self.check()

    def store_txids(self) -> range:
        """The committed transactions."""
        status = self.store.status(TOPOLOGY)
        return range(status[0].committed_txid if status else 0)

    def act(self, *, commits: bool = True) -> None:
        """Let the leader do something; a new one takes over if there is none."""
        if self.strikes("the store is copied"):
            self.copied = copy_topologies(self.store._topologies)
        if self.strikes("a copy of the store is started"):
            self.start_copy()
        try:
            if self.must_rewind or self.strikes("a rewind"):
                self.rewind()
            elif self.leader is None:
                self.leaders += 1
                leader = Leader(self, f"process {self.leaders}")
                leader.take_over()
                self.leader = leader
            elif commits and self.chance.random() < 0.3:
                self.leader.commit()
            else:
                self.leader.publish(self.chance.choice(NAMES))
        except Death:
            self.leader = None
        except Fenced:
            self.kafka.reached["a leader is fenced"] += 1
            self.leader = None
        except RewindUnfinished:
            self.must_rewind = True

    def rewind(self) -> None:
        """Take the topology back to some transaction, whoever leads. One that was begun is begun again by somebody."""
        self.must_rewind, status = False, self.store.status(TOPOLOGY)
        if not status:
            return
        self.kafka.reached["a rewind is begun again"] += status[0].rewinding_to is not None
        self.leaders += 1
        release_lease(self.store)
        target = TxId(self.chance.randint(0, status[0].committed_txid))
        try:
            rewind_simulated(TOPOLOGY, new_sinks(), ChancyStore(self), target, f"rewinder {self.leaders}")
        except Fenced:
            self.kafka.reached["a rewind is fenced"] += 1
        except ConfigError:
            assert target > self.store.status(TOPOLOGY)[0].committed_txid, "no other rewind was quicker"
        except (OperatingError, TopologyInUse):
            self.kafka.reached["a rewind has to be tried again"] += 1
        else:
            self.kafka.reached["a rewind is finished"] += 1

    def note_rewound(self) -> None:
        """Note which records of rewound attempts are visible: from here on no others may become so."""
        rewound = [record.attempt for record in self.store.attempts(TOPOLOGY, limit=999) if record.phase == REWOUND]
        for name in NAMES:
            visible = {entry.value for topic in TOPICS[name] for entry in self.kafka.visible(topic)}
            self.rewound[name] |= {value for attempt in rewound for value in self.planned[attempt][name]} & visible

    def start_copy(self) -> None:
        """Start a process on a copy of the store. If the original has gone on, it is refused and fences nobody."""
        store = MemoryCoordinatorStore()
        store._topologies = copy_topologies(self.copied)
        status, topic = store.status(TOPOLOGY), control.control_topic(TOPOLOGY)
        entries = self.kafka.visible(topic) if topic in self.kafka.topics else []
        markers = [control.decode_marker(entry.value, topic) for entry in entries if entry.key != STRANGER]
        newest = max((marker.publication.attempt.attempt_id for marker in markers), default=0)
        if not status or newest <= status[0].attempt_id or status[0].rewinding_to is not None:
            return
        inits = self.kafka.inits
        self.faults_end = True
        lease = take_lease(store, "copy")
        renew = partial(store.renew, lease, lease_ms=1_000)
        try:
            settle_sinks(new_sinks(), store, lease, STORE_ID, renew)
        except StoreMismatch:
            self.faults_end = False
        else:
            raise AssertionError("a copy of the store, which has been left behind, is accepted")
        assert inits == self.kafka.inits, "it has fenced others"
        self.kafka.reached["a copy of the store is refused"] += 1

    def check(self) -> None:
        """Each record of a committed transaction is visible once, in order of txid, and behind all that was rewound."""
        attempts = sorted(self.store.attempts(TOPOLOGY, limit=999), key=lambda record: record.attempt.attempt_id)
        for sink, number, topic in [(name, *place) for name in NAMES for place in enumerate(TOPICS[name])]:
            seen = [entry.value for entry in self.kafka.visible(topic)]
            expected = [
                value
                for record in attempts
                for value in self.planned[record.attempt][sink][number :: len(TOPICS[sink])]
                if record.phase == COMMITTED or (record.phase == REWOUND and value in self.rewound[sink])
            ]
            assert seen == expected, f"{topic}: {seen} instead of {expected}"
        assert all(not each.waiting for each in self.store.sinks(TOPOLOGY).values())


class Leader:
    """One process that leads, with sinks of its own."""

    def __init__(self, world: World, owner: str) -> None:
        self.world, self.owner = world, owner
        self.sinks = new_sinks()
        self.relays: dict[str, Relay] = {}
        self.lease: Lease

    def take_over(self) -> None:
        """Take the lease, whoever has it, and settle."""
        store = self.world.store
        self.lease = take_lease(store, self.owner)
        settle = partial(settle_sinks, store=ChancyStore(self.world), lease=self.lease, store_id=STORE_ID)
        renew = partial(store.renew, self.lease, lease_ms=1_000)
        while True:
            try:
                settle(self.sinks, renew=renew)
                break
            except OperatingError:
                continue
        for name, sink in self.sinks.items():
            reopen = partial(settle, {name: sink}, renew=renew)
            self.relays[name] = Relay(
                name, sink, ChancyStore(self.world), self.lease, reopen, lambda: 0, PayloadFolder(None)
            )
            self.relays[name]._reopened_at_ms = Forgetful()

    def commit(self) -> None:
        """Commit a transaction with records for some of the sinks, in the store's one write."""
        world, store = self.world, self.world.store
        status = store.status(TOPOLOGY)[0]
        attempt = TransactionAttempt(TxId(status.committed_txid + 1), AttemptId(status.attempt_id + 1))
        values = {name: [f"{name} {attempt} {n}".encode() for n in range(world.chance.randrange(3))] for name in NAMES}
        world.planned[attempt] = values
        record = AttemptRecord(attempt, "processing", EMPTY_BATCH, None, 0, 0, None, None, None, None)
        store.record_attempt(self.lease, record, forget_later=True)
        world.point("record commit")
        outbox = {name: make_payload(of, TOPICS[name]) for name, of in values.items() if of}
        times: Any = {"processed_at_ms": 0, "started_at_ms": 0, "at_ms": 0}
        store.record_commit(self.lease, attempt, EMPTY_BATCH, **times, outbox=outbox)
        world.point("commit recorded")
        for relay in self.relays.values():
            relay.confirm(attempt.txid)

    def publish(self, name: str) -> None:
        """Let a relay do one step; what it can't reach now it tries again later."""
        try:
            self.relays[name].step()
        except OperatingError:
            self.world.kafka.reached["a publication is tried again"] += 1


def new_sinks() -> dict[str, KafkaSink]:
    """The sinks of one process."""
    return {
        "alerts": KafkaSink("broker:9092", *TOPICS["alerts"], value="value"),
        "copy": KafkaSink("broker:9092", topics=TOPICS["copy"], topic_field="target", value="value"),
    }


def copy_topologies(topologies: Mapping[str, MemoryTopology]) -> dict[str, MemoryTopology]:
    """Copy what a store holds: its containers, for all values in them are immutable."""
    return {
        topology_id: replace(topology, **{each.name: copy(getattr(topology, each.name)) for each in fields(topology)})
        for topology_id, topology in topologies.items()
    }


def take_lease(store: MemoryCoordinatorStore, owner: str) -> Lease:
    """Take the lease, whoever has it."""
    release_lease(store)
    lease = store.acquire(TOPOLOGY, {}, owner=owner, lease_ms=1_000)
    store._topologies[TOPOLOGY].store_id = STORE_ID
    return lease


def release_lease(store: MemoryCoordinatorStore) -> None:
    """End the lease of the present leader, as time does."""
    if status := store.status(TOPOLOGY):
        store.release(Lease(TOPOLOGY, status[0].epoch, status[0].owner or "", Progress(), AttemptId(0)))


def make_payload(values: list[bytes], topics: Sequence[str]) -> SinkRecords:
    """The payload of records without keys, for topics in turns."""
    keys = pa.nulls(len(values), pa.binary())
    named = {TOPIC: [topics[number % len(topics)] for number in range(len(values))]} if len(topics) > 1 else {}
    return encode_payload(pa.table({KEY: keys, VALUE: pa.array(values, pa.binary()), **named}), len(values))


class Forgetful(list[int]):
    """The times at which a sink was opened again: in a simulated moment that may be often."""

    def __len__(self) -> int:
        return 0


class ChancyStore:
    """The store as a relay sees it: it may die, or stand still, before and after a write."""

    def __init__(self, world: World) -> None:
        self._world = world

    def __getattr__(self, name: str) -> Any:
        return getattr(self._world.store, name)

    def settle_sink(self, *arguments: Any) -> None:
        """Settle a sink."""
        self._world.point("settle")
        self._world.store.settle_sink(*arguments)
        self._world.point("settled")

    def begin_rewind(self, lease: Lease, txid: TxId) -> AttemptId:
        """Begin a rewind."""
        self._world.point("begin rewind")
        fence_id = self._world.store.begin_rewind(lease, txid)
        if self._world.strikes("a rewind is only begun"):
            raise Death("rewind begun")
        return fence_id

    def finish_rewind(self, lease: Lease, txid: TxId) -> None:
        """Finish a rewind."""
        self._world.point("finish rewind")
        self._world.store.finish_rewind(lease, txid)
        self._world.note_rewound()
        self._world.point("rewind finished")


@contextmanager
def simulated_clients(world: World) -> Iterator[pytest.MonkeyPatch]:
    """Let Kafka sinks use the broker of a world."""
    with pytest.MonkeyPatch.context() as patch:
        for fake in (FakeProducer, FakeConsumer, FakeAdmin):
            patch.setattr(fake, "broker", world.kafka, raising=False)
        patch.setattr(payloads, "COMPRESSION", None)  # it takes a third of the time
        patch.setattr(kafka_connection, "Producer", FakeProducer)
        patch.setattr(control, "Consumer", FakeConsumer)
        patch.setattr(kafka_sink, "AdminClient", FakeAdmin)
        patch.setattr(kafka_sink, "cluster_id", lambda *_: "cluster")
        prefix = control.control_topic("")

        def partition_count(admin: object, connection: object, topic: str) -> int | None:
            return None if topic not in world.kafka.topics else 1 if topic.startswith(prefix) else 3

        settings = {"cleanup.policy": "compact", "segment.ms": "600000", "max.message.bytes": "1048588"}
        others = {**settings, "cleanup.policy": "delete"}
        for module in (control, topics):
            patch.setattr(module, "partition_count", partition_count)
            patch.setattr(
                module, "topic_settings", lambda _a, _c, topic: settings if topic.startswith(prefix) else others
            )
        yield patch


def simulate(seed: int) -> Counter[str]:
    """Run a world to its end; what was reached in it."""
    world = World(seed)
    with simulated_clients(world):
        world.run()
    return world.kafka.reached
