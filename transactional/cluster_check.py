"""Checks once, before anything runs, that executors have the driver's Python and the packages that tasks import."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator

from pyspark import SparkContext

from transactional.errors import ConfigError

PACKAGES = ("transactional", "spouts", "state", "pyarrow", "cloudpickle")


def check_executors(context: SparkContext) -> None:
    """Run a small job that starts the workers and looks for what tasks need. Raises `ConfigError` with what lacks."""
    packages = PACKAGES

    def probe(numbers: Iterable[int]) -> Iterator[str]:
        import importlib.util

        # A worker whose input is not read to its end is not used again.
        for _ in numbers:
            yield from (package for package in packages if importlib.util.find_spec(package) is None)

    tasks = max(2, context.defaultParallelism)
    try:
        missing = sorted(set(context.parallelize(range(tasks), tasks).mapPartitions(probe).collect()))
    except Exception as error:
        raise ConfigError(
            f"Spark's executors can't run Python {sys.version_info.major}.{sys.version_info.minor}, which this driver "
            f"is; give them the same one (PYSPARK_PYTHON). Spark says: {str(error).splitlines()[0]}"
        ) from error
    if missing:
        raise ConfigError(
            f"Spark's executors lack the Python package{'s' if len(missing) > 1 else ''} {', '.join(missing)}: install "
            "transactional on every worker, or ship it with spark.archives"
        )
