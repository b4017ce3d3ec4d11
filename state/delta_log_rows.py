"""Rows of the log layout in memory: several per key, which are put together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from state.base import StateColumns


def newest_rows(rows: pa.Table, columns: StateColumns, combine: Mapping[str, str]) -> pa.Table:
    """Rows with key, values and txid → key and value columns, one row per key."""
    key, values = list(columns.key.names), list(columns.values.names)
    if not key and not rows.num_rows:
        return rows.select(values)
    if "last" in combine.values():
        rows = rows.sort_by(columns.txid)
    steps: list[tuple[str, str, Any]] = [
        # Here NULL is a value like any other.
        (name, "last", pc.ScalarAggregateOptions(skip_nulls=False, min_count=0))
        if combine[name] == "last"
        else (name, combine[name], None)
        for name in values
    ]
    # The threads of Arrow lose the order, and fight with others for the cores.
    grouped = rows.group_by(key, use_threads=False).aggregate(steps)
    return pa.Table.from_arrays(grouped.columns, names=[*key, *values])
