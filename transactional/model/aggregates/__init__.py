"""How tuples become one row per key: the aggregates of a column, and sums that are exact or refused."""

from __future__ import annotations

from transactional.model.aggregates.columns import (
    Aggregate,
    Avg,
    Count,
    CountOf,
    First,
    Last,
    Max,
    Min,
    StoredColumns,
    Sum,
    TableAggregator,
    ValueCheck,
    describe_aggregates,
    make_step,
)

__all__ = [
    "Aggregate",
    "Avg",
    "Count",
    "CountOf",
    "First",
    "Last",
    "Max",
    "Min",
    "StoredColumns",
    "Sum",
    "TableAggregator",
    "ValueCheck",
    "describe_aggregates",
    "make_step",
]
