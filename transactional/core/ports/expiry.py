"""When the rows of a state expire, and how that follows from the facts of a batch."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from transactional.model.facts import BatchFacts


class Time(Enum):
    """Which of a batch's times counts."""

    TRANSACTION = "transaction"
    """When the batch was planned."""
    EVENT = "event"
    """Before which tuples are late."""


@dataclass(frozen=True, slots=True)
class Expiry:
    """A row expires once its `column`, a timestamp, is `after_us` microseconds or more before the batch's time.

    A row with NULL there never does.
    """

    column: str
    after_us: int
    by: Time = Time.TRANSACTION

    def horizon(self, facts: BatchFacts | None) -> int | None:
        """Rows at or below this time, in microseconds since 1970, have expired for the batch; None: none has.

        It depends on what was recorded with the batch alone, so that all its attempts agree.
        """
        if facts is None:
            return None
        now = facts.time_ms * 1_000 if self.by is Time.TRANSACTION else facts.watermark_us
        return None if now is None else now - self.after_us
