"""Files that a transaction does not reach, by the bounds in their footers, are left alone, and the table holds what a
MERGE by delta-rs would have left."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder, write_deltalake
from pyarrow import parquet

from state.delta.state import DeltaMapState
from state.delta.tables.data_files import DataFile
from state.delta.tables.ranges import TimeRange
from state.delta.tables.storage import open_file_system
from state.delta.write import touched_files as bounds
from state.delta.write.change import Change
from state.delta.write.rewriting import rewrite_files
from state.delta.write.touched_files import Bounds, FileBounds, FileSelection, Footers
from state.rows.columns import StateColumns
from state.rows.expiring import ExpiryHorizons
from tests.contract.states import Place, content, write_by_files
from tests.delta_merge import merge_into
from transactional.core.ports import Partials
from transactional.core.ports.expiry import Expiry, Time
from transactional.model.arrow import arrow_schema
from transactional.model.attempt import TxId
from transactional.model.facts import BatchFacts
from transactional.model.schema import Schema

NOW = TxId(7)
COMBINE = {"count": "sum"}
KEYS = {
    "page string, start timestamp": "start",
    "start timestamp": "start",
    "n int, start timestamp": "start",
    "page string, day date": None,
    "n long": None,
}
"""Keys, and the column by which rows expire."""


def at(second: int | None) -> datetime | None:
    return None if second is None else datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=second)


def key_of(columns: StateColumns, moment: int | None, chance: random.Random) -> list[Any]:
    made: dict[str, Any] = {
        "string": chance.choice(("a", "b", None)),
        "timestamp": at(moment),
        "date": None if moment is None else date(1970, 1, 1) + timedelta(days=moment),
        "int": moment,
        "long": moment,
    }
    return [made[each.type] for each in columns.key]


def table_of(rows: list[list[Any]], schema: pa.Schema, key: int) -> pa.Table:
    """One row per key: the last one."""
    rows = list({tuple(row[:key]): row for row in rows}.values())
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    arrays = [pa.array(column, each.type) for column, each in zip(columns, schema, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)


class World:
    """A table in several files, each with its own range of times, and what comes."""

    def __init__(self, seed: int) -> None:
        self.chance = chance = random.Random(seed)
        key = chance.choice(list(KEYS))
        deletes = chance.random() < 0.4
        expires = KEYS[key] if chance.random() < 0.8 else None
        self.columns = StateColumns(Schema.parse(key), Schema.parse("count long"), {}, deletes, expires)
        before = chance.choice((None, 8, 12, 25))
        horizons = ExpiryHorizons(
            NOW, max(before or 0, chance.choice((8, 14, 25))) * 10**6, None if before is None else before * 10**6
        )
        self.schema, width = self.columns.table_schema, len(self.columns.key)
        stored: dict[tuple[Any, ...], tuple[int, list[Any]]] = {}
        for file in range(4):
            for _ in range(chance.randrange(6)):
                row = self._stored(file, chance)
                stored.setdefault(tuple(row[:width]), (file, row))
        self.files = [table_of([row for at, row in stored.values() if at == n], self.schema, width) for n in range(4)]
        begin, end = sorted(chance.choices(range(45), k=2))
        coming = [
            [*key_of(self.columns, chance.choice((*range(begin, end + 1), *([None] * (seed % 3 == 0)))), chance), 1]
            for _ in range(chance.randrange(6))
        ]
        if deletes:
            coming = [[*row, chance.random() < 0.3] for row in coming]
        rows = table_of(coming, arrow_schema(self.columns.written_columns), width)
        self.change = Change(
            self.columns, NOW, rows, COMBINE, horizons if expires else ExpiryHorizons(), chance.random() < 0.5
        )

    def _stored(self, file: int, chance: random.Random) -> list[Any]:
        moment = chance.choice((*range(10 * file, 10 * file + 10), *([None] * (file == 1))))
        txid = chance.choice((4, NOW - 1, NOW)) if file % 2 else chance.choice((4, NOW - 1))
        known = chance.choice((None, txid - 1))
        count = {"count": chance.randrange(9), "prev_count": chance.randrange(9) if known else None}
        rest = {**count, "txid": txid, "prev_txid": known, "deleted": file == 2 and chance.random() < 0.5}
        names = [name for name in self.columns.all_columns.names if name not in self.columns.key.names]
        return [*key_of(self.columns, moment, chance), *(rest[name] for name in names)]

    def written(self, folder: Path) -> list[DataFile]:
        folder.mkdir()
        found = []
        for number, rows in enumerate(self.files):
            parquet.write_table(rows, folder / f"{number}.parquet", row_group_size=2, store_schema=False)
            found.append(DataFile(f"{number}.parquet", 1))
        return found

    def by_files(self, folder: Path) -> tuple[pa.Table, FileSelection]:
        """What is left, and what was reached."""
        files = self.written(folder)
        storage = open_file_system(str(folder), {})
        reached = Footers(storage, self.columns).select(files, self.change)
        found = rewrite_files(storage, reached.changed, self.schema.names, self.change, reached.aging)
        left = [each.name for each in files if each not in (*found.old, *reached.expired)]
        names = [*left, *(file.name for file in found.new)]
        tables = [parquet.read_table(folder / name).cast(self.schema) for name in names]
        return pa.concat_tables([self.schema.empty_table(), *tables]), reached

    def by_merge(self, folder: Path) -> pa.Table:
        """What delta-rs' MERGE leaves."""
        write_deltalake(folder, pa.concat_tables(self.files))
        change, table = self.change, DeltaTable(folder)
        merge_into(table, change.rows, self.columns, NOW, COMBINE, change.horizons, removes=change.removes)
        found = pa.table(QueryBuilder().register("t", table).execute("SELECT * FROM t").read_all())
        return found.select(self.schema.names).cast(self.schema)

    def shown(self, rows: pa.Table) -> list[tuple[Any, ...]]:
        """In order; without what nobody sees any more, which may go at any time."""
        before, expires = self.change.horizons.previous, self.columns.expires
        if before is not None and expires is not None:
            own = [txid == NOW for txid in rows["txid"].to_pylist()]
            times = rows[expires].to_pylist()
            past = at(before // 10**6)
            assert past is not None
            kept = [mine or time is None or time > past for mine, time in zip(own, times, strict=True)]
            rows = rows.filter(pa.array(kept, pa.bool_()))
        return sorted(zip(*(column.to_pylist() for column in rows.columns), strict=True), key=str)

    def is_right(self, folder: Path) -> bool:
        """Whether files are what a MERGE leaves."""
        folder.mkdir()
        found, _ = self.by_files(folder / "files")
        return self.shown(found) == self.shown(self.by_merge(folder / "merged"))


@pytest.mark.parametrize("first", range(0, 32, 8))
def test_files_that_are_left_alone_hold_what_a_merge_leaves(tmp_path: Path, first: int) -> None:
    for seed in range(first, first + 8):
        assert World(seed).is_right(tmp_path / str(seed)), seed


WRONG = {"_may_be_own": False, "_may_have_tombstones": False}


@pytest.mark.parametrize("what", WRONG)
def test_a_reach_that_forgets_something_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    monkeypatch.setattr(bounds._FileFilter, what, lambda *_: WRONG[what])
    assert not all(World(seed).is_right(tmp_path / str(seed)) for seed in range(40))


def test_bounds_that_are_too_narrow_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wrong: the last value of a file is taken for the first one beyond it."""
    right = bounds._combine_statistics
    monkeypatch.setattr(
        bounds,
        "_combine_statistics",
        lambda parts: None if (found := right(parts)) is None else replace(found, greatest=found.least),
    )
    assert not all(World(seed).is_right(tmp_path / str(seed)) for seed in range(40))


@pytest.mark.parametrize(("second", "stays"), [(2, False), (None, True)])
def test_a_file_with_a_row_that_never_expires_is_not_dropped(tmp_path: Path, second: int | None, stays: bool) -> None:  # noqa: FBT001
    columns = StateColumns(Schema.parse("start timestamp"), Schema.parse("count long"), {}, False, "start")
    rows, file = [[at(each), 1, 4, None, None] for each in (1, second)], DataFile("0.parquet", 1)
    parquet.write_table(table_of(rows, columns.table_schema, 1), tmp_path / file.name)
    horizons = ExpiryHorizons(NOW, 9 * 10**6, 9 * 10**6)
    change = Change(columns, NOW, table_of([], arrow_schema(columns.written_columns), 1), COMBINE, horizons)
    assert Footers(open_file_system(str(tmp_path), {}), columns).select([file], change).expired == (
        [] if stays else [file]
    )


# --- over transactions ----------------------------------------------------------------------------------------------


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place("delta-rs", tmp_path)


def opened(place: Place) -> Any:
    return place.state("page string, start timestamp", "count long", expiry=Expiry("start", 0, Time.EVENT))


def counts(*rows: tuple[str, int]) -> Partials:
    keys = pa.table({"page": [page for page, _ in rows], "start": pa.array([at(s) for _, s in rows])})
    schema = arrow_schema(Schema.parse("page string, start timestamp, count long"))
    return Partials(COMBINE, keys.append_column("count", pa.array([1] * len(rows), pa.int64())).cast(schema))


def merge(state: Any, place: Place, txid: int, watermark: int | None, *rows: tuple[str, int]) -> None:
    attempt = place.attempt(txid, txid)
    state.declared.begin(attempt, BatchFacts(10**9, None if watermark is None else watermark * 10**6))
    state.merge(attempt, counts(*rows))


def test_windows_are_added_to_and_go_without_a_look_at_the_others(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_by_files(monkeypatch)
    looked = list[tuple[int, int]]()
    reached = Footers.select

    def noted(self: Footers, files: Any, change: Change) -> FileSelection:
        found = reached(self, files, change)
        looked.append((len(found.changed), len(found.expired)))
        return found

    monkeypatch.setattr(Footers, "select", noted)
    state = opened(place)
    state.parts.maintenance.maintain(TxId(0), lambda: True)  # else the first write looks for what has expired
    merge(state, place, 1, None, ("a", 1), ("a", 2), ("b", 3))
    merge(state, place, 2, 0, ("b", 3), ("a", 4), ("a", 5))
    merge(state, place, 3, 2, ("a", 5), ("a", 6))
    assert content(state) == {("b", at(3)): 2, ("a", at(4)): 1, ("a", at(5)): 2, ("a", at(6)): 1}
    merge(state, place, 4, 4, ("a", 6), ("a", 7))
    merge(state, place, 5, 6, ("a", 8))
    assert looked == [(0, 0), (1, 0), (1, 0), (1, 1), (0, 1)]
    assert content(state) == {("a", at(7)): 1, ("a", at(8)): 1}
    assert content(state, 4) == {("a", at(5)): 2, ("a", at(6)): 2, ("a", at(7)): 1}


def test_a_range_of_windows_is_what_a_query_finds(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    write_by_files(monkeypatch)
    state, chance = opened(place), random.Random(3)
    for txid in range(1, 8):
        rows = {(chance.choice("ab"), chance.randrange(2 * txid, 2 * txid + 6)) for _ in range(6)}
        merge(state, place, txid, 2 * txid, *rows)
    state.version()
    table = state.open_table.reader
    for _ in range(20):
        after, until = chance.choice((None, chance.randrange(20))), chance.randrange(25)
        wanted = (TxId(chance.choice((7, 8))), "start", None if after is None else after * 10**6, until * 10**6)
        found, many = table.rows_between(*wanted), table.count_between(*wanted[1:])
        with monkeypatch.context() as patched:
            patched.setattr(table.loaded, "rewritable_files", lambda: None)
            assert sorted(found.to_pylist(), key=str) == sorted(table.rows_between(*wanted).to_pylist(), key=str)
            assert many == table.count_between(*wanted[1:])


def test_what_a_file_lacks_is_null_in_a_range(tmp_path: Path) -> None:
    rows = pa.table({"start": pa.array([at(1), at(5)], pa.timestamp("us", tz="UTC")), "v": [1, 2]})
    parquet.write_table(rows, tmp_path / "old.parquet")
    schema = rows.schema.append(pa.field("w", pa.int64()))
    wanted = TimeRange("start", 1_000_000, 5_000_000)
    [found] = wanted.read(open_file_system(str(tmp_path), {}), [DataFile("old.parquet", 1)], schema)
    assert found.to_pylist() == [{"start": at(5), "v": 2, "w": None}]


def test_a_table_that_is_only_appended_to_is_not_given_to_delta_rs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("state.delta.write.change.REWRITTEN_ROWS_MAX", -1)
    closed, place = (
        DeltaMapState(tmp_path / "t", "page string, start timestamp", "count long"),
        Place("delta-rs", tmp_path),
    )
    closed.open("topology/closed", place.txids.__getitem__)
    for txid in range(1, 7):
        closed.merge(place.attempt(txid, txid), counts(("a", txid), ("b", txid)))
        assert len(DeltaTable(closed.location.uri).file_uris()) == txid, "no file was written again"
    assert len(content(closed)) == 12


# --- what lies by time ----------------------------------------------------------------------------------------------


def times_of_files(state: Any) -> list[list[int]]:
    """The times that each file of the table has, in order."""
    files = [parquet.read_table(uri, columns=["start"]) for uri in DeltaTable(state.location.uri).file_uris()]
    return sorted(sorted(int(time.timestamp()) for time in file["start"].to_pylist()) for file in files)


def test_files_are_combined_with_those_beside_them_in_time(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    write_by_files(monkeypatch)
    state = opened(place)
    for txid, second in enumerate((30, 10, 31, 20, 11, 32, 21, 12), 1):
        merge(state, place, txid, None, ("a", second))
    before = content(state)
    for limit, value in {"COMPACTION_INTERVAL": 1, "FILES_MAX": 1, "TIME_ROWS": 4}.items():
        monkeypatch.setattr(f"state.delta.upkeep.merged_upkeep.{limit}", value)
    state.parts.maintenance.maintain(TxId(8), lambda: True)
    assert times_of_files(state) == [[10, 11, 12, 20], [21, 30, 31, 32]]
    assert content(state) == before
    assert content(state, 7) == {key: 1 for key in before if key != ("a", at(12))}


def test_large_files_and_those_with_nothing_beside_them_stay_as_they_are(tmp_path: Path) -> None:
    def file(greatest: int | None, rows: int) -> FileBounds:
        return FileBounds(rows, {} if greatest is None else {"start": Bounds(0, greatest)}, frozenset())

    known = {"a": file(5, 1), "b": file(None, 2), "c": file(3, 2), "d": file(4, 9), "e": file(2, 3), "f": file(6, 4)}
    columns = StateColumns(Schema.parse("start timestamp"), Schema.parse("count long"), {}, False, "start")
    files = [DataFile(name, 100 if name == "f" else 1) for name in known]
    runs = Footers(open_file_system(str(tmp_path), {}), columns, known).adjacent(files, 8, 150)
    assert [[each.name for each in run] for run in runs] == [["e", "c"]]
    runs = Footers(open_file_system(str(tmp_path), {}), columns, known).adjacent(files, 8, 1_000)
    assert [[each.name for each in run] for run in runs] == [["e", "c"], ["a", "f", "b"]]


def test_a_file_is_rewritten_for_what_has_expired_by_itself_and_once_it_is_half_of_it(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_by_files(monkeypatch)
    monkeypatch.setattr("state.delta.write.merging.REMOVAL_INTERVAL", 1)
    state = opened(place)
    merge(state, place, 1, None, ("a", 1), ("a", 2), ("a", 3), ("a", 4), ("a", 9))
    merge(state, place, 2, 1, ("a", 9))
    merge(state, place, 3, 2, ("a", 9))
    assert times_of_files(state) == [[1, 2, 3, 4], [9]], "one of four had expired for the transaction before"
    merge(state, place, 4, 2, ("a", 8), ("a", 9))
    assert times_of_files(state) == [[3, 4], [8], [9]]
    assert content(state) == {("a", at(3)): 1, ("a", at(4)): 1, ("a", at(8)): 1, ("a", at(9)): 4}
