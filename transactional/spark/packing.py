"""How many Spark tasks a batch is worth: a small batch's own tasks run one after another in a few of them, or in one.

A Spark task costs some milliseconds of processor time, most of it in the driver, whatever it does. How long the tasks
of a batch take is measured, never guessed from its size: a bolt may wait for something with every tuple.
"""

from __future__ import annotations

from collections import deque
from math import ceil
from statistics import median

TASK_MS = 20.0
"""How long a Spark task is to take, about: some times what it costs."""
REMEMBERED = 5
"""So many of the last batches count; by the median, since one may have been held up."""


class Packing:
    """Between one Spark task and `most`, by how long the last batches took. Starts with `most`.

    It changes only when a Spark task would take more than twice, or less than half as long as it is to: consumers go
    on best where they stopped. Not safe for use from several threads.
    """

    def __init__(self, most: int) -> None:
        self._most = self._spark_tasks = most
        self._measured: deque[tuple[int, float]] = deque(maxlen=REMEMBERED)

    def tell(self, records: int, elapsed_ms: float) -> None:
        """A batch of so many records took so long in all its tasks together."""
        self._measured.append((records, elapsed_ms))

    def spark_tasks(self, records: int) -> int:
        """How many Spark tasks a batch of so many records is to have."""
        if self._measured:
            expected_ms = median(ms * max(1.0, records / max(known, 1)) for known, ms in self._measured)
            if not self._spark_tasks / 2 <= expected_ms / TASK_MS <= self._spark_tasks * 2:
                self._spark_tasks = min(max(ceil(expected_ms / TASK_MS), 1), self._most)
        return self._spark_tasks
