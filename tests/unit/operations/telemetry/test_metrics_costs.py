"""What metrics and traces cost."""

from __future__ import annotations

from tests.unit.operations.telemetry.costs import BUDGET, costs


def test_no_observer_makes_more_calls_per_transaction_than_its_budget() -> None:
    counted = costs(transactions=60)
    assert {name: calls for name, calls in counted.items() if not 0 < calls <= BUDGET[name]} == {}
