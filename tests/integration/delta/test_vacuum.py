"""Deleting old files: those of the table that the log has given up, and nothing else that lies in its folder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from state.delta.log.files import RETENTION_S, UNCOMMITTED_RETENTION_S, is_data_file, parse_retention_s
from state.delta.segments.log_layout import LogLayout
from state.delta.state import DeltaMapState
from state.delta.upkeep.table_upkeep import RetainedParts
from tests.contract.states import OWNER, Place, content, counts
from transactional.model.attempt import TxId
from transactional.runtime.engine.clock import SystemClock

RETENTION = "delta.deletedFileRetentionDuration"
YEAR_S = 365 * 86_400


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place("delta-rs", tmp_path)


def opened(place: Place, layout: str, retention: str = "interval 0 seconds") -> DeltaMapState:
    how = LogLayout(compact_after=2) if layout == "log" else layout
    properties = {RETENTION: retention, "delta.logRetentionDuration": "interval 1 hour"}
    words = DeltaMapState(place.folder / "t", "word string", "count long", layout=how, properties=properties)
    words.open(OWNER, place.txids.__getitem__)
    return words


def counted(words: DeltaMapState, place: Place, first: int, last: int) -> None:
    for txid in range(first, last + 1):
        words.merge(place.attempt(txid, txid), counts({"cat": 1}))
        words.parts.maintenance.maintain(TxId(txid), lambda: True)


def vacuum(words: DeltaMapState) -> None:
    words.open_table.loaded.refresh()
    words.open_table.upkeep.delete_old_files()


def aged(path: Path, age_s: float) -> Path:
    """The file, or all files in the folder, last written so long ago."""
    at_s = SystemClock().wall_ms() / 1000 - age_s
    for each in [path, *path.rglob("*")] if path.is_dir() else [path]:
        os.utime(each, (at_s, at_s))
    return path


def made(path: Path, age_s: float = YEAR_S) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x")
    return aged(path, age_s)


def data_file() -> str:
    return f"part-00000-{uuid4()}-c000.zstd.parquet"


def data_files(place: Place) -> set[Path]:
    return set((place.folder / "t").rglob("part-*.parquet"))


def live_files(place: Place) -> set[Path]:
    return {Path(uri) for uri in DeltaTable(str(place.folder / "t")).file_uris()}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("layout", ["merge", "log"])
class TestVacuum:
    def test_deletes_what_the_log_has_given_up(self, place: Place, layout: str) -> None:
        words = opened(place, layout)
        counted(words, place, 1, 8)
        assert data_files(place) > live_files(place)
        vacuum(words)
        assert data_files(place) == live_files(place)
        counted(words, place, 9, 9)
        assert content(words) == {"cat": 9}

    def test_keeps_what_was_given_up_for_as_long_as_the_table_says(self, place: Place, layout: str) -> None:
        words = opened(place, layout, "interval 1 hour")
        counted(words, place, 1, 8)
        before = {aged(path, YEAR_S) for path in data_files(place)}
        vacuum(words)
        assert data_files(place) == before > live_files(place)

    def test_goes_by_the_clock_of_the_storage(self, place: Place, layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """To the process, whose clock is a day ahead, all that was given up is old."""
        words, listed = opened(place, layout, "interval 1 hour"), DeltaTable.vacuum

        def a_day_ahead(table: DeltaTable, **named: Any) -> list[str]:
            return listed(table, retention_hours=0, enforce_retention_duration=False, **named)

        monkeypatch.setattr(DeltaTable, "vacuum", a_day_ahead)
        counted(words, place, 1, 8)
        before = data_files(place)
        vacuum(words)
        assert data_files(place) == before > live_files(place)

    def test_keeps_what_a_savepoint_needs(self, place: Place, layout: str) -> None:
        """For how long ever the log has given it up."""
        words = opened(place, layout)
        counted(words, place, 1, 8)
        given_up = sorted(data_files(place) - live_files(place))
        words.open_table.upkeep.retained = RetainedParts(
            paths=frozenset([str(given_up[0].relative_to(place.folder / "t"))])
        )
        vacuum(words)
        assert data_files(place) == {*live_files(place), given_up[0]}

    def test_keeps_what_is_not_the_table_s(self, place: Place, layout: str) -> None:
        words, folder = opened(place, layout), place.folder / "t"
        counted(words, place, 1, 3)
        write_deltalake(str(folder / "nested"), pa.table({"a": [1]}))
        write_deltalake(str(folder / "txid=99"), pa.table({"a": [1]}))
        write_deltalake(str(folder / "txid=98"), pa.table({"a": [1], "txid": [7]}), partition_by=["txid"])
        for name in ("nested", "txid=99", "txid=98"):
            aged(folder / name, YEAR_S)
        others = ["store.db", "store.db-wal", "journal", "mine.parquet", "x/part.parquet", f"x/{data_file()}"]
        kept = [made(folder / name) for name in others]
        vacuum(words)
        assert all(path.exists() for path in kept)
        for name in ("nested", "txid=99", "txid=98"):
            assert DeltaTable(str(folder / name)).to_pyarrow_dataset().count_rows() == 1
        assert content(words) == {"cat": 3}

    def test_keeps_for_a_day_what_somebody_may_be_about_to_commit(self, place: Place, layout: str) -> None:
        """Files of an OPTIMIZE that takes longer than removed files are kept."""
        words, folder = opened(place, layout), place.folder / "t"
        counted(words, place, 1, 3)
        in_flight = made(folder / data_file(), UNCOMMITTED_RETENTION_S - 600)
        left_behind = made(folder / data_file(), UNCOMMITTED_RETENTION_S + 600)
        vacuum(words)
        assert in_flight.exists()
        assert not left_behind.exists()

    def test_keeps_what_was_given_up_and_came_back(self, place: Place, layout: str) -> None:
        words = opened(place, layout)
        counted(words, place, 1, 3)
        removals = words.open_table.upkeep._removals
        removals.read_log(DeltaTable(str(place.folder / "t")).version())
        table = DeltaTable(str(place.folder / "t"))
        given_up = set(removals.removed_at_s)
        table.restore(2)
        removals.read_log(table.version())
        assert given_up - set(removals.removed_at_s), "what was restored is not given up any more"

    def test_knows_what_was_given_up_before_a_checkpoint(self, place: Place, layout: str) -> None:
        """Checkpoints forget it, and the log is cleaned behind them."""
        words = opened(place, layout)
        counted(words, place, 1, 3)
        words.open_table.upkeep._removals.read_log(words.open_table.loaded.delta_version)
        table = DeltaTable(str(place.folder / "t"))
        table.create_checkpoint()
        for version in range(table.version()):
            (place.folder / "t" / "_delta_log" / f"{version:020}.json").unlink()
        words.open_table.loaded.reload()
        vacuum(words)
        assert data_files(place) == live_files(place)


@pytest.mark.parametrize(
    ("path", "columns", "expected"),
    [
        ("part-00000-5e1b8c0e-6a4f-4e1c-9a0f-0f3c1d2b4a59-c000.snappy.parquet", [], True),
        ("part-00000-5e1b8c0e-6a4f-4e1c-9a0f-0f3c1d2b4a59.c000.zstd.parquet", [], True),
        ("part-00000-5e1b8c0e-6a4f-4e1c-9a0f-0f3c1d2b4a59.c000.zstd.parquet", ["txid"], True),
        ("txid=5/part-00001-5e1b8c0e-6a4f-4e1c-9a0f-0f3c1d2b4a59-c000.zstd.parquet", ["txid"], True),
        ("txid=5/part-00001-5e1b8c0e-6a4f-4e1c-9a0f-0f3c1d2b4a59-c000.zstd.parquet", [], False),
        ("other=5/part-00001-5e1b8c0e-6a4f-4e1c-9a0f-0f3c1d2b4a59-c000.zstd.parquet", ["txid"], False),
        ("a%20b=5/part-00001-5e1b8c0e-6a4f-4e1c-9a0f-0f3c1d2b4a59-c000.zstd.parquet", ["a b"], True),
        ("x/part-00001-5e1b8c0e-6a4f-4e1c-9a0f-0f3c1d2b4a59-c000.zstd.parquet", [], False),
        ("_delta_log/00000000000000000000.json", [], False),
        ("part-00000.parquet", [], False),
        ("store.db", [], False),
    ],
)
def test_data_files_are_known_by_name_and_folder(path: str, columns: list[str], *, expected: bool) -> None:
    assert is_data_file(path, columns) == expected


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("interval 30 minutes", 1_800),
        ("interval 1 week", 7 * 86_400),
        ("INTERVAL 2 DAYS", 2 * 86_400),
        ("1 hour", 3_600),
        ("interval 0 seconds", 0),
        ("", RETENTION_S),
        ("a while", RETENTION_S),
    ],
)
def test_how_long_a_table_keeps_files_is_read_from_its_property(text: str, seconds: float) -> None:
    assert parse_retention_s(text) == seconds
