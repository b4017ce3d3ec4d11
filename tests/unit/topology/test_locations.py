"""Two committers never keep one table, however its place is written, and nothing lies within a table's folder."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from spouts.memory import OpaqueMemoryTransactionalSpout
from state.delta.state import DeltaMapState
from state.delta.tables.table import catalog_table
from state.memory import MemoryMapState
from state.sql.state import SqlMapState
from transactional.core.store.sql.sql_store import SqlCoordinatorStore
from transactional.errors import ConfigError
from transactional.runtime.engine.driver import TopologyDriver
from transactional.runtime.engine.history.journal import JournalWriter
from transactional.runtime.executors.local import LocalExecutor
from transactional.topology.builder import TransactionalTopologyBuilder
from transactional.topology.locations import real_path
from transactional.topology.topology import Topology

AnyState = DeltaMapState | SqlMapState | MemoryMapState


def built(*states: AnyState, letters: AnyState | None = None) -> Topology:
    spout = OpaqueMemoryTransactionalSpout([[("a",)]], "word string", take=1)
    builder = TransactionalTopologyBuilder("words", "spout", spout)
    for number, state in enumerate(states):
        builder.set_committer_bolt(f"count-{number}", state.count()).fields_grouping("spout", "word")
    if letters is not None:
        builder.set_dead_letters(letters)
    return builder.build()


def delta(path: Path | str, key: str = "word") -> DeltaMapState:
    return DeltaMapState(path, key)


def sqlite(path: Path, table: str = "counts") -> SqlMapState:
    return SqlMapState(f"sqlite:///{path}", table, "word")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a link to it beside it."""
    (tmp_path / "tables").mkdir()
    os.symlink(tmp_path / "tables", tmp_path / "link")
    return tmp_path


SAME: dict[str, Callable[[Path], tuple[AnyState, AnyState]]] = {
    "dots": lambda at: (delta(at / "tables" / "t"), delta(f"{at}/tables/x/../t")),
    "link": lambda at: (delta(at / "tables" / "t"), delta(at / "link" / "t")),
    "uri": lambda at: (delta(at / "tables" / "t"), delta(f"file://{at}/link/t/")),
    "database": lambda at: (sqlite(at / "tables" / "db"), sqlite(at / "link" / "db")),
    "bucket": lambda at: (delta("s3://bucket/a/t"), delta("s3a://bucket/a//b/../t/")),
}


@pytest.mark.parametrize("way", SAME)
def test_two_committers_by_two_spellings_of_one_place_are_refused(folder: Path, way: str) -> None:
    with pytest.raises(ConfigError, match="committers 'count-0' and 'count-1' keep the same table"):
        built(*SAME[way](folder))


def test_two_tables_in_memory_without_a_name_are_two_and_one_is_one() -> None:
    first, second = MemoryMapState("word", "count long"), MemoryMapState("word", "count long")
    built(first, second)
    with pytest.raises(ConfigError, match="committers 'count-0' and 'count-1' keep the same table"):
        built(first, MemoryMapState("word", "count long", table=first.stored))


def test_two_tables_of_one_database_and_neighbours_are_fine(folder: Path) -> None:
    places: list[AnyState] = [
        sqlite(folder / "db", "a"),
        sqlite(folder / "db", "b"),
        delta(folder / "t"),
        delta(folder / "t2"),
    ]
    topology = built(*places, DeltaMapState(catalog_table("t.u"), "word"))
    with closing(JournalWriter(folder / "t2.journal")) as journal:
        driver_of(topology, folder / "t.db", journal)


WITHIN: dict[str, Callable[[Path], tuple[AnyState, AnyState]]] = {
    "table": lambda at: (delta(at / "tables"), delta(at / "tables" / "t")),
    "link": lambda at: (delta(at / "link" / "deeper" / "t"), delta(at / "tables")),
    "database": lambda at: (delta(at / "tables"), sqlite(at / "tables" / "states.db")),
    "bucket": lambda at: (delta("s3://bucket/a"), delta("s3a://bucket/a/t")),
}


@pytest.mark.parametrize("way", WITHIN)
def test_a_state_within_the_folder_of_a_table_is_refused_when_it_is_built(folder: Path, way: str) -> None:
    with pytest.raises(ConfigError, match=r"committer 'count-\d' is at .*, inside the folder of the Delta table"):
        built(*WITHIN[way](folder))


def driver_of(topology: Topology, store: Path, *observers: JournalWriter) -> None:
    coordinator_store = SqlCoordinatorStore(f"sqlite:///{store}")
    TopologyDriver(topology, coordinator_store, LocalExecutor(topology), observers=observers)


def test_a_store_or_journal_within_the_folder_of_a_table_is_refused_when_it_is_started(folder: Path) -> None:
    topology = built(delta(folder / "tables"))
    with pytest.raises(ConfigError, match=r"the coordinator's store is at .*, inside the folder of the"):
        driver_of(topology, folder / "link" / "store.db")
    with (
        closing(JournalWriter(folder / "link" / "journal")) as journal,
        pytest.raises(ConfigError, match=r"the journal, is at .*put it beside the folder"),
    ):
        driver_of(topology, folder / "store.db", journal)


def test_a_place_on_one_s_own_drive_is_no_uri() -> None:
    assert real_path("C:/tables/t").endswith("C:/tables/t")
