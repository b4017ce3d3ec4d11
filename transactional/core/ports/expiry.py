"""The rule by which rows of a state expire, and the horizon that follows from it for a batch.

The horizon is computed from the recorded facts of the batch alone, never from a clock, so that all attempts agree.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from transactional.model.facts import BatchFacts


class Time(Enum):
    """The time of a batch that rows are compared with."""

    TRANSACTION = "transaction"
    """The time at which the batch was planned."""
    EVENT = "event"
    """The watermark, before which tuples are late."""


@dataclass(frozen=True, slots=True)
class Expiry:
    """A row expires once its `column`, a timestamp, is `after_us` microseconds or more before the batch's time.

    A row with NULL in this column never expires.
    """

    column: str
    after_us: int
    by: Time = Time.TRANSACTION

    def horizon(self, facts: BatchFacts | None) -> int | None:
        """Return the time, in microseconds since 1970, at or below which rows have expired. None if no row has."""
        if facts is None:
            return None
        batch_us = facts.time_ms * 1_000 if self.by is Time.TRANSACTION else facts.watermark_us
        return None if batch_us is None else batch_us - self.after_us
