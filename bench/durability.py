"""`python -m bench.durability`: what it costs that a committed transaction outlives a power cut; needs strace, no JVM.

A topology without Spark counts words into one table: small, large (delta-rs' MERGE), or a log. First `disk` and
`process` in turns, in processes of their own. Then once more under strace, which counts the syncs of a transaction,
the store's included, and makes each take longer, as it does on slower disks.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from random import Random
from statistics import median
from time import perf_counter
from typing import Any

from bench.figures import percentile
from spouts import MemoryTransactionalSpout
from state import DeltaMapState
from transactional import TransactionalTopologyBuilder, run_topology
from transactional.core.protocol import CommitSucceeded
from transactional.engine.clock import SystemClock

TABLES = ("small", "large", "log")
WORDS = {"small": 8_000, "large": 60_000, "log": 8_000}
"""Different words; above 50,000 rows a table is merged by delta-rs."""
DELAYS_MS = (0, 1, 5)
WARM = 10
"""Transactions that do not count."""
ROOT = Path(__file__).parents[1]


def run(tables: str, durability: str, rows: int, transactions: int, folder: Path) -> dict[str, Any]:
    """One run: the milliseconds from each transaction commit to the next, and when the first and the last one was."""
    chance, words = Random(7), WORDS[tables]
    first = [(f"word {number}",) for number in range(words)]
    more = [(f"word {chance.randrange(words)}",) for _ in range(rows * transactions + (-words) % rows)]
    spout = MemoryTransactionalSpout([first + more], fields="word string", take=rows)
    builder = TransactionalTopologyBuilder("durability", "words", spout)
    layout = "log" if tables == "log" else "merge"
    state = DeltaMapState(folder / "count", "word", layout=layout, engine="delta-rs")
    builder.set_committer_bolt("count", state.count()).fields_grouping("words", "word")
    at_s, wall_s = list[float](), list[float]()

    def observe(at_ms: int, event: object, actions: object) -> None:
        del at_ms, actions
        if isinstance(event, CommitSucceeded):
            at_s.append(perf_counter())
            wall_s.append(SystemClock().wall_ms() / 1000)

    config = {"stop_when_drained": True, "durability": durability, "tick_ms": 1}
    run_topology(
        builder.build(), store=f"sqlite:///{folder}/store.db", master="none", config=config, observers=[observe]
    )
    kept = slice(-transactions + WARM, None)
    took_ms = [(later - earlier) * 1e3 for earlier, later in pairwise(at_s[kept])]
    return {"took_ms": took_ms, "from_s": wall_s[kept][0], "until_s": wall_s[kept][-1]}


def apart(tables: str, durability: str, options: argparse.Namespace, delay_ms: int | None = None) -> dict[str, float]:
    """A run in a process of its own, under strace where a delay is given: its p50, and its syncs per transaction."""
    with tempfile.TemporaryDirectory(prefix="durability-", dir=options.directory) as folder:
        given = [tables, durability, str(options.rows), str(options.transactions), folder]
        trace, strace = Path(folder, "trace"), list[str]()
        if delay_ms is not None:
            strace = ["strace", "-f", "-qq", "--seccomp-bpf", "-ttt", "-o", str(trace), "-e", "trace=fsync,fdatasync"]
            strace += ["-e", f"inject=fsync,fdatasync:delay_exit={1000 * delay_ms}"] if delay_ms else []
        command = [*strace, sys.executable, "-m", "bench.durability", "--one", *given]
        found = json.loads(subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout)
        syncs = 0
        if delay_ms is not None:
            begun = [float(line.split()[1]) for line in trace.read_text().splitlines() if "resumed>" not in line]
            syncs = sum(found["from_s"] < at_s <= found["until_s"] for at_s in begun)
    return {"p50_ms": percentile(found["took_ms"], 50), "syncs": syncs / len(found["took_ms"])}


def main() -> None:
    """Measure, and print one line per figure."""
    parser = argparse.ArgumentParser(prog="python -m bench.durability", description=__doc__)
    parser.add_argument("--rounds", type=int, default=8, help="alternated pairs")
    parser.add_argument("--rows", type=int, default=1_000, help="rows of a transaction")
    parser.add_argument("--transactions", type=int, default=100, help="per run")
    parser.add_argument("--tables", default=",".join(TABLES))
    parser.add_argument("--directory", type=Path, help="where the tables are: the disk that is measured")
    parser.add_argument("--one", nargs=5, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        tables, durability, rows, transactions, folder = options.one
        print(json.dumps(run(tables, durability, int(rows), int(transactions), Path(folder))))
        return
    for tables in options.tables.split(","):
        pairs = list[tuple[float, float]]()
        for number in range(options.rounds):
            names = ("disk", "process") if number % 2 else ("process", "disk")
            found = {name: apart(tables, name, options)["p50_ms"] for name in names}
            pairs.append((found["disk"], found["process"]))
        ratios = sorted(disk / process for disk, process in pairs)
        disk, process = (median(each) for each in zip(*pairs, strict=True))
        print(
            f"{tables}: p50 {disk:.1f} ms with disk, {process:.1f} ms with process; {median(ratios):.2f} times "
            f"({ratios[0]:.2f} … {ratios[-1]:.2f}, {len(pairs)} pairs)",
            flush=True,
        )
        for delay_ms in DELAYS_MS:
            figures = {name: apart(tables, name, options, delay_ms) for name in ("disk", "process")}
            formatted = ", ".join(
                f"{name} p50 {each['p50_ms']:.1f} ms, {each['syncs']:.1f} syncs" for name, each in figures.items()
            )
            print(f"{tables}, {delay_ms} ms more per sync, under strace: {formatted}", flush=True)


if __name__ == "__main__":
    main()
