"""Rows of the log layout in memory: several per key, which are put together."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from state.base import StateColumns
from state.sums import Step, reduced
from transactional.schema import Schema


def newest_rows(rows: pa.Table, columns: StateColumns, combine: Mapping[str, str]) -> pa.Table:
    """Rows with key, values and txid → key and value columns, one row per key. Raises `SumOverflow`."""
    key, values = list(columns.key.names), list(columns.values.names)
    if not key and not rows.num_rows:
        return rows.select(values)
    if "last" in combine.values():
        rows = rows.sort_by(columns.txid)
    steps: list[Step] = [(name, combine[name]) for name in values]
    return reduced(rows, key, steps, Schema((*columns.key, *columns.values)))
