"""`python -m tests.simulation --seed N --seeds M`: run M seeds from N on; seeds per second, and what they reached.

`--log` prints the event log of every seed. The exit code is 1 when a seed fails, or when a long sweep has not reached
everything that it should.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections.abc import Iterator

from tests.simulation.harness import Simulation, SimulationFailed
from tests.simulation.sweep import Sweep

LONG = 500
"""Seeds from which on everything must have been reached."""


def lines(first: int, count: int, sweep: Sweep, failed: list[int]) -> Iterator[str]:
    """Run the seeds; what there is to say about them."""
    for seed in range(first, first + count):
        try:
            sweep.run(seed)
        except SimulationFailed as failure:
            failed.append(seed)
            yield f"{failure}\n"


def summary(sweep: Sweep, failed: list[int], took_s: float) -> Iterator[str]:
    for name, number in (sweep.counts() | sweep.late()).items():
        yield f"{number:>9}  {name}"
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
    parser.add_argument("--log", action="store_true", help="print event logs and nothing else")
    options = parser.parse_args()
    logging.disable(logging.WARNING)  # a gap in a simulated log is no news
    if options.log:
        for seed in range(options.seed, options.seed + options.seeds):
            sys.stdout.write(f"seed {seed}\n{log_of(seed)}\n")
        return 0
    sweep, failed, started_at_s = Sweep(), list[int](), time.monotonic()
    for line in lines(options.seed, options.seeds, sweep, failed):
        sys.stdout.write(line)
    for line in summary(sweep, failed, time.monotonic() - started_at_s):
        sys.stdout.write(line + "\n")
    incomplete = options.seeds >= LONG and sweep.missing()
    if incomplete:
        sys.stdout.write(f"never reached: {', '.join(incomplete)}\n")
    return 1 if failed or incomplete else 0


if __name__ == "__main__":
    sys.exit(main())
