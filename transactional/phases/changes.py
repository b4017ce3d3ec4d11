"""What the commit phase reads of states: the rows that an update changes, before and after the transaction, windows
that close, and the rows that bolts look up."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import pyarrow as pa

from transactional.absent import ABSENT, Absent
from transactional.aggregates.places import places_in, rows_at
from transactional.arrow import arrow_schema
from transactional.attempt import TransactionAttempt
from transactional.bolts import Key
from transactional.execution.map_state import ReadState
from transactional.facts import BatchFacts
from transactional.phases.passing import Passing
from transactional.ports import Aggregator, Merged, PersistentAggregate, are_known
from transactional.reading import Lookup, Lookups
from transactional.schema import Schema
from transactional.topology.topology import Component, Topology, committer_of, old_name


def changed_rows(state: ReadState, attempt: TransactionAttempt, part: pa.Table, aggregator: Aggregator) -> pa.Table:
    """The rows that a merge of partial aggregates changes, in their order: key, new values, and old ones, NULL in a new
    row. A replay gives the same, because what it reads is what was before the transaction."""
    key, values = list(state.key.names), list(state.values.names)
    schema = arrow_schema(Schema((*state.key, *state.values)))
    part = part.select(schema.names).cast(schema)
    before = state.rows_before(attempt, part.select(key)).select(schema.names).cast(schema)
    both = aggregator.combine([before, part]).select(schema.names)
    new, old = (rows_at(each, places_in(part, each, key, once=True)) for each in (both, before))
    for name in values:
        new = new.append_column(old_name(name), old[name])
    return new


def kinds_written(combine: Mapping[str, str]) -> Mapping[str, str]:
    """How a state takes what an update writes: own combiners' values in place of what was there."""
    return combine if are_known(combine) else dict.fromkeys(combine, "last")


def lookups_of(topology: Topology, component: Component, attempt: TransactionAttempt) -> Lookups:
    """How a bolt looks up the states that it reads: before this transaction, or after it, once they are written.

    A replay gives the same: by then the states have been brought to this transaction again.
    """
    states = {committer.id: committer.state for committer in topology.committers if committer.state is not None}
    found: dict[str, Lookup] = {}
    for read in component.reads:
        committer, is_before = committer_of(read)
        state = states[committer]
        found[read] = partial(state.rows_before if is_before else state.rows_after, attempt)
    return found


def closed_rows(update: PersistentAggregate, attempt: TransactionAttempt, facts: BatchFacts | None) -> pa.Table:
    """The windows of a state that close in a transaction, as they were before it. A replay of the same batch reads the
    same rows; one with other facts, which closes others, reads them as before, too."""
    rows = update.closing(facts)
    if rows is None:
        return arrow_schema(update.closed_fields).empty_table()
    return update.closed(update.state.rows_between(attempt, *rows), facts)


def put_merged(
    update: PersistentAggregate, attempt: TransactionAttempt, part: pa.Table, facts: BatchFacts | None
) -> Merged:
    """Put what becomes of windows that depend on those that are open. A replay reads the same rows as before."""
    state = update.state
    schema = arrow_schema(Schema((*state.key, *state.values)))
    part = part.select(schema.names).cast(schema)
    rows = update.touched(attempt, part, facts)
    if rows is None:
        state.put(attempt, {})
        return Merged(schema.empty_table(), schema.empty_table())
    merged = update.merged(rows.select(schema.names).cast(schema), part)
    key, values = list(state.key.names), list(state.values.names)
    written: dict[Key, tuple[Any, ...] | Absent] = dict.fromkeys(_tuples(merged.gone.select(key)), ABSENT)
    keys = _tuples(merged.changed.select(key)) if key else [()]
    written.update(zip(keys, _tuples(merged.changed.select(values)), strict=True))
    state.put(attempt, written)
    return merged


def _tuples(table: pa.Table) -> list[tuple[Any, ...]]:
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


def count_closing(component: Component, passing: Passing) -> int:
    """About how many rows are read for the windows that close."""
    state = component.state
    if component.update is None or state is None:
        return 0
    rows = component.update.closing(passing.processed.facts_of(component.id))
    return 0 if rows is None else state.count_between(passing.attempt, *rows)
