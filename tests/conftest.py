"""What holds for all tests: no skips where that is asked for, Hypothesis without a deadline, one Kafka broker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import settings
from hypothesis.database import DirectoryBasedExampleDatabase

from spouts.local_broker import LocalBroker

# A slow moment of a shared machine is not a failure; pytest's own timeout stops what hangs.
settings.register_profile("project", deadline=None, database=DirectoryBasedExampleDatabase(".hypothesis/examples"))
settings.load_profile("project")


@pytest.fixture(scope="session")
def kafka_broker() -> Iterator[LocalBroker]:
    """A running Kafka broker, shared: take topic and group names of your own, and don't stop it."""
    with LocalBroker() as broker:
        yield broker


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--no-skips", action="store_true", help="fail when a test was skipped or expected to fail")


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
