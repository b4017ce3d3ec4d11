"""Chooses per transaction whether a processing phase runs in workers beside the driver or on Spark.

The choice follows measured cost. On Spark a batch has a fixed cost however small it is, and then takes less time per
record than in workers if Spark has more cores. Both are measured in every transaction, as medians. An executor that has
not been measured is estimated from the other one. A change of the executor has a price, too, because consumers start
again in other processes. Therefore the other executor has to be quicker for several batches in a row, and for some
batches after a change there is no further one. This module only decides; `auto.executor` runs transactions.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from transactional.core.machine.report import IN_WORKERS, ON_SPARK
from transactional.model.plumbing.moving_median import MovingMedian

JOB_MS: Final = 40.0
"""Fixed cost of a Spark job, before its first record."""
WORKERS_MS: Final = 4.0
"""Fixed cost of a request to workers, before the first record."""
RECORDS_MIN: Final = 1_000
"""Smaller batches are not measured: their time depends on other things than records."""
MARGIN: Final = 0.8
"""The other executor counts as quicker if its expected time is below this share of the current one's."""
QUICKER_IN_A_ROW: Final = 3
"""Number of batches in a row for which the other executor has to be quicker: a single large one is not worth two
changes."""
BATCHES_BETWEEN: Final = 20
"""Number of batches after a change for which there is no other change."""
FORGOTTEN_AFTER: Final = 2_000
"""Number of batches after which the other executor is estimated again: it may have been busy when it was measured."""


@dataclass(frozen=True, slots=True)
class ExecutorChoice:
    """Whether a processing phase runs on Spark or in workers, with the reason."""

    is_spark: bool
    reason: str

    def __str__(self) -> str:
        return f"{ON_SPARK if self.is_spark else IN_WORKERS}: {self.reason}"


@dataclass(slots=True)
class ExecutorChooser:
    """Chooses the executor of each batch, beginning with workers. Not thread-safe.

    `slots` is the number of tasks that run at a time on Spark, `workers` the number in workers.
    """

    slots: int
    workers: int = 1
    _workers_ms_per_record: MovingMedian = field(default_factory=MovingMedian)
    _spark_ms_per_record: MovingMedian = field(default_factory=MovingMedian)
    _is_spark: bool = False
    _batches_since_change: int = BATCHES_BETWEEN
    _quicker_in_a_row: int = 0

    def choose(self, records: int) -> ExecutorChoice:
        """Choose the executor of a batch with this many records."""
        self._batches_since_change += 1
        if self._batches_since_change == FORGOTTEN_AFTER and self._is_spark:
            self._workers_ms_per_record = MovingMedian()
        elif self._batches_since_change == FORGOTTEN_AFTER:
            self._spark_ms_per_record = MovingMedian()
        if (expected := self._expected(records)) is None:
            return ExecutorChoice(self._is_spark, "nothing is measured yet")
        workers_ms, spark_ms = expected
        current_ms, other_ms = (spark_ms, workers_ms) if self._is_spark else (workers_ms, spark_ms)
        self._quicker_in_a_row = self._quicker_in_a_row + 1 if other_ms < MARGIN * current_ms else 0
        if self._quicker_in_a_row >= QUICKER_IN_A_ROW and self._batches_since_change > BATCHES_BETWEEN:
            self._is_spark, self._batches_since_change, self._quicker_in_a_row = not self._is_spark, 0, 0
        return ExecutorChoice(self._is_spark, f"about {workers_ms:.0f} ms in workers, {spark_ms:.0f} ms on Spark")

    def record_duration(self, choice: ExecutorChoice, records: int, elapsed_ms: float) -> None:
        """Record how long a batch of this many records took on the executor that was chosen."""
        if records >= RECORDS_MIN:
            if choice.is_spark:
                self._spark_ms_per_record.add(max(0.0, elapsed_ms - JOB_MS) / records)
            else:
                self._workers_ms_per_record.add(max(0.0, elapsed_ms - WORKERS_MS) / records)

    def _expected(self, records: int) -> tuple[float, float] | None:
        """Return the expected milliseconds in workers and on Spark, or None if neither is measured."""
        workers, spark = self._workers_ms_per_record.value, self._spark_ms_per_record.value
        if workers is None:
            if spark is None:
                return None
            workers = spark * self.slots / self.workers
        if spark is None:
            spark = workers * self.workers / self.slots
        return WORKERS_MS + workers * records, JOB_MS + spark * records
