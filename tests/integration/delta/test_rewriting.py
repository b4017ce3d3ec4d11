"""A small table is written as a whole, and then holds what delta-rs' MERGE would have left."""

from __future__ import annotations

import datetime
import decimal
import json
import random
import threading
from itertools import chain, count, product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder, write_deltalake
from pyarrow import parquet
from pyarrow.fs import FileSystem

from state.delta.tables.data_files import DataFile
from state.delta.tables.sql import DATA_FUSION, select_visible_rows
from state.delta.tables.storage import open_file_system
from state.delta.write import rewriting
from state.delta.write.change import Change, visible
from state.delta.write.rewriting import UnitQueue, rewrite_files
from state.fence import WriteRefused
from state.rows.columns import StateColumns
from state.rows.combining import combine_value
from tests.delta_merge import merge_into
from transactional.model.aggregates.key_matching import is_strictly_ascending
from transactional.model.arrow import arrow_schema
from transactional.model.attempt import TxId
from transactional.model.schema import Schema

DAY = datetime.date(2026, 1, 1)
VALUES: dict[str, list[Any]] = {
    "long": [None, -3, 0, 5],
    "int": [None, -3, 0, 5],
    "double": [None, -0.5, 2.0],
    "decimal(10,2)": [None, decimal.Decimal("-1.25"), decimal.Decimal("7.50")],
    "string": [None, "", "ab", "b"],
    "binary": [None, b"", b"ab", b"b"],
    "date": [None, DAY, DAY + datetime.timedelta(days=1)],
    "timestamp": [None, *(datetime.datetime(2026, 1, day, tzinfo=datetime.UTC) for day in (1, 2))],
    "boolean": [None, False, True],
}
NUMBERS = ("long", "int", "double", "decimal(10,2)")
CASES = [(type_, how) for type_ in VALUES for how in ("sum", "min", "max", "last") if how != "sum" or type_ in NUMBERS]
COLUMNS = {f"v{number}": case for number, case in enumerate(CASES)}
"""A value column of one table for each."""
NOW = TxId(7)


def stored(columns: StateColumns, types: list[str], chance: random.Random) -> pa.Table:
    """Rows that were new, or changed, in transaction 6 or, by a dead attempt, in transaction 7."""
    rows = []
    for key in chance.sample([None, *range(8)], chance.randint(0, 8)):
        txid = chance.choice([NOW - 1, NOW])
        before = chance.choice([None, txid - 1])
        now, then = ([chance.choice(VALUES[type_]) for type_ in types] for _ in range(2))
        rows.append((key, "x", *now, txid, before, *(then if before else [None] * len(types))))
    return of_rows(rows, columns.table_schema)


def given(columns: StateColumns, types: list[str], chance: random.Random) -> pa.Table:
    """A row for some of the keys, as a batch brings them."""
    keys = chance.sample([None, *range(8)], chance.randint(0, 8))
    rows = [(key, chance.choice("xy"), *(chance.choice(VALUES[type_]) for type_ in types)) for key in keys]
    return of_rows(rows, arrow_schema(Schema((*columns.key, *columns.values))))


def of_columns(values: dict[str, str]) -> StateColumns:
    """Those of a state with these values."""
    return StateColumns(
        Schema.parse("a int, b string"), Schema.parse(", ".join(f"{name} {type_}" for name, type_ in values.items()))
    )


def disk(folder: Path) -> FileSystem:
    """A folder as a table's storage."""
    return open_file_system(str(folder), {})


def of_rows(rows: list[tuple[Any, ...]], schema: pa.Schema) -> pa.Table:
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    return pa.Table.from_arrays([pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)], schema=schema)


def merged(folder: Path, rows: pa.Table, source: pa.Table, columns: StateColumns, combine: dict[str, str]) -> pa.Table:
    """What delta-rs' MERGE leaves."""
    write_deltalake(folder, rows)
    table = DeltaTable(folder)
    merge_into(table, source, columns, NOW, combine)
    found = pa.table(QueryBuilder().register("t", table).execute("SELECT * FROM t").read_all())
    return found.select(rows.column_names).cast(rows.schema)


def in_order(table: pa.Table) -> list[tuple[Any, ...]]:
    return sorted(zip(*(column.to_pylist() for column in table.columns), strict=True), key=str)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("number", range(16))
def test_is_what_a_merge_leaves(tmp_path: Path, number: int) -> None:
    """For every type and each way in which values are combined, side by side in one table."""
    chance = random.Random(number)
    types = [type_ for type_, _ in COLUMNS.values()]
    columns = of_columns({name: type_ for name, (type_, _) in COLUMNS.items()})
    rows, source = stored(columns, types, chance), given(columns, types, chance)
    combine = {name: how for name, (_, how) in COLUMNS.items()}
    found = Change(columns, NOW, source, combine).merged_rows(rows)
    assert found.schema.equals(rows.schema)
    expected = merged(tmp_path, rows, source, columns, combine)
    for name, case in COLUMNS.items():
        shown = ["a", "b", name, columns.txid, columns.prev_txid, columns.prev[name]]
        assert in_order(found.select(shown)) == in_order(expected.select(shown)), case
    assert in_order(found) == in_order(expected)


@pytest.mark.parametrize("type_", ["float", "double"])
@pytest.mark.parametrize("how", ["min", "max"])
def test_nan_is_the_greatest_number_and_both_zeros_are_equal(type_: str, how: str) -> None:
    """As of values that are combined without a table, and as in Spark."""
    numbers = [None, float("nan"), float("inf"), float("-inf"), -0.0, 0.0, 1.5, -1.5]
    pairs = list(product(numbers, numbers))
    columns = StateColumns(Schema.parse("k int"), Schema.parse(f"v {type_}"))
    rows = of_rows([(k, v, 6, None, None) for k, (v, _) in enumerate(pairs)], columns.table_schema)
    source = of_rows([(k, v) for k, (_, v) in enumerate(pairs)], rows.schema.empty_table().select(["k", "v"]).schema)
    found = Change(columns, NOW, source, {"v": how}).merged_rows(rows)
    expected = [combine_value(how, stored, partial) for stored, partial in pairs]
    left = found.sort_by("k")["v"].to_pylist()
    are_same = [a == b or (a != a and b != b) for a, b in zip(left, expected, strict=True)]
    assert [pair for pair, is_same in zip(pairs, are_same, strict=True) if not is_same] == []


@pytest.mark.parametrize("before", [None, NOW - 1, NOW, NOW + 1])
def test_what_was_before_is_what_a_query_finds(tmp_path: Path, before: TxId | None) -> None:
    chance = random.Random(f"{before}")
    columns = StateColumns(Schema.parse("a int, b string"), Schema.parse("v long"))
    for number in range(8):
        folder, rows = tmp_path / str(number), stored(columns, ["long"], chance)
        write_deltalake(folder, rows)
        sql = select_visible_rows(columns, before, DATA_FUSION)
        found = pa.table(QueryBuilder().register("t", DeltaTable(folder)).execute(sql).read_all())
        assert in_order(visible(rows, columns, before)) == in_order(found)


def test_sums_that_do_not_fit_are_refused() -> None:
    columns = StateColumns(Schema.parse("k string"), Schema.parse("v long"))
    rows = of_rows([("a", 2**63 - 1, 6, None, None)], columns.table_schema)
    source = pa.table({"k": ["a"], "v": [1]})
    with pytest.raises(WriteRefused, match="overflow"):
        Change(columns, NOW, source, {"v": "sum"}).merged_rows(rows)


def test_a_state_of_one_row_has_no_key() -> None:
    columns = StateColumns(Schema(()), Schema.parse("v long"))
    source = pa.table({"v": pa.array([3], pa.int64())})
    first = Change(columns, TxId(1), source, {"v": "sum"}).merged_rows(columns.table_schema.empty_table())
    assert in_order(first) == [(3, 1, None, None)]
    second = Change(columns, TxId(2), source, {"v": "sum"}).merged_rows(first)
    assert in_order(second) == [(6, 2, 1, 3)]


# --- a larger table, file by file -----------------------------------------------------------------------------------


def by_files(folder: Path, rows: pa.Table, source: pa.Table, columns: StateColumns, combine: dict[str, str]) -> Any:
    """What is left of rows that lie in three files, and what became of the files."""
    folder.mkdir()
    files = []
    for number in range(3):
        part = rows.slice(number * rows.num_rows // 3, (number + 1) * rows.num_rows // 3 - number * rows.num_rows // 3)
        parquet.write_table(part, folder / f"{number}.parquet", row_group_size=2)
        files.append(DataFile(f"{number}.parquet", (folder / f"{number}.parquet").stat().st_size))
    found = rewrite_files(disk(folder), files, columns.all_columns.names, Change(columns, NOW, source, combine))
    names = [file.name for file in files if file not in found.old] + [file.name for file in found.new]
    tables = [parquet.read_table(folder / name).cast(rows.schema) for name in names]
    return pa.concat_tables([rows.slice(0, 0), *tables]), found


@pytest.mark.sampled(10)
@pytest.mark.parametrize(("part_rows", "lane_rows"), [(1, 500_000), (4, 1), (4, 2), (500_000, 1), (500_000, 500_000)])
@pytest.mark.parametrize("number", range(8))
def test_files_are_what_a_merge_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, part_rows: int, lane_rows: int
) -> None:
    """For every type and each way of combining values; with parts of files, whole files, files put together, and files
    that are written at once."""
    monkeypatch.setattr("state.delta.write.rewriting.LANE_ROWS", lane_rows)
    monkeypatch.setattr("state.delta.write.rewriting.pa.cpu_count", lambda: 3)
    monkeypatch.setattr("state.delta.write.rewriting.PART_ROWS", part_rows)
    chance = random.Random(number)
    types = [type_ for type_, _ in COLUMNS.values()]
    columns = of_columns({name: type_ for name, (type_, _) in COLUMNS.items()})
    rows, source = stored(columns, types, chance), given(columns, types, chance)
    combine = {name: how for name, (_, how) in COLUMNS.items()}
    found, result = by_files(tmp_path / "files", rows, source, columns, combine)
    assert in_order(found) == in_order(merged(tmp_path / "merged", rows, source, columns, combine))
    written = {file.name: parquet.read_metadata(tmp_path / "files" / file.name) for file in result.new}
    told = {file.name: json.loads(file.statistics)["numRecords"] for file in result.new}
    assert told == {name: metadata.num_rows for name, metadata in written.items()}


@pytest.mark.sampled(10)
@pytest.mark.parametrize("number", range(6))
@pytest.mark.parametrize(("many", "block_rows", "part_rows"), [(50_000, 4, 4), (0, 1, 4), (0, 2, 500_000), (0, 9, 1)])
def test_one_key_column_is_found_as_several_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, many: int, block_rows: int, part_rows: int
) -> None:
    """Few keys in a hash table, and many in order, in files that are not, by several threads where there are many."""
    monkeypatch.setattr("state.delta.write.rewriting.pa.cpu_count", lambda: 3)
    monkeypatch.setattr("transactional.model.aggregates.key_matching.ROWS_MIN", many)
    monkeypatch.setattr("transactional.model.aggregates.key_matching.BLOCK_ROWS", block_rows)
    monkeypatch.setattr("state.delta.write.rewriting.PART_ROWS", part_rows)
    monkeypatch.setattr("state.delta.write.rewriting.LANE_ROWS", 3)
    columns, chance = StateColumns(Schema.parse("a int"), Schema.parse("v long")), random.Random(number)
    rows = of_rows(
        [(None, 1, 6, None, None), (1, 2, 7, 6, 5), (2, 3, 7, None, None), (3, 4, 5, None, None)][::-1],
        columns.table_schema,
    )
    more = [(key, key, chance.choice([5, 6]), None, None) for key in chance.sample(range(10, 30), 9)]
    rows = pa.concat_tables([rows, of_rows(more, columns.table_schema)])
    coming = [(None, 10), (4, 20), *((key, 1) for key in chance.sample(range(8, 32), chance.randint(0, 20)))]
    source = of_rows(coming, arrow_schema(Schema((*columns.key, *columns.values))))
    found, _ = by_files(tmp_path / "files", rows, source, columns, {"v": "sum"})
    assert in_order(found) == in_order(merged(tmp_path / "merged", rows, source, columns, {"v": "sum"}))
    few = {key: v for key, v in in_order(found.select(["a", "v"])) if key is None or key < 5}
    assert few == {1: 5, 3: 4, 4: 20, None: 11}


def test_a_file_without_a_touched_key_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("state.delta.write.rewriting.PART_ROWS", 1)
    columns = StateColumns(Schema.parse("a int"), Schema.parse("v long"))
    rows = of_rows([(n, n, 7 if n == 2 else 5, 5, 0) for n in range(3)], columns.table_schema)
    source = of_rows([(0, 1)], arrow_schema(Schema((*columns.key, *columns.values))))
    _, found = by_files(tmp_path / "files", rows, source, columns, {"v": "sum"})
    assert sorted(file.name for file in found.old) == ["0.parquet", "2.parquet"], "the third is a dead attempt's"


def test_a_file_that_is_large_gets_no_new_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("state.delta.tables.data_files.FILE_ROWS_MAX", 3)
    columns = StateColumns(Schema.parse("a int"), Schema.parse("v long"))
    rows = of_rows([(n, n, 5, None, None) for n in range(3)], columns.table_schema)
    source = of_rows([(0, 1), (7, 1)], arrow_schema(Schema((*columns.key, *columns.values))))
    _, found = by_files(tmp_path / "files", rows, source, columns, {"v": "sum"})
    assert [json.loads(file.statistics)["numRecords"] for file in found.new] == [3, 1]


@pytest.mark.parametrize("part_rows", [1, 500_000])
@pytest.mark.parametrize("lane_rows", [1, 500_000])
def test_nothing_is_left_of_sums_that_do_not_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lane_rows: int, part_rows: int
) -> None:
    """Also where another thread has written its file by then."""
    monkeypatch.setattr("state.delta.write.rewriting.PART_ROWS", part_rows)
    monkeypatch.setattr("state.delta.write.rewriting.LANE_ROWS", lane_rows)
    monkeypatch.setattr("state.delta.write.rewriting.pa.cpu_count", lambda: 3)
    columns = StateColumns(Schema.parse("k string"), Schema.parse("v long"))
    rows = of_rows([("b", 1, 6, None, None), ("a", 2**63 - 1, 6, None, None)], columns.table_schema)
    source = pa.table({"k": ["a"], "v": [1]})
    with pytest.raises(WriteRefused):
        by_files(tmp_path / "files", rows, source, columns, {"v": "sum"})
    assert sorted(path.name for path in (tmp_path / "files").iterdir()) == ["0.parquet", "1.parquet", "2.parquet"]


def large(
    folder: Path, monkeypatch: pytest.MonkeyPatch, key: str = "int", expires: str | None = None
) -> tuple[list[DataFile], Change]:
    """A table of many files in the order of their keys, and what comes for each: three threads rewrite it."""
    monkeypatch.setattr("transactional.model.aggregates.key_matching.ROWS_MIN", 0)
    monkeypatch.setattr("state.delta.write.rewriting.pa.cpu_count", lambda: 3)
    monkeypatch.setattr("state.delta.write.rewriting.PART_ROWS", 2)
    columns = StateColumns(Schema.parse(f"a {key}"), Schema.parse("v long"), {}, False, expires)
    files = []
    for number in range(9):
        rows = of_rows([(2 * number + n, n, 5, None, None) for n in range(2)], columns.table_schema)
        parquet.write_table(rows, folder / f"{number}.parquet")
        files.append(DataFile(f"{number}.parquet", 1))
    source = of_rows([(n, 1) for n in range(1, 18, 2)], arrow_schema(Schema((*columns.key, *columns.values))))
    return files, Change(columns, NOW, source, {"v": "sum"})


def test_files_that_threads_have_rewritten_are_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, change = large(tmp_path, monkeypatch)
    found = rewrite_files(disk(tmp_path), files, change.columns.all_columns.names, change)
    tables = [parquet.read_table(tmp_path / file.name) for file in found.new]
    assert all(is_strictly_ascending(table["a"]) for table in tables)
    left = in_order(pa.concat_tables(tables).select(["a", "v"]))
    assert left == sorted([(n, 2 * (n % 2)) for n in range(18)], key=str)


def test_rows_with_the_latest_time_have_a_file_of_their_own_also_in_a_large_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, change = large(tmp_path, monkeypatch, "timestamp", "a")
    found = rewrite_files(disk(tmp_path), files, change.columns.all_columns.names, change)
    numbers = [parquet.read_table(tmp_path / file.name)["a"].cast(pa.int64()).to_pylist() for file in found.new]
    assert sorted(chain(*numbers)) == list(range(18))
    assert [17] in numbers


@pytest.mark.parametrize("touched", [0, 1, 2])
def test_of_a_file_without_a_touched_key_no_part_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, touched: int
) -> None:
    """A file may be larger than the memory: what came before the first part that is touched is read again."""
    monkeypatch.setattr("state.delta.write.rewriting.PART_ROWS", 1)
    columns = StateColumns(Schema.parse("a int"), Schema.parse("v long"))
    rows = of_rows([(n, n, 5, None, None) for n in range(3)], columns.table_schema)
    parquet.write_table(rows, tmp_path / "old.parquet", row_group_size=1)
    source = of_rows([(touched, 10)], arrow_schema(Schema((*columns.key, *columns.values))))
    change = Change(columns, NOW, source, {"v": "sum"})
    found = rewrite_files(disk(tmp_path), [DataFile("old.parquet", 1)], columns.all_columns.names, change)
    left = pa.concat_tables([parquet.read_table(tmp_path / file.name) for file in found.new])
    assert in_order(left.select(["a", "v"])) == [(n, n + 10 * (n == touched)) for n in range(3)]


def test_threads_take_no_more_once_one_has_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, change = large(tmp_path, monkeypatch)
    numbers, ended, end = count(), threading.Event(), UnitQueue.end

    def take(*_: Any) -> None:
        if next(numbers) == 0:
            raise WriteRefused("a sum does not fit", is_conflict=False)
        assert ended.wait(5), "nobody was told"

    monkeypatch.setattr(rewriting._Rewriting, "take", take)

    def tell(queue: Any) -> None:
        end(queue)
        ended.set()

    monkeypatch.setattr(UnitQueue, "end", tell)
    with pytest.raises(WriteRefused):
        rewrite_files(disk(tmp_path), files, change.columns.all_columns.names, change)
    assert next(numbers) <= 3


def test_what_a_table_has_gained_is_null_in_older_files(tmp_path: Path) -> None:
    columns = StateColumns(Schema.parse("a int"), Schema.parse("v long, w long"))
    rows = of_rows([(1, 2, None, 5, None, None, None)], columns.table_schema)
    parquet.write_table(rows.drop_columns(["w", "prev_w"]), tmp_path / "old.parquet")
    source = of_rows([(1, 1, 1)], arrow_schema(Schema((*columns.key, *columns.values))))
    combine = {"v": "sum", "w": "sum"}
    old = [DataFile("old.parquet", 1)]
    found = rewrite_files(disk(tmp_path), old, columns.all_columns.names, Change(columns, NOW, source, combine))
    left = parquet.read_table(tmp_path / found.new[0].name)
    assert in_order(left.select(["a", "v", "w", "prev_v", "prev_w"])) == [(1, 3, 1, 2, None)]


def test_what_is_large_becomes_several_files_that_are_put_together_once_they_are_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("state.delta.write.rewriting.LANE_ROWS", 10)
    monkeypatch.setattr("state.delta.write.rewriting.pa.cpu_count", lambda: 3)
    columns = StateColumns(Schema.parse("a int"), Schema.parse("v long"))
    source = of_rows([(n, 1) for n in range(25)], arrow_schema(Schema((*columns.key, *columns.values))))
    first = rewrite_files(disk(tmp_path), [], columns.all_columns.names, Change(columns, TxId(1), source, {"v": "sum"}))
    assert [json.loads(file.statistics)["numRecords"] for file in first.new] == [12, 13]
    files = [file.part for file in first.new]
    second = rewrite_files(
        disk(tmp_path), files, columns.all_columns.names, Change(columns, TxId(2), source, {"v": "sum"})
    )
    assert second.old == files
    assert [json.loads(file.statistics)["numRecords"] for file in second.new] == [12, 13]
    monkeypatch.setattr("state.delta.write.rewriting.LANE_ROWS", 100)
    files = [file.part for file in second.new]
    third = rewrite_files(
        disk(tmp_path), files, columns.all_columns.names, Change(columns, TxId(3), source, {"v": "sum"})
    )
    [left] = third.new
    assert in_order(parquet.read_table(tmp_path / left.name)) == sorted([(n, 3, 3, 2, 2) for n in range(25)], key=str)
