"""What the tests took, told at the end: by the clock and of the processors, which a busy machine changes less."""

from __future__ import annotations

import os
import re
import resource
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

DEAREST = 5
LONG_S = 0.5
"""Of processors: tests that take longer are counted, so that it is seen when they become more."""


def processor_s() -> float:
    """What this process has used of all processors, and those that it has waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


@dataclass(slots=True)
class Cost:
    """Seconds by the clock, seconds of processors (those of processes that have ended as well), and how many tests."""

    clock_s: float = 0.0
    processor_s: float = 0.0
    tests: int = 0

    def add(self, other: Cost) -> None:
        self.clock_s += other.clock_s
        self.processor_s += other.processor_s
        self.tests += other.tests


@dataclass(slots=True)
class Watch:
    """Measures from now on."""

    began_s: float = field(default_factory=time.perf_counter)
    used_s: float = field(default_factory=processor_s)

    def cost(self, tests: int = 0) -> Cost:
        return Cost(time.perf_counter() - self.began_s, processor_s() - self.used_s, tests)


class Bill:
    """The plugin that writes it: one line for each part where $TOOK says so, the dearest files for `make check`."""

    def __init__(self) -> None:
        self.costs = defaultdict[str, Cost](Cost)
        """By file."""
        self.long = dict[str, float]()
        """Tests that took more than `LONG_S`, and how much."""
        self.collecting = Cost()
        self.processes = list[Cost]()
        """Of those that share the tests, each as a whole."""
        self._watch = Watch()

    def pytest_collection_finish(self) -> None:
        self.collecting = self._watch.cost()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        watch = Watch()
        try:
            return (yield)
        finally:
            cost = watch.cost(tests=1)
            self.costs[item.nodeid.split("::")[0]].add(cost)
            if cost.processor_s > LONG_S:
                self.long[item.nodeid] = cost.processor_s

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
        if not self.costs:
            return
        if "TOOK" in os.environ:
            terminalreporter.section("what each part took")
            for line in self.lines_of_parts():
                terminalreporter.line(line)
        elif config.getoption("--sample"):
            terminalreporter.line(self.dearest())
            terminalreporter.line(self.longest())

    def lines_of_parts(self) -> Iterator[str]:
        """What each part took: those that `tools/timed.sh` has noted in the file $TOOK, then the tests'."""
        noted = Path(os.environ["TOOK"])
        for line in noted.read_text().splitlines() if noted.exists() else ():
            seconds, name = line.split("\t")
            yield f"{seconds:>6} s  {name}"
        yield line_of("collecting the tests", self.collecting)
        for number, cost in enumerate(self.processes, start=1):
            yield line_of(f"process {number} of those that share them, {cost.tests} tests", cost)
        for part, cost in sorted(sums((part_of(file), cost) for file, cost in self.costs.items()).items()):
            yield line_of(f"{part}, {cost.tests} tests", cost)

    def dearest(self) -> str:
        """The files that need most of the processors."""
        files = sorted(self.costs, key=lambda file: self.costs[file].processor_s, reverse=True)[:DEAREST]
        total_s = sum(cost.processor_s for cost in self.costs.values())
        told = ", ".join(f"{self.costs[file].processor_s:.1f} s {file}" for file in files)
        return f"{total_s:.0f} s of processor time; most of it: {told}"

    def longest(self) -> str:
        """How many tests are long, and which of them most."""
        tests = sorted(self.long, key=lambda test: self.long[test], reverse=True)[:DEAREST]
        told = ", ".join(f"{self.long[test]:.1f} s {test}" for test in tests)
        return f"{len(self.long)} tests took more than {LONG_S} s of it each{told and f': {told}'}"


def line_of(name: str, cost: Cost) -> str:
    return f"{cost.clock_s:6.0f} s  {name} ({cost.processor_s:.0f} s of processors)"


def sums(costs: Iterable[tuple[str, Cost]]) -> dict[str, Cost]:
    """The sum of the costs of each name."""
    found = defaultdict[str, Cost](Cost)
    for name, cost in costs:
        found[name].add(cost)
    return found


def part_of(file: str) -> str:
    """The part of the whole that a file belongs to: its folder; below `integration` that as well, in `proof` a group of
    files."""
    *folders, name = file.split("/")[-3:]
    group = re.match(r"test_([a-z]+)", name)
    folder = folders[-1] if folders else "tests"
    if "integration" in folders[:-1]:
        return f"integration: {folder}"
    return f"{folder}: {group[1]}" if group and folder == "proof" else folder
