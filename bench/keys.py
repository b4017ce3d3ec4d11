"""Batches with many distinct keys: throughput, commit times and the driver's memory, by how partial aggregates travel.

    python -m bench.keys --keys 1000000 --transactions 6 --way staged

One run in one process, on Spark with two local executor threads (their JVM is the driver's): each batch has every key
once, and its keys are spread over all that the table is to hold. The end of the table is checked exactly.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from time import perf_counter
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from bench import processes
from bench.timed_commits import TimedCommitPhase
from spouts import OpaquePartitionedTransactionalSpout
from state import DeltaMapState, LogLayout
from transactional.config import TopologyConfig
from transactional.engine.driver import TopologyDriver
from transactional.spark.executor import SparkExecutor
from transactional.spark_session import spark_session
from transactional.testing import MemoryCoordinatorStore
from transactional.topology.builder import TransactionalTopologyBuilder

WAYS: dict[str, Any] = {
    "merge": "merge",
    "driver": LogLayout(staged_bytes=None),
    "staged": LogLayout(),
    "all staged": LogLayout(staged_bytes=0),
}
"""How rows come into the table: by delta-rs' MERGE, as segments through the driver, as files that tasks write."""
PARTITIONS = 2


class Keys(OpaquePartitionedTransactionalSpout[int]):
    """Batch n of a partition: its share of `keys` distinct numbers out of `vocabulary`."""

    output = "key long"

    def __init__(self, keys: int, transactions: int, vocabulary: int) -> None:
        self.keys, self.transactions, self.vocabulary = keys, transactions, vocabulary

    def identity(self) -> dict[str, str]:
        """What it reads."""
        return {"keys": f"{self.keys} of {self.vocabulary}"}

    def partitions(self) -> list[str]:
        """One for each task."""
        return [str(number) for number in range(PARTITIONS)]

    def next_batch(self, partition: str, previous: int | None) -> int | None:
        """The number of the batch."""
        number = 0 if previous is None else previous + 1
        return number if number < self.transactions else None

    def emit_partition_batch(self, partition: str, metadata: int) -> Iterator[pa.RecordBatch]:
        """Every `PARTITIONS`-th of a row of keys that begins somewhere else in each batch."""
        step = self.vocabulary // self.keys
        numbers = pc.add(pc.multiply(_numbers(int(partition), self.keys), step), metadata % step)
        for begin in range(0, len(numbers), 100_000):
            yield pa.record_batch({"key": numbers.slice(begin, 100_000)})


@cache
def _numbers(first: int, until: int) -> pa.Array:
    """Once in each Python worker."""
    return pa.array(range(first, until, PARTITIONS), pa.int64())


def measure(way: str, keys: int, transactions: int, vocabulary: int, folder: Path) -> dict[str, Any]:
    """One run. Raises `AssertionError` if the table is wrong."""
    builder = TransactionalTopologyBuilder("keys", "keys", Keys(keys, transactions, vocabulary), parallelism=PARTITIONS)
    state = DeltaMapState(folder / "t", "key long", "count long", layout=WAYS[way])
    builder.set_committer_bolt("count", state.count()).fields_grouping("keys", "key")
    topology = builder.build()
    session = spark_session("keys", master=f"local[{PARTITIONS}]", parallelism=PARTITIONS)
    phase, config = TimedCommitPhase(topology), TopologyConfig(stop_when_drained=True, max_spout_pending=2)
    parts = processes.by_part(session)
    processes.reset_peaks(parts)
    began, used = perf_counter(), time.process_time()
    executor = SparkExecutor(topology, session)
    TopologyDriver(topology, MemoryCoordinatorStore(), executor, config, commit_phase=phase).run()
    elapsed, used = perf_counter() - began, time.process_time() - used
    parts = processes.by_part(session)
    peaks = processes.peaks_mib(parts)
    counts = state.read()["count"]
    assert pc.sum(counts).as_py() == keys * transactions, "the table is wrong"
    times = sorted(phase.times_ms[1:])
    return {
        "way": way,
        "keys": keys,
        "transactions": transactions,
        "vocabulary": vocabulary,
        "messages_per_s": round(keys * transactions / elapsed),
        "commit_p50_ms": round(statistics.median(times), 1),
        "commit_max_ms": round(times[-1], 1),
        "driver_cpu_s_per_transaction": round(used / transactions, 3),
        "peak_driver_mib": peaks[processes.DRIVER],
        "peak_jvm_mib": peaks.get(processes.JVM, 0),
        "rows": len(counts),
    }


def main() -> None:
    """Print one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--way", choices=list(WAYS), default="staged")
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--transactions", type=int, default=6)
    parser.add_argument("--vocabulary", type=int, default=0, help="keys in all; by default those of one batch")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="keys-"))
    try:
        vocabulary = max(options.vocabulary, options.keys)
        print(json.dumps(measure(options.way, options.keys, options.transactions, vocabulary, folder)))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    # Executors look classes up in the module that has them, which is not the program.
    import_module("bench.keys").main()
