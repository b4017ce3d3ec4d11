"""Checks once, before anything runs, that executors have the driver's Python and the packages that tasks import."""

from __future__ import annotations

import re
import socket
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from pyspark import SparkContext

from transactional.core.ports.staged import Stager
from transactional.model.errors import ConfigError, OperatingError
from transactional.runtime.spark.internals import log_level
from transactional.runtime.spark.jobs import reason_of

_LACKING = r"Cannot run program .*|No module named .*|ImportError: .*|No such file .*"
PACKAGES = ("transactional", "spouts", "state", "sinks", "pyarrow", "cloudpickle")


def check_executors(context: SparkContext) -> None:
    """Run a small job that starts the workers and looks for what tasks need. Raises `ConfigError` with what is
    missing."""
    packages = PACKAGES

    def probe(numbers: Iterable[int]) -> Iterator[str]:
        import importlib.util
        import os
        import sys

        # A worker whose input is not exhausted is not used again.
        for _ in numbers:
            pass
        missing = [package for package in packages if importlib.util.find_spec(package) is None]
        if missing:
            # Nothing of ours is there to end quietly with: what the worker's end prints would stand beside the refusal.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
        else:
            from transactional.runtime.spark.internals import end_quietly

            end_quietly()
        return iter(missing)

    tasks = max(2, context.defaultParallelism)
    try:
        with _unlogged(context):
            missing = sorted(set(context.parallelize(range(tasks), tasks).mapPartitions(probe).collect()))
    except Exception as error:
        raise ConfigError(
            f"Spark's executors can't work with {context.pythonExec!r}, the Python that they are configured to use: "
            f"{_reason(error)}. This driver is Python {sys.version_info.major}.{sys.version_info.minor} "
            f"({sys.executable}): set PYSPARK_PYTHON to an interpreter of that version which every worker has."
        ) from error
    if missing:
        raise ConfigError(
            f"Spark's executors lack the Python package{'s' if len(missing) > 1 else ''} {', '.join(missing)}: install "
            "transactional on every worker, or ship it with spark.archives"
        )


def check_program(context: SparkContext, program: object) -> None:
    """Have one worker unpickle the program of all tasks. Raises `ConfigError` if that fails, as every attempt would."""

    def use(numbers: Iterable[int]) -> Iterator[str]:
        return iter([type(program).__name__ for _ in numbers])

    try:
        with _unlogged(context):
            context.parallelize([0], 1).mapPartitions(use).collect()
    except Exception as error:
        raise ConfigError(
            f"Spark's executors can't unpickle the topology's bolts: {_reason(error)}. Modules that "
            "are not installed are sent along where they can be pickled; install this one on every worker, or ship it "
            "with spark.submit.pyFiles"
        ) from error


def check_folders(context: SparkContext, stagers: Mapping[str, Stager]) -> None:
    """Check that executors and the driver see each other's files in the folders of tables. Raises `ConfigError`."""
    for committer, stager in stagers.items():
        marks = [stager.write_mark(create=True)]
        try:
            for _ in range(2):  # in the second job executors look for each other's marks
                for host, mark, problem in _write_marks(context, stager, marks):
                    if mark:
                        marks.append(mark)
                    if problem or stager.missing_marks(marks):
                        raise ConfigError(
                            f"component {committer!r}: {problem or f'what {host} writes is not seen by the driver'}. "
                            "Tasks write large partial aggregates where the state's table lies: put it on storage that "
                            "the driver and every executor mount at the same path, or set LogLayout(staged_bytes=None)"
                        )
        finally:
            stager.remove_marks(marks)


def _write_marks(context: SparkContext, stager: Stager, marks: Sequence[str]) -> list[tuple[str, str, str]]:
    """Have every task of a job write a mark. Returns the host, the mark and the problem of each task, which may be
    empty."""

    def mark(numbers: Iterable[int]) -> Iterator[tuple[str, str, str]]:
        for _ in numbers:
            pass
        host = socket.gethostname()
        if missing := stager.missing_marks(marks):
            return iter([(host, "", f"an executor on {host} does not see {missing[0]}, which others have written")])
        try:
            return iter([(host, stager.write_mark(), "")])
        except OperatingError as error:
            return iter([(host, "", str(error))])

    tasks = max(2, context.defaultParallelism)
    return context.parallelize(range(tasks), tasks).mapPartitions(mark).collect()


@contextmanager
def _unlogged(context: SparkContext) -> Iterator[None]:
    """Silence Spark's logger, which logs each failed task with pages of Java. The error has the important line."""
    level = log_level(context)
    context.setLogLevel("OFF")
    try:
        yield
    finally:
        context.setLogLevel(level)


def _reason(error: Exception) -> str:
    version = re.search(r"different version: (\S+) than", str(error))
    if version is not None:
        return f"it is Python {version[1]}"
    return reason_of(error, _LACKING).strip().rstrip(".")
