"""`python -m bench.closing`: what a transaction that closes windows costs, beside how many windows are open.

Every transaction counts 1,000 keys in the newest minute and closes the oldest minute with as many; what differs is how
many minutes lie between them. Measured are the commit phases alone, without Spark and broker: in turns, in one process,
processor time and time, and with the maintenance that follows.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from time import perf_counter, process_time
from typing import Any

import pyarrow as pa

from bench.figures import percentile
from spouts import MemoryTransactionalSpout
from state import DeltaMapState, MemoryMapState, SqlMapState
from transactional import Topology
from transactional.core.ports import Partials, Processed
from transactional.model.attempt import AttemptId, TransactionAttempt, TxId
from transactional.model.facts import BatchFacts
from transactional.model.names import owner_of
from transactional.runtime.commit.committing import CommitPhase
from transactional.trident import Count, TridentTopology, tumbling

KEYS = 1_000
MINUTE_US = 60_000_000
FIRST_US = 1_735_689_600_000_000
FILL_MINUTES = 100
"""So many minutes of the table's first rows are written by one transaction."""
STATES = ("merge", "log", "sqlite", "memory")
KEY = ("key", "window_start")


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds of one transaction: of time and of processor time, and of that with what follows."""

    commit_s: float
    cpu_s: float
    with_upkeep_s: float


def topology_of(kind: str, folder: Path) -> Topology:
    """A count by key and minute, and the windows that have closed."""
    states: dict[str, Any] = {
        "merge": lambda name, key: DeltaMapState(folder / name, key),
        "log": lambda name, key: DeltaMapState(folder / name, key, layout="log"),
        "sqlite": lambda name, key: SqlMapState(f"sqlite:///{folder}/{name}.db", name, key),
        "memory": lambda name, key: MemoryMapState(key),
    }
    topology = TridentTopology("closing")
    spout = MemoryTransactionalSpout([[]], "key long, at timestamp", take=1)
    minutes = topology.new_stream("messages", spout, event_time="at").group_by("key").window(tumbling("1 minute"))
    counts = minutes.persistent_aggregate(states[kind]("open", None), Count(), name="open")
    counts.closed().persist(states[kind]("closed", KEY), name="closed")
    return topology.build(strict=kind != "memory")


def transactions(topology: Topology, open_minutes: int) -> Iterator[Cost]:
    """The first ones fill the table; then one after the other, for as long as they are wanted."""
    for component in topology.committers:
        assert component.state is not None
        component.state.open(owner_of(topology.id, component.id), TxId)
    phase, watermark, newest, number = CommitPhase(topology), FIRST_US, 0, 0
    nothing = phase.program.aggregators["closed"]
    empty = Partials(nothing.combine_kinds, nothing.combine([]))
    while True:
        number += 1
        minutes = range(newest, min(newest + FILL_MINUTES, open_minutes)) if newest < open_minutes else [newest]
        newest = minutes[-1] + 1
        before, watermark = watermark, max(watermark, FIRST_US + (newest - open_minutes) * MINUTE_US)
        facts = BatchFacts(watermark // 1_000, watermark, before // 1_000, before)
        processed = Processed({}, {"open": partials(minutes), "closed": empty}, {}, facts=facts)
        attempt, began, used = TransactionAttempt(TxId(number), AttemptId(number)), perf_counter(), process_time()
        phase.run(attempt, processed)
        commit_s, cpu_s = perf_counter() - began, process_time() - used
        for component in topology.committers:
            if component.state is not None:
                component.state.parts.maintenance.maintain(attempt.txid, lambda: True)
        if newest > open_minutes:
            yield Cost(commit_s, cpu_s, process_time() - used)


def partials(minutes: range | list[int]) -> Partials:
    """Every key once in each of the minutes."""
    starts = pa.array([FIRST_US + minute * MINUTE_US for minute in minutes for _ in range(KEYS)], pa.int64())
    keys = pa.array(list(range(KEYS)) * len(minutes), pa.int64())
    counts = pa.array([1] * len(keys), pa.int64())
    times = starts.cast(pa.timestamp("us", tz="UTC"))
    return Partials({"count": "sum"}, pa.table({"key": keys, "window_start": times, "count": counts}))


def measure(kind: str, sizes: list[int], rounds: int, folder: Path) -> dict[int, list[Cost]]:
    """The costs by number of open rows, in turns. Raises `AssertionError` if what has closed is wrong."""
    topologies = {size: topology_of(kind, folder / str(size)) for size in sizes}
    going = {size: transactions(topology, size // KEYS) for size, topology in topologies.items()}
    found: dict[int, list[Cost]] = {size: [] for size in sizes}
    for _ in range(rounds + 1):
        for size, costs in going.items():
            found[size].append(next(costs))
    for topology in topologies.values():
        check(topology, rounds + 1)
    return {size: costs[1:] for size, costs in found.items()}


def check(topology: Topology, closed: int) -> None:
    """As many minutes have closed as there were transactions, each with all keys."""
    state: Any = topology.component("closed").state
    rows = state.read()
    assert rows.num_rows == closed * KEYS, f"{rows.num_rows} windows have closed instead of {closed * KEYS}"
    for component in topology.committers:
        assert component.state is not None
        component.state.close()


def figures(costs: list[Cost]) -> dict[str, float]:
    """Milliseconds."""
    commits = [1_000 * cost.commit_s for cost in costs]
    return {
        "p50_ms": percentile(commits, 50),
        "mean_ms": mean(commits),
        "p99_ms": percentile(commits, 99),
        "cpu_p50_ms": percentile([1_000 * cost.cpu_s for cost in costs], 50),
        "cpu_with_upkeep_mean_ms": 1_000 * mean(cost.with_upkeep_s for cost in costs),
    }


def main() -> None:
    """Measure, and print what was found; or write it to a file."""
    parser = argparse.ArgumentParser(prog="python -m bench.closing", description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--rounds", type=int, default=110, help="a log is compacted every 50 transactions")
    parser.add_argument("--states", nargs="+", choices=STATES, default=["log"])
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    found = dict[str, dict[str, dict[str, float]]]()
    for kind in arguments.states:
        with tempfile.TemporaryDirectory(prefix="closing-") as folder:
            for size in arguments.sizes:
                (Path(folder) / str(size)).mkdir()
            costs = measure(kind, arguments.sizes, arguments.rounds, Path(folder))
        found[kind] = {str(size): figures(each) for size, each in costs.items()}
        for size, each in found[kind].items():
            shown = ", ".join(f"{name} {ms:.1f}" for name, ms in each.items())
            print(f"{kind}, {int(size):,} open rows: {shown}", flush=True)
    if arguments.output is not None:
        document = {"transactions": arguments.rounds, "closing": found}
        arguments.output.write_text(json.dumps(document), "utf-8")


if __name__ == "__main__":
    main()
