"""A table that a stateful bolt keeps, in some worlds: the real bolt, and the real view of its state, over tuples."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from tests.simulation.source import OUTPUT
from transactional.core.ports import DeferredTuples
from transactional.model.arrow import arrow_schema
from transactional.model.user_code.tuples import Tuple
from transactional.topology.bolts.stateful import KeyValueState, StatefulBolt

FULL = 2
"""A sum that this divides is not kept."""


class Adding(StatefulBolt):
    """Adds amounts up, per word, and deletes a word whose sum is full."""

    def init_state(self, state: KeyValueState) -> None:
        self.sums = state

    def execute(self, tuple: Tuple) -> None:
        total = self.sums.get(tuple.word, 0) + tuple["count"]
        if total % FULL:
            self.sums.put(tuple.word, total)
        else:
            self.sums.delete(tuple.word)


def tuples_of(table: str, counts: Mapping[str, int]) -> DeferredTuples:
    """What the spout emits for the bolt that keeps a table: one tuple per word of the batch."""
    columns = [list(counts), list(counts.values())]
    batch = pa.RecordBatch.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, arrow_schema(OUTPUT), strict=True)],
        schema=arrow_schema(OUTPUT),
    )
    return DeferredTuples(table, 0, "spout", "default", [batch])
