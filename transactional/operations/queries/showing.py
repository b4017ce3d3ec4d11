"""Shows tables and answers in a notebook: their first rows."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from transactional.model.drawing.notebook_tables import TitledRows, tables_to_html, tables_to_text

ROWS_MAX = 20
"""The number of rows of a table that a notebook shows."""


def notebook_view(tables: Mapping[str, pa.Table]) -> dict[str, str]:
    """Return tables, which are given by title, in the types of content that notebooks know."""
    titled_rows = [_first_rows(title, table) for title, table in tables.items()]
    return {"text/html": tables_to_html(titled_rows), "text/plain": tables_to_text(titled_rows)}


def _first_rows(title: str, table: pa.Table) -> TitledRows:
    rows = [list(row.values()) for row in table.slice(0, ROWS_MAX).to_pylist()]
    more = f", the first {ROWS_MAX} are shown" if table.num_rows > ROWS_MAX else ""
    count = f"{table.num_rows:,} row{'' if table.num_rows == 1 else 's'}"
    return TitledRows(f"{title}: {count}{more}", table.column_names, rows)
