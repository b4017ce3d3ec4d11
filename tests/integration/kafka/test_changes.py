"""A program over a real broker that is changed between two runs, with a batch in flight: `tests/changes` has more kinds
of change, over sources in memory."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from spouts.decoding.json_records import JsonTranslator
from spouts.kafka.spout import KafkaSpout, OpaqueKafkaSpout, TransactionalKafkaSpout
from spouts.local_broker import LocalBroker
from state.memory import MemoryMapState, MemoryTable
from tests.integration.kafka_topics import TIMEOUT_MS, new_topic, put
from tests.unit.fakes import stored
from transactional import FailedException, TopologyConfig
from transactional.errors import RetriesExhausted, TopologyChanged
from transactional.runtime.engine.driver import TopologyDriver
from transactional.runtime.executors.local import LocalExecutor
from transactional.testing import MemoryCoordinatorStore
from transactional.topology.topology import Topology
from transactional.trident import Sum, TridentTopology, tumbling

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.parametrize("kind", [TransactionalKafkaSpout, OpaqueKafkaSpout]),
]
FIELDS = "word string, n long, at timestamp"
CONFIG = TopologyConfig(stop_when_drained=True, attempts_max=1, idle_pause_ms=1, retry_pause_ms=1, tick_ms=1)


class Breaking(MemoryMapState):
    """A state that is not written while a test says so."""

    breaks, fails = False, 0

    def merge(self, *given: Any) -> None:
        if Breaking.breaks:
            raise FailedException("not written")
        super().merge(*given)


def sound(row: Any) -> bool:
    """Fails while a test says so."""
    if Breaking.fails:
        Breaking.fails -= 1
        raise FailedException("not processed")
    return True


class Words:
    """Two streams of words, which are summed up, in all and by minute."""

    def __init__(self, bootstrap: str, kind: type[KafkaSpout]) -> None:
        self.bootstrap, self.kind, self.store = bootstrap, kind, MemoryCoordinatorStore()
        self.topics = {name: new_topic(bootstrap, 2) for name in ("web", "app")}
        self.tables = {name: MemoryTable(name) for name in ("totals", "minutes", "closed")}

    def put(self, topic: str, *words: tuple[str, int], minute: int = 0) -> None:
        records = [json.dumps({"word": word, "n": n, "at": f"2026-05-01T12:{minute:02}:00Z"}) for word, n in words]
        for partition in (0, 1):
            put(self.bootstrap, topic, records, partition)

    def topology(
        self, *order: str, fields: str = FIELDS, parallelism: int = 1, delay: str = "1 minute", size: int = 2
    ) -> Topology:
        topology = TridentTopology("words", parallelism=parallelism)
        streams = {
            name: topology.new_stream(
                name,
                self.kind(
                    self.bootstrap,
                    [self.topics[name]],
                    translator=JsonTranslator(fields),
                    batch_records_max=size,
                    timeout_ms=TIMEOUT_MS,
                ),
                event_time="at",
                max_delay=delay,
            )
            for name in order
        }
        words = streams["web"].merge(streams["app"]).filter(sound).group_by("word")
        words.persistent_aggregate(Breaking(table=self.tables["totals"]), n=Sum("n"), name="totals")
        opened = words.window(tumbling("1 minute")).persistent_aggregate(
            Breaking(table=self.tables["minutes"]), n=Sum("n"), name="minutes"
        )
        closed = opened.closed().group_by("word", "window_start")
        closed.persistent_aggregate(Breaking(table=self.tables["closed"]), n=Sum("n"), name="closed")
        return topology.build(strict=True)

    def run(self, topology: Topology, *, breaks: bool = False, accept: bool = False, attempts_max: int = 1) -> None:
        Breaking.breaks = breaks
        try:
            config = replace(CONFIG, attempts_max=attempts_max)
            TopologyDriver(topology, self.store, LocalExecutor(topology), config, accept_changes=accept).run()
        except RetriesExhausted:
            assert breaks
        finally:
            Breaking.breaks = False

    @property
    def totals(self) -> dict[str, int]:
        return stored(self.tables["totals"])

    @property
    def closed(self) -> list[tuple[str, int]]:
        """Of each window in which something happened."""
        rows = self.tables["closed"].rows.items()
        return sorted((key[0], row.value[0]) for key, row in rows if row.value[0])


@pytest.fixture
def words(kafka_broker: LocalBroker, kind: type[KafkaSpout]) -> Words:
    words = Words(kafka_broker.bootstrap, kind)
    words.put(words.topics["web"], ("cat", 1), ("dog", 2))
    words.put(words.topics["app"], ("cat", 10))
    words.run(words.topology("web", "app"))
    words.put(words.topics["web"], ("cat", 100), ("owl", 5), minute=1)
    words.run(words.topology("web", "app"), breaks=True)
    assert words.store.attempts_at("words", words.store.position("words").committed_txid + 1)  # type: ignore[union-attr, arg-type]
    return words


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"fields": "at timestamp, n long, word string"},
        {"fields": f"{FIELDS}, more string"},
        {"parallelism": 3},
        {"delay": "10 minutes"},
        {"size": 100},
    ],
    ids=str,
)
def test_what_makes_no_difference(words: Words, given: dict[str, Any]) -> None:
    changed = words.topology("app", "web", **given)
    words.run(changed)
    assert words.totals == {"cat": 222, "dog": 4, "owl": 10}
    for minute in (30, 50):
        for topic in words.topics.values():
            words.put(topic, ("cat", 0), minute=minute)
        words.run(changed)
    assert words.closed == [("cat", 22), ("cat", 200), ("dog", 4), ("owl", 10)]


def test_another_topic_is_read_from_its_start_once_it_is_accepted(words: Words) -> None:
    """A transactional spout finishes the batch that it has recorded; nothing more is read of the topic of before."""
    other = new_topic(words.bootstrap, 2)
    words.put(other, ("cat", 1000), minute=1)
    words.topics["web"] = other
    changed, stored = words.topology("web", "app"), words.store.attempts("words", limit=100)
    with pytest.raises(TopologyChanged, match=r'^topology .words. .*spout\.web\.topics: stored ".*", given ".*"') as no:
        words.run(changed)
    assert "\n" not in str(no.value)
    assert words.store.attempts("words", limit=100) == stored
    assert words.totals == {"cat": 22, "dog": 4}
    Breaking.fails = 2
    words.run(changed, accept=True, attempts_max=9)
    assert not Breaking.fails
    in_flight = 200 if words.kind is TransactionalKafkaSpout else 0
    assert words.totals == {"cat": 2022 + in_flight, "dog": 4}
