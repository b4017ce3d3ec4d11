"""What stands in a Delta table, read without any code of the framework."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder


def rows(path: Path | str, *columns: str) -> list[tuple[Any, ...]]:
    """The named columns of every row, sorted."""
    names = ", ".join(f'"{column}"' for column in columns)
    query = QueryBuilder().register("t", DeltaTable(str(path))).execute(f"SELECT {names} FROM t")
    return sorted(tuple(row.values()) for row in pa.table(query.read_all()).to_pylist())


def counts(path: Path | str, key: str) -> dict[Any, int]:
    """Key → count of a table of counts."""
    return dict(rows(path, key, "count"))
