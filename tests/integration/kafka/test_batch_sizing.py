"""`target_latency_ms` over a real broker: batches grow from the first to what the target allows, and counts stay exact.

The bolts run in this process. Nothing is said about how quick this machine is: what is asserted follows from what the
run itself has measured.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from spouts.kafka.spout import KafkaSpout, OpaqueKafkaSpout, TransactionalKafkaSpout
from spouts.local_broker import LocalBroker
from state.memory import MemoryMapState
from tests.integration.kafka_topics import new_topic, put
from transactional import FailedException, TopologyConfig, TransactionalTopologyBuilder, Tuple
from transactional.core.machine.protocol import BatchPlanned
from transactional.core.store import CoordinatorStore
from transactional.model.batch import BatchLimit, BatchMetadata
from transactional.runtime.engine.driver import TopologyDriver
from transactional.runtime.engine.history.journal import JournalWriter, read_journal
from transactional.runtime.engine.history.replay import replay
from transactional.runtime.engine.history.timeline import Flight
from transactional.runtime.engine.sizing import BatchSizer
from transactional.runtime.executors.local import LocalExecutor
from transactional.testing import MemoryCoordinatorStore

pytestmark = pytest.mark.kafka

TARGET_MS = 300
RECORDS, WORDS = 120_000, 7
THE_ONE = "the one"


class Trip:
    """Fails once at one word, in the middle of the topic."""

    left = 1


def parse(tuple: Tuple) -> Tuple:
    """Every word."""
    if tuple["value"] == THE_ONE and Trip.left:
        Trip.left = 0
        raise FailedException("once more")
    return tuple


class NotingSizer(BatchSizer):
    """Notes what it learns from."""

    def __init__(self, in_flight: int) -> None:
        super().__init__(TARGET_MS, in_flight=in_flight, records_max=100_000)
        self.learned: list[tuple[Flight, BatchMetadata]] = []

    def learn(self, flight: Flight, batch: BatchMetadata) -> None:
        self.learned.append((flight, batch))
        super().learn(flight, batch)

    def again(self) -> list[BatchLimit]:
        """The limits that another one chooses that learns the same: the first one, and that after each transaction."""
        other = BatchSizer(TARGET_MS, in_flight=self.in_flight, records_max=100_000)
        limits = [other.limit]
        for flight, batch in self.learned:
            other.learn(flight, batch)
            limits.append(other.limit)
        return limits


@pytest.fixture
def topic(kafka_broker: LocalBroker) -> str:
    """Words in two partitions."""
    name = new_topic(kafka_broker.bootstrap, 2)
    values = [f"word {number % WORDS}" for number in range(RECORDS // 2)]
    put(kafka_broker.bootstrap, name, values, 0)
    values[len(values) // 2] = THE_ONE
    put(kafka_broker.bootstrap, name, values, 1)
    return name


def run(spout: KafkaSpout, folder: Path, in_flight: int) -> tuple[NotingSizer, dict[str, int]]:
    """Run until all is read: what sized the batches, and how often each word was counted."""
    Trip.left = 1
    counts = MemoryMapState("value string")
    builder = TransactionalTopologyBuilder("sizes", "records", spout, parallelism=2)
    builder.set_bolt("parse", parse, output="value string").shuffle_grouping("records")
    builder.set_committer_bolt("count", counts.count()).fields_grouping("parse", "value")
    topology = builder.build()
    config = TopologyConfig(
        target_latency_ms=TARGET_MS, max_spout_pending=in_flight, stop_when_drained=True, retry_pause_ms=10
    )
    store: CoordinatorStore = MemoryCoordinatorStore()
    with closing(JournalWriter(folder / "journal")) as journal:
        driver = TopologyDriver(topology, store, LocalExecutor(topology), config, observers=[journal])
        assert driver.sizer is not None
        assert driver.sizer.records_max == 100_000, "the spout's own limit"
        driver.sizer = sizer = NotingSizer(in_flight)
        assert driver.run().failures == 1
    return sizer, {row["value"]: row["count"] for row in counts.read().to_pylist()}


def planned(folder: Path) -> list[BatchPlanned]:
    """Every batch that was planned, as the journal tells it."""
    lines = list(read_journal(folder / "journal"))
    assert replay(lines) == len(lines) - 1, "the journal gives the same actions again"
    return [event for _, event, _ in lines if isinstance(event, BatchPlanned)]


@pytest.mark.parametrize(("kind", "in_flight"), [(OpaqueKafkaSpout, 1), (TransactionalKafkaSpout, 3)])
def test_batches_grow_as_the_measured_latencies_say_and_every_record_is_counted_once(
    kafka_broker: LocalBroker, topic: str, tmp_path: Path, kind: type[KafkaSpout], in_flight: int
) -> None:
    spout = kind(kafka_broker.bootstrap, [topic], fields=("value",), value_type="string")
    sizer, counted = run(spout, tmp_path, in_flight)
    assert sum(counted.values()) == RECORDS
    assert set(counted) == {THE_ONE, *(f"word {number}" for number in range(WORDS))}
    assert counted[THE_ONE] == 1

    first, again = BatchLimit(1_000, None, "nothing is measured yet"), sizer.again()
    batches = [(event.batch, event.limit) for event in planned(tmp_path) if event.batch is not None]
    assert batches[0][1] == first
    for flight, _ in sizer.learned:
        assert flight.limit in (None, again[flight.commits_before]), "that which was known when it was issued"
    for batch, limit in batches:
        assert limit in again, "the limits follow from what was measured, and from nothing else"
        assert batch.offset_count <= limit.records
        assert limit == first or limit.record_bytes
    sizes = [batch.offset_count for _, batch in sizer.learned]
    assert sum(sizes) == RECORDS
    assert max(sizes) >= 5_000, "they have grown"
    assert all(later <= 8 * max(sizes[:number]) for number, later in enumerate(sizes[1:], 1))
