"""Facts of batches: what is decided when one is planned never goes back."""

from __future__ import annotations

from transactional.facts import BatchFacts, facts_after


def test_a_batch_has_the_time_at_which_it_was_planned() -> None:
    assert facts_after(None, 5) == BatchFacts(5)
    assert facts_after(BatchFacts(5), 8) == BatchFacts(8)


def test_a_clock_that_is_behind_does_not_take_the_time_back() -> None:
    """Another machine has taken over."""
    assert facts_after(BatchFacts(5), 3) == BatchFacts(5)


def test_what_is_older_than_the_slowest_partition_is_late() -> None:
    assert facts_after(None, 5, [9_000, 7_000], lag_ms=2) == BatchFacts(5, 5_000)


def test_what_was_late_stays_late() -> None:
    """A partition that joins, or the first one whose times are known, is behind."""
    before = BatchFacts(5, 5_000)
    assert facts_after(before, 6, [9_000, 1_000]) == BatchFacts(6, 5_000)
    assert facts_after(before, 6) == BatchFacts(6, 5_000)
    assert facts_after(before, 6, [9_000]) == BatchFacts(6, 9_000)
