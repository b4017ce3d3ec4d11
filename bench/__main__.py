"""`python -m bench`: ours and the peers in turns, on one Spark and one broker; ends by itself.

`python -m bench tables`: transaction commits against the size and the age of their table.
"""

from __future__ import annotations

import argparse
import itertools
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from rich.console import Console

from bench import growth, machine, raw, report
from bench.ours import Ours
from bench.peers import SETTINGS, ExpertRecipe, SparkMerge
from bench.report import Results
from bench.rounds import Round, Stage, System, check_counts
from bench.workload import TOPIC, Workload
from spouts.local_broker import LocalBroker
from transactional.spark_session import spark_session

TASKS = 2
FILL_MESSAGES = 200_000
"""Every table first gets so many messages in one batch: it then holds nearly all keys, and everything is warm."""

RAW_MESSAGES = 2_000_000
_ROUND_MESSAGES = 1_600_000
_ROUND_BATCHES_MIN, _ROUND_BATCHES_MAX = 8, 15


def options_of(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--batches", type=_numbers, default=[1_000, 20_000, 200_000], help="messages per batch")
    parser.add_argument("--in-flight", type=_numbers, default=[1, 3], help="transactions in flight, ours")
    parser.add_argument("--peers", type=_words, default=["merge", "expert", "raw"], help="merge, expert, raw or none")
    parser.add_argument("--rounds", type=int, default=3, help="how often each system has its turn")
    parser.add_argument("--minutes", type=float, default=9, help="no round is started after so long")
    parser.add_argument("--output", type=Path, default=Path("docs/performance"), help="where the report goes")
    parser.add_argument("--directory", type=Path, help="where tables are kept while it runs")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> None:
    """Run everything that is asked for, show it, and write it down."""
    options = options_of(arguments)
    console = Console(width=None if sys.stdout.isatty() else report.WIDTH)
    results = Results(" ".join(["python -m bench", *arguments]), machine.facts())
    directory = Path(tempfile.mkdtemp(prefix="bench-", dir=options.directory))
    try:
        Benchmark(options, directory, results, console, monotonic() + options.minutes * 60).run()
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    report.show(results, console)
    for path in report.save(results, options.output):
        console.print(f"written: {path}")


@dataclass(frozen=True, slots=True)
class Benchmark:
    """One run: what was asked for, where tables go, what was measured, and when no further round may start."""

    options: argparse.Namespace
    directory: Path
    results: Results
    console: Console
    deadline_s: float

    def run(self) -> None:
        """Start broker and Spark, run one batch size after the other. Raises `WrongResult` for a wrong count."""
        options = self.options
        messages = max(round_batches(size) * size for size in options.batches) * options.rounds + FILL_MESSAGES
        workload = Workload.make(messages)
        with LocalBroker(self.directory / "broker") as broker:
            self.console.print(f"producing {messages:,} messages")
            workload.produce(broker.bootstrap)
            session = spark_session("bench", master=f"local[{TASKS}]", parallelism=TASKS, conf=SETTINGS)
            try:
                for size in options.batches:
                    self._size(Stage(session, broker.bootstrap, workload, self.directory, TASKS), size)
            finally:
                session.stop()

    def _size(self, stage: Stage, size: int) -> None:
        """Fill the tables, let the systems work in turns (A B C A B C …), and check what they have counted."""
        systems, done = self._systems(stage, size), FILL_MESSAGES
        for system in systems:
            system.run(stage.workload.until(done), FILL_MESSAGES)
        for number in range(1, self.options.rounds + 1):
            if monotonic() > self.deadline_s:
                self.console.print(f"time is up: round {number} with {size:,} messages per batch is left out")
                break
            done += round_batches(size) * size
            for system in systems:
                self._round(stage, system, number, size, done)
            if "raw" in self.options.peers and size == max(self.options.batches):
                until = stage.workload.until(min(done, RAW_MESSAGES))
                self.results.raw.append(raw.messages_per_second(stage.bootstrap, TOPIC, until, TASKS))
        expected = stage.workload.counts(stage.workload.until(done))
        for system in systems:
            check_counts(system, expected)
            self.results.checked.append(f"{system.name}, batches of {size}: {done} messages of {len(expected)} words")

    def _round(self, stage: Stage, system: System, number: int, size: int, done: int) -> None:
        before = machine.cpu_time()
        batches = system.run(stage.workload.until(done), size)
        after = machine.cpu_time()
        if len(batches) != round_batches(size):
            raise RuntimeError(f"{system.name}: {len(batches)} batches of {size}, not {round_batches(size)}")
        others = after.others_share_since(before) if before and after else None
        each = Round(system.name, size, tuple(batches), others)
        self.results.rounds.append(each)
        self.console.print(f"{size:9,} {system.name:8} round {number}: {each.messages_per_second:11,.0f} messages/s")

    def _systems(self, stage: Stage, size: int) -> list[System]:
        """Ours and the peers by turns, so that each peer has one of ours beside it."""
        ours: list[System] = [Ours(stage, str(size), in_flight=number) for number in self.options.in_flight]
        wanted = [peer for peer in (SparkMerge, ExpertRecipe) if peer.name in self.options.peers]
        peers: list[System] = [peer(stage, str(size)) for peer in wanted]
        return [each for pair in itertools.zip_longest(ours, peers) for each in pair if each is not None]


def round_batches(size: int) -> int:
    """How many batches a round has: fewer of large ones."""
    return min(max(_ROUND_MESSAGES // size, _ROUND_BATCHES_MIN), _ROUND_BATCHES_MAX)


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def _words(text: str) -> list[str]:
    return text.split(",")


if __name__ == "__main__":
    if sys.argv[1:2] == ["tables"]:
        growth.main(sys.argv[2:])
    else:
        main(sys.argv[1:])
