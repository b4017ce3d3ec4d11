"""What a topology guarantees about each message of its source."""

from __future__ import annotations

from enum import Enum


class Guarantee(Enum):
    """How often the effects of a message happen.

    EXACTLY_ONCE: in states, once, whatever fails: batches are transactions.
    AT_LEAST_ONCE: a message on which a bolt fails is processed again, by itself, until every bolt has acked.
    AT_MOST_ONCE: no message is given to a bolt a second time; what fails is lost.
    """

    EXACTLY_ONCE = "exactly-once"
    AT_LEAST_ONCE = "at-least-once"
    AT_MOST_ONCE = "at-most-once"
