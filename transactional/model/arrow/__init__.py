"""Arrow data: conversions, and what Arrow would silently truncate."""

from __future__ import annotations

from transactional.model.arrow.conversions import (
    RecordDigest,
    arrow_schema,
    arrow_type,
    batch_from_rows,
    batch_from_values,
    conform,
    declared_schema,
    from_ipc,
    origin_of,
    rows_by_task,
    spark_type,
    table_from_ipc,
    task_of_rows,
    to_ipc,
    with_origin,
)

__all__ = [
    "RecordDigest",
    "arrow_schema",
    "arrow_type",
    "batch_from_rows",
    "batch_from_values",
    "conform",
    "declared_schema",
    "from_ipc",
    "origin_of",
    "rows_by_task",
    "spark_type",
    "table_from_ipc",
    "task_of_rows",
    "to_ipc",
    "with_origin",
]
