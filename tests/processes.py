"""`-p tests.processes`: the tests of one run in three processes, which share them file by file: all end together.

All is imported and collected once; then the process forks. Tests that share a server stay with one of them, so that
there is one of each; what is left when it has run them goes to whoever is free. A third one keeps two processors busy
while tests of others wait for what they have started.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from itertools import groupby
from pathlib import Path
from typing import IO

import pytest

from tests.bill import Bill, Cost, Watch

PROCESSES = 3
HOMES = ({"spark"}, {"kafka_broker", "shared_cluster"})
"""The fixtures that are a server of many tests, by the process that has it. PostgreSQL and Redis start in a second:
each process that needs them has its own."""
PROGRAMS = {"command_line", "examples"}
"""Folders whose tests start programs that start the servers."""
LONG = (
    "proof/test_crash_points.py",
    "delta/test_rewinds_each.py",
    "proof/test_power_cuts.py",
    "command_line/test_quiet_runs.py",
    "examples/test_global_count.py",
    "windows/test_worlds.py",
    "proof/test_worlds.py",
    "doctor/test_examine.py",
    "commands/test_main.py",
    "docs/test_pages.py",
)
"""Files that come first, so that none of them is begun when others have nothing left."""
TOKEN_BYTES = 2


def home_of(item: pytest.Item) -> int | None:
    """The number of the process whose server the test shares; None: it shares none."""
    marks = [server for server in ("kafka", "spark") if item.get_closest_marker(server)]
    fixtures = item.fixturenames if isinstance(item, pytest.Function) else ()
    for number, servers in enumerate(HOMES):
        if marks and not servers.isdisjoint(fixtures):
            return number
    if not marks or item.path.parent.name in PROGRAMS:
        return None
    return int("kafka" in marks)


def what_stays_together(item: pytest.Item) -> Path:
    """The file; of files that read all of the code the folder, so that one process parses it."""
    return item.path.parent if item.path.parent.name == "tidy" else item.path


def by_file(items: list[pytest.Item]) -> list[list[pytest.Item]]:
    """The long ones first, others in their order."""
    files = [list(group) for _, group in groupby(items, key=what_stays_together)]
    order = {name: number for number, name in enumerate(LONG)}
    return sorted(files, key=lambda file: order.get("/".join(file[0].path.parts[-2:]), len(LONG)))


class Queue:
    """The files that nobody has taken yet: their numbers in a pipe, which each process reads one of at a time."""

    def __init__(self, files: list[list[pytest.Item]]) -> None:
        self._files = files
        self._read, write = os.pipe()
        os.write(write, b"".join(number.to_bytes(TOKEN_BYTES, "little") for number in range(len(files))))
        os.close(write)

    def items(self, began_by: int | None) -> Iterator[pytest.Item]:
        """As long as the process that has forked this one lives."""
        while (token := os.read(self._read, TOKEN_BYTES)) and began_by in (None, os.getppid()):
            yield from self._files[int.from_bytes(token, "little")]


def keep_to_one_processor(number: int, pid: int = 0) -> None:
    """Keep a process' threads together, by default of this one: those that wake each other on another processor cost
    twice as much, as in delta-rs. Where there are no servers to run beside, that makes the tests a fifth cheaper."""
    if hasattr(os, "sched_setaffinity"):
        there = sorted(os.sched_getaffinity(0))
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(pid, {there[number % len(there)]})


def file_of_both() -> IO[str]:
    """A file without a name: a process that was forked writes it, the first one reads it."""
    return tempfile.TemporaryFile("w+", encoding="utf-8")


@dataclass(slots=True)
class Other:
    """One of the other processes."""

    printed: IO[str] = field(default_factory=file_of_both)
    costs: IO[str] = field(default_factory=file_of_both)
    process: int = 0


class Processes:
    """The plugin: `me` is None in the first process."""

    def __init__(self) -> None:
        self.others = [Other() for _ in range(PROCESSES - 1)]
        self.me: Other | None = None
        self._watch = Watch()
        self._ended: pytest.Session | None = None
        self.session: pytest.Session | None = None
        # The first one that was registered is called last.
        atexit.register(self._leave)

    def _leave(self) -> None:
        """End without taking apart what was imported and made, object by object: half a second of each process."""
        if self.session is not None:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(self.session.exitstatus)

    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        if session.testsfailed or session.config.getoption("collectonly"):
            return None
        homes = [home_of(item) for item in session.items]
        queue = Queue(by_file([item for item, home in zip(session.items, homes, strict=True) if home is None]))
        # What was imported stays: no process is to look through it for garbage, or to copy it for that.
        gc.collect()
        gc.freeze()
        gc.set_threshold(20_000, 20, 100)
        first = os.getpid()
        number = self._fork(session.config)
        self._watch = Watch()
        if session.config.getoption("--sample"):
            keep_to_one_processor(number)
        own = [item for item, home in zip(session.items, homes, strict=True) if home == number]
        left = queue.items(began_by=None if self.me is None else first)
        run(session, (item for items in (own, left) for item in items))
        return True

    def _fork(self, config: pytest.Config) -> int:
        """Fork, and return the process' number; in others than the first one all that is printed goes to the file, and
        what tests print is captured anew."""
        sys.stdout.flush()
        for number, other in enumerate(self.others, start=1):
            other.process = os.fork()
            if other.process == 0:
                self.me = other
                capturing = config.pluginmanager.getplugin("capturemanager")
                capturing.stop_global_capturing()
                for stream in (1, 2):
                    os.dup2(other.printed.fileno(), stream)
                capturing.start_global_capturing()
                capturing.suspend_global_capture(in_=True)
                return number
        return 0

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """The first process waits for the others, whose failures are its own, and whose costs, which it alone tells."""
        self._ended = session
        bill = session.config.pluginmanager.getplugin("bill")
        assert isinstance(bill, Bill)
        bill.processes.append(self._watch.cost(sum(cost.tests for cost in bill.costs.values())))
        if self.me is not None:
            costs = {file: asdict(cost) for file, cost in bill.costs.items()}
            self.me.costs.write(json.dumps([costs, bill.long, asdict(bill.processes[0])]))
            self.me.costs.flush()
            bill.costs.clear()
            return
        for other in self.others:
            if not other.process:
                continue
            if os.waitstatus_to_exitcode(os.waitpid(other.process, 0)[1]) and session.exitstatus == pytest.ExitCode.OK:
                session.exitstatus = pytest.ExitCode.TESTS_FAILED
            other.costs.seek(0)
            told = other.costs.read()
            if not told:
                continue
            costs, long, process = json.loads(told)
            bill.long |= long
            bill.processes.append(Cost(**process))
            for file, cost in costs.items():
                bill.costs[file].add(Cost(**cost))

    def pytest_unconfigure(self) -> None:
        for other in self.others:
            if self.me is None:
                other.printed.seek(0)
                sys.stdout.write(other.printed.read())
            other.printed.close()
            other.costs.close()
        # All is told.
        self.session = self._ended


def run(session: pytest.Session, items: Iterator[pytest.Item]) -> None:
    """As pytest's own loop does. The next test is taken early: what it shares with the one before is not torn down."""
    item = next(items, None)
    while item is not None:
        following = next(items, None)
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
        if session.shouldstop:
            raise session.Interrupted(session.shouldstop)
        item = following


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Processes(), "processes")
