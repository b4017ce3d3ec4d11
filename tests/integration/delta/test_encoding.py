"""Whole numbers and times, written as differences, are what was written, whoever reads them, at their types' limits."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder
from deltalake.transaction import AddAction
from pyarrow import parquet
from pyspark.sql import SparkSession

from state.delta.tables.data_files import table_writer
from transactional.model.arrow import arrow_schema
from transactional.model.schema import Schema

COLUMNS = Schema.parse("b byte, s short, i int, l long, d date, t timestamp, k string, f double")
FILE = "one.parquet"


def limits(type_: pa.DataType) -> list[Any]:
    """The least and the greatest value of a type, and what lies between, twice, out of order."""
    if pa.types.is_integer(type_):
        most = 2 ** (type_.bit_width - 1)
        return [None, -most, most - 1, 0, -1] * 2
    if pa.types.is_date(type_):
        return [datetime.date(1, 1, 1), None, datetime.date(9999, 12, 31), datetime.date(1582, 10, 4), None] * 2
    if pa.types.is_timestamp(type_):
        years = [datetime.datetime(year, 1, 1, tzinfo=datetime.UTC) for year in (1, 9999, 1582)]
        return [*years, datetime.datetime(1969, 12, 31, 23, 59, 59, 999_999, datetime.UTC), None] * 2
    return ([None, "", "b", "a", "a"] if pa.types.is_string(type_) else [None, float("inf"), -0.5, 0.0, 1e300]) * 2


@pytest.fixture(scope="module")
def rows() -> pa.Table:
    schema = arrow_schema(COLUMNS)
    return pa.table([pa.array(limits(field.type), field.type) for field in schema], schema=schema)


def write(rows: pa.Table, path: Path, *, dictionaries: bool) -> None:
    with table_writer(path, rows.schema, dictionaries=dictionaries) as writer:
        writer.write_table(rows.slice(0, 3))
        writer.write_table(rows.slice(3))


@pytest.mark.parametrize("dictionaries", [False, True])
def test_arrow_and_delta_rs_read_what_was_written(tmp_path: Path, rows: pa.Table, *, dictionaries: bool) -> None:
    path = tmp_path / FILE
    write(rows, path, dictionaries=dictionaries)
    assert parquet.read_table(path).cast(rows.schema).equals(rows)
    column = {number: parquet.read_metadata(path).row_group(0).column(number) for number in range(len(COLUMNS))}
    assert ["DELTA_BINARY_PACKED" in column[n].encodings for n in range(len(COLUMNS))] == [True] * 6 + [False] * 2
    assert [column[n].has_dictionary_page for n in range(len(COLUMNS))] == [False] * 6 + [dictionaries] * 2
    table = DeltaTable.create(tmp_path, rows.schema)
    added = AddAction(FILE, path.stat().st_size, {}, 0, True, "{}")
    table.create_write_transaction([added], mode="append", schema=table.schema(), partition_by=[])
    found = pa.table(QueryBuilder().register("t", DeltaTable(tmp_path)).execute("SELECT * FROM t").read_all())
    assert sorted(map(repr, found.cast(rows.schema).to_pylist())) == sorted(map(repr, rows.to_pylist()))


@pytest.mark.spark
@pytest.mark.parametrize("vectorized", ["true", "false"])
def test_spark_reads_what_was_written(spark: SparkSession, tmp_path: Path, rows: pa.Table, vectorized: str) -> None:
    write(rows, tmp_path / FILE, dictionaries=True)
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", "UTC")
    session.conf.set("spark.sql.parquet.enableVectorizedReader", vectorized)
    assert session.read.parquet(str(tmp_path / FILE)).toArrow().cast(rows.schema).equals(rows)
