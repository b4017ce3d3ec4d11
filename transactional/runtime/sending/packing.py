"""`Packing` chooses the number of Spark tasks, or worker processes, for a batch. Our tasks run one after another in
them.

A Spark task costs some milliseconds of CPU time, most of it in the driver, whatever it does, so a small batch gets few.
The duration of a batch's tasks is measured, never guessed from its size: a bolt may wait for something with every
tuple.
"""

from __future__ import annotations

from collections import deque
from math import ceil
from statistics import median

TASK_MS = 20.0
"""The approximate target duration of a Spark task: several times its cost."""
REMEMBERED = 5
"""Number of recent batches whose median counts, since a single one may have been delayed."""


class Packing:
    """Chooses between one Spark task, or process, and `most`, by the duration of recent batches. Starts with `most`.

    The number changes only if a task would take more than twice, or less than half the target, because consumers work
    best where they stopped. Not thread-safe.
    """

    def __init__(self, most: int) -> None:
        self._most = self._tasks = most
        self._measured: deque[tuple[int, float]] = deque(maxlen=REMEMBERED)

    def learn(self, records: int, elapsed_ms: float) -> None:
        """Record how long all tasks of a batch with this many records took together."""
        self._measured.append((records, elapsed_ms))

    def tasks(self, records: int) -> int:
        """Return the number of Spark tasks, or processes, for a batch with this many records."""
        if self._measured:
            expected_ms = median(
                ms * max(1.0, records / max(measured_records, 1)) for measured_records, ms in self._measured
            )
            if not self._tasks / 2 <= expected_ms / TASK_MS <= self._tasks * 2:
                self._tasks = min(max(ceil(expected_ms / TASK_MS), 1), self._most)
        return self._tasks
