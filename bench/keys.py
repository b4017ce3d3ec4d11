"""Batches with many distinct keys: throughput, commit times and the driver's memory, by how partial aggregates travel.

    python -m bench.keys --keys 1e6 --transactions 30 --way staged --fold-after 12 --master "local-cluster[2,1,1024]"

One run in one process, on Spark: by default with two executor threads in the driver's JVM, with the master
local-cluster[2,1,1024] with two executors in processes of their own. Each batch has every key once, and its keys are
spread over all that the table is to hold. At the end the log layout is folded within the measured time, so that raw
readers see one row per key, and the table is checked exactly.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from time import perf_counter
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from bench import processes
from bench.figures import percentile
from bench.timed_commits import TimedCommitPhase
from bench.timed_table import folds_in
from spouts import OpaquePartitionedTransactionalSpout
from state import DeltaMapState, LogLayout
from transactional.attempt import TxId
from transactional.config import TopologyConfig
from transactional.engine.driver import TopologyDriver
from transactional.spark.executor import SparkExecutor
from transactional.spark_session import spark_session
from transactional.testing import MemoryCoordinatorStore
from transactional.topology.builder import TransactionalTopologyBuilder

WAYS: dict[str, dict[str, Any] | None] = {
    "merge": None,
    "driver": {"staged_bytes": None},
    "staged": {},
    "all staged": {"staged_bytes": 0},
}
"""How rows come into the table: by the driver's MERGE, as segments through the driver, as files that tasks write."""
PARTITIONS = 2
LOCAL = f"local[{PARTITIONS}]"


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


def layout_of(way: str, fold_after: int) -> str | LogLayout:
    """The table's layout."""
    options = WAYS[way]
    return "merge" if options is None else LogLayout(fold_after=fold_after, **options)


def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """One run. Raises `AssertionError` if the table is wrong."""
    keys, transactions, vocabulary = options.keys, options.transactions, max(options.vocabulary, options.keys)
    builder = TransactionalTopologyBuilder("keys", "keys", Keys(keys, transactions, vocabulary), parallelism=PARTITIONS)
    layout = layout_of(options.way, options.fold_after)
    state = DeltaMapState(folder / "t", "key long", "count long", layout=layout)
    builder.set_committer_bolt("count", state.count()).fields_grouping("keys", "key")
    topology = builder.build()
    session = spark_session("keys", master=options.master, parallelism=PARTITIONS)
    phase, config = TimedCommitPhase(topology), TopologyConfig(stop_when_drained=True, max_spout_pending=2)
    parts = processes.by_part(session)
    processes.reset_peaks(parts)
    began, used = perf_counter(), processes.cpu_seconds(parts)
    executor = SparkExecutor(topology, session)
    TopologyDriver(topology, MemoryCoordinatorStore(), executor, config, commit_phase=phase).run()
    ended = perf_counter()
    fold_all(folder / "t", layout, transactions)
    folded, now = perf_counter(), processes.cpu_seconds(parts)
    peaks = processes.peaks_mib(processes.by_part(session))
    counts = state.read()["count"]
    assert pc.sum(counts).as_py() == keys * transactions, "the table is wrong"
    driver_s = {part: (now[part] - used[part]) / transactions for part in (processes.DRIVER, processes.JVM)}
    times = phase.times_ms[1:]
    return {
        "way": options.way,
        "master": options.master,
        "keys": keys,
        "transactions": transactions,
        "vocabulary": vocabulary,
        "folds": folds_in(folder / "t"),
        "messages_per_s": round(keys * transactions / (folded - began)),
        "commit_mean_ms": round(statistics.mean(times), 1),
        "commit_p50_ms": round(percentile(times, 50), 1),
        "commit_p99_ms": round(percentile(times, 99), 1),
        "last_fold_ms": round((folded - ended) * 1e3, 1),
        "driver_cpu_s_per_transaction": round(driver_s[processes.DRIVER], 3),
        "jvm_cpu_s_per_transaction": round(driver_s[processes.JVM], 3),
        "peak_driver_mib": peaks[processes.DRIVER],
        "peak_jvm_mib": peaks.get(processes.JVM, 0),
        "rows": len(counts),
    }


def fold_all(path: Path, layout: str | LogLayout, committed: int) -> None:
    """Fold what a run has left, all of it: its last transaction is committed, and nobody replaces it any more."""
    left = DeltaMapState(path, "key long", "count long", layout=layout)
    left.open("keys/count", lambda attempt_id: TxId(committed + 1))
    try:
        left.fold()
    finally:
        left.close()


def options_of(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.keys", description=__doc__)
    parser.add_argument("--way", choices=list(WAYS), default="staged")
    parser.add_argument("--keys", type=lambda text: int(float(text)), default=1_000_000)
    parser.add_argument("--transactions", type=int, default=6)
    parser.add_argument("--vocabulary", type=int, default=0, help="keys in all; by default those of one batch")
    parser.add_argument("--fold-after", type=int, default=50, help="so many transactions are folded into one segment")
    parser.add_argument("--master", default=LOCAL)
    return parser.parse_args(arguments)


def main() -> None:
    """Print one line of JSON."""
    folder = Path(tempfile.mkdtemp(prefix="keys-"))
    try:
        print(json.dumps(measure(options_of(), folder)))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    # Executors look classes up in the module that has them, which is not the program.
    import_module("bench.keys").main()
