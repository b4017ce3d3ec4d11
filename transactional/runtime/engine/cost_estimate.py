"""`CostEstimate`: the cost of a phase for any batch size, `fixed_ms + record_ms * size`, learned from measurements.

A Kalman filter over the two numbers: recursive, a few floats, and it knows its own uncertainty. While all batches have
the same size it can't separate the numbers, and then moves them no more than the measurements require, whereas a
regression over a window would invent a slope. That does no harm: any line through the current batch size yields the
same size for the same target. Both numbers may drift from one transaction to the next.

A mismatch is an outlier or a change of the load, which look alike at first. A phase can be delayed (by a garbage
collection, a rebalance, a first run) but never run faster than possible, so a measurement that is much too high has to
occur twice in a row before it is accepted; one that is much too low is accepted at once. Then the uncertainty is
increased, and the difference is attributed such that the next batch gets smaller: if slower, to the records, if faster,
to the fixed part. The next batch has a different size and separates the two.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_SURPRISE: Final = 3.0
"""A measurement is a mismatch if it is off by more standard deviations than this."""
_NOISE_MIN, _NOISE_MAX = 0.05, 0.3
_DRIFT_FIXED, _DRIFT_RECORD = 0.05, 0.1
_FIRST_RECORDS_PART: Final = 1 / 8
_RESOLUTION_MS: Final = 3.0
"""The error from rounding to milliseconds, and from waiting for a thread."""


@dataclass(slots=True)
class CostEstimate:
    """The cost of a phase: `fixed_ms` in any case, and `record_ms` for each record.

    `variance` and `covariance` express its uncertainty, `noise` the relative deviation of measurements from it.
    """

    fixed_ms: float = 0.0
    record_ms: float = 0.0
    has_begun: bool = False
    noise: float = 0.1
    surprises: int = 0
    variance: tuple[float, float] = (0.0, 0.0)
    covariance: float = 0.0

    def expected_ms(self, size: float) -> float:
        """Return the expected milliseconds for a batch of this size."""
        return self.fixed_ms + self.record_ms * size

    def plus(self, other: CostEstimate) -> CostEstimate:
        """Return the cost of running one phase after the other."""
        variance = self.variance[0] + other.variance[0], self.variance[1] + other.variance[1]
        return CostEstimate(self.fixed_ms + other.fixed_ms, self.record_ms + other.record_ms, variance=variance)

    def times(self, count: int) -> CostEstimate:
        """Return the cost of this many repetitions."""
        variance = self.variance[0] * count**2, self.variance[1] * count**2
        return CostEstimate(self.fixed_ms * count, self.record_ms * count, variance=variance)

    def learn(self, size: int, elapsed_ms: float, *, limit: int) -> None:
        """Add a measurement. `limit` is the size that the batch might have had."""
        elapsed_ms, usual_size = max(elapsed_ms, 1.0), max(size, limit)
        if not self.has_begun:
            self._begin(size, elapsed_ms, usual_size)
            return
        self._drift()
        error = elapsed_ms - self.expected_ms(size)
        if error**2 > _SURPRISE**2 * self._spread(size):
            self.surprises += 1
            if error > 0 and self.surprises == 1:
                return
            self._widen(usual_size, error)
        else:
            self.surprises = 0
            deviation = (
                1.25 * abs(error) / max(self.expected_ms(size), 1.0)
            )  # the normal deviation, from the mean absolute one
            self.noise = min(_NOISE_MAX, max(_NOISE_MIN, 0.9 * self.noise + 0.1 * deviation))
        self._correct(size, error)

    def _begin(self, size: int, elapsed_ms: float, usual_size: int) -> None:
        """Guess the two numbers from the first measurement: the first batches are small, so most of their cost is
        fixed."""
        self.has_begun = True
        self.record_ms = _FIRST_RECORDS_PART * elapsed_ms / usual_size
        self.fixed_ms = elapsed_ms - self.record_ms * size
        self.variance = (elapsed_ms / 2) ** 2, (elapsed_ms / 2 / usual_size) ** 2
        self._correct(size, 0.0)  # what one of them loses, the other gains

    def _drift(self) -> None:
        """Increase the uncertainty, because costs drift between transactions. The cost of a record is bounded, so that
        it is not forgotten while batches have the same size."""
        fixed, record = self.variance
        fixed += (_DRIFT_FIXED * self.fixed_ms + 1) ** 2
        record = min(record + (_DRIFT_RECORD * self.record_ms) ** 2, max(record, self.record_ms**2))
        self.variance = fixed, record

    def _widen(self, usual_size: int, error: float) -> None:
        """Increase the uncertainty after a mismatch, by `error` milliseconds. The records of a batch that is much
        smaller than usual can't explain why it was slow."""
        fixed, record = self.variance
        by_fixed, by_records = (error / 2, error) if error > 0 else (error, error / 2)
        self.variance = fixed + by_fixed**2, record + (by_records / usual_size) ** 2

    def _spread(self, size: int) -> float:
        """Return the variance of measurements of a batch of this size."""
        fixed, record = self.variance
        model_variance = fixed + 2 * size * self.covariance + size**2 * record
        return model_variance + (self.noise * self.expected_ms(size) + _RESOLUTION_MS) ** 2

    def _correct(self, size: int, error: float) -> None:
        (fixed, record), spread = self.variance, self._spread(size)
        to_fixed, to_record = fixed + size * self.covariance, self.covariance + size * record
        self.fixed_ms += to_fixed / spread * error
        self.record_ms += to_record / spread * error
        self.variance = fixed - to_fixed**2 / spread, record - to_record**2 / spread
        self.covariance -= to_fixed * to_record / spread
        self._keep_positive(size)

    def _keep_positive(self, size: int) -> None:
        """Keep both numbers positive: a deficit of one is taken from the other."""
        if self.fixed_ms < 0:
            self.record_ms += self.fixed_ms / size if size else 0.0
            self.fixed_ms = 0.0
        if self.record_ms < 0:
            self.fixed_ms += self.record_ms * size
            self.record_ms = 0.0
        self.fixed_ms, self.record_ms = max(self.fixed_ms, 0.0), max(self.record_ms, 0.0)
