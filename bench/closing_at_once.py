"""`python -m bench.closing_at_once`: very many windows that close in one transaction, on Spark.

Batch n has every key once, at minute n; so each transaction puts a window of each key and closes those of the batch
before the last one. One run in one process: the driver's memory, its Python's and its JVM's, which no executor shares
with the master local-cluster[2,1,1024]. What has closed is checked exactly.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from time import process_time
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, QueryBuilder

from bench import processes
from bench.closing import FIRST_US, MINUTE_US
from bench.keys import PARTITIONS, Keys
from bench.timed_commits import TimedCommitPhase
from state import DeltaMapState, LogLayout
from transactional.config import TopologyConfig
from transactional.engine.driver import TopologyDriver
from transactional.spark.executor import SparkExecutor
from transactional.spark_session import spark_session
from transactional.testing import MemoryCoordinatorStore
from transactional.topology.topology import Topology
from transactional.trident import Count, TridentTopology, tumbling


class KeysByMinute(Keys):
    """Every key once in each minute."""

    output = "key long, at timestamp"

    def emit_partition_batch(self, partition: str, metadata: int) -> Iterator[pa.RecordBatch]:
        """The keys, at the time of their batch."""
        at = pa.scalar(FIRST_US + metadata * MINUTE_US, pa.int64())
        for batch in super().emit_partition_batch(partition, metadata):
            times = pa.repeat(at, batch.num_rows).cast(pa.timestamp("us", tz="UTC"))
            yield pa.record_batch({"key": batch.column("key"), "at": times})


def topology_of(keys: int, transactions: int, folder: Path) -> Topology:
    """Windows that are open, and those that have closed."""
    topology = TridentTopology("at-once", parallelism=PARTITIONS)
    stream = topology.new_stream("keys", KeysByMinute(keys, transactions, keys), event_time="at")
    windows = stream.group_by("key").window(tumbling("1 minute"))
    counts = windows.persistent_aggregate(
        DeltaMapState(folder / "open", layout=LogLayout(fold_after=2)), Count(), name="open"
    )
    closed = DeltaMapState(folder / "closed", ("key", "window_start"), layout=LogLayout(fold_after=None))
    counts.closed().persist(closed, name="closed")
    return topology.build(strict=True)


def measure(choice: str, keys: int, transactions: int, master: str, folder: Path) -> dict[str, Any]:
    """One run. Raises `AssertionError` if what has closed is wrong."""
    topology = topology_of(keys, transactions, folder)
    session = spark_session("at-once", master=master, parallelism=PARTITIONS)
    executor = SparkExecutor(topology, session)
    phase, config = (
        TimedCommitPhase(topology, "open", jobs=executor, choice=choice),
        TopologyConfig(stop_when_drained=True),
    )
    processes.reset_peaks(processes.by_part(session))
    used = process_time()
    TopologyDriver(topology, MemoryCoordinatorStore(), executor, config, commit_phase=phase).run()
    used, peaks = process_time() - used, processes.peaks_mib(processes.by_part(session))
    query = "SELECT window_start, count(*) AS n, count(DISTINCT key) AS keys FROM t GROUP BY window_start"
    rows = pa.table(QueryBuilder().register("t", DeltaTable(str(folder / "closed"))).execute(query).read_all())
    # A transaction closes by the times of those before it, so the minutes of the last two stay open.
    assert rows.num_rows == transactions - 2, f"{rows.num_rows} minutes have closed"
    for name in ("n", "keys"):
        assert pc.min_max(rows[name]).as_py() == {"min": keys, "max": keys}, "windows are missing, or there twice"
    return {
        "choice": choice,
        "places": dict(phase.places),
        "windows": keys,
        "transactions": transactions,
        "commit_p50_ms": round(statistics.median(phase.times_ms[1:]), 1),
        "driver_cpu_s_per_transaction": round(used / transactions, 3),
        "peak_driver_mib": peaks[processes.DRIVER],
        "peak_jvm_mib": peaks.get(processes.JVM, 0),
    }


def main() -> None:
    """Print one line of JSON."""
    parser = argparse.ArgumentParser(prog="python -m bench.closing_at_once", description=__doc__)
    parser.add_argument("--windows", type=int, default=1_000_000)
    parser.add_argument("--choice", choices=["auto", "driver", "jobs"], default="jobs")
    parser.add_argument("--transactions", type=int, default=30)
    parser.add_argument("--master", default="local-cluster[2,1,1024]")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="at-once-"))
    try:
        print(json.dumps(measure(options.choice, options.windows, options.transactions, options.master, folder)))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    # Executors look classes up in the module that has them, which is not the program.
    import_module("bench.closing_at_once").main()
