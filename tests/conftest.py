"""What holds for all tests: servers for marked ones alone, no skips where that is asked for, one broker, one
Spark session, and a bill."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings
from hypothesis.database import DirectoryBasedExampleDatabase

from tests.costs import Costs
from tests.quick_statements import share_statements
from tests.quick_tracebacks import keep_anchors
from tests.selection import Selection
from tests.servers import MarkedServers
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
    from transactional.runtime.spark.session import spark_session

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JDK_JAVA_OPTIONS", JAVA_OPTIONS)
        conf = {"spark.ui.enabled": "false", "spark.stage.maxConsecutiveAttempts": "1"}
        session = spark_session("tests", master="local[2,4]", conf=conf)
    yield session
    session.stop()


def pytest_configure(config: pytest.Config) -> None:
    share_statements()
    keep_anchors()
    config.pluginmanager.register(MarkedServers(config), "marked_servers")
    config.pluginmanager.register(Selection(config), "selection")
    config.pluginmanager.register(Costs(config), "costs")
    config.pluginmanager.register(TimeLimits(), "time_limits")
    # Two processes, as `make check` has them, remove the folders of earlier ones at once, and one finds some not empty.
    config.addinivalue_line("filterwarnings", r"ignore:\(rm_rf\) error removing:pytest.PytestWarning")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--no-skips", action="store_true", help="fail when a test was skipped or expected to fail")
    parser.addoption("--sample", action="store_true", help="run what `make check` and `make test` do: a sample")
    parser.addoption("--without-servers", action="store_true", help="run what needs no server: `make check`")
    parser.addoption("--slice", metavar="3/8", help="run a part of what --sample leaves out; auto: the time chooses it")
    parser.addoption("--hold-costs", action="store_true", help="fail when a file costs twice what costs.toml says")
    parser.addoption("--write-costs", action="store_true", help="write what files cost to costs.toml")


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
