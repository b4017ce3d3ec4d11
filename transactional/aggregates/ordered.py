"""Rows in the order of their key: equal keys lie side by side then, and what is looked for is near what was found.

Hash tables of many keys are larger than a processor's caches, and each key costs a way to memory. To sort whole numbers
costs about as much, and next to nothing where parts are in order already, as those that tasks send are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

ROWS_MIN: Final = 50_000
"""Fewer rows stay as they come: their hash tables are small."""


def is_sortable(table: pa.Table, key: Sequence[str]) -> bool:
    """Whether these are many rows whose key is sorted quickly: one column of whole numbers, or of times."""
    if len(key) != 1 or table.num_rows < ROWS_MIN:
        return False
    type_ = table.schema.field(key[0]).type
    return bool(pa.types.is_integer(type_) or pa.types.is_date(type_) or pa.types.is_timestamp(type_))


def in_order(table: pa.Table, key: Sequence[str]) -> pa.Table:
    """The rows by key, NULL last; rows of the same key stay in their order. Where it is not worth it as they are."""
    if not is_sortable(table, key) or is_ascending(table[key[0]]):
        return table
    return table.combine_chunks().take(order_of(table[key[0]]))


def order_of(column: pa.ChunkedArray) -> pa.Array:
    """Where the rows by key stand now."""
    return pc.sort_indices(column.combine_chunks())


def is_ascending(column: pa.ChunkedArray) -> bool:
    """Whether every value is larger than the one before it, NULL as the last one: then none is there twice."""
    known = len(column) - column.null_count
    if column.null_count > 1 or (column.null_count and column[known].is_valid):
        return False
    whole = column.combine_chunks()
    is_larger = pc.less(whole.slice(0, max(0, known - 1)), whole.slice(1, max(0, known - 1)))
    return bool(pc.all(is_larger, min_count=0).as_py())


def have_keys_once(table: pa.Table, key: Sequence[str]) -> bool:
    """Whether these are many rows in the order of their key, and none is there twice. False: it is not known."""
    return is_sortable(table, key) and is_ascending(table[key[0]])
