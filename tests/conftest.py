"""What holds for all tests: servers for marked ones alone, no skips where that is asked for, one broker, one
Spark session, and a bill."""

from __future__ import annotations

import functools
import os
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings
from hypothesis.database import DirectoryBasedExampleDatabase

from tests.bill import Bill
from tests.quick_statements import share_statements
from tests.quick_tracebacks import keep_anchors
from tests.time_limits import TimeLimits

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spouts.local_broker import LocalBroker
    from spouts.local_registry import LocalRegistry

# A slow moment of a shared machine is not a failure; pytest's own timeout stops what hangs.
settings.register_profile("project", deadline=None, database=DirectoryBasedExampleDatabase(".hypothesis/examples"))
# For `make check`; `make test` tries as many examples as Hypothesis does by itself.
settings.register_profile("check", settings.get_profile("project"), max_examples=12)
settings.load_profile("project")


@pytest.fixture(scope="session")
def kafka_broker() -> Iterator[LocalBroker]:
    """A running Kafka broker, shared: take topic and group names of your own, and don't stop it."""
    from spouts.local_broker import LocalBroker  # a second that most runs of a few tests do without

    with LocalBroker() as broker:
        yield broker


@pytest.fixture(scope="session")
def schema_registry() -> Iterator[LocalRegistry]:
    """A running schema registry, shared: take subjects of your own, and don't stop it."""
    from spouts.local_registry import LocalRegistry

    with LocalRegistry() as registry:
        yield registry


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A Spark session with the framework's defaults, shared by all tests: don't stop it. Two cores, four tries of a
    task, one of a stage. States find it by themselves."""
    from tests.integration.programs import JAVA_OPTIONS
    from transactional.spark_session import spark_session

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JDK_JAVA_OPTIONS", JAVA_OPTIONS)
        conf = {"spark.ui.enabled": "false", "spark.stage.maxConsecutiveAttempts": "1"}
        session = spark_session("tests", master="local[2,4]", conf=conf)
    yield session
    session.stop()


# The marks that a test has one of, by the program that it starts.
MARKS = {
    "initdb": ("postgres",),
    "java": ("kafka", "registry", "spark"),
    "pgbouncer": ("postgres",),
    "redis-server": ("redis",),
    "spark-submit": ("spark",),
}
RUNNING = list[pytest.Item]()


def refuse_servers(program: Any) -> None:
    """`make check` has no servers, so a test that starts one, however, has to be marked."""
    name = os.path.basename(os.fsdecode(program))
    if RUNNING and name in MARKS and not any(RUNNING[-1].get_closest_marker(mark) for mark in MARKS[name]):
        marks = " or ".join(f"@pytest.mark.{mark}" for mark in MARKS[name])
        pytest.fail(f"{RUNNING[-1].nodeid} starts {name}: it needs {marks}, for `make check` runs without servers")


def look_at_programs(config: pytest.Config) -> None:
    """Before one is started. Python's own audit hook would be called for each file and each import, too: that took 2 %
    of `make check`."""
    starts, patch = subprocess.Popen.__init__, pytest.MonkeyPatch()

    @functools.wraps(starts)
    def looked_at(self: Any, args: Any, *rest: Any, **named: Any) -> None:
        refuse_servers(args if isinstance(args, (str, bytes, os.PathLike)) else args[0])
        starts(self, args, *rest, **named)

    patch.setattr(subprocess.Popen, "__init__", looked_at)
    config.add_cleanup(patch.undo)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    RUNNING.append(item)
    try:
        return (yield)
    finally:
        RUNNING.pop()


def pytest_configure(config: pytest.Config) -> None:
    look_at_programs(config)
    share_statements()
    keep_anchors()
    config.pluginmanager.register(Bill(), "bill")
    config.pluginmanager.register(TimeLimits(), "time_limits")
    # Two processes, as `make check` has them, remove the folders of earlier ones at once, and one finds some not empty.
    config.addinivalue_line("filterwarnings", r"ignore:\(rm_rf\) error removing:pytest.PytestWarning")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--no-skips", action="store_true", help="fail when a test was skipped or expected to fail")
    parser.addoption("--sample", action="store_true", help="of tests marked `sampled(n)` run each n-th; `make check`")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Under --sample, each n-th case of what is marked: always the same ones, and one at least of each test,
    unless the mark says that tests are left out, too. What -m leaves out is left out before.
    What is marked as long is not run, either; the mark says what catches the same.

    Of a test with several parameters, as a table has rows and columns, these are diagonals: each value is met. So it is
    with a file that is marked, whose tests are the rows.
    """
    if not config.getoption("--sample"):
        return
    met, cases = defaultdict[tuple[str, int], list[str]](list), defaultdict[str, list[pytest.Item]](list)
    left_out = set[pytest.Item]()
    for item in items:
        sampled = item.get_closest_marker("sampled")
        cases[test_of(item)].append(item)
        if sampled and diagonal_of(item, met) % sampled.args[0]:
            left_out.add(item)
    left_out -= {some[0] for some in cases.values() if left_out.issuperset(some) and is_needed(some[0])}
    left_out |= {item for item in items if item.get_closest_marker("long")}
    config.hook.pytest_deselected(items=[item for item in items if item in left_out])
    items[:] = [item for item in items if item not in left_out]


def test_of(item: pytest.Item) -> str:
    return item.nodeid.split("[")[0]


def is_needed(item: pytest.Item) -> bool:
    """Whether a case of the test is run in any event."""
    sampled = item.get_closest_marker("sampled")
    return sampled is not None and not sampled.kwargs.get("tests", False)


def diagonal_of(item: pytest.Item, met: dict[tuple[str, int], list[str]]) -> int:
    """The diagonal of a case, by the numbers that its test and the values of its parameters have: as they were met."""
    diagonal, test, file = 0, test_of(item), item.nodeid.split("::")[0]
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


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """A missing server must be red, not a quiet skip."""
    if session.config.getoption("--no-skips") and exitstatus == pytest.ExitCode.OK and not_run(session.config):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    skipped = not_run(config) if config.getoption("--no-skips") else []
    if skipped:
        terminalreporter.section("not allowed under --no-skips", red=True)
        for line in skipped:
            terminalreporter.line(line)
