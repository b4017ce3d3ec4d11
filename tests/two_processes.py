"""`-p tests.two_processes`: the tests of one run in two processes, which share them file by file: both end together.

All is imported and collected once; then the process forks. Tests that share a server stay with the first process, so
that there is one of each; what is left when it has run them goes to whoever is free.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from itertools import groupby
from typing import IO

import pytest

from tests.bill import Bill, Cost

SERVERS = ("kafka", "postgres", "redis", "spark")
SHARED = {"kafka_broker", "postgres_sockets", "spark"}
"""The fixtures that are a server."""
HAVE_THEIR_OWN = {"test_cluster.py", "test_global_count.py", "test_quiet_runs.py", "test_transactional_words.py"}
"""Files whose tests start programs that start the servers."""
TOKEN_BYTES = 2


def shares_server(item: pytest.Item) -> bool:
    if not any(item.get_closest_marker(server) for server in SERVERS):
        return False
    fixtures = item.fixturenames if isinstance(item, pytest.Function) else ()
    return item.path.name not in HAVE_THEIR_OWN or not SHARED.isdisjoint(fixtures)


def by_file(items: list[pytest.Item]) -> list[list[pytest.Item]]:
    return [list(group) for _, group in groupby(items, key=lambda item: item.path)]


class Queue:
    """The files that nobody has taken yet: their numbers in a pipe, which each process reads one of at a time."""

    def __init__(self, files: list[list[pytest.Item]]) -> None:
        self._files = files
        self._read, write = os.pipe()
        os.write(write, b"".join(number.to_bytes(TOKEN_BYTES, "little") for number in range(len(files))))
        os.close(write)

    def __iter__(self) -> Iterator[pytest.Item]:
        began_by = os.getppid()
        while (token := os.read(self._read, TOKEN_BYTES)) and os.getppid() == began_by:
            yield from self._files[int.from_bytes(token, "little")]


class TwoProcesses:
    """The plugin: `child` is None in the second process."""

    def __init__(self) -> None:
        self.child: int | None = None
        # Files without a name, shared: the second process writes them, the first one reads them.
        self.printed: IO[str] = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115 - closed at the end
        self.costs: IO[str] = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115 - closed at the end

    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        if session.testsfailed or session.config.getoption("collectonly"):
            return None
        own = [item for item in session.items if shares_server(item)]
        queue = Queue(by_file([item for item in session.items if not shares_server(item)]))
        # What was imported stays: neither process is to look through it for garbage, or to copy it for that.
        gc.collect()
        gc.freeze()
        gc.set_threshold(20_000, 20, 100)
        self.child = self._fork(session.config) or None
        run(session, iter(queue) if self.child is None else (item for items in (own, queue) for item in items))
        return True

    def _fork(self, config: pytest.Config) -> int:
        """Fork; in the child all that is printed goes to the file, and what tests print is captured anew."""
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            capturing = config.pluginmanager.getplugin("capturemanager")
            capturing.stop_global_capturing()
            for stream in (1, 2):
                os.dup2(self.printed.fileno(), stream)
            capturing.start_global_capturing()
            capturing.suspend_global_capture(in_=True)
        return child

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """The first process waits for the second one, whose failures are its own, and whose costs."""
        bill = session.config.pluginmanager.getplugin("bill")
        assert isinstance(bill, Bill)
        if self.child is None:
            self.costs.write(json.dumps({file: asdict(cost) for file, cost in bill.costs.items()}))
            self.costs.flush()
            return
        if os.waitstatus_to_exitcode(os.waitpid(self.child, 0)[1]) and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        self.costs.seek(0)
        for file, cost in json.loads(self.costs.read() or "{}").items():
            bill.costs[file].add(Cost(**cost))

    def pytest_unconfigure(self) -> None:
        if self.child is not None:
            self.printed.seek(0)
            sys.stdout.write(self.printed.read())
        self.printed.close()
        self.costs.close()


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
    config.pluginmanager.register(TwoProcesses(), "two processes")
