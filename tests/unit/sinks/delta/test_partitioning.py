"""Partitions of a Delta sink: parts of times, the order of rows, and dates that are refused."""

from __future__ import annotations

from datetime import UTC, date, datetime
from pathlib import Path

import pyarrow as pa
import pytest

from sinks import DeltaSink
from sinks.delta.partitioning import PartitionColumn, split_rows
from transactional.errors import SchemaMismatch
from transactional.model.arrow import arrow_schema
from transactional.model.attempt import AttemptId, TransactionAttempt, TxId
from transactional.model.schema import Schema


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("year(at)", [2026, None]),
        ("month(at)", [date(2026, 11, 1), None]),
        ("day(at)", [date(2026, 11, 28), None]),
        ("hour(at)", [23, None]),
    ],
)
def test_parts_of_times_are_those_of_utc(text: str, expected: list[object]) -> None:
    times = pa.table({"at": pa.array([datetime(2026, 11, 28, 23, 59, tzinfo=UTC), None], pa.timestamp("us", "UTC"))})
    assert PartitionColumn.parse(text).values(times).to_pylist() == expected


@pytest.mark.parametrize(
    ("partition_by", "field_type", "first", "last"),
    [
        ("day(at)", "timestamp", -62_135_596_800_000_000, 253_402_300_799_999_999),
        ("year(at)", "timestamp", -62_135_596_800_000_000, 253_402_300_799_999_999),
        ("at", "date", -719_162, 2_932_896),
    ],
)
def test_dates_that_no_engine_reads_as_partitions_are_bad_tuples(
    tmp_path: Path, partition_by: str, field_type: str, first: int, last: int
) -> None:
    sink = DeltaSink(tmp_path / "events", partition_by=[partition_by])
    fields = Schema.parse(f"n long, at {field_type}")
    sink.check_input(fields, used_by="sink 'raw'")

    def encode(*numbers: int | None) -> pa.Table:
        times = pa.array(numbers, pa.int32() if field_type == "date" else pa.int64()).cast(arrow_schema(fields)[1].type)
        return sink.encode(pa.record_batch({"n": range(len(numbers)), "at": times}))

    staged = sink.stage(TransactionAttempt(TxId(1), AttemptId(1)), encode(first, None, last))
    assert staged.num_rows == 3
    for number in (first - 1, last + 1):
        with pytest.raises(SchemaMismatch, match=rf"'at' is {number} .* in row 1, and .* the years 1 to 9999"):
            encode(first, number)


def test_rows_keep_their_order_within_a_partition() -> None:
    columns = [PartitionColumn.parse(name) for name in ("one", "other")]
    table = pa.table({"one": ["a", "b", "a", None, "a", ""], "other": [1, 1, 2, 1, 1, 1], "n": range(6)})
    parts = {tuple(values.values()): part["n"].to_pylist() for values, part in split_rows(table, columns)}
    assert parts.pop((None, "1")) in ([3], [5])
    assert parts == {("a", "1"): [0, 4], ("b", "1"): [1], ("a", "2"): [2]}
