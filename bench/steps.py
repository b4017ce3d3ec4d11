"""A stateful bolt over many distinct keys a batch, on Spark: in the driver, as a job, or as the costs say. Or a state's
update that emits what it changes.

One run in one process: throughput, times of commit phases, and the driver's memory, its Python's and its JVM's, which
with the master local-cluster[2,1,1024] no executor shares. Each batch has every key once. The table is checked exactly.
"""

from __future__ import annotations

import json
import shutil
import statistics
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import pyarrow.compute as pc

from bench import processes
from bench.keys import PARTITIONS, Keys
from bench.timed_commits import TimedCommitPhase
from state import DeltaMapState, LogLayout, MemoryMapState
from transactional import KeyValueState, StatefulBolt, Topology, Tuple
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


@dataclass(frozen=True, slots=True)
class Run:
    """What is run, and where. `emits`: an update that emits what it changes, in place of a stateful bolt; `heap`: that
    of the driver's JVM, as Spark takes it."""

    choice: str
    keys: int
    transactions: int
    tasks: int
    master: str
    emits: bool = False
    heap: str = ""


def topology_of(run: Run, folder: Path) -> tuple[Topology, DeltaMapState]:
    """The topology, and the state that is measured."""
    spout = Keys(run.keys, run.transactions, run.keys)
    builder = TransactionalTopologyBuilder("steps", "keys", spout, parallelism=PARTITIONS)
    state = DeltaMapState(folder / "t", "key long", "count long", layout=LogLayout())
    if run.emits:
        builder.set_committer_bolt("count", state.count()).fields_grouping("keys", "key")
        total = MemoryMapState(()).sum("count", "total")
        builder.set_committer_bolt("total", total).global_grouping("count")
    else:
        builder.set_stateful_bolt("count", KeyCount(), run.tasks, state=state).fields_grouping("keys", "key")
    return builder.build(), state


def measure(run: Run, folder: Path) -> dict[str, Any]:
    """One run. Raises `AssertionError` if the table is wrong."""
    topology, state = topology_of(run, folder)
    conf = {"spark.driver.memory": run.heap} if run.heap else {}
    session = spark_session("steps", master=run.master, parallelism=PARTITIONS, conf=conf)
    executor = SparkExecutor(topology, session)
    phase, config = (
        TimedCommitPhase(topology, "count", jobs=executor, choice=run.choice),
        TopologyConfig(stop_when_drained=True),
    )
    parts = processes.by_part(session)
    processes.reset_peaks(parts)
    began, used = perf_counter(), time.process_time()
    TopologyDriver(topology, MemoryCoordinatorStore(), executor, config, commit_phase=phase).run()
    elapsed, used = perf_counter() - began, time.process_time() - used
    peaks = processes.peaks_mib(processes.by_part(session))
    counts = state.read()["count"]
    assert pc.min_max(counts).as_py() == {"min": run.transactions, "max": run.transactions}, "the table is wrong"
    assert len(counts) == run.keys, "the table is wrong"
    times = sorted(phase.times_ms[1:])
    return {
        **asdict(run),
        "places": dict(phase.places),
        "messages_per_s": round(run.keys * run.transactions / elapsed),
        "commit_mean_ms": round(statistics.mean(times), 1),
        "commit_p50_ms": round(statistics.median(times), 1),
        "commit_p99_ms": round(times[min(len(times) - 1, int(len(times) * 0.99))], 1),
        "driver_cpu_s_per_transaction": round(used / run.transactions, 3),
        "peak_driver_mib": peaks[processes.DRIVER],
        "peak_jvm_mib": peaks.get(processes.JVM, 0),
    }


def report(run: Run) -> None:
    """Print one line of JSON."""
    folder = Path(tempfile.mkdtemp(prefix="steps-"))
    try:
        print(json.dumps(measure(run, folder)))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
