"""What a task does to the Python worker that it runs in: fewer garbage collections, and a quiet exit."""

from __future__ import annotations

import functools
import gc
import sys

from transactional.plumbing.garbage import keep_what_is_loaded
from transactional.spark_internals import DAEMON, silence_closed_pipes

OBJECTS_BETWEEN_COLLECTIONS = 50_000
"""On an executor: several times the records of an Arrow batch, and no more memory than that many objects' garbage."""


@functools.cache
def collect_less_garbage() -> None:
    """Once per process, after its first task: fewer garbage collections, and none of what is already loaded.

    PySpark collects after every task. For the objects of the libraries that took 50 ms, nine tenths of a small task.
    And Python collects after every 700 new objects: every record that is read is one, and lives for a while. That took
    a fifth of the time of reading Kafka.
    """
    # `functools.cache` makes it once: Python's own count of frozen objects takes as long as a collection.
    keep_what_is_loaded()
    gc.set_threshold(OBJECTS_BETWEEN_COLLECTIONS, *gc.get_threshold()[1:])


@functools.cache
def end_quietly() -> None:
    """Once per process, at the start of its first task: makes it exit silently when Spark closes it.

    A worker that waits for its next task reports its exit to Spark, into a socket that Spark has already closed. With
    Unix domain sockets that fails at once, and PySpark's daemon printed a traceback for each worker that had been idle
    for a minute, and for some at the end of a run. Here and not in a custom daemon, so that it also works in a user's
    session, and workers need no package of ours before their first task.
    """
    daemon = sys.modules["__main__"]
    if getattr(daemon.__spec__, "name", None) == DAEMON:
        silence_closed_pipes(daemon)
