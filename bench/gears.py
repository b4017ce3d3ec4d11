"""`python -m bench gears`: small batches and large ones, few partitions and many, each way in which they are processed.

Three rounds of rows, in each of which the systems take turns. A row is a program of its own that begins cold, and is
kept in `docs/performance/gears.json` at once; what is there is not measured again, so the same command continues after
an interruption, or after its budget is spent. What changed since is measured `--again`, `--rows` by `--rows`.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from fnmatch import fnmatch
from pathlib import Path
from time import monotonic
from typing import Any

from rich.console import Console

from bench import page, report
from bench.gear_rows import BATCHES, FEW, MANY, MANY_BATCH, OURS, PEERS, RAW, Row, filled, topic_of
from bench.results import heading, save
from spouts.local_broker import LocalBroker

ROUNDS, IN_FLIGHT = 3, (1, 3)
PEERS_FROM = 1_000
"""Peers take seconds for a micro-batch however small it is."""
ROW_S, LEAST_S = 600, 60
"""After so long a row is ended: it has hung. With less time than the second none is begun."""
_UNITS = {"s": 1, "m": 60, "h": 3_600}


def every_row() -> Iterator[Row]:
    """All rows in the order in which they are measured: those that are compared run beside each other."""
    for batch in BATCHES:
        for in_flight in IN_FLIGHT:
            yield from (Row(system, batch, FEW, in_flight) for system in OURS)
        if batch >= PEERS_FROM:
            yield from (Row(system, batch, FEW, 1) for system in PEERS)
    yield Row(RAW, max(BATCHES), FEW, 1)
    for partitions in MANY:
        for in_flight in IN_FLIGHT:
            yield from (Row(system, MANY_BATCH, partitions, in_flight) for system in OURS)


def name_of(row: Row) -> str:
    """As `--rows` names it."""
    return f"{row.system}/{row.batch}/{row.partitions}/{row.in_flight}"


class Record:
    """What was measured by now, in a file."""

    def __init__(self, folder: Path, command: str) -> None:
        self.folder, self.command = folder, command
        path = folder / "gears.json"
        self.rows: list[dict[str, Any]] = json.loads(path.read_text("utf-8"))["rows"] if path.exists() else []

    def has(self, row: Row, round_: int) -> bool:
        """Whether a row was measured in a round."""
        return any(each["round"] == round_ and asdict(row).items() <= each.items() for each in self.rows)

    def forget(self, pattern: str) -> None:
        """Let the rows of these names be measured again."""
        fields = Row.__dataclass_fields__
        kept = [(Row(**{name: each[name] for name in fields}), each) for each in self.rows]
        self.rows = [each for row, each in kept if not _is_chosen(name_of(row), pattern)]

    def add(self, found: dict[str, Any], round_: int) -> None:
        """Keep a row."""
        self.rows.append({"round": round_, **found})
        save({**heading("gears", self.command), "rows": self.rows}, self.folder)


def apart(row: Row, bootstrap: str, timeout_s: float) -> dict[str, Any]:
    """A row in a process of its own. Raises `SystemExit` with what it wrote if it failed or did not end in time."""
    words = [bootstrap, row.system, *map(str, (row.batch, row.partitions, row.in_flight))]
    command = [sys.executable, "-m", "bench.gear_rows", *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired:
        raise SystemExit(f"{name_of(row)} did not end within {timeout_s:.0f} s") from None
    if done.returncode:
        raise SystemExit(f"{name_of(row)} failed:\n{done.stderr}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def run(options: argparse.Namespace, command: str, console: Console) -> None:
    """Measure what is missing, one row after the other, for as long as the budget."""
    record, until_s, produced = Record(options.output, command), monotonic() + options.budget, set[int]()
    if options.again:
        record.forget(options.rows)
    rounds = range(1, options.rounds + 1)
    wanted = [(n, row) for n in rounds for row in every_row() if _is_chosen(name_of(row), options.rows)]
    missing = [(round_, row) for round_, row in wanted if not record.has(row, round_)]
    if not missing:
        return
    with LocalBroker() as broker:
        for round_, row in missing:
            if until_s - monotonic() < LEAST_S:
                console.print(f"time is up before {name_of(row)} of round {round_}: the same command continues")
                break
            if row.partitions not in produced:
                filled(topic_of(row.partitions)).produce(broker.bootstrap)
                produced.add(row.partitions)
            found = apart(row, broker.bootstrap, min(ROW_S, until_s - monotonic()))
            record.add(found, round_)
            console.print(f"round {round_}: {name_of(row):22} {found['speed']:11,.0f} messages/s")


def main(arguments: Sequence[str]) -> None:
    """Measure, show, and write the page."""
    parser = argparse.ArgumentParser(prog="python -m bench gears", description=__doc__)
    parser.add_argument("--budget", type=seconds, default="40m", help="begin none that ends later: 90s, 40m, 2h")
    parser.add_argument(
        "--rows", default="*", help="SYSTEM/BATCH/PARTITIONS/IN_FLIGHT, with * and ?; several with commas"
    )
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--again", action="store_true", help="also rows that are measured")
    parser.add_argument("--output", type=Path, default=page.FOLDER)
    options = parser.parse_args(arguments)
    console = Console(width=None if sys.stdout.isatty() else report.WIDTH)
    try:
        run(options, " ".join(["python -m bench gears", *arguments]), console)
    finally:
        report.show(options.output, console)
        report.save(options.output)


def _is_chosen(name: str, patterns: str) -> bool:
    return any(fnmatch(name, pattern) for pattern in patterns.split(","))


def seconds(text: str) -> float:
    """`40m` → 2400. Raises `ValueError` for what is no time."""
    matched = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", text)
    if matched is None:
        raise ValueError(f"{text!r} is no time such as 90s, 40m or 2h")
    return float(matched[1]) * _UNITS[matched[2]]
