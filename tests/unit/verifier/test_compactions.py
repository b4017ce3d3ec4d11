"""Rows of several transactions, put together as a compaction has to: by the words that the table has declared."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from verifier.compactions import _read_combined
from verifier.evidence.delta_log import DataFile
from verifier.evidence.findings import CheckImpossible
from verifier.evidence.storage import FolderStorage
from verifier.rows import RowColumns

NAN = float("nan")
COLUMNS = RowColumns(("word",), ("low", "high", "total", "note"), prev_txid=None)
HOW = {"low": "min", "high": "max", "total": "sum"}


Row = list[float | None]


def put_together(folder: Path, how: dict[str, str], *rows: Row) -> dict[tuple[object, ...], list[object]]:
    """The rows of one key, each of a transaction and in a file of its own."""
    files = []
    for txid, values in enumerate(rows, 1):
        arrays = [pa.array(["a"]), *(pa.array([value], pa.float64()) for value in values)]
        path = folder / f"{txid}.parquet"
        parquet.write_table(pa.table(arrays, names=[*COLUMNS.key, *COLUMNS.values]), path)
        files.append(DataFile(path.name, None, True, {"txid": str(txid)}))
    return _read_combined(FolderStorage(str(folder)), files, COLUMNS, how)


@pytest.mark.parametrize("order", [1, -1])
def test_nan_is_greater_than_every_number_and_null_counts_as_nothing(tmp_path: Path, order: int) -> None:
    rows: list[Row] = [[NAN, NAN, 1.0, 1.0], [2.0, 2.0, None, 2.0], [None, None, 3.0, None]]
    rows = rows[::order]
    newest = rows[-1][-1]
    assert put_together(tmp_path, HOW, *rows) == {("a",): [2.0, "NaN", 4.0, newest]}


def test_a_word_that_is_not_known_is_no_maximum(tmp_path: Path) -> None:
    with pytest.raises(CheckImpossible, match="'average' is not known"):
        put_together(tmp_path, {**HOW, "high": "average"}, [1.0] * 4, [2.0] * 4)
