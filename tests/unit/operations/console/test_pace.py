"""How often an open page is made again, by clocks of the tests."""

from __future__ import annotations

from itertools import pairwise

import pytest

from transactional.operations.console.pace import DEBT_S_MAX, Pace, pause_s


def test_an_open_page_takes_a_small_share_of_a_processor() -> None:
    """Where no run is beside it: an expensive one is made more rarely."""
    assert pause_s(1.0, 0.004) == 1.0
    assert pause_s(1.0, 0.04) == pytest.approx(2.0)
    assert pause_s(1.0, 60.0) == 10.0, "an examination by the doctor is no page that is made again and again"


def made_at(pace: Pace, cost_s: float, run_s_per_s: float, seconds: int) -> list[float]:
    """When something that costs so much is made, looked for each tenth of a second, beside a run that uses so much of
    a processor."""
    moments = []
    for tenth in range(10 * seconds):
        now_s = tenth / 10
        if pace.is_due(now_s, run_s_per_s * now_s):
            moments.append(now_s)
            pace.owe(cost_s)
            pace.note(now_s)
    return moments


@pytest.mark.parametrize(("cost_s", "run_s_per_s"), [(0.001, 0.1), (0.004, 0.5), (0.03, 1.0), (0.03, 2.0)])
def test_it_costs_a_share_of_what_the_run_uses(cost_s: float, run_s_per_s: float) -> None:
    moments = made_at(Pace(0.01, 60.0), cost_s, run_s_per_s, 300)
    assert len(moments) * cost_s == pytest.approx(0.01 * 300 * run_s_per_s, rel=0.15)


def test_a_run_that_uses_nothing_has_it_made_rarely_and_one_that_waits_again_and_again() -> None:
    moments = made_at(Pace(0.01, 3.0), 0.001, 0.0, 30)
    assert moments == [0.0, 3.0, 6.0, 9.0, 12.0, 15.0, 18.0, 21.0, 24.0, 27.0]
    assert max(after - before for before, after in pairwise(made_at(Pace(0.01, 3.0), 0.03, 0.1, 60))) <= 3.0


def test_what_was_spent_while_a_run_was_at_rest_is_paid_for_soon() -> None:
    pace = Pace(0.01, 3.0)
    made_at(pace, 0.05, 0.0, 3_600)
    assert not pace.is_due(3_597.5, 0.0)
    assert not pace.is_due(3_597.6, 0.9 * DEBT_S_MAX / 0.01)
    assert pace.is_due(3_597.7, 1.1 * DEBT_S_MAX / 0.01)


def test_what_the_run_used_before_is_no_credit() -> None:
    pace = Pace(0.01, 60.0)
    assert pace.is_due(0.0, 0.0)
    assert pace.is_due(100.0, 100.0)
    pace.owe(0.03)
    pace.note(100.0)
    assert not pace.is_due(101.0, 101.0)
    assert pace.is_due(103.1, 103.1)
