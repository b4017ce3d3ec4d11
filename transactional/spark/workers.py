"""What a task does to the Python worker that it runs in: fewer garbage collections, and a quiet end."""

from __future__ import annotations

import functools
import gc
import sys

from transactional.spark_internals import DAEMON, silence_closed_pipes

OBJECTS_BETWEEN_COLLECTIONS = 50_000
"""On an executor: some times the records of an Arrow batch, and no more memory than that many objects' garbage."""


@functools.cache
def collect_less_garbage() -> None:
    """Once per process, after its first task: fewer garbage collections, and none of what is loaded.

    PySpark collects after every task. Over what the libraries hold that took 50 ms, nine tenths of a small task. And
    Python collects whenever 700 objects have come: every record that is read is one, and stays for a while. That took a
    fifth of the time of reading Kafka.
    """
    # `functools.cache` makes it once: Python's own count of what is frozen takes as long as a collection.
    gc.collect()
    gc.freeze()
    gc.set_threshold(OBJECTS_BETWEEN_COLLECTIONS, *gc.get_threshold()[1:])


@functools.cache
def end_quietly() -> None:
    """Once per process, at the start of its first task: it will end without a word when Spark closes it.

    A worker that waits for its next task tells Spark that it ends, into a socket that Spark has closed already. With
    Unix domain sockets that fails at once, and PySpark's daemon printed a traceback for each worker that had been idle
    for a minute, and for some at the end of a run. Here and not in a daemon of ours, so that it holds in a session of
    the user's as well, and workers need no package of ours before their first task.
    """
    daemon = sys.modules["__main__"]
    if getattr(daemon.__spec__, "name", None) == DAEMON:
        silence_closed_pipes(daemon)
