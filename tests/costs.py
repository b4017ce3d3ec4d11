"""What tests cost in seconds of processors: measured file by file, recorded in `costs.toml`, held to a budget.

Seconds of processors vary less than those of the clock on a busy machine. They are those of the process that runs the
test and of all processes that it has started, servers included. To start a server that many tests share is a cost of
its own, so that a file costs the same whether its tests are the first ones or not. `make test-all` writes the record.
`make check` fails when the files of a command together exceed its budget; `make test` fails when a file has become
twice as dear.
"""

from __future__ import annotations

import os
import resource
import time
import tomllib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

import pytest

from tests.servers import STARTS, is_checked

RECORD = Path(__file__).parent / "costs.toml"
NEW_FILE_S = 10.0
"""A file that the record lacks counts as so much, until `make test-all` writes it."""
SPARE_S = 25.0
"""A file may cost twice what the record says, and so much more: whichever file comes first after a JVM has started pays
for its warming up."""
LONG_S = 0.5
"""Tests that take longer are counted."""
DEAREST = 5
PROCESSORS = os.cpu_count() or 1
_TICKS_S = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


class Tier(Enum):
    """A command, by the tests that it runs."""

    CHECK = "check"
    TEST = "test"
    REST = "rest"
    """What `make test` leaves out."""


BUDGETS_S = {Tier.CHECK: 225.0, Tier.TEST: 940.0}
"""For the tests alone, without collecting them, mypy and ruff. They only fall: the aims are 85 and 700."""


@dataclass(slots=True)
class Cost:
    """Seconds of processors by tier, and the number of tests. `test_s` includes `check_s`."""

    check_s: float = 0.0
    test_s: float = 0.0
    rest_s: float = 0.0
    tests: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.check_s + other.check_s,
            self.test_s + other.test_s,
            self.rest_s + other.rest_s,
            self.tests + other.tests,
        )


@dataclass(frozen=True, slots=True)
class Record:
    """The costs of files as `costs.toml` has them."""

    files: dict[str, Cost]

    def of(self, file: str, tier: Tier) -> float:
        cost = self.files.get(file)
        return NEW_FILE_S if cost is None else getattr(cost, f"{tier.value}_s")

    def total_s(self, files: Iterable[str], tier: Tier) -> float:
        return sum(self.of(file, tier) for file in files)


def read_costs(path: Path = RECORD) -> Record:
    """Read the record; an empty one if there is none."""
    table = tomllib.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return Record({file: Cost(*seconds) for file, seconds in table.get("files", {}).items()})


def write_costs(costs: dict[str, Cost], path: Path = RECORD) -> None:
    """Write the record anew, one line a file in the order of their names."""
    lines = [
        "# Seconds of processors by file: in `make check`, in `make test` (with the former), and what that leaves out.",
        "# `make test-all` writes this file.",
        "[files]",
        *(f'"{file}" = [{c.check_s:.1f}, {c.test_s:.1f}, {c.rest_s:.1f}]' for file, c in sorted(costs.items())),
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def processor_s() -> float:
    """Seconds of all processors used by this process, and by those that it has started and that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def processor_s_with_servers() -> float:
    """The same, with processes that are alive. All processes are looked through, which takes two milliseconds."""
    own_s = processor_s()
    if not os.path.isdir("/proc/self"):
        return own_s
    children, used_s = defaultdict[int, list[int]](list), dict[int, float]()
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                stat = Path("/proc", name, "stat").read_bytes()
            except OSError:  # it has just ended
                continue
            fields = stat.rpartition(b") ")[2].split()
            children[int(fields[1])].append(int(name))
            used_s[int(name)] = sum(map(int, fields[11:15])) / _TICKS_S
    waiting = list(children[os.getpid()])
    for process in waiting:
        own_s += used_s[process]
        waiting.extend(children[process])
    return own_s


@dataclass(slots=True, eq=False)
class Costs:
    """The plugin that measures."""

    config: pytest.Config
    by_file: defaultdict[str, Cost] = field(default_factory=lambda: defaultdict(Cost))
    long_s: dict[str, float] = field(default_factory=dict)
    """Seconds of each test that took more than `LONG_S`."""
    starts_s: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Seconds of each shared server's start."""
    began_s: float = field(default_factory=time.perf_counter)
    share: Callable[[str, float, bool, dict[str, float]], None] | None = None
    """Where processes share the tests: passes what a test has cost on to the process that adds it up."""
    _of_test: dict[str, float] = field(default_factory=dict)
    """The starts of servers within the test that runs."""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._of_test = {}
        in_check = is_checked(item)
        measure = processor_s if in_check else processor_s_with_servers
        began_s, began_clock_s = measure(), time.perf_counter()
        try:
            return (yield)
        finally:
            used_s = measure() - began_s - sum(self._of_test.values())
            if in_check:  # a server of earlier tests may just have ended, with all that it has used
                used_s = min(used_s, PROCESSORS * (time.perf_counter() - began_clock_s))
            used_s = max(0.0, used_s)  # those of a process that nobody has waited for are gone
            (self.share or self.add)(item.nodeid, used_s, in_check, self._of_test)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[object]) -> Iterator[None]:
        if fixturedef.argname not in STARTS:
            return (yield)
        began_s = processor_s_with_servers()
        try:
            return (yield)
        finally:
            self._of_test[fixturedef.argname] = processor_s_with_servers() - began_s

    def add(self, test: str, used_s: float, in_check: bool, starts_s: dict[str, float]) -> None:  # noqa: FBT001
        """Add what a test has cost, and the starts of servers for it."""
        is_rest = bool(self.config.getoption("--slice"))
        cost = Cost(rest_s=used_s, tests=1) if is_rest else Cost(used_s if in_check else 0.0, used_s, tests=1)
        self.by_file[test.split("::")[0]] += cost
        if used_s > LONG_S:
            self.long_s[test] = used_s
        for server, start_s in starts_s.items():
            self.starts_s[server] += start_s

    def dearer_files(self, record: Record) -> list[str]:
        """One line for each file that took more than twice its figure, the speed of the machine considered."""
        used_s = {file: cost.test_s for file, cost in self.by_file.items()}
        slowness = max(1.0, sum(used_s.values()) / max(1.0, record.total_s(used_s, Tier.TEST)))
        limits_s = {file: 2 * slowness * record.of(file, Tier.TEST) + SPARE_S for file in used_s}
        return [
            f"{file} took {used_s[file]:.1f} s of processors; its limit is {limits_s[file]:.1f} s, twice what"
            f" tests/costs.toml says and {SPARE_S:.0f} s: make it cheaper, or write new figures with `make test-all`"
            for file in used_s
            if used_s[file] > limits_s[file]
        ]

    def record(self) -> None:
        """Write what was measured to the record, beside what it says of other tiers. Files that are gone go."""
        files = read_costs().files
        for file, cost in self.by_file.items():
            recorded = files.get(file, Cost())
            if self.config.getoption("--slice"):
                files[file] = Cost(recorded.check_s, recorded.test_s, cost.rest_s)
            elif self.config.getoption("--without-servers"):
                files[file] = Cost(cost.check_s, recorded.test_s, recorded.rest_s)
            else:
                files[file] = Cost(recorded.check_s, cost.test_s, recorded.rest_s)
        root = self.config.rootpath
        write_costs({file: cost for file, cost in files.items() if (root / file).exists()})

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if self.config.getoption("--write-costs") and exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            self.record()
        elif (
            exitstatus == pytest.ExitCode.OK
            and self.config.getoption("--hold-costs")
            and self.dearer_files(read_costs())
        ):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self.config.getoption("--sample") and not self.config.getoption("--slice"):
            return
        dearest = sorted(self.by_file.items(), key=lambda each: -each[1].test_s - each[1].rest_s)[:DEAREST]
        total_s = sum(cost.test_s + cost.rest_s for cost in self.by_file.values())
        named = ", ".join(f"{file} {cost.test_s + cost.rest_s:.0f} s" for file, cost in dearest)
        terminalreporter.line(f"{total_s:.0f} s of processors in tests; the dearest files: {named}")
        longest = ", ".join(
            f"{test} {s:.1f} s" for test, s in sorted(self.long_s.items(), key=lambda x: -x[1])[:DEAREST]
        )
        terminalreporter.line(f"{len(self.long_s)} tests took more than {LONG_S} s each; the longest: {longest}")
        if self.starts_s:
            starts = ", ".join(f"{STARTS[server]} {start_s:.0f} s" for server, start_s in self.starts_s.items())
            terminalreporter.line(f"to start servers took besides: {starts}")
        if self.config.getoption("--hold-costs"):
            for line in self.dearer_files(read_costs()):
                terminalreporter.line(line, red=True)
