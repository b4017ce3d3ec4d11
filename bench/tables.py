"""The peers' Delta table: made as our states make theirs, and read back without the system that wrote it."""

from __future__ import annotations

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

from state.delta.tables.table import DEFAULT_PROPERTIES

_KEYS = {"string": pa.string(), "long": pa.int64()}


def create(path: str, key_type: str = "string") -> DeltaTable:
    """An empty table: key and count, reader 1 and writer 2, so no deletion vectors, which made Spark's MERGE slower.

    It has the log settings of our states' tables, but not their columns for history: the peers write less.
    """
    properties = {name: value for name, value in DEFAULT_PROPERTIES.items() if name.startswith("delta.")}
    schema = pa.schema([("key", _KEYS[key_type]), ("count", pa.int64())])
    return DeltaTable.create(path, schema, configuration=properties)


def read_counts(path: str) -> dict[str, int]:
    """Key → count of the newest snapshot. Raises ValueError when a key is there twice."""
    table = pa.table(QueryBuilder().register("t", DeltaTable(path)).execute('SELECT key, "count" FROM t').read_all())
    counts = dict(zip(table["key"].to_pylist(), table["count"].to_pylist(), strict=True))
    if len(counts) != table.num_rows:
        raise ValueError(f"{path} holds {table.num_rows} rows with {len(counts)} different keys")
    return counts
