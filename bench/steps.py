"""A stateful bolt over many distinct keys a batch, on Spark: in the driver, as a job, or as the costs say.

One run in one process: throughput, times of commit phases, and the driver's memory, its Python's and its JVM's, which
with the master local-cluster[2,1,1024] no executor shares. Each batch has every key once. The table is checked exactly.
"""

from __future__ import annotations

import json
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from time import perf_counter
from typing import Any

import pyarrow.compute as pc

from bench import processes
from bench.keys import PARTITIONS, Keys
from bench.timed_commits import TimedCommitPhase
from state import DeltaMapState, LogLayout
from transactional import KeyValueState, StatefulBolt, Tuple
from transactional.config import TopologyConfig
from transactional.engine.driver import TopologyDriver
from transactional.spark.executor import SparkExecutor
from transactional.spark_session import spark_session
from transactional.testing import MemoryCoordinatorStore
from transactional.topology.builder import TransactionalTopologyBuilder


class KeyCount(StatefulBolt):
    """Counts each key, and emits nothing."""

    def init_state(self, state: KeyValueState) -> None:
        """Keep the state."""
        self.counts = state

    def execute(self, tuple: Tuple) -> None:
        """Count one."""
        self.counts.put(tuple.key, self.counts.get(tuple.key, 0) + 1)


def measure(choice: str, keys: int, transactions: int, tasks: int, master: str, folder: Path) -> dict[str, Any]:
    """One run. Raises `AssertionError` if the table is wrong."""
    builder = TransactionalTopologyBuilder("steps", "keys", Keys(keys, transactions, keys), parallelism=PARTITIONS)
    state = DeltaMapState(folder / "t", "key long", "count long", layout=LogLayout())
    builder.set_stateful_bolt("count", KeyCount(), tasks, state=state).fields_grouping("keys", "key")
    topology = builder.build()
    session = spark_session("steps", master=master, parallelism=PARTITIONS)
    executor = SparkExecutor(topology, session)
    phase, config = (
        TimedCommitPhase(topology, "count", jobs=executor, choice=choice),
        TopologyConfig(stop_when_drained=True),
    )
    parts = processes.by_part(session)
    processes.reset_peaks(parts)
    began, used = perf_counter(), time.process_time()
    TopologyDriver(topology, MemoryCoordinatorStore(), executor, config, commit_phase=phase).run()
    elapsed, used = perf_counter() - began, time.process_time() - used
    peaks = processes.peaks_mib(processes.by_part(session))
    counts = state.read()["count"]
    assert pc.min_max(counts).as_py() == {"min": transactions, "max": transactions}, "the table is wrong"
    assert len(counts) == keys, "the table is wrong"
    times = sorted(phase.times_ms[1:])
    return {
        "choice": choice,
        "places": dict(phase.places),
        "keys": keys,
        "transactions": transactions,
        "messages_per_s": round(keys * transactions / elapsed),
        "commit_mean_ms": round(statistics.mean(times), 1),
        "commit_p50_ms": round(statistics.median(times), 1),
        "commit_p99_ms": round(times[min(len(times) - 1, int(len(times) * 0.99))], 1),
        "driver_cpu_s_per_transaction": round(used / transactions, 3),
        "peak_driver_mib": peaks[processes.DRIVER],
        "peak_jvm_mib": peaks.get(processes.JVM, 0),
    }


def report(choice: str, keys: int, transactions: int, tasks: int, master: str) -> None:
    """Print one line of JSON."""
    folder = Path(tempfile.mkdtemp(prefix="steps-"))
    try:
        print(json.dumps(measure(choice, keys, transactions, tasks, master, folder)))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
