"""How tuples become one row per key: the aggregates of a column, and sums that are exact or refused."""

from __future__ import annotations

from transactional.aggregates.columns import (
    Aggregate,
    Count,
    CountOf,
    First,
    Last,
    Max,
    Min,
    Sum,
    TableAggregator,
    ValueCheck,
    aggregates_shown,
)

__all__ = [
    "Aggregate",
    "Count",
    "CountOf",
    "First",
    "Last",
    "Max",
    "Min",
    "Sum",
    "TableAggregator",
    "ValueCheck",
    "aggregates_shown",
]
