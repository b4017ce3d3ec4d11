"""The acker: one number per message, 0 exactly when every tuple of the message is acked."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from transactional.topology.reliable.acker import NOT_ACKED, Ledger


def test_the_worked_example_of_storm_with_four_bits() -> None:
    """Two spouts emit 1010 and 1011; a bolt emits 1100, anchored to both, and acks both; the last bolt acks 1100."""
    stid1, stid2, tid1 = 0b1010, 0b1011, 0b1100
    first, second = Ledger(), Ledger()  # acker 1 follows stid1, acker 2 stid2
    first.xor(stid1, stid1)
    second.xor(stid2, stid2)
    assert (first.values[stid1], second.values[stid2]) == (0b1010, 0b1011)
    first.xor(stid1, tid1)
    second.xor(stid2, tid1)
    assert (first.values[stid1], second.values[stid2]) == (0b0110, 0b0111)
    first.xor(stid1, stid1)
    second.xor(stid2, stid2)
    assert (first.values[stid1], second.values[stid2]) == (0b1100, 0b1100)
    assert first.unfinished() == {stid1: NOT_ACKED}
    first.xor(stid1, tid1)
    second.xor(stid2, tid1)
    assert (first.values[stid1], second.values[stid2]) == (0b0000, 0b0000)
    assert first.unfinished() == second.unfinished() == {}


IDS = st.integers(-(2**63), 2**63 - 1).filter(bool)


@given(st.lists(IDS, unique=True, min_size=1, max_size=30), st.data())
def test_the_order_makes_no_difference_and_a_missing_ack_does(ids: list[int], data: st.DataObject) -> None:
    """An ack may arrive before the tuple was entered (Storm row C3)."""
    missing = data.draw(st.sets(st.sampled_from(ids)))
    changes = [*ids, *(each for each in ids if each not in missing)]
    random.Random(str(ids)).shuffle(changes)
    ledger = Ledger()
    for each in changes:
        ledger.xor(7, each)
    value = 0
    for each in missing:
        value ^= each
    assert ledger.unfinished() == ({7: NOT_ACKED} if value else {})


def test_a_failure_counts_before_and_after_the_message_is_known() -> None:
    """Storm row C3."""
    ledger = Ledger()
    ledger.fail(7, "no")
    ledger.xor(7, 5)
    ledger.xor(7, 5)
    ledger.fail(7, "no, again")
    assert ledger.unfinished() == {7: "no"}


def test_a_finished_message_is_not_reported() -> None:
    ledger = Ledger()
    for root, value in ((1, 5), (1, 5), (2, 6), (3, 4), (3, 4)):
        ledger.xor(root, value)
    ledger.fail(3, "no")
    assert ledger.rows() == [(2, 6, None), (3, 0, "no")]
