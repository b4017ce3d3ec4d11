"""Windows that have closed against Spark SQL over the same topic; closed as a Spark job, and by the driver."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from spouts import OpaqueKafkaSpout
from spouts.kafka.clients.cluster import KafkaConnection
from spouts.kafka.reader import KafkaPartitionReader
from spouts.kafka.records import output_schema
from spouts.kafka_admin import create_topic, produce
from spouts.local_broker import LocalBroker
from state import DeltaMapState
from state.delta.segments.log_layout import LogLayout
from state.delta.tables.staging import STAGED_FOLDER
from transactional.core.machine.report import CommitReport
from transactional.core.ports import Processed
from transactional.model.batch import Offset, OffsetRange, PartitionId
from transactional.model.config import TopologyConfig
from transactional.runtime.commit.committing import CommitPhase
from transactional.runtime.engine.driver import TopologyDriver
from transactional.runtime.executors.spark.executor import SparkExecutor
from transactional.testing import MemoryCoordinatorStore
from transactional.trident import Count, TridentTopology, sliding, tumbling

pytestmark = [pytest.mark.spark, pytest.mark.kafka]
PARTITIONS, MESSAGES, DELAY_S = 2, 1_200, 20
FIRST_MS = 1_767_225_600_000
WINDOWS = {
    "tumbling": (tumbling("1 minute"), "1 minute"),
    "sliding": (sliding("1 minute", every="20 seconds"), "20 seconds"),
}


def fill(bootstrap: str, topic: str) -> None:
    """Words whose times are up to the delay behind those before them."""
    rng = random.Random(11)
    create_topic(bootstrap, topic, PARTITIONS, {"retention.ms": "-1"})
    records = [(number % PARTITIONS, f"word {rng.randrange(30)}", b"") for number in range(MESSAGES)]
    times_ms = [FIRST_MS + number * 500 - rng.randrange(DELAY_S * 900) for number in range(MESSAGES)]
    produce(bootstrap, topic, records, times_ms=times_ms)


class Noting(CommitPhase):
    """Notes where windows were closed."""

    jobs_seen = 0

    def run(self, attempt: Any, processed: Processed) -> CommitReport:
        report = super().run(attempt, processed)
        self.jobs_seen += report.steps["open"].startswith("job")
        return report


def closed_by(choice: str, shape: str, bootstrap: str, topic: str, folder: Path, session: SparkSession) -> list[Any]:
    """The windows that a topology closes."""
    made = TridentTopology(f"windows-{choice}", parallelism=PARTITIONS)
    spout = OpaqueKafkaSpout(
        bootstrap, [topic], fields=("key", "timestamp"), key_type="string", batch_records_max=MESSAGES // 8
    )
    layout = LogLayout(compact_after=3, staged_bytes=0)
    stream = made.new_stream("words", spout, event_time="timestamp", max_delay=f"{DELAY_S} seconds")
    counts = (
        stream.group_by("key")
        .window(WINDOWS[shape][0])
        .persistent_aggregate(DeltaMapState(folder / "open", layout=layout), Count(), name="open")
    )
    closed = DeltaMapState(folder / "closed", ("key", "window_start"), layout=layout)
    counts.closed().persist(closed, name="closed")
    late = DeltaMapState(folder / "late", layout=layout)
    counts.late().group_by("key").persistent_aggregate(late, Count(), name="late")
    topology = made.build(strict=True)
    executor = SparkExecutor(topology, session)
    phase = Noting(topology, jobs=executor, choice=choice)
    config = TopologyConfig(stop_when_drained=True, attempts_max=1)
    TopologyDriver(topology, MemoryCoordinatorStore(), executor, config, commit_phase=phase).run()
    assert (phase.jobs_seen > 2) is (choice == "jobs")
    assert late.read().num_rows == 0, "nothing is later than the delay"
    rows = closed.read()
    return in_order(zip(*(rows[name].to_pylist() for name in ("key", "window_start", "count")), strict=True))


def in_order(rows: Any) -> list[Any]:
    return sorted(map(tuple, rows))


def records(bootstrap: str, topic: str) -> pa.Table:
    """Everything that is in a topic."""
    schema = output_schema(("key", "timestamp"), key_type="string", value_type="binary")
    reader, offsets = KafkaPartitionReader(KafkaConnection(bootstrap), schema), Offset(MESSAGES // PARTITIONS)
    ranges = [(PartitionId(topic, number), OffsetRange(Offset(0), offsets)) for number in range(PARTITIONS)]
    return pa.Table.from_batches([batch for partition, all_ in ranges for batch in reader.read(partition, all_)])


@pytest.mark.parametrize("shape", WINDOWS)
def test_closed_windows_are_those_of_a_batch_query(
    shape: str, tmp_path: Path, spark: SparkSession, kafka_broker: LocalBroker
) -> None:
    topic, bootstrap = f"by-sql-{shape}", kafka_broker.bootstrap
    fill(bootstrap, topic)
    by_jobs = closed_by("jobs", shape, bootstrap, topic, tmp_path / "jobs", spark)
    every = WINDOWS[shape][1]
    grouped = spark.createDataFrame(records(bootstrap, topic)).groupBy("key", f.window("timestamp", "1 minute", every))
    by_sql = grouped.count().select("key", f.unix_micros("window.start").alias("start"), "count").toArrow()
    batch = {(row["key"], row["start"]): row["count"] for row in by_sql.to_pylist()}
    last_us = max(start for _, start in batch)
    found = {(key, int(start.timestamp() * 1_000_000)): count for key, start, count in by_jobs}
    assert found.items() <= batch.items()
    # What has not closed is young: a batch and the delay, and what was read when the last batch was planned.
    young_us = last_us - 4 * 60_000_000
    assert {window for window in batch if window[1] < young_us} <= found.keys()
    assert len(found) > len(batch) / 3
    assert all(path.suffix == ".parquet" for path in (tmp_path / "jobs" / "closed" / STAGED_FOLDER).iterdir())
    assert closed_by("driver", shape, bootstrap, topic, tmp_path / "driver", spark) == by_jobs
