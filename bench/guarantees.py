"""`python -m bench.guarantees`: what the three guarantees cost, in processor time of this process.

The same words at most once, at least once and exactly once, whole runs over a store on disk, in turns; a tuple that is
followed beside one that is not (`bench.tracking`); and calls of a stateful bolt, beside a committer that does the same
by hand (`bench.stateful`).
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from time import process_time
from typing import Any

from bench import stateful, tracking
from bench.figures import Spread
from examples.guarantees import Split
from spouts import MemoryTransactionalSpout
from state import MemoryMapState
from transactional import BasicBolt, OutputCollector, Topology, TopologyConfig, TransactionalTopologyBuilder, Tuple
from transactional.core.store.sql.sql_store import SqlCoordinatorStore
from transactional.model.guarantees import Guarantee
from transactional.reliable import TopologyBuilder
from transactional.runtime.engine.driver import TopologyDriver
from transactional.runtime.executors.local import LocalExecutor

LINES_A_BATCH, BATCHES, WORDS_A_LINE = 5_000, 30, 3
LINES = [(" ".join(f"w{(number * 7 + k) % 5_800}" for k in range(WORDS_A_LINE)),) for number in range(LINES_A_BATCH)]


class Send(BasicBolt):
    """Takes a word, as something with an effect outside would."""

    def execute(self, tuple: Tuple, collector: OutputCollector) -> None:
        """Nothing more."""


def topology_of(guarantee: Guarantee) -> Topology:
    """Words, sent one by one; exactly once they are counted in a state instead."""
    spout = MemoryTransactionalSpout([LINES * BATCHES], "line string", take=LINES_A_BATCH)
    if guarantee is Guarantee.EXACTLY_ONCE:
        exact = TransactionalTopologyBuilder("guarantees", "lines", spout)
        exact.set_bolt("split", Split()).shuffle_grouping("lines")
        exact.set_committer_bolt("count", MemoryMapState("word").count()).fields_grouping("split", "word")
        return exact.build()
    built = TopologyBuilder("guarantees", guarantee=guarantee.value)
    built.set_spout("lines", spout)
    built.set_bolt("split", Split()).shuffle_grouping("lines")
    built.set_bolt("send", Send()).fields_grouping("split", "word")
    return built.build()


def run_of(guarantee: Guarantee) -> Callable[[], float]:
    """What runs all batches once, and gives the messages per second of processor time."""

    def run() -> float:
        topology = topology_of(guarantee)
        with tempfile.TemporaryDirectory(prefix="guarantees-") as folder:
            store = SqlCoordinatorStore(f"sqlite:///{folder}/store.db")
            config = TopologyConfig(stop_when_drained=True, max_spout_pending=3)
            began = process_time()
            TopologyDriver(topology, store, LocalExecutor(topology), config).run()
            took_s = process_time() - began
            store.close()
        return LINES_A_BATCH * BATCHES / took_s

    return run


def levels(rounds: int) -> dict[str, Mapping[str, float]]:
    """Messages per second of processor time by guarantee, in turns."""
    runs = {guarantee.value: run_of(guarantee) for guarantee in Guarantee}
    rates: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(rounds + 1):
        for name, run in runs.items():
            rate = run()
            if turn:  # the first one only warms up
                rates[name].append(rate)
    return {name: asdict(Spread.of(found)) for name, found in rates.items()}


def measure(rounds: int) -> dict[str, Any]:
    """All of it."""
    return {
        "levels": levels(max(3, rounds // 3)),
        "tracking": tracking.measure(messages=40_000, rounds=rounds),
        "stateful": stateful.measure(tuples=200_000, rounds=rounds),
    }


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.guarantees", description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--output", type=Path, help="a file for the figures")
    arguments = parser.parse_args()
    found = measure(arguments.rounds)
    for name, rates in found["levels"].items():
        print(f"{name}: {rates['median']:,.0f} messages a second of processor time")
    print(tracking.shown(found["tracking"]))
    print("\n".join(stateful.shown(found["stateful"])))
    if arguments.output:
        arguments.output.write_text(json.dumps(found), "utf-8")


if __name__ == "__main__":
    main()
