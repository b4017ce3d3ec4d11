"""What the steps of a journey act on: a broker, a folder of tables, and the model that both have to agree with."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser

from spouts.local_broker import LocalBroker
from state import DeltaMapState
from tests.integration.kafka_count import COMMITTED
from tests.integration.kafka_topics import put
from tests.integration.programs import CLI, Program
from tests.integration.tables import counts, rows
from tests.journeys.plain import NOON, PARTITIONS, Plain, Sale
from tests.journeys.sales import TOPOLOGY
from tests.unit.command_line import Command

ROOT = Path(__file__).parents[2]
MASTER = "local[2]"
LEASE_MS = 5_000
"""So long that a machine with others at work does not take a leader for dead."""


@dataclass
class Journey:
    """`target` is the release of the topology, `programs` what runs it; `savepoint` is the model as it was then;
    `second` is the broker that has a partition for itself."""

    bootstrap: str
    second: LocalBroker
    folder: Path
    command: Command
    browser: Browser
    opened: ExitStack
    target: str = ""
    plain: Plain = field(default_factory=Plain)
    savepoint: Plain = field(default_factory=Plain)
    unread: list[Sale] = field(default_factory=list)
    programs: list[Program] = field(default_factory=list)

    @property
    def knows_words(self) -> bool:
        return self.target.endswith(":mended")

    def sell(self, minutes: Iterable[int], *, words: Iterable[int] = ()) -> None:
        """Send a sale of each minute to each partition; of the minutes in `words` the price is one."""
        minutes, words = list(minutes), set(words)
        for topic, partition in PARTITIONS:
            sales = [Sale(topic, partition, each, "three" if each in words else str(each)) for each in minutes]
            put(self.bootstrap, topic, [sale.record() for sale in sales], partition)
            self.unread += sales

    def read(self) -> None:
        """What was sent has to be counted from now on."""
        self.plain = self.plain.with_sales(self.unread, knows_words=self.knows_words)
        self.unread.clear()

    def does(self, *arguments: str) -> str:
        """What a command prints, which ends well."""
        name, *others = arguments
        done = self.command(name, self.target, *others)
        assert done.code == 0, f"{name} ended with {done.code}:\n{done.out}{done.err}"
        return done.out

    def status(self) -> str:
        """What `status` prints."""
        return self.command("status", TOPOLOGY).out

    def run(self) -> None:
        """Count all that was sent."""
        self.does("run", "--master", MASTER, "--until-drained")
        self.read()

    def start(self, target: str, *options: str) -> Program:
        """Run a release in a process of its own, which leads or stands by."""
        lease = ["--standby", "--set", f"lease_ms={LEASE_MS}", "--set", "idle_pause_ms=20"]
        command = [*CLI, "run", target, "--master", MASTER, *lease, *options]
        program = Program(command, self.folder, BOOTSTRAP=self.bootstrap, PYTHONPATH=str(ROOT))
        self.programs.append(self.opened.enter_context(program))
        return program

    def await_counts(self) -> None:
        """Until the process that leads has counted all that was sent."""
        self.read()
        while self.tables() != self.plain.tables():
            self.programs[0].await_line(COMMITTED)

    def tables(self) -> dict[str, Any]:
        """What the tables hold, as `Plain.tables` has it."""
        if not (self.folder / "letters" / "_delta_log").exists():
            return {}
        open_windows = windows(DeltaMapState(self.folder / "open", "item string, window_start timestamp", "count long"))
        closed = windows(DeltaMapState(self.folder / "closed", "item string, window_start timestamp", "count long"))
        letters = rows(self.folder / "letters", "tuple", "tried_again_in")
        return {
            "ids": counts(self.folder / "ids", "id"),
            "items": {
                item: (count, paid) for item, count, paid in rows(self.folder / "items", "item", "count", "paid")
            },
            "windows": {**open_windows, **closed},
            "open and closed": sorted(open_windows.keys() & closed.keys()),
            "closed too early": self.plain.too_early(closed),
            "late": counts(self.folder / "late", "id"),
            "letters": sorted(json.loads(row)["id"] for row, tried_again_in in letters if tried_again_in is None),
        }

    def holds(self) -> None:
        """The tables are those of the model, and nothing else is wrong with them, either."""
        assert self.tables() == self.plain.tables()
        self.does("doctor")
        self.does("verify", "--count-records", "--windows")


def windows(state: DeltaMapState) -> Counter[tuple[str, int]]:
    return Counter(
        {
            (row["item"], int((row["window_start"] - NOON).total_seconds() // 60)): row["count"]
            for row in state.read().to_pylist()
        }
    )
