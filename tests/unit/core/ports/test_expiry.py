"""When rows expire, by the facts of a batch."""

from __future__ import annotations

import pytest

from transactional.core.ports.expiry import Expiry, Time
from transactional.model.facts import BatchFacts


@pytest.mark.parametrize(
    ("facts", "by", "expected"),
    [
        (BatchFacts(10), Time.TRANSACTION, 9_000),
        (BatchFacts(10, 5_000), Time.TRANSACTION, 9_000),
        (BatchFacts(10, 5_000), Time.EVENT, 4_000),
        (BatchFacts(10), Time.EVENT, None),
        (BatchFacts(0), Time.TRANSACTION, -1_000),
        (None, Time.TRANSACTION, None),
        (None, Time.EVENT, None),
    ],
)
def test_the_horizon_follows_from_what_was_recorded(facts: BatchFacts | None, by: Time, expected: int | None) -> None:
    assert Expiry("at", 1_000, by).horizon(facts) == expected
