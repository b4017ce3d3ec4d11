"""Computes the rows that a merge of partial aggregates changes, with their values before and after the transaction."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from transactional.core.ports import Aggregator, can_combine_all
from transactional.model.aggregates.key_matching import find_key_positions, take_rows
from transactional.model.arrow import arrow_schema
from transactional.model.reading import Lookup
from transactional.model.schema import Schema
from transactional.runtime.tasks.map_state import ReadState
from transactional.topology.topology import old_name


def changed_rows(state: ReadState, rows_before: Lookup, part: pa.Table, aggregator: Aggregator) -> pa.Table:
    """Return the rows that a merge of partial aggregates changes, in their order: key, new values, and old values.

    Old values are NULL in a new row. A replay gives the same rows, because it reads the values before the transaction.
    """
    key, values = list(state.key.names), list(state.values.names)
    schema = arrow_schema(Schema((*state.key, *state.values)))
    part = part.select(schema.names).cast(schema)
    previous_rows = rows_before(part.select(key)).select(schema.names).cast(schema)
    combined = aggregator.combine([previous_rows, part]).select(schema.names)
    new, old = (
        take_rows(rows, find_key_positions(part, rows, key, is_unique=True)) for rows in (combined, previous_rows)
    )
    for name in values:
        new = new.append_column(old_name(name), old[name])
    return new


def kinds_written(combine: Mapping[str, str]) -> Mapping[str, str]:
    """Return how a state combines the rows of an update: values of own combiners replace the stored ones."""
    return combine if can_combine_all(combine) else dict.fromkeys(combine, "last")
