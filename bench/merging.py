"""`python -m bench.merging`: a split and merge on Spark, with both inputs of the merging bolt in its stage, and over an
exchange, in turns in one process."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from time import perf_counter

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from bench.peers import SETTINGS
from spouts import MemoryTransactionalSpout
from state import MemoryMapState
from transactional import Topology, TransactionalTopologyBuilder, run_topology
from transactional.spark_session import spark_session
from transactional.topology.stages import _Planner, plan_stages
from transactional.topology.topology import Component

TASKS = 2
FIELDS = "word string, n long"


def even(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Half of the tuples."""
    return batch.filter(pc.equal(pc.bit_wise_and(batch.column("n"), 1), 0))


def odd(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The other half."""
    return batch.filter(pc.equal(pc.bit_wise_and(batch.column("n"), 1), 1))


def same(batch: pa.RecordBatch) -> pa.RecordBatch:
    """All of them."""
    return batch


def topology_of(rows: list[tuple[str, int]], take: int) -> Topology:
    """Two bolts that take a half each, and one behind both."""
    spout = MemoryTransactionalSpout([rows[::2], rows[1::2]], FIELDS, take=take // 2)
    builder = TransactionalTopologyBuilder("merging", "source", spout, TASKS)
    builder.set_bolt("even", even, TASKS, output=FIELDS).shuffle_grouping("source")
    builder.set_bolt("odd", odd, TASKS, output=FIELDS).shuffle_grouping("source")
    builder.set_bolt("both", same, TASKS, output=FIELDS).shuffle_grouping("even").shuffle_grouping("odd")
    counts = MemoryMapState("word").count()
    builder.set_committer_bolt("counts", counts).fields_grouping("both", "word")
    return builder.build()


@contextmanager
def over_an_exchange() -> Iterator[None]:
    """A bolt with several inputs begins a stage."""
    fuses = _Planner._fuses

    def one_input(planner: _Planner, component: Component) -> bool:
        return len(component.inputs) == 1 and fuses(planner, component)

    _Planner._fuses = one_input  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        _Planner._fuses = fuses  # type: ignore[method-assign]


def run(session: SparkSession, rows: list[tuple[str, int]], take: int) -> tuple[int, float]:
    """Levels of the topology, and milliseconds per transaction."""
    topology = topology_of(rows, take)
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        began = perf_counter()
        store, config = f"sqlite:///{folder}/store.db", {"stop_when_drained": True}
        summary = run_topology(topology, store=store, config=config, session=session)
        return plan_stages(topology).depth, 1_000 * (perf_counter() - began) / summary.transactions


def main() -> None:
    """Measure, and print what was found."""
    parser = argparse.ArgumentParser(prog="python -m bench.merging", description=__doc__)
    parser.add_argument("--tuples", type=int, nargs="+", default=[1_000], help="per transaction")
    parser.add_argument("--transactions", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    session = spark_session("merging", master=f"local[{TASKS}]", parallelism=TASKS, conf=SETTINGS)
    for take in arguments.tuples:
        rows = [(f"word{number % 1_000}", number) for number in range(take * arguments.transactions)]
        took: dict[int, list[float]] = {}
        for _ in range(arguments.rounds):
            with over_an_exchange():
                levels, each_ms = run(session, rows, take)
            took.setdefault(levels, []).append(each_ms)
            levels, each_ms = run(session, rows, take)
            took.setdefault(levels, []).append(each_ms)
        for levels, all_ms in sorted(took.items(), reverse=True):
            formatted = f"{min(all_ms):.0f} … {median(all_ms):.0f} ms per transaction"
            print(f"{take:,} tuples, {levels} level(s): {formatted}, {arguments.rounds} runs", flush=True)
    session.stop()


if __name__ == "__main__":
    main()
