"""`CostEstimate`: what a phase costs for a batch of any size, `fixed_ms + record_ms * size`, learned from measurements.

A Kalman filter over the two numbers: recursive, a few floats, and it knows how sure it is of each. While all batches
have one size it can't tell the numbers apart, and then moves them no more than what it sees asks for; where a
regression over a window would make something up. That does no harm: whatever line goes through the place where the
batches are gives the same size for the same target. Both numbers may drift from one transaction to the next.

What doesn't fit is an outlier or a change of the load, which look alike at first. A phase can be held up (by a garbage
collection, a rebalance, a first run) but never be quicker than it can be, so a measurement that is much too high has to
come twice in a row before it is believed; one that is much too low is believed at once. Then the estimate opens up, and
takes what is unexplained the way that makes the next batch smaller: slower was the records' doing, quicker was the
fixed part's. The next batch has another size and tells the two apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_SURPRISE: Final = 3.0
"""A measurement does not fit when it is off by more standard deviations than this."""
_NOISE_MIN, _NOISE_MAX = 0.05, 0.3
_DRIFT_FIXED, _DRIFT_RECORD = 0.05, 0.1
_FIRST_RECORDS_PART: Final = 1 / 8
_RESOLUTION_MS: Final = 3.0
"""What is lost in rounding to milliseconds, and in waiting for a thread."""


@dataclass(slots=True)
class CostEstimate:
    """What a phase costs: `fixed_ms` in any case, and `record_ms` for each record.

    `variance` and `covariance` tell how sure that is, `noise` how far measurements are from it, relatively.
    """

    fixed_ms: float = 0.0
    record_ms: float = 0.0
    has_begun: bool = False
    noise: float = 0.1
    surprises: int = 0
    variance: tuple[float, float] = (0.0, 0.0)
    covariance: float = 0.0

    def of(self, size: float) -> float:
        """Milliseconds that a batch of this size is expected to take."""
        return self.fixed_ms + self.record_ms * size

    def plus(self, other: CostEstimate) -> CostEstimate:
        """What one costs after the other."""
        variance = self.variance[0] + other.variance[0], self.variance[1] + other.variance[1]
        return CostEstimate(self.fixed_ms + other.fixed_ms, self.record_ms + other.record_ms, variance=variance)

    def times(self, count: int) -> CostEstimate:
        """What it costs so many times in turn."""
        variance = self.variance[0] * count**2, self.variance[1] * count**2
        return CostEstimate(self.fixed_ms * count, self.record_ms * count, variance=variance)

    def learn(self, size: int, took_ms: float, *, limit: int) -> None:
        """Take in what a batch took. `limit` is the size that it might have had."""
        took_ms, usual = max(took_ms, 1.0), max(size, limit)
        if not self.has_begun:
            self._begin(size, took_ms, usual)
            return
        self._drift()
        error = took_ms - self.of(size)
        if error**2 > _SURPRISE**2 * self._spread(size):
            self.surprises += 1
            if error > 0 and self.surprises == 1:
                return
            self._open_up(usual, error)
        else:
            self.surprises = 0
            seen = 1.25 * abs(error) / max(self.of(size), 1.0)  # of a normal deviation, from the mean absolute one
            self.noise = min(_NOISE_MAX, max(_NOISE_MIN, 0.9 * self.noise + 0.1 * seen))
        self._correct(size, error)

    def _begin(self, size: int, took_ms: float, usual: int) -> None:
        """The first batches are small: most of what they cost, they cost in any case. A guess, and held as one."""
        self.has_begun = True
        self.record_ms = _FIRST_RECORDS_PART * took_ms / usual
        self.fixed_ms = took_ms - self.record_ms * size
        self.variance = (took_ms / 2) ** 2, (took_ms / 2 / usual) ** 2
        self._correct(size, 0.0)  # what one of them has less, the other has more

    def _drift(self) -> None:
        """Each transaction is a little different from the last; but what is not seen for long is not forgotten."""
        fixed, record = self.variance
        fixed += (_DRIFT_FIXED * self.fixed_ms + 1) ** 2
        record = min(record + (_DRIFT_RECORD * self.record_ms) ** 2, max(record, self.record_ms**2))
        self.variance = fixed, record

    def _open_up(self, usual: int, error: float) -> None:
        """Of a batch that is much smaller than usual the records can't be what made it slow."""
        fixed, record = self.variance
        by_fixed, by_records = (error / 2, error) if error > 0 else (error, error / 2)
        self.variance = fixed + by_fixed**2, record + (by_records / usual) ** 2

    def _spread(self, size: int) -> float:
        """Variance of what a batch of this size is expected to take, measured."""
        fixed, record = self.variance
        known = fixed + 2 * size * self.covariance + size**2 * record
        return known + (self.noise * self.of(size) + _RESOLUTION_MS) ** 2

    def _correct(self, size: int, error: float) -> None:
        (fixed, record), spread = self.variance, self._spread(size)
        to_fixed, to_record = fixed + size * self.covariance, self.covariance + size * record
        self.fixed_ms += to_fixed / spread * error
        self.record_ms += to_record / spread * error
        self.variance = fixed - to_fixed**2 / spread, record - to_record**2 / spread
        self.covariance -= to_fixed * to_record / spread
        self._keep_positive(size)

    def _keep_positive(self, size: int) -> None:
        """Nothing costs less than nothing: what one number would lack is taken from the other."""
        if self.fixed_ms < 0:
            self.record_ms += self.fixed_ms / size if size else 0.0
            self.fixed_ms = 0.0
        if self.record_ms < 0:
            self.fixed_ms += self.record_ms * size
            self.record_ms = 0.0
        self.fixed_ms, self.record_ms = max(self.fixed_ms, 0.0), max(self.record_ms, 0.0)
