"""Windows over a real broker wait for the partitions of which no record was read yet."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from prometheus_client import generate_latest
from starlette.testclient import TestClient

from spouts.decoding.json_records import JsonTranslator
from spouts.kafka.spout import KafkaSpout, OpaqueKafkaSpout, TransactionalKafkaSpout
from spouts.kafka_admin import add_partitions
from spouts.local_broker import LocalBroker
from state.memory import MemoryMapState, MemoryTable
from tests.integration.kafka_topics import BOTH, TIMEOUT_MS, new_topic, put
from transactional.model.config import TopologyConfig
from transactional.operations.console.app import Console, application
from transactional.operations.telemetry.metrics import Metrics
from transactional.operations.web.guard import Access
from transactional.runtime.engine.driver import TopologyDriver
from transactional.runtime.engine.history.observing import Observer
from transactional.runtime.executors.local import LocalExecutor
from transactional.testing import ManualClock, MemoryCoordinatorStore
from transactional.trident import Count, TridentTopology, tumbling

pytestmark = pytest.mark.kafka

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)


class OneAway(OpaqueKafkaSpout):
    """A partition has no leader, which a broker that is alone can't be without."""

    away: int | None = None

    def _list_partitions(self, sources: Any) -> Any:
        return {
            at: has_leader and at.index != self.away for at, has_leader in super()._list_partitions(sources).items()
        }


class Windows:
    """Windows of five seconds over topics, run after run; memory is all that is kept between them."""

    def __init__(self, bootstrap: str, kind: type[KafkaSpout], *topics: str) -> None:
        self.clock, self.store = ManualClock(wall_ms=int(NOON.timestamp()) * 1_000), MemoryCoordinatorStore()
        self.bootstrap, self.kind, self.topics = bootstrap, kind, topics
        self.tables = {name: MemoryTable(name) for name in ("open", "closed", "late")}

    def put(self, topic: str, partition: int, *seconds: int) -> None:
        times = [(NOON + timedelta(seconds=second)).isoformat() for second in seconds]
        put(self.bootstrap, topic, [json.dumps({"key": f"p{partition}", "at": at}) for at in times], partition)

    def run(self, later_s: int = 0, away: int | None = None, observers: Sequence[Observer] = ()) -> tuple[int, int]:
        """How many windows have closed, and how many tuples were late, once everything is read."""
        topology, translator = TridentTopology("windows"), JsonTranslator("key string, at timestamp")
        streams = []
        for topic in self.topics:
            spout = self.kind(
                self.bootstrap, [topic], translator=translator, batch_records_max=2, timeout_ms=TIMEOUT_MS
            )
            if isinstance(spout, OneAway):
                spout.away = away
            streams.append(topology.new_stream(topic, spout, event_time="at"))
        merged = streams[0].merge(*streams[1:]) if len(streams) > 1 else streams[0]
        windows = merged.group_by("key").window(tumbling("5 seconds"))
        counts = windows.persistent_aggregate(self.state("open"), Count(), name="open")
        counts.closed().group_by("key", "window_start").persistent_aggregate(self.state("closed"), Count(), name="c")
        counts.late().group_by("key", "at").persistent_aggregate(self.state("late"), Count(), name="late")
        built = topology.build(strict=True)
        self.clock.advance(later_s * 1_000)
        config = TopologyConfig(stop_when_drained=True, idle_pause_ms=1, retry_pause_ms=1, attempts_max=2)
        given: dict[str, Any] = {"clock": self.clock, "owner": "test", "observers": observers}
        TopologyDriver(built, self.store, LocalExecutor(built), config, **given).run()
        return len(self.tables["closed"].rows), len(self.tables["late"].rows)

    def state(self, name: str) -> MemoryMapState:
        return MemoryMapState(table=self.tables[name])


@BOTH
def test_an_empty_partition_is_waited_for_a_minute(kafka_broker: LocalBroker, kind: type[KafkaSpout]) -> None:
    topic = new_topic(kafka_broker.bootstrap, partitions=2)
    windows = Windows(kafka_broker.bootstrap, kind, topic)
    windows.put(topic, 0, 0, 10, 20)
    assert windows.run() == (0, 0)
    windows.put(topic, 0, 30)
    assert windows.run(later_s=61) == (3, 0)
    windows.put(topic, 0, 40)
    assert windows.run() == (4, 0)


@BOTH
def test_what_an_empty_partition_gets_in_time_is_not_late(kafka_broker: LocalBroker, kind: type[KafkaSpout]) -> None:
    topic = new_topic(kafka_broker.bootstrap, partitions=2)
    windows = Windows(kafka_broker.bootstrap, kind, topic)
    windows.put(topic, 0, *range(0, 60, 10))
    assert windows.run() == (0, 0)
    windows.put(topic, 1, *range(0, 60, 10))
    closed, late = windows.run(later_s=59)
    assert closed > 2
    assert late == 0


def test_a_partition_that_is_away_at_the_start_loses_nothing(kafka_broker: LocalBroker) -> None:
    topic = new_topic(kafka_broker.bootstrap, partitions=2)
    windows = Windows(kafka_broker.bootstrap, OneAway, topic)
    for partition in (0, 1):
        windows.put(topic, partition, *range(0, 60, 10))
    assert windows.run(away=1) == (0, 0)
    windows.put(topic, 0, 60)
    assert windows.run(later_s=7_200, away=1) == (0, 0)
    closed, late = windows.run()
    assert closed > 4
    assert late == 0


@BOTH
def test_an_empty_second_stream_is_waited_for(kafka_broker: LocalBroker, kind: type[KafkaSpout]) -> None:
    first, second = new_topic(kafka_broker.bootstrap), new_topic(kafka_broker.bootstrap)
    windows = Windows(kafka_broker.bootstrap, kind, first, second)
    windows.put(first, 0, *range(0, 60, 10))
    assert windows.run() == (0, 0)
    windows.put(second, 0, 1, 11)
    assert windows.run()[1] == 0


@BOTH
def test_a_partition_that_is_added_is_waited_for(kafka_broker: LocalBroker, kind: type[KafkaSpout]) -> None:
    topic = new_topic(kafka_broker.bootstrap)
    windows = Windows(kafka_broker.bootstrap, kind, topic)
    windows.put(topic, 0, 0, 10, 20)
    closed, _ = windows.run()
    add_partitions(kafka_broker.bootstrap, topic, 2)
    windows.put(topic, 1, *range(22, 100, 10))
    windows.put(topic, 0, *range(30, 100, 10))
    after, late = windows.run()
    assert after > closed
    assert late == 0


def test_event_time_is_shown_as_it_is_committed(kafka_broker: LocalBroker) -> None:
    """On the console's page and in the metrics: watermark, open windows, and what came too late."""
    topic = new_topic(kafka_broker.bootstrap)
    windows = Windows(kafka_broker.bootstrap, TransactionalKafkaSpout, topic)
    windows.put(topic, 0, 0, 10, 20, 31, 2, 32)
    metrics = Metrics("windows")
    closed, late = windows.run(observers=[metrics])
    assert (closed, late) == (3, 1)
    page = TestClient(
        application(Console(windows.store, Access("of-the-test"), windows.clock)), base_url="http://127.0.0.1"
    ).get("/t/windows/?token=of-the-test")
    told = " ".join(re.sub(r"<[^>]*>", " ", page.text).split())
    assert "watermark 12:00:31" in told
    assert "newest event 12:00:32" in told
    assert "watermark lag 1 s behind the newest event" in told
    assert "open windows 1 of open" in told
    assert "late tuples 1 last 3 transactions" in told
    samples = generate_latest(metrics.registry).decode()
    noon_s = NOON.timestamp()
    for name, value in (
        ("watermark_timestamp_seconds", noon_s + 31),
        ("newest_event_timestamp_seconds", noon_s + 32),
        ('open_windows{component="open",topology="windows"}', 1),
        ('late_tuples_total{component="open",topology="windows"}', 1),
    ):
        [found] = re.findall(rf"^transactional_{re.escape(name)}\S* (\S+)$", samples, re.MULTILINE)
        assert float(found) == value, name
