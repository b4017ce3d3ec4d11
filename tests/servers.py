"""Which tests start a server or a program of the system: those with a mark for it, and no others. `make check` runs
neither these nor the folders whose tests start programs of the project."""

from __future__ import annotations

import functools
import os
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

SERVERS = ("spark", "kafka", "postgres", "redis", "registry", "browser", "promtool")
"""The marks."""
PROGRAMS = ("tests/experiment/", "tests/integration/", "tests/journeys/", "tests/proof/")
"""Folders whose tests start programs of the project."""
WITHOUT_PROGRAMS = ("tests/integration/delta/",)
"""Folders within these whose tests do not."""
STARTS = {
    "kafka_broker": "a Kafka broker",
    "schema_registry": "a schema registry",
    "shared_cluster": "a Spark cluster",
    "spark": "Spark",
}
"""The fixtures that are a server of many tests, in words."""
MARKS_BY_PROGRAM = {
    "initdb": ("postgres",),
    "java": ("kafka", "registry", "spark"),
    "pgbouncer": ("postgres",),
    "redis-server": ("redis",),
    "spark-submit": ("spark",),
}


def needs_server(item: pytest.Item) -> bool:
    return any(item.get_closest_marker(mark) for mark in SERVERS)


def starts_programs(path: str) -> bool:
    """True for a file or a folder with tests that start programs; `path` is relative to the repository."""
    return path.startswith(PROGRAMS) and not path.startswith(WITHOUT_PROGRAMS)


def is_checked(item: pytest.Item) -> bool:
    """True for a test that `make check` can run."""
    return not needs_server(item) and not starts_programs(item.nodeid)


class MarkedServers:
    """The plugin that fails a test which starts a server without the mark for it.

    It looks at programs before they are started. Python's own audit hook would be called for each file and each import,
    too: that took 2 % of `make check`.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._running = list[pytest.Item]()
        start, patch = subprocess.Popen.__init__, pytest.MonkeyPatch()

        @functools.wraps(start)
        def start_if_marked(popen: Any, args: Any, *rest: Any, **named: Any) -> None:
            self._refuse(args if isinstance(args, (str, bytes, os.PathLike)) else args[0])
            start(popen, args, *rest, **named)

        patch.setattr(subprocess.Popen, "__init__", start_if_marked)
        config.add_cleanup(patch.undo)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._running.append(item)
        try:
            return (yield)
        finally:
            self._running.pop()

    def _refuse(self, program: str | bytes | os.PathLike[str]) -> None:
        """Fail the test that runs, if it lacks the mark of a program that it starts."""
        name = os.path.basename(os.fsdecode(program))
        marks = MARKS_BY_PROGRAM.get(name, ())
        if self._running and marks and not any(self._running[-1].get_closest_marker(mark) for mark in marks):
            missing = " or ".join(f"@pytest.mark.{mark}" for mark in marks)
            test = self._running[-1].nodeid
            pytest.fail(f"{test} starts {name}: it needs {missing}, for `make check` runs without servers")
