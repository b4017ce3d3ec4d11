"""Which files a transaction reaches by their bounds: a bound says nothing of NULL."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from state.delta.tables.data_files import DataFile
from state.delta.tables.storage import open_file_system
from state.delta.write.change import Change
from state.delta.write.rewriting import rewrite_files
from state.delta.write.touched_files import Footers
from state.rows.columns import StateColumns
from transactional.model.arrow import arrow_schema
from transactional.model.attempt import TxId
from transactional.model.schema import Schema

COLUMNS = StateColumns(Schema.parse("n long"), Schema.parse("count long"), {})


@pytest.mark.parametrize("others", [(), (100,), (100, 101)])
def test_a_null_key_that_comes_with_others_is_found_beyond_their_bounds(tmp_path: Path, others: tuple[int]) -> None:
    """In one of two files, beside keys that do not come."""
    schema, files = COLUMNS.table_schema, list[DataFile]()
    for number, keys in enumerate(((1, None), (2, 3))):
        rows = [{"n": key, "count": 5, "txid": 1} for key in keys]
        parquet.write_table(pa.Table.from_pylist(rows, schema), tmp_path / f"{number}.parquet")
        files.append(DataFile(f"{number}.parquet", 1))
    coming = [{"n": key, "count": 1} for key in (*others, None)]
    change = Change(
        COLUMNS, TxId(2), pa.Table.from_pylist(coming, arrow_schema(COLUMNS.written_columns)), {"count": "sum"}
    )
    reached = Footers(open_file_system(str(tmp_path), {}), COLUMNS).select(files, change)
    written = rewrite_files(open_file_system(str(tmp_path), {}), reached.changed, schema.names, change)
    left = [file.name for file in files if file not in written.old]
    tables = [parquet.read_table(tmp_path / name) for name in (*left, *(file.name for file in written.new))]
    found = sorted(((row["n"], row["count"]) for row in pa.concat_tables(tables).to_pylist()), key=str)
    assert found == sorted([(1, 5), (2, 5), (3, 5), (None, 6), *((key, 1) for key in others)], key=str)
