"""How many Spark tasks, or worker processes, a batch is worth: a small batch's own tasks run one after another in a
few of them, or in one.

A Spark task costs some milliseconds of CPU time, most of it in the driver, whatever it does. The duration of a batch's
tasks is measured, never guessed from its size: a bolt may wait for something with every tuple.
"""

from __future__ import annotations

from collections import deque
from math import ceil
from statistics import median

TASK_MS = 20.0
"""The approximate target duration of a Spark task: several times its cost."""
REMEMBERED = 5
"""How many of the last batches count; by the median, since one may have been delayed."""


class Packing:
    """Between one Spark task, or process, and `most`, depending on how long the last batches took. Starts with `most`.

    It changes only if one would take more than twice, or less than half the target: consumers work best where
    they stopped. Not thread-safe.
    """

    def __init__(self, most: int) -> None:
        self._most = self._tasks = most
        self._measured: deque[tuple[int, float]] = deque(maxlen=REMEMBERED)

    def learn(self, records: int, elapsed_ms: float) -> None:
        """A batch of this many records took this long in all its tasks together."""
        self._measured.append((records, elapsed_ms))

    def tasks(self, records: int) -> int:
        """How many of them a batch of this many records should have."""
        if self._measured:
            expected_ms = median(ms * max(1.0, records / max(known, 1)) for known, ms in self._measured)
            if not self._tasks / 2 <= expected_ms / TASK_MS <= self._tasks * 2:
                self._tasks = min(max(ceil(expected_ms / TASK_MS), 1), self._most)
        return self._tasks
