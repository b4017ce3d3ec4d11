"""What garbage collection looks through, which it does in the middle of whatever makes garbage."""

from __future__ import annotations

import functools
import gc

OBJECTS_BETWEEN_COLLECTIONS = 50_000
"""Where tasks run: several times the records of an Arrow batch, and no more memory than that many objects' garbage."""


def keep_what_is_loaded() -> None:
    """Collect garbage once more, then leave what is there out of all later collections. For a process that is set up,
    and does one thing until it ends: to look through all of Spark's and Arrow's modules takes 50 ms and more."""
    gc.collect()
    gc.freeze()


@functools.cache
def collect_less_garbage() -> None:
    """Once per process that runs tasks, after the first one: fewer garbage collections, and none of what is already
    loaded.

    PySpark collects after every task. For the objects of the libraries that took 50 ms, nine tenths of a small task.
    And Python collects after every 700 new objects: every record that is read is one, and lives for a while. That took
    a fifth of the time of reading Kafka.
    """
    # `functools.cache` makes it once: Python's own count of frozen objects takes as long as a collection.
    keep_what_is_loaded()
    gc.set_threshold(OBJECTS_BETWEEN_COLLECTIONS, *gc.get_threshold()[1:])
