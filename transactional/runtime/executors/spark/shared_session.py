"""Shares the Spark session of a process among its runs.

A process has one Spark at most, and several topologies may run on it. A Spark that a run has started is stopped by the
last run that uses it. A Spark that the user has started is never stopped here.
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
"""Number of runs that use a Spark, for each Spark that a run has started."""


@contextmanager
def using_spark(user_session: SparkSession | None, start: Callable[[], SparkSession]) -> Iterator[SparkSession]:
    """Use a session for one run: `user_session`, or the session that `start` returns."""
    with _lock:
        was_running = is_running()
        session = start() if user_session is None else user_session
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
