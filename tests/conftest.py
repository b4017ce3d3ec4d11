"""What holds for all tests: servers for marked ones alone, no skips where that is asked for, one broker, and a bill."""

from __future__ import annotations

import os
import re
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis.database import DirectoryBasedExampleDatabase

from spouts.local_broker import LocalBroker

# A slow moment of a shared machine is not a failure; pytest's own timeout stops what hangs.
settings.register_profile("project", deadline=None, database=DirectoryBasedExampleDatabase(".hypothesis/examples"))
# For `make check`; `make test` tries as many examples as Hypothesis does by itself.
settings.register_profile("check", settings.get_profile("project"), max_examples=30)
settings.load_profile("project")


@pytest.fixture(scope="session")
def kafka_broker() -> Iterator[LocalBroker]:
    """A running Kafka broker, shared: take topic and group names of your own, and don't stop it."""
    with LocalBroker() as broker:
        yield broker


# The marks that a test has one of, by the program that it starts.
MARKS = {"initdb": ("postgres",), "java": ("kafka", "spark"), "spark-submit": ("spark",)}
RUNNING = list[pytest.Item]()


def refuse_servers(event: str, values: tuple[Any, ...]) -> None:
    """An audit hook of Python: `make check` has no servers, so a test that starts one, however, has to be marked."""
    if event != "subprocess.Popen" or not RUNNING:
        return
    executable, arguments, *_ = values
    programs = {os.path.basename(os.fsdecode(word)) for word in (executable, *arguments[:1]) if word}
    for program in programs & MARKS.keys():
        if not any(RUNNING[-1].get_closest_marker(mark) for mark in MARKS[program]):
            marks = " or ".join(f"@pytest.mark.{mark}" for mark in MARKS[program])
            pytest.fail(
                f"{RUNNING[-1].nodeid} starts {program}: it needs {marks}, for `make check` runs without servers"
            )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    RUNNING.append(item)
    try:
        return (yield)
    finally:
        RUNNING.pop()


BEGAN_S = time.perf_counter()
COLLECTED_S = pytest.StashKey[float]()


def pytest_configure(config: pytest.Config) -> None:
    sys.addaudithook(refuse_servers)
    # Two processes, as `make check` has them, remove the folders of earlier ones at once, and one finds some not empty.
    config.addinivalue_line("filterwarnings", r"ignore:\(rm_rf\) error removing:pytest.PytestWarning")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--no-skips", action="store_true", help="fail when a test was skipped or expected to fail")
    parser.addoption("--sample", action="store_true", help="of tests marked `sampled(n)` run each n-th; `make check`")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Under --sample, each n-th case of what is marked: always the same ones.

    Of a test with several parameters, as a table has rows and columns, these are diagonals: each value is met. So it is
    with a file that is marked, whose tests are the rows.
    """
    if not config.getoption("--sample"):
        return
    kept, left_out, met = list[pytest.Item](), list[pytest.Item](), defaultdict[tuple[str, int], list[str]](list)
    for item in items:
        sampled = item.get_closest_marker("sampled")
        (left_out if sampled and diagonal_of(item, met) % sampled.args[0] else kept).append(item)
    config.hook.pytest_deselected(items=left_out)
    items[:] = kept


def diagonal_of(item: pytest.Item, met: dict[tuple[str, int], list[str]]) -> int:
    """The diagonal of a case, by the numbers that its test and the values of its parameters have: as they were met."""
    diagonal, test, file = 0, item.nodeid.split("[")[0], item.nodeid.split("::")[0]
    given = getattr(getattr(item, "callspec", None), "_idlist", ())
    for place, axis, value in ((file, -1, test), *((test, axis, value) for axis, value in enumerate(given))):
        values = met[place, axis]
        if value not in values:
            values.append(value)
        diagonal += values.index(value)
    return diagonal


def not_run(config: pytest.Config) -> list[str]:
    """The tests that were skipped or expected to fail, one description each."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None:
        return []
    reports = [report for outcome in ("skipped", "xfailed", "xpassed") for report in reporter.stats.get(outcome, [])]
    return [f"{report.nodeid or report.fspath}: {report.outcome}, {report.longreprtext}" for report in reports]


def part_of(test: str) -> str:
    """The part of the whole that a test belongs to: its folder; of `integration` and `proof` a group of files."""
    *folders, file = test.split("::")[0].split("/")[-3:]
    group = re.match(r"test_([a-z]+)", file)
    folder = folders[-1] if folders else "tests"
    return f"{folder}: {group[1]}" if group and folder in ("integration", "proof") else folder


def took_lines(reports: Iterable[pytest.TestReport], collecting_s: float) -> Iterator[str]:
    """What each part took: those that `tools/timed.sh` has noted in the file $TOOK, then the tests'."""
    noted = os.environ.get("TOOK")
    for line in Path(noted).read_text().splitlines() if noted and Path(noted).exists() else ():
        seconds, name = line.split("\t")
        yield f"{seconds:>6} s  {name}"
    took_s, tests = defaultdict[str, float](float), Counter[str]()
    for report in reports:
        took_s[part_of(report.nodeid)] += report.duration
        tests[part_of(report.nodeid)] += report.when == "call"
    yield f"{collecting_s:6.0f} s  collecting the tests"
    yield from (f"{seconds:6.0f} s  {part}, {tests[part]} tests" for part, seconds in sorted(took_s.items()))


def pytest_collection_finish(session: pytest.Session) -> None:
    session.config.stash[COLLECTED_S] = time.perf_counter() - BEGAN_S


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """A missing server must be red, not a quiet skip."""
    if session.config.getoption("--no-skips") and exitstatus == pytest.ExitCode.OK and not_run(session.config):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if "TOOK" in os.environ:
        given = (report for reports in terminalreporter.stats.values() for report in reports)
        terminalreporter.section("what each part took")
        reports = (report for report in given if isinstance(report, pytest.TestReport))
        for line in took_lines(reports, config.stash.get(COLLECTED_S, 0.0)):
            terminalreporter.line(line)
    skipped = not_run(config) if config.getoption("--no-skips") else []
    if skipped:
        terminalreporter.section("not allowed under --no-skips", red=True)
        for line in skipped:
            terminalreporter.line(line)
