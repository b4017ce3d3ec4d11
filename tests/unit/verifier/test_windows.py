"""Windows in plain Python: sessions that only touch are two, as those of a topology are."""

from __future__ import annotations

import pytest

from verifier.windows import Recomputed, TimedTuple, WindowRules

GAP_US = 10


@pytest.mark.parametrize("second_us", [GAP_US, -GAP_US])
def test_sessions_that_only_touch_are_two(second_us: int) -> None:
    """One ends where the other begins, whichever came first; a microsecond less between them, and they are one."""
    rules = WindowRules(0, 1, {"n": ("sum", None)}, gap_us=GAP_US, longest_us=100)
    apart, together = Recomputed(rules), Recomputed(rules)
    apart.commit(None, [TimedTuple((), us, {}) for us in (0, second_us)])
    nearer_us = second_us - 1 if second_us > 0 else second_us + 1
    together.commit(None, [TimedTuple((), us, {}) for us in (0, nearer_us)])
    assert apart.rows() == {(0,): {"n": 1}, (second_us,): {"n": 1}}
    assert together.rows() == {(min(0, nearer_us),): {"n": 2}}
