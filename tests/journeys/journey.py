"""What the steps of a journey act on: a source, a folder of tables, and the model that both have to agree with."""

from __future__ import annotations

import operator
import os
import re
import sqlite3
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar

from deltalake import DeltaTable
from playwright.sync_api import Browser

from spouts.local_broker import LocalBroker
from tests.integration.programs import CLI, Program
from tests.integration.signals import PATIENCE_S
from tests.integration.sinks.publications import visible_records
from tests.journeys.matrix import DELTA_SINK
from tests.journeys.plain import NOON, Plain, Sale
from tests.journeys.sales import CLOSINGS, TOPOLOGY
from tests.journeys.sources import APP, SOURCES, WEB, Source, topic_of
from tests.unit.command_line import Command, Done
from transactional.core.ports.dead_letters import values_from_json
from transactional.operations.loading import load_topology

ROOT = Path(__file__).parents[2]
MASTER = "local[2]"
SINK_PARTITIONS = 2
LEASE_MS = 5_000
"""So long that a machine with others at work does not take a leader for dead."""
RELEASES = "tests.journeys.sales"
BUILD, SWAPPED, MENDED = (f"{RELEASES}:{release}" for release in ("build", "swapped", "mended"))


@dataclass
class Journey:
    """`target` is the release of the topology; `savepoint` is the model as it was then. `master` is what runs it."""

    name: str
    """Of the source, in `tests.journeys.matrix`."""
    folder: Path
    command: Command
    target: str = BUILD
    master: str = MASTER
    unread: list[Sale] = field(default_factory=list)
    sent_again: Counter[str] = field(default_factory=Counter)
    """How often the sale of each id was published before a rewind."""
    is_rewound: bool = False
    plain: Plain = field(init=False)
    savepoint: Plain = field(init=False)
    options: ClassVar[tuple[str, ...]] = ()
    """Of each run."""

    def __post_init__(self) -> None:
        self.plain = self.savepoint = Plain(frozenset(self.source.places))

    @property
    def source(self) -> Source:
        return SOURCES[self.name]

    @property
    def is_mended(self) -> bool:
        return self.target == MENDED

    def sell(self, minutes: Iterable[int], *, words: Iterable[int] = (), garbled: Iterable[int] = ()) -> None:
        """Send a sale of each minute to each partition; of the minutes in `words` the price is one, and of those that
        are `garbled` the record is, where the source knows of records."""
        words, garbled = set(words), set(garbled if self.source.sets_records_aside else ())
        minutes = list(minutes)
        for place in self.source.places:
            if place not in self.source.idle:
                sales = [
                    Sale(each, place, "three" if each in words else str(each), each in garbled) for each in minutes
                ]
                self.source.send(place, [sale.record() for sale in sales])
                self.unread += sales

    def read(self, *, is_drained: bool = True) -> None:
        """What was sent has to be counted from now on."""
        self.plain = self.plain.with_sales(self.unread, is_mended=self.is_mended, is_drained=is_drained)
        self.unread.clear()

    def tries(self, *arguments: str) -> Done:
        """How a command about the release ends."""
        name, *others = arguments
        return self.command(name, self.target, *others)

    def does(self, *arguments: str) -> str:
        """What a command prints, which ends well."""
        done = self.tries(*arguments)
        assert done.code == 0, f"{arguments[0]} ended with {done.code}:\n{done.out}{done.err}"
        return done.out

    def status(self) -> str:
        """What `status` prints."""
        return self.command("status", TOPOLOGY).out

    def run(self, *options: str) -> str:
        """Count all that was sent; what the run printed."""
        printed = self.does("run", "--master", self.master, "--until-drained", *self.options, *options)
        self.read()
        return printed

    def replay(self, *options: str) -> None:
        """Send the letters to their bolts again."""
        self.does("deadletters", "--replay", "--master", self.master, *options)
        assert self.is_mended
        self.plain = self.plain.with_letters()

    def go_back(self, *to: str) -> None:
        """To the savepoint."""
        self.does("rewind", *to, "--yes")
        self.has_gone_back()

    def has_gone_back(self) -> None:
        """What was read since will be read again, and published again."""
        ids, earlier_ids = (Counter[str](plain.tables()["ids"]) for plain in (self.plain, self.savepoint))
        self.sent_again += ids - earlier_ids
        self.is_rewound = True
        self.unread += self.plain.read - self.savepoint.read
        self.plain = self.savepoint

    def await_end_of_lease(self, in_ms: int = 0) -> None:
        """Of a process that is gone, as if its time was over."""
        with closing(sqlite3.connect(self.folder / "transactional.db")) as connection, connection:
            now = "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)"
            connection.execute(f"UPDATE transactional_topologies SET leased_until_ms = {now} + ?", [in_ms])

    def store_files(self) -> dict[Path, bytes]:
        """The files of the store, which nobody has open."""
        return {path: path.read_bytes() for path in self.folder.glob("transactional.db*") if path.suffix != ".db-shm"}

    def replace_store(self, files: Mapping[Path, bytes]) -> None:
        """Put other files in the place of the store's."""
        for path in self.folder.glob("transactional.db*"):
            path.unlink()
        for path, content in files.items():
            path.write_bytes(content)

    def tables(self) -> dict[str, Any]:
        """What the tables hold, as `Plain.tables` has it."""
        states: dict[str, Any] = {
            each.id.removeprefix("dead-"): each.state for each in load_topology(self.target).committers
        }
        with ExitStack() as opened:
            for state in states.values():
                opened.callback(state.close)
            rows = {name: state.read().to_pylist() for name, state in states.items()}
        found = {
            "ids": {row["id"]: row["count"] for row in rows["ids"]},
            "items": {row["item"]: (row["count"], row["paid"]) for row in rows["items"]},
            "letters": sorted(id_of(row["tuple"]) for row in rows["letters"] if row["tried_again_in"] is None),
        }
        if sinks := load_topology(self.target).sinks:
            is_table = os.environ["SINK"] == DELTA_SINK
            values = {name: (appended_rows if is_table else sent_values)(name) for name in sinks}
            sent_again = Counter[str]() if is_table else self.sent_again
            found |= published(values, rows, sent_again, is_rewound=self.is_rewound and not is_table)
        if "open" in rows:
            open_windows, closed = windows(rows["open"]), windows(rows["closed"])
            found["windows"] = {**open_windows, **closed}
            found["open and closed"] = sorted(open_windows.keys() & closed.keys())
            found["wrong closings"] = self.plain.wrong_closings(closed)
        if "late" in rows:
            found["late"] = {row["id"]: row["count"] for row in rows["late"]}
        if "pairs" in rows:
            found["wrong pairs"] = self.plain.wrong_pairs({row["id"]: row["count"] for row in rows["pairs"]})
        if "slid" in rows:
            panes = windows(rows["panes"], start="pane_start")
            found["wrong slides"] = self.plain.wrong_slides(windows(rows["slid"]), panes)
        return found

    def compared(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """What the tables hold, and what the model says of those that are there."""
        found, expected = self.tables(), self.plain.tables()
        return found, {name: expected[name] for name in found}

    def holds(self) -> None:
        """The tables are those of the model, and nothing else is wrong with them, either."""
        found, expected = self.compared()
        assert found == expected
        self.does("doctor")
        self.does("verify", *["--count-records"] * self.source.is_counted, "--windows", "--sinks")


@dataclass
class StartedJourney(Journey):
    """`programs` is what runs the topology; `second` is the broker that has a partition for itself."""

    second: LocalBroker = field(kw_only=True)
    browser: Browser = field(kw_only=True)
    opened: ExitStack = field(kw_only=True)
    programs: list[Program] = field(default_factory=list)

    def start(self, target: str, *options: str) -> Program:
        """Run a release in a process of its own, which leads or stands by."""
        lease = ["--standby", "--set", f"lease_ms={LEASE_MS}"]
        command = [*CLI, "run", target, "--master", MASTER, *lease, *options]
        program = Program(command, self.folder, PYTHONPATH=str(ROOT))
        self.programs.append(self.opened.enter_context(program))
        return program

    def await_counts(self) -> None:
        """Until the process that leads has counted all that was sent. Tables are read one after the other, and the
        transaction that closes windows behind the last record prints no line: so they are read again by the clock."""
        self.read(is_drained=False)
        leader, until_s = self.programs[0], time.monotonic() + PATIENCE_S
        while operator.ne(*(compared := self.compared())):
            assert time.monotonic() < until_s, f"not counted in {PATIENCE_S} s: {compared}\n{leader.text}"
            assert not leader.ends_within(0.5), leader.text


def sent_values(sink: str) -> list[dict[str, Any]]:
    """Return the values in a sink's topic, and check the order of attempts in each partition."""
    records = visible_records(os.environ["BOOTSTRAP"], topic_of(sink), SINK_PARTITIONS)
    for partition in range(SINK_PARTITIONS):
        attempts = [seen.attempt_id for seen in records if seen.partition == partition]
        assert attempts == sorted(attempts), f"{sink}, partition {partition}: {attempts}"
    return [seen.value for seen in records]


def appended_rows(sink: str) -> list[dict[str, Any]]:
    """Return the rows of a sink's table by their transactions."""
    if not DeltaTable.is_deltatable(f"{sink}-appended"):
        return []
    rows = DeltaTable(f"{sink}-appended").to_pyarrow_table().to_pylist()
    return sorted(rows, key=operator.itemgetter("txid"))


def published(
    values: Mapping[str, list[dict[str, Any]]],
    rows: Mapping[str, list[Any]],
    sent_again: Counter[str],
    *,
    is_rewound: bool,
) -> dict[str, Any]:
    """Return how often the sale of each id was published, and closings whose newest record is not the table's row.

    Sales that are `sent_again` after a rewind count once less for each time. Windows that are open since a rewind have
    records of their earlier closings.
    """
    contents: dict[str, Any] = {"sold": dict(Counter(str(each["id"]) for each in values["sold"]) - sent_again)}
    if CLOSINGS in values:
        newest = {(each["item"], as_time(each["window_start"])): each["count"] for each in values[CLOSINGS]}
        closed = {(row["item"], row["window_start"]): row["count"] for row in rows["closed"]}
        shown = {window: count for window, count in newest.items() if window in closed or not is_rewound}
        contents["wrong records of closings"] = sorted(shown.items() ^ closed.items())
    return contents


def as_time(value: Any) -> datetime:
    """Return a time that a table has, or its text in JSON."""
    return value if isinstance(value, datetime) else datetime.fromisoformat(str(value))


def id_of(letter: str) -> str:
    """Of the sale whose tuple, or whose record, was set aside: as text, or as bytes with it within."""
    found = re.search(rf"({WEB}|{APP})-\d+-\d+", str(values_from_json(letter)))
    assert found is not None, letter
    return found[0]


def windows(rows: Iterable[Any], *, start: str = "window_start") -> Counter[tuple[str, float]]:
    return Counter({(row["item"], (row[start] - NOON).total_seconds() / 60): row["count"] for row in rows})
