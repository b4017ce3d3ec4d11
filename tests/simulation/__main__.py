"""`python -m tests.simulation --seed N --seeds M`: run M seeds from N on; seeds per second, and what they reached.

`--log` prints the event log of every seed. The exit code is 1 when a seed fails, or when a long sweep has not reached
everything that it should.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from tests.simulation.harness import Simulation, SimulationFailed
from tests.simulation.sweep import Sweep, begin, run_some

LONG = 2_000
"""Seeds from which on everything must have been reached: what is rarest, five times in a thousand."""

CHUNK = 50
"""Seeds that a process takes at once."""


def run_all(first: int, count: int, jobs: int) -> tuple[Sweep, list[int]]:
    """Run the seeds in so many processes. Failures are printed as they come."""
    chunks = [(start, min(CHUNK, first + count - start)) for start in range(first, first + count, CHUNK)]
    total, failed = Sweep(), list[int]()
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=begin) as pool:
        for sweep, failures in pool.map(run_some, *zip(*chunks, strict=True)) if chunks else ():
            total.add(sweep)
            for seed, text in failures:
                failed.append(seed)
                sys.stdout.write(f"{text}\n\n")
    return total, failed


def summary(sweep: Sweep, failed: list[int], took_s: float) -> Iterator[str]:
    shares = sweep.shares()
    for name, number in (sweep.counts() | sweep.late()).items():
        share = f"{shares.pop(name):>6.1%} of the seeds" if name in shares else ""
        yield f"{number:>9}  {name:<70}{share}".rstrip()
    for name, share_of_all in shares.items():
        yield f"{'':>9}  {name:<70}{share_of_all:>6.1%} of the seeds"
    rate = (sweep.seeds + len(failed)) / took_s
    yield f"\n{sweep.seeds} seeds passed, {sweep.transactions} transactions, {rate:.0f} seeds/s"
    if failed:
        yield f"{len(failed)} seeds failed: {', '.join(map(str, failed))}"


def log_of(seed: int) -> str:
    simulation = Simulation(seed)
    try:
        simulation.run()
    except SimulationFailed as failure:
        return f"{simulation.text()}\n{failure}"
    return simulation.text()


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--seeds", type=int, default=1, help="how many seeds to run")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="how many processes run them")
    parser.add_argument("--log", action="store_true", help="print event logs and nothing else")
    options = parser.parse_args()
    if options.log:
        logging.disable(logging.WARNING)
        for seed in range(options.seed, options.seed + options.seeds):
            sys.stdout.write(f"seed {seed}\n{log_of(seed)}\n")
        return 0
    started_at_s = time.monotonic()
    sweep, failed = run_all(options.seed, options.seeds, options.jobs)
    for line in summary(sweep, failed, time.monotonic() - started_at_s):
        sys.stdout.write(line + "\n")
    incomplete = options.seeds >= LONG and sweep.missing()
    if incomplete:
        sys.stdout.write(f"never reached: {', '.join(incomplete)}\n")
    return 1 if failed or incomplete else 0


if __name__ == "__main__":
    sys.exit(main())
