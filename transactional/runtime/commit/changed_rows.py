"""The rows that a merge of partial aggregates changes, before and after the transaction, and how they are written."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from transactional.core.ports import Aggregator, can_combine_all
from transactional.model.aggregates.key_matching import find_key_positions, take_rows
from transactional.model.arrow import arrow_schema
from transactional.model.attempt import TransactionAttempt
from transactional.model.schema import Schema
from transactional.runtime.tasks.map_state import ReadState
from transactional.topology.topology import old_name


def changed_rows(state: ReadState, attempt: TransactionAttempt, part: pa.Table, aggregator: Aggregator) -> pa.Table:
    """The rows that a merge of partial aggregates changes, in their order: key, new values, and old ones, NULL in a new
    row. A replay gives the same, because what it reads is what was before the transaction."""
    key, values = list(state.key.names), list(state.values.names)
    schema = arrow_schema(Schema((*state.key, *state.values)))
    part = part.select(schema.names).cast(schema)
    before = state.rows_before(attempt, part.select(key)).select(schema.names).cast(schema)
    both = aggregator.combine([before, part]).select(schema.names)
    new, old = (take_rows(each, find_key_positions(part, each, key, is_unique=True)) for each in (both, before))
    for name in values:
        new = new.append_column(old_name(name), old[name])
    return new


def kinds_written(combine: Mapping[str, str]) -> Mapping[str, str]:
    """How a state takes what an update writes: own combiners' values in place of what was there."""
    return combine if can_combine_all(combine) else dict.fromkeys(combine, "last")
