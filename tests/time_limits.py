"""The time limit of a test, pytest-timeout's, for each phase: set-up, test, tear-down. What hangs there ends.

By itself pytest-timeout stops a test once, so that a clean-up that hangs as well is never stopped, like the tear-down
after a failure; it names no fixture; and when each topology hangs, each test takes all of its time.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

AGAIN_S = 30.0
"""After so long what cleans up after a phase that was stopped is stopped itself, and so on."""
HUNG_MAX = 3
"""After so many tests that have hung, what they all stand on hangs: the run ends."""


class TimeLimits:
    """The plugin. Signals come to the main thread, which is where tests run."""

    def __init__(self) -> None:
        self.settings: Any = None
        """pytest-timeout's for the test that is run; None: it has no limit."""
        self.fixtures = list[pytest.FixtureDef[object]]()
        """Those that are being set up, the innermost last."""
        self.hung = list[str]()

    def pytest_timeout_set_timer(self, settings: Any) -> bool:
        """Before the set-up; in place of pytest-timeout's own timer, which would also stop pytest's reports."""
        self.settings = settings
        return True

    def pytest_timeout_cancel_timer(self) -> bool:
        signal.setitimer(signal.ITIMER_REAL, 0)
        return True

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Iterator[None]:
        with self.limited(item):
            return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        with self.limited(item):
            return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Iterator[None]:
        with self.limited(item):
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[object]) -> Iterator[None]:
        self.fixtures.append(fixturedef)
        try:
            return (yield)
        finally:
            self.fixtures.pop()

    @contextmanager
    def limited(self, item: pytest.Item) -> Iterator[None]:
        def stop(_signal: int, _frame: FrameType | None) -> None:
            __tracebackhide__ = True
            self._stop(item)

        signal.signal(signal.SIGALRM, stop)
        signal.setitimer(signal.ITIMER_REAL, self.settings.timeout if self.settings else 0, AGAIN_S)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)

    def _stop(self, item: pytest.Item) -> None:
        """Raise pytest-timeout's failure in whatever runs; in a fixture's set-up with its name."""
        __tracebackhide__ = True
        try:
            item.config.pluginmanager.getplugin("timeout").timeout_sigalrm(item, self.settings)
        except pytest.fail.Exception as failed:
            message = str(failed)
        else:
            return  # somebody debugs it
        if item.nodeid not in self.hung:
            self.hung.append(item.nodeid)
        if len(self.hung) >= HUNG_MAX:
            item.session.shouldfail = f"{len(self.hung)} tests have hung: {', '.join(self.hung)}"
        where = f"{named(self.fixtures[-1])} was not set up in time: " if self.fixtures else ""
        pytest.fail(f"{where}{message}")

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """The interpreter would wait for threads that hang."""
        if self.hung:
            session.config.add_cleanup(lambda: leave(session))


def named(fixture: pytest.FixtureDef[object]) -> str:
    code = fixture.func.__code__
    return f"fixture `{fixture.argname}` (scope {fixture.scope}, {Path(code.co_filename).name}:{code.co_firstlineno})"


def leave(session: pytest.Session) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(session.exitstatus)
