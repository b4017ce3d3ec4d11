"""The Spark session that the runs of one process share.

A process has one Spark at most. Several topologies may run in it, so a run that ends must not stop Spark under another
one: the last run that uses a Spark which a run has started stops it. Spark that somebody else has started is never
stopped here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from pyspark import SparkContext
from pyspark.sql import SparkSession

from transactional.runtime.spark.internals import is_running, is_stopped

_lock: Final = threading.Lock()
_users: Final = dict[SparkContext, int]()
"""Number of runs that use a Spark, for each one that a run has started."""


@contextmanager
def using_spark(given: SparkSession | None, start: Callable[[], SparkSession]) -> Iterator[SparkSession]:
    """The session for one run: the one given, or what `start` returns, which is the running one if there is one."""
    with _lock:
        was_running = is_running()
        session = start() if given is None else given
        context = session.sparkContext
        if not was_running:
            _users[context] = 0
        if context in _users:
            _users[context] += 1
    try:
        yield session
    finally:
        with _lock:
            _leave(session, context)


def _leave(session: SparkSession, context: SparkContext) -> None:
    if context not in _users:
        return
    _users[context] -= 1
    if not _users[context]:
        del _users[context]
        if not is_stopped(context):
            session.stop()
