"""A run whose Python workers Spark then closes, as it does with those that were idle for a minute.

`python -m tests.integration.command_line.idle_workers`, in the folder of its table; its last word comes from a new
worker.
"""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Iterable

from pyspark.sql import SparkSession

from spouts import MemoryTransactionalSpout
from state import MemoryMapState
from transactional import Topology, TransactionalTopologyBuilder, Tuple, run_topology
from transactional.runtime.spark.internals import end_quietly
from transactional.runtime.spark.session import spark_session

LAST_WORD = "a new worker"


def tagged(row: Tuple) -> tuple[str, int]:
    """The word, and the worker that it was seen by."""
    return (row["word"], os.getpid())


def build() -> Topology:
    """Two exchanges, so that workers do all that tasks may do."""
    words = [[("cat",), ("dog",), ("cat",)], [("dog",), ("owl",)]]
    spout = MemoryTransactionalSpout(words, fields="word string", take=2)
    builder = TransactionalTopologyBuilder("idle", "words", spout, parallelism=2)
    builder.set_bolt("tag", tagged, output="word string, worker long", parallelism=2).fields_grouping("words", "word")
    builder.set_committer_bolt("count", MemoryMapState("worker").count()).fields_grouping("tag", "worker")
    return builder.build()


def worker_pids(spark: SparkSession) -> set[int]:
    return set(spark.sparkContext.parallelize(range(4), 4).map(lambda _: os.getpid()).countByValue())


def close_idle_workers(spark: SparkSession) -> None:
    """What Spark does by itself once it has used no worker for a minute, which no setting shortens."""
    assert spark.sparkContext._jvm is not None
    env = spark.sparkContext._jvm.org.apache.spark.SparkEnv.get()
    field = env.getClass().getDeclaredField("pythonWorkers")
    field.setAccessible(True)
    factories = field.get(env).valuesIterator()
    while factories.hasNext():
        getattr(factories.next(), "org$apache$spark$api$python$PythonWorkerFactory$$cleanupIdleWorkers")()


def await_end(pids: set[int]) -> None:
    for pid in pids:
        try:
            process = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        select.select([process], [], [])
        os.close(process)


def speak(numbers: Iterable[int]) -> Iterable[int]:
    end_quietly()  # no task of a topology has run in this worker, and it ends, too
    sys.stderr.write(f"{LAST_WORD}\n")
    return numbers


def main() -> None:
    spark = spark_session(master="local[2]", conf={"spark.ui.enabled": "false"})
    run_topology(build(), store="sqlite:///store.db", config={"stop_when_drained": True}, session=spark)
    pids = worker_pids(spark)
    close_idle_workers(spark)
    await_end(pids)
    spark.sparkContext.parallelize([0], 1).mapPartitions(speak).count()
    spark.stop()


if __name__ == "__main__":
    main()
