"""What a task does to the Python worker that it runs in: fewer garbage collections."""

from __future__ import annotations

import functools
import gc

from transactional.plumbing.garbage import keep_what_is_loaded

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
