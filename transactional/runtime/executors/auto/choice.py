"""Where a processing phase runs: in workers beside the driver, or on Spark. Chosen per transaction, by measured cost.

A batch takes a while on Spark however small it is, and then less per record than in workers if there are more cores.
Both are measured as transactions go by; what is not measured yet is estimated from the other. A change costs something,
too: consumers start again elsewhere. So a change has to be worth it for several batches in a row, and for a while after
it there is no other.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from transactional.core.machine.report import IN_WORKERS, ON_SPARK
from transactional.model.plumbing.moving_median import MovingMedian

JOB_MS: Final = 40.0
"""What a Spark job costs before its first record."""
WORKERS_MS: Final = 4.0
"""What a request to workers costs before the first record."""
RECORDS_MIN: Final = 1_000
"""Smaller batches measure other things than records."""
MARGIN: Final = 0.8
"""The other place has to be so much quicker."""
IN_A_ROW: Final = 3
"""So many batches in a row have to be quicker elsewhere: one that is large alone is not worth two changes."""
BATCHES_BETWEEN: Final = 20
"""So many batches stay where they are after a change."""
FORGOTTEN_AFTER: Final = 2_000
"""What was measured in the other place so many batches ago is estimated again: it may have been busy then."""


@dataclass(frozen=True, slots=True)
class ProcessingPlace:
    """Where a processing phase runs, and why."""

    is_spark: bool
    why: str

    def __str__(self) -> str:
        return f"{ON_SPARK if self.is_spark else IN_WORKERS}: {self.why}"


@dataclass(slots=True)
class ProcessingPlaces:
    """Chooses where batches are processed. `slots` and `workers` are how many tasks run at a time on Spark and in
    workers. Starts with workers. Not thread-safe."""

    slots: int
    workers: int = 1
    _of_workers: MovingMedian = field(default_factory=MovingMedian)
    _of_spark: MovingMedian = field(default_factory=MovingMedian)
    _is_spark: bool = False
    _since: int = BATCHES_BETWEEN
    _elsewhere: int = 0

    def place(self, records: int) -> ProcessingPlace:
        """Where a batch of this many records is processed."""
        self._since += 1
        if self._since == FORGOTTEN_AFTER and self._is_spark:
            self._of_workers = MovingMedian()
        elif self._since == FORGOTTEN_AFTER:
            self._of_spark = MovingMedian()
        if (expected := self._expected(records)) is None:
            return ProcessingPlace(self._is_spark, "nothing is measured yet")
        in_workers_ms, on_spark_ms = expected
        here_ms, there_ms = (on_spark_ms, in_workers_ms) if self._is_spark else (in_workers_ms, on_spark_ms)
        self._elsewhere = self._elsewhere + 1 if there_ms < MARGIN * here_ms else 0
        if self._elsewhere >= IN_A_ROW and self._since > BATCHES_BETWEEN:
            self._is_spark, self._since, self._elsewhere = not self._is_spark, 0, 0
        return ProcessingPlace(
            self._is_spark, f"about {in_workers_ms:.0f} ms in workers, {on_spark_ms:.0f} ms on Spark"
        )

    def learn(self, place: ProcessingPlace, records: int, took_ms: float) -> None:
        """A batch of this many records took this long."""
        if records >= RECORDS_MIN:
            measured, fixed_ms = (self._of_spark, JOB_MS) if place.is_spark else (self._of_workers, WORKERS_MS)
            measured.add(max(0.0, took_ms - fixed_ms) / records)

    def _expected(self, records: int) -> tuple[float, float] | None:
        """In workers, and on Spark, in milliseconds; None: neither is measured."""
        in_workers, on_spark = self._of_workers.value, self._of_spark.value
        if in_workers is None:
            if on_spark is None:
                return None
            in_workers = on_spark * self.slots / self.workers
        if on_spark is None:
            on_spark = in_workers * self.workers / self.slots
        return WORKERS_MS + in_workers * records, JOB_MS + on_spark * records
