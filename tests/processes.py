"""`-p tests.processes`: three processes share the tests of one run file by file, and a fourth one shows them.

All is imported and collected once; then the process forks. Whoever is free takes the next file from a pipe. Tests that
share a server take turns in one process, so that there is one of each server. The process that has forked runs no
test: it receives the reports of the others and passes them to pytest as if they were its own, so one display and one
closing line are of all. Where a process dies, its test has failed, and another one goes on with the tests after it.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import signal
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain, groupby
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NoReturn

import pytest
from _pytest import runner

from tests.costs import Costs, Tier, read_costs
from tests.servers import STARTS, needs_server

PROCESSES = 3
HOMES = ({"spark"}, {"kafka_broker", "shared_cluster"})
"""The fixtures that are a server of many tests, by the process that has it. PostgreSQL and Redis start in a second:
each process that needs them has its own."""
PROGRAMS = {"command_line", "examples"}
"""Folders whose tests start programs that start the servers."""
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


def unit_of(item: pytest.Item) -> tuple[Path, int | None]:
    """What one process runs in one go: the tests of a file with one home; of files that read all of the code those of
    the folder, so that one process parses it."""
    return (item.path.parent if item.path.parent.name == "tidy" else item.path), home_of(item)


def units(items: list[pytest.Item]) -> list[list[pytest.Item]]:
    """The tests by unit, the dearest first, so that none of these is begun when others have nothing left."""
    ordered = sorted(items, key=lambda item: tuple(map(str, unit_of(item))))
    grouped = [list(group) for _, group in groupby(ordered, key=unit_of)]
    costs = read_costs()

    def cost_s(unit: list[pytest.Item]) -> float:
        return costs.total_s({item.nodeid.split("::")[0] for item in unit}, Tier.TEST)

    return sorted(grouped, key=cost_s, reverse=True)


class Queue:
    """The units that nobody has taken yet: their numbers in a pipe, which each process reads one of at a time."""

    def __init__(self, numbers: list[int]) -> None:
        self._read, write = os.pipe()
        os.write(write, b"".join(number.to_bytes(TOKEN_BYTES, "little") for number in numbers))
        os.close(write)

    def __iter__(self) -> Iterator[int]:
        while token := os.read(self._read, TOKEN_BYTES):
            yield int.from_bytes(token, "little")


def keep_to_one_processor(number: int, pid: int = 0) -> None:
    """Keep a process' threads together, by default of this one: those that wake each other on another processor cost
    twice as much, as in delta-rs. Where there are no servers to run beside, that makes the tests a fifth cheaper."""
    if hasattr(os, "sched_setaffinity"):
        processors = sorted(os.sched_getaffinity(0))
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(pid, {processors[number % len(processors)]})


@dataclass(slots=True, eq=False)
class Sender:
    """The plugin in a process that runs tests: sends what happens to the one that shows it."""

    config: pytest.Config
    channel: Connection

    def pytest_runtest_logstart(self, nodeid: str, location: tuple[str, int | None, str]) -> None:
        self.channel.send(("started", (nodeid, location)))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data = self.config.hook.pytest_report_to_serializable(config=self.config, report=report)
        self.channel.send(("reported", data))

    @pytest.hookimpl(tryfirst=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[object]) -> None:
        if fixturedef.argname in STARTS:
            self.channel.send(("starting", STARTS[fixturedef.argname]))

    def send_cost(self, *cost: object) -> None:
        self.channel.send(("cost", cost))


@dataclass(slots=True)
class Worker:
    """A process that runs tests, as the one that shows them sees it."""

    number: int
    process: int
    channel: Connection
    unit: int | None = None
    """The number of the unit that it runs."""
    test: tuple[str, tuple[str, int | None, str]] | None = None
    """The id and the place of the test that it runs."""
    ended: set[str] = field(default_factory=set)
    """The ids of the tests of this unit that have ended."""


class Processes:
    """The plugin in the process that shows the tests."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._units = list[list[pytest.Item]]()
        self._queues = dict[int | None, Queue]()
        self._workers = list[Worker]()

    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        if session.testsfailed or self._config.getoption("collectonly"):
            return None
        self._units = units(session.items)
        for home in (0, 1, None):
            self._queues[home] = Queue([n for n, unit in enumerate(self._units) if home_of(unit[0]) == home])
        # What was imported stays: no process is to look through it for garbage, or to copy it for that.
        gc.collect()
        gc.freeze()
        gc.set_threshold(20_000, 20, 100)
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell has its background programs ignore it
        try:
            self._workers = [self._fork(session, number) for number in range(PROCESSES)]
            self._show(session)
        finally:
            for worker in self._workers:  # of a run that was interrupted
                worker.channel.close()
                os.kill(worker.process, signal.SIGINT)
                os.waitpid(worker.process, 0)
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
        if session.shouldstop:
            raise session.Interrupted(session.shouldstop)
        return True

    def _fork(self, session: pytest.Session, number: int, first: list[pytest.Item] | None = None) -> Worker:
        """Start a process; it runs the tests in `first`, then those of its server, then what nobody has taken."""
        receiving, sending = Pipe(duplex=False)
        sys.stdout.flush()
        sys.stderr.flush()
        process = os.fork()
        if process == 0:
            receiving.close()
            self._work(session, number, sending, first or [])
        sending.close()
        return Worker(number, process, receiving)

    def _work(self, session: pytest.Session, number: int, channel: Connection, first: list[pytest.Item]) -> NoReturn:
        """Run tests in a forked process, and end it without taking apart what was imported: half a second of each."""
        self._workers = []
        show_nothing(self._config)
        sender = Sender(self._config, channel)
        self._config.pluginmanager.register(sender, "sender")
        costs = self._config.pluginmanager.getplugin("costs")
        assert isinstance(costs, Costs)
        costs.share = sender.send_cost
        if not any(needs_server(item) for item in session.items):
            keep_to_one_processor(number)

        def items() -> Iterator[pytest.Item]:
            yield from first
            for unit in chain(self._queues.get(number, ()), self._queues[None]):
                channel.send(("unit", unit))
                yield from self._units[unit]

        code = 1
        try:
            run(session, items())
            code = 0
        except session.Failed as failed:
            channel.send(("failed", str(failed)))
            code = 0
        except (KeyboardInterrupt, BrokenPipeError):  # the run is interrupted
            pass
        except BaseException:
            traceback.print_exc()
        finally:
            runner.pytest_sessionfinish(session)
            atexit._run_exitfuncs()
            sys.stderr.flush()
            os._exit(code)

    def _show(self, session: pytest.Session) -> None:
        """Pass on what the processes send, until all have ended."""
        while self._workers:
            for channel in wait([worker.channel for worker in self._workers]):
                worker = next(worker for worker in self._workers if worker.channel is channel)
                if (message := receive(worker.channel)) is None:
                    self._end(session, worker)
                else:
                    self._take(session, worker, *message)
            if session.shouldfail or session.shouldstop:
                for queue in self._queues.values():
                    list(queue)

    def _take(self, session: pytest.Session, worker: Worker, what: str, content: Any) -> None:
        hook = self._config.hook
        if what == "unit":
            worker.unit, worker.test, worker.ended = content, None, set()
        elif what == "started":
            worker.test = content
            hook.pytest_runtest_logstart(nodeid=content[0], location=content[1])
        elif what == "reported":
            report = hook.pytest_report_from_serializable(config=self._config, data=content)
            hook.pytest_runtest_logreport(report=report)
            if report.when == "teardown":
                worker.ended.add(report.nodeid)
                worker.test = None
                hook.pytest_runtest_logfinish(nodeid=report.nodeid, location=report.location)
        elif what == "cost":
            self._config.pluginmanager.getplugin("costs").add(*content)
        elif what == "failed":
            session.shouldfail = content
        elif what == "starting":
            reporter = self._config.pluginmanager.getplugin("terminalreporter")
            reporter.ensure_newline()
            reporter.write_line(f"starting {content} ...")

    def _end(self, session: pytest.Session, worker: Worker) -> None:
        """Take leave of a process that sends nothing any more; one that has died within a test is replaced."""
        self._workers.remove(worker)
        worker.channel.close()
        status = os.waitstatus_to_exitcode(os.waitpid(worker.process, 0)[1])
        if worker.test is None and status == 0:
            return
        how = f"was ended by signal {-status}" if status < 0 else f"ended with code {status}"
        if worker.test is None:
            session.shouldfail = session.shouldfail or f"process {worker.number} of those that run tests {how}"
            return
        test, place = worker.test
        message = f"the process that ran it {how}"
        report = pytest.TestReport(test, place, {}, "failed", message, "call")
        self._config.hook.pytest_runtest_logreport(report=report)
        left = [item for item in self._units[worker.unit or 0] if item.nodeid not in {*worker.ended, test}]
        if not session.shouldfail:
            successor = self._fork(session, worker.number, left)
            successor.unit, successor.ended = worker.unit, {*worker.ended, test}
            self._workers.append(successor)


def receive(channel: Connection) -> tuple[str, Any] | None:
    """Return the next message; None: its sender has ended."""
    try:
        message: tuple[str, Any] = channel.recv()
    except EOFError:
        return None
    return message


def show_nothing(config: pytest.Config) -> None:
    """Let a forked process print nothing, and capture what its tests print apart from other processes."""
    capturing = config.pluginmanager.getplugin("capturemanager")
    capturing.stop_global_capturing()
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
    capturing.start_global_capturing()
    capturing.suspend_global_capture(in_=True)


def run(session: pytest.Session, items: Iterator[pytest.Item]) -> None:
    """As pytest's own loop does. The next test is taken early: what it shares with the one before is not torn down."""
    item = next(items, None)
    while item is not None:
        following = next(items, None)
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
        item = following


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Processes(config), "processes")
