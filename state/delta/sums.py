"""Sums in Delta tables: how large a log's totals can be, and which key it is whose sum does not fit.

A transaction of the log layout reads nothing, and so can't see that stored and new parts don't fit together. A bound on
all totals, measured once and kept up to date, tells when that can't happen; only else the keys are looked up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from state.combine import rows_of
from state.delta.table import DATA_FUSION
from state.fenced import Source
from state.sums import SumCheck, largest, reduced
from state.values import ABSENT, combined_values
from transactional.schema import Field, Schema


def check_sums(stored: pa.Table, source: pa.Table, width: int, check: SumCheck) -> None:
    """Raise `SumOverflow` for a key whose sum does not fit. Both tables have `width` key columns, then the values."""
    before = {row[:width]: row[width:] for row in rows_of(stored)}
    for row in rows_of(source):
        key, partials = row[:width], row[width:]
        found = before.get(key, ABSENT)
        check.check(key, found, partials, combined_values(check.combine, found, partials))


def in_memory(source: Source, combine: Mapping[str, str], key: Schema, values: Schema, state: str) -> pa.Table:
    """Partial aggregates as a table with one row per key. Raises `SumOverflow`."""
    if not isinstance(source, tuple):
        return source
    rows = pa.concat_tables([parquet.read_table(file) for file in source], promote_options="permissive")
    return reduced(
        rows, key.names, [(name, combine[name]) for name in values.names], Schema((*key, *values)), state=state
    )


def measured(files: pa.Table, txid: str, columns: Sequence[Field], query: Callable[[str], pa.Table]) -> dict[str, int]:
    """For each column a number that no key's sum over all transactions exceeds: the sum of each one's largest.

    `files` are the table's add actions. Their statistics tell for whole numbers; those of decimals are not right.
    """
    bounds = {field.name: _told(files, txid, field) for field in columns}
    unknown = [name for name, bound in bounds.items() if bound is None]
    if unknown and files.num_rows:
        quoted = [DATA_FUSION.name(name) for name in unknown]
        sql = ", ".join(f"min({name}), max({name})" for name in quoted)
        rows = query(f"SELECT {sql} FROM t GROUP BY {DATA_FUSION.name(txid)}")
        for number, name in enumerate(unknown):
            least, most = rows.column(2 * number), rows.column(2 * number + 1)
            bounds[name] = sum(largest(pa.chunked_array([pair])) for pair in _pairs(least, most))
    return {name: bound or 0 for name, bound in bounds.items()}


def _told(files: pa.Table, txid: str, field: Field) -> int | None:
    """What the statistics of the files tell; None: not enough."""
    names = [f"{what}.{field.name}" for what in ("min", "max", "null_count")]
    if field.type.startswith("decimal") or not {*names, "num_records"} <= set(files.column_names):
        return None
    least, most, nulls = (files.column(name) for name in names)
    is_told = pc.or_(pc.and_(pc.is_valid(least), pc.is_valid(most)), pc.equal(nulls, files.column("num_records")))
    if not pc.all(pc.fill_null(is_told, fill_value=False)).as_py():
        return None
    rows = zip(files.column(f"partition.{txid}").to_pylist(), least.to_pylist(), most.to_pylist(), strict=True)
    by_txid: dict[int, int] = {}
    for run, low, high in rows:
        by_txid[run] = max(by_txid.get(run, 0), abs(low or 0), abs(high or 0))
    return sum(by_txid.values())


def _pairs(least: pa.ChunkedArray, most: pa.ChunkedArray) -> list[pa.Array]:
    low, high = least.combine_chunks(), most.combine_chunks()
    return [pa.concat_arrays([low.slice(row, 1), high.slice(row, 1)]) for row in range(len(low))]
