"""New values of one table that are summed up in a second one: real updates, whose partial aggregates are in Arrow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from tests.simulation.source import OUTPUT
from transactional.core.ports import PersistentAggregate
from transactional.model.aggregates import Sum, TableAggregator, describe_aggregates
from transactional.model.arrow import arrow_schema
from transactional.model.schema import Schema

CHANGES = "changes"
"""The table that adds up what the totals of a word were after each transaction that has changed them."""
AGGREGATOR = TableAggregator(Schema.parse("word string"), Schema.parse("count long"), (("count", Sum("count")),))
SCHEMA = arrow_schema(OUTPUT)


class SimulatedUpdate(PersistentAggregate):
    """Nothing is declared of it: its component has the state."""

    state: Any = None
    input_fields: tuple[str, ...] = OUTPUT.names

    def bind_input(self, input: Schema, *, used_by: str) -> None:
        """Nothing is checked."""


class Summing(SimulatedUpdate):
    """A state's update."""

    combine = AGGREGATOR.combine_kinds
    aggregates_shown = describe_aggregates(dict(AGGREGATOR.aggregates))

    def aggregator(self) -> TableAggregator:
        """The real one."""
        return AGGREGATOR


def rows_of(counts: Mapping[str, int]) -> pa.Table:
    """Partial sums, as a processing phase gives them."""
    columns = [list(counts), list(counts.values())]
    return pa.table([pa.array(c, field.type) for c, field in zip(columns, SCHEMA, strict=True)], schema=SCHEMA)


def counts_of(table: pa.Table) -> dict[str, int]:
    """The inverse."""
    return dict(zip(table["word"].to_pylist(), table["count"].to_pylist(), strict=True))
