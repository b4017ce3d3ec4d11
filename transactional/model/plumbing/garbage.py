"""Reduces the work of Python's garbage collection and of the allocator, which interrupts whatever makes garbage."""

from __future__ import annotations

import functools
import gc
import itertools

OBJECTS_BETWEEN_COLLECTIONS = 50_000
"""The number of new objects between two collections where tasks run: several times the records of an Arrow batch."""
_LARGEST_BLOCK = 2**25 - 2**16
"""The size in bytes of the largest block after which glibc adapts its thresholds, less its own overhead."""
TASKS_BETWEEN_FULL_COLLECTIONS = 100
"""The number of tasks after which a collection looks through the objects that have outlived earlier ones."""
_tasks = itertools.count(1)


def keep_what_is_loaded() -> None:
    """Collect garbage once more, then exclude the objects that exist from all later collections.

    Call it in a process that is set up, and does one thing until it ends: looking through the objects of Spark's and
    Arrow's modules takes 50 ms and more.
    """
    gc.collect()
    gc.freeze()


@functools.cache
def collect_less_garbage() -> None:
    """Make garbage collections rarer, and exclude loaded modules from them: once per process, after its first task.

    PySpark collects after every task. For the objects of the libraries that took 50 ms, nine tenths of a small task.
    And Python collects after every 700 new objects: every record that is read is one, and lives for a while. That took
    a fifth of the time of reading Kafka.
    """
    # `functools.cache` makes it once: Python's own count of frozen objects takes as long as a collection.
    keep_what_is_loaded()
    gc.set_threshold(OBJECTS_BETWEEN_COLLECTIONS, *gc.get_threshold()[1:])


def exclude_survivors() -> None:
    """Exclude the objects that have outlived a task from the collections after the next ones, but not from every
    hundredth.

    Call it before a task in a process that collects garbage after each task, as PySpark does. Looking through
    the records that Kafka's client has fetched ahead of 128 partitions took 33 ms a task, half of its time.
    An object is freed as ever once nothing refers to it. Only a cycle of excluded objects waits for the hundredth task.
    """
    if next(_tasks) % TASKS_BETWEEN_FULL_COLLECTIONS == 0:
        gc.unfreeze()
    else:
        gc.freeze()


@functools.cache
def keep_freed_memory() -> None:
    """Let this process keep up to 64 MiB that it has freed in each arena of its allocator, if that is glibc's.

    By default glibc returns the memory of many small blocks to the kernel as soon as they are freed, and takes it again
    page by page. That was a third of the time in which Kafka's client takes the records of a transaction. The threshold
    is twice the largest block that was freed. This one is never written to, and so takes no memory.
    """
    bytes(_LARGEST_BLOCK)
