"""At least once and at most once on the real things: Spark, whose Python workers die, and a broker."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from examples.guarantees import Split
from spouts.kafka.spout import OpaqueKafkaSpout, TransactionalKafkaSpout
from spouts.kafka_admin import delete_records
from spouts.local_broker import LocalBroker
from spouts.memory import MemoryTransactionalSpout
from tests.integration.kafka_topics import new_topic, put
from tests.integration.reliable_bolts import Send, sent
from transactional.core.ports import Processed
from transactional.errors import OperatingError
from transactional.model.attempt import TransactionAttempt
from transactional.model.batch import BatchMetadata
from transactional.model.config import TopologyConfig
from transactional.reliable import TopologyBuilder
from transactional.runtime.engine.driver import TopologyDriver
from transactional.runtime.executors.local import LocalExecutor
from transactional.runtime.executors.spark.executor import SparkExecutor
from transactional.testing import MemoryCoordinatorStore
from transactional.topology.topology import Topology

LINES = [[("a b",), ("dies",), ("c fails",), ("d",)], [("e",), ("f g",)]]
WORDS = set("abcdefg") | {"dies", "fails"}
CONFIG = TopologyConfig(stop_when_drained=True, retry_pause_ms=1, attempts_max=5)


def mails(guarantee: str, spout: Any, folder: Path) -> Topology:
    built = TopologyBuilder("mails", guarantee=guarantee, ackers=2)
    built.set_spout("lines", spout, 2)
    built.set_bolt("split", Split(), 2).shuffle_grouping("lines")
    built.set_bolt("send", Send(), 2).fields_grouping("split", "word")
    return built.build(options={"folder": str(folder)})


def committed(store: MemoryCoordinatorStore) -> list[Any]:
    """The batches, by txid."""
    return [r.batch for r in reversed(store.attempts("mails", limit=100)) if r.phase == "committed"]


@pytest.mark.spark
@pytest.mark.parametrize("guarantee", ["at-least-once", "at-most-once"])
def test_a_worker_that_dies(guarantee: str, spark: SparkSession, tmp_path: Path) -> None:
    """Spark retries its task: at least once that is welcome, at most once it is refused."""
    topology = mails(guarantee, MemoryTransactionalSpout(LINES, "line string", take=2), tmp_path)
    store = MemoryCoordinatorStore()
    TopologyDriver(topology, store, SparkExecutor(topology, spark), CONFIG).run()
    given, batches = Counter(sent(tmp_path)), committed(store)
    if guarantee == "at-least-once":
        assert set(given) == WORDS
        assert given["dies"] >= 2
        assert given["fails"] == 2
        assert [(m.offset, m.tries) for batch in batches for m in batch.again] == [(2, 1)]
        assert batches[-1].pending == ()
    else:
        assert max(given.values()) == 1
        assert sum(batch.lost for batch in batches) == 4 + 1, "the batch of `dies`, and the tuple that fails"
        assert {"d", "c"} <= set(given)


@pytest.mark.kafka
@pytest.mark.parametrize("kind", [TransactionalKafkaSpout, OpaqueKafkaSpout])
def test_a_message_of_kafka_comes_again_by_its_partition_and_offset(
    kind: Any, kafka_broker: LocalBroker, tmp_path: Path
) -> None:
    topic = new_topic(kafka_broker.bootstrap, partitions=2)
    for partition, rows in enumerate(LINES):
        put(kafka_broker.bootstrap, topic, [line for (line,) in rows if line != "dies"], partition)
    spout = kind(kafka_broker.bootstrap, topic, fields="value", value_type="string")
    built = TopologyBuilder("mails", guarantee="at-least-once")
    built.set_spout("lines", spout, 2)
    built.set_bolt("words", lambda row: [(word,) for word in row.value.split()], output="word string").shuffle_grouping(
        "lines"
    )
    built.set_bolt("send", Send(), 2).fields_grouping("words", "word")
    topology, store = built.build(options={"folder": str(tmp_path)}), MemoryCoordinatorStore()
    TopologyDriver(topology, store, LocalExecutor(topology), CONFIG).run()
    assert Counter(sent(tmp_path)) == dict.fromkeys(WORDS - {"dies"}, 1) | {"c": 2, "fails": 2}
    [again] = [message for batch in committed(store) for message in batch.again]
    assert (again.partition.index, again.offset) == (0, 1)


@pytest.mark.kafka
def test_what_retention_has_taken_of_a_recorded_batch_is_skipped(kafka_broker: LocalBroker, tmp_path: Path) -> None:
    """The first job fails, and then the log begins at its third record."""
    topic = new_topic(kafka_broker.bootstrap)
    put(kafka_broker.bootstrap, topic, ["a", "b", "c", "d"])
    spout = OpaqueKafkaSpout(kafka_broker.bootstrap, topic, fields="value", value_type="string")
    built = TopologyBuilder("mails", guarantee="at-least-once")
    built.set_spout("lines", spout)
    built.set_bolt("words", lambda row: row.value, output="word string").shuffle_grouping("lines")
    built.set_bolt("send", Send()).fields_grouping("words", "word")
    topology, store = built.build(options={"folder": str(tmp_path)}), MemoryCoordinatorStore()
    executor = LocalExecutor(topology)

    class FailsOnce(LocalExecutor):
        def run(self, attempt: TransactionAttempt, batch: BatchMetadata) -> Processed:
            if attempt.attempt_id == 2:
                delete_records(kafka_broker.bootstrap, topic, {0: 2})
                raise OperatingError("the job has failed")
            return executor.run(attempt, batch)

    TopologyDriver(topology, store, FailsOnce(topology), CONFIG).run()
    assert Counter(sent(tmp_path)) == {"c": 1, "d": 1}
    assert [batch.lost for batch in committed(store)] == [2]
