"""What metrics and traces cost, of processor time."""

from __future__ import annotations

from tests.unit.telemetry.costs import BUDGET_MS, costs


def test_metrics_and_traces_cost_what_is_promised_give_or_take_a_busy_machine() -> None:
    found = costs(transactions=60, rounds=2)
    assert {name: took for name, took in found.items() if min(took) > 2 * BUDGET_MS.get(name, 0.1)} == {}
    assert all(min(took) > 0 for name, took in found.items() if name in BUDGET_MS)
