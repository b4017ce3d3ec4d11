"""`python -m bench checkouts OLD NEW`: the same works by two checkouts in turns, and their ratios.

A run is a process of its own, with the checkout on its path and the packages of this one. In each round every work is
run by both checkouts, one right after the other, in an order that alternates: what else the machine does falls on
both. A ratio is of old to new, so above one the new checkout is quicker. Rounds are begun for as long as the budget
lasts. The table is printed, and kept nowhere.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from time import monotonic

from rich.console import Console
from rich.table import Table

from bench.checkout_work import PARTITIONS, TABLES
from bench.gear_rows import filled, topic_of
from bench.gears import seconds
from spouts.local_broker import LocalBroker
from tests.contract.redis_server import RedisServer
from tests.integration.postgres import postgres_server, url_of

PROGRAM = Path(__file__).with_name("checkout_work.py")
WORKS = (*TABLES, *PARTITIONS)
RUN_S_MAX = 300
Pair = tuple[dict[str, float], dict[str, float]]
"""What a work took in the old and in the new checkout: seconds by wall and by processor."""


@contextmanager
def addresses(works: Sequence[str], folder: Path) -> Iterator[Mapping[str, str]]:
    """Start the servers that the works need, and yield the address of each work."""
    with ExitStack() as stack:
        found = dict.fromkeys(works, str(folder))
        if topics := [PARTITIONS[work] for work in works if work in PARTITIONS]:
            bootstrap = stack.enter_context(LocalBroker(folder / "broker")).bootstrap
            for partitions in topics:
                filled(topic_of(partitions)).produce(bootstrap)
            found |= {work: bootstrap for work in works if work in PARTITIONS}
        if "postgresql" in works:
            found["postgresql"] = url_of(stack.enter_context(postgres_server()))
        if "redis" in works:
            found["redis"] = stack.enter_context(RedisServer(folder)).url
        yield found


def run(checkout: Path, work: str, address: str, name: str) -> dict[str, float]:
    """Run a work by a checkout. Raises `SystemExit` with what it wrote if it fails."""
    environment = {**os.environ, "PYTHONPATH": str(checkout.resolve())}
    done = subprocess.run(
        [sys.executable, "-P", str(PROGRAM), work, address, name],  # the folder of the program has a module `sinks`
        env=environment,
        capture_output=True,
        text=True,
        timeout=RUN_S_MAX,
        check=False,
        cwd=checkout,
    )
    if done.returncode:
        raise SystemExit(f"{work} failed in {checkout}:\n{done.stderr}")
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def ratio(pairs: Sequence[Pair], figure: str) -> str:
    """Return the lowest, the median and the highest ratio of old to new."""
    ratios = sorted(old[figure] / max(new[figure], 1e-9) for old, new in pairs)
    return f"{ratios[0]:.2f} … {median(ratios):.2f} … {ratios[-1]:.2f}"


def ratio_table(pairs_by_work: Mapping[str, Sequence[Pair]]) -> Table:
    """Return the ratios of all works, as a table."""
    table = Table("work", "pairs", "processor, old / new", "wall, old / new", "new: processor", "new: wall")
    for work, pairs in pairs_by_work.items():
        if pairs:
            medians = [f"{median(new[name] for _, new in pairs):.3f} s" for name in ("cpu_s", "wall_s")]
            table.add_row(work, str(len(pairs)), ratio(pairs, "cpu_s"), ratio(pairs, "wall_s"), *medians)
    return table


def main(arguments: Sequence[str]) -> None:
    """Measure in turns until the rounds or the budget are used up, and print the ratios."""
    parser = argparse.ArgumentParser(prog="python -m bench checkouts", description=__doc__)
    parser.add_argument("old", type=Path, help="the folder of a checkout")
    parser.add_argument("new", type=Path, help="the folder of another one")
    parser.add_argument("--works", default=",".join(WORKS), help="some of them, with commas between")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--budget", type=seconds, default="15m", help="begin no pair after: 90s, 15m")
    options = parser.parse_args(arguments)
    works, until_s = options.works.split(","), monotonic() + options.budget
    if unknown := set(works) - set(WORKS):
        parser.error(f"no such work: {', '.join(sorted(unknown))}; there are {', '.join(WORKS)}")
    console, pairs_by_work = Console(), dict[str, list[Pair]]({work: [] for work in works})
    with (
        tempfile.TemporaryDirectory(prefix="checkouts-") as folder,
        addresses(works, Path(folder)) as address_by_work,
    ):
        for round_ in range(options.rounds):
            for work in works:
                if monotonic() >= until_s:
                    break
                taken = dict[Path, dict[str, float]]()
                for checkout in (options.old, options.new)[:: -1 if round_ % 2 else 1]:
                    name = f"t{round_}_{'old' if checkout == options.old else 'new'}_{work.replace('-', '_')}"
                    taken[checkout] = run(checkout, work, address_by_work[work], name)
                pairs_by_work[work].append((taken[options.old], taken[options.new]))
                old, new = (taken[checkout] for checkout in (options.old, options.new))
                shown = (f"{name} {old[name]:.3f} / {new[name]:.3f}" for name in ("cpu_s", "wall_s"))
                console.print(f"round {round_ + 1}: {work:16} {', '.join(shown)}", highlight=False)
    console.print(ratio_table(pairs_by_work))
