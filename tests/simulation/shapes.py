"""Which shape of topology a seed has: what its committers are, and what it guarantees."""

from __future__ import annotations

from enum import Enum

from transactional.model.guarantees import Guarantee


class Shape(Enum):
    """What the topology of a world is made of, besides the updates of two tables that most of them have."""

    PLAIN = "updates of two tables"
    STATEFUL = "a stateful bolt that deletes"
    CHANGES = "new values that a second table adds up"
    EXPIRING = "keys that expire and pass into a second table"
    STAGED = "a table of segments that tasks stage"
    AT_LEAST_ONCE = "at least once"
    AT_MOST_ONCE = "at most once"

    @property
    def guarantee(self) -> Guarantee:
        """What the topology guarantees."""
        known = {Shape.AT_LEAST_ONCE: Guarantee.AT_LEAST_ONCE, Shape.AT_MOST_ONCE: Guarantee.AT_MOST_ONCE}
        return known.get(self, Guarantee.EXACTLY_ONCE)

    @property
    def is_reliable(self) -> bool:
        """Whether it has no tables, and messages that fail one by one."""
        return self.guarantee is not Guarantee.EXACTLY_ONCE


SHAPES = (
    Shape.PLAIN,
    Shape.STATEFUL,
    Shape.STAGED,
    Shape.AT_LEAST_ONCE,
    Shape.CHANGES,
    Shape.EXPIRING,
    Shape.STAGED,
    Shape.AT_MOST_ONCE,
)


def shape_of(seed: int) -> Shape:
    """The shape of a seed's world: each has its share, in turn."""
    return SHAPES[seed % len(SHAPES)]
