"""`as_of`: a `with` block, or what a cell of a notebook shows."""

from __future__ import annotations

import gc
from contextlib import closing, suppress
from pathlib import Path

import pytest

from sinks import DeltaSink
from spouts import MemoryTransactionalSpout
from state.delta.state import DeltaMapState
from tests.unit.operations.queries.words import run, word_count
from transactional import TopologyConfig, run_topology
from transactional.core.store.sql.sql_store import SqlCoordinatorStore
from transactional.errors import ConfigError, OperatingError
from transactional.model.attempt import TxId
from transactional.operations.queries import sink_tables
from transactional.operations.queries.showing import ROWS_MAX
from transactional.operations.queries.sink_tables import SinkTables
from transactional.queries import as_of
from transactional.runtime.engine.rewinding import rewind
from transactional.topology.topology import Topology
from transactional.trident import Count, TridentTopology

FIELDS = "id string, n long"
Place = tuple[Topology, str]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """A topology that has run for two transactions, and its store."""
    words, sizes = DeltaMapState(tmp_path / "words"), DeltaMapState(tmp_path / "sizes")
    topology = word_count(words, sizes, [[("the", 3), ("dog", 3)], [("the", 3), ("cat", 3)]])
    url = f"sqlite:///{tmp_path}/store.db"
    store = SqlCoordinatorStore(url)
    run(topology, store)
    store.close()
    return topology, url


def test_a_block_has_the_tables_and_closes_them(place: Place) -> None:
    reading = as_of(*place, txid=1)
    for _ in range(2):
        with reading as snapshot:
            assert snapshot.txid == 1
            assert sorted(snapshot["words"].column("word").to_pylist()) == ["dog", "the"]


def test_a_cell_shows_every_table_as_of_a_transaction(place: Place) -> None:
    view = as_of(*place, txid=1)._repr_mimebundle_(include=None, exclude=None)
    assert [line for line in view["text/plain"].splitlines() if " as of " in line] == [
        *("words as of transaction 1: 2 rows", "sizes as of transaction 1: 1 row")
    ]
    assert "<td>dog</td><td>1</td>" in view["text/html"]
    newest = as_of(*place)._repr_mimebundle_()
    assert "words as of transaction 2: 3 rows" in newest["text/plain"]
    gc.collect()


def test_the_first_rows_are_shown_of_a_large_table(tmp_path: Path) -> None:
    words, sizes = DeltaMapState(tmp_path / "words"), DeltaMapState(tmp_path / "sizes")
    topology = word_count(words, sizes, [[(f"w{n}", 1) for n in range(ROWS_MAX + 3)]], take=99)
    with as_of(topology, run(topology)) as snapshot:
        lines = snapshot._repr_mimebundle_()["text/plain"].splitlines()
    assert lines[0] == "words as of transaction 1: 23 rows, the first 20 are shown"
    assert len(lines) == 1 + 1 + ROWS_MAX + 3


def test_what_can_not_be_read_is_raised_where_it_is_entered(place: Place) -> None:
    with pytest.raises(ConfigError, match="can't be read as of 9"), as_of(*place, txid=9):
        pass
    with pytest.raises(ConfigError, match="can't be read as of 9"):
        as_of(*place, txid=9)._repr_mimebundle_()


@pytest.fixture
def landing(tmp_path: Path) -> Place:
    """A topology with a state and a sink that has run for three transactions, and its store."""
    topology = TridentTopology("landing")
    stream = topology.new_stream("rows", MemoryTransactionalSpout([[("a", 1), ("b", 2), ("c", 3)]], FIELDS, take=1))
    stream.sink_to(DeltaSink(tmp_path / "events", partition_by=["id"]), name="raw")
    stream.group_by("id").persistent_aggregate(DeltaMapState(tmp_path / "counts"), Count(), name="counts")
    built, url = topology.build(), f"sqlite:///{tmp_path}/store.db"
    run_topology(built, store=url, config=TopologyConfig(stop_when_drained=True), master="none")
    return built, url


def test_the_table_of_a_sink_is_read_once_it_is_published(landing: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    with as_of(*landing, txid=2) as snapshot:
        assert sorted(snapshot["raw"].to_pylist(), key=str) == [
            *({"id": "a", "n": 1, "txid": 1}, {"id": "b", "n": 2, "txid": 2})
        ]
        assert {name: table.num_rows for name, table in snapshot.items()} == {"counts": 2, "raw": 2}
    monkeypatch.setattr(sink_tables, "WAIT_S", 0.0)
    monkeypatch.setattr(SinkTables, "_read_done", lambda *_: 2)
    with as_of(*landing) as snapshot, pytest.raises(OperatingError, match="has published transactions up to 2 only"):
        snapshot["raw"]


@pytest.mark.long("a topology runs twice")
@pytest.mark.parametrize("ends", ["in progress", "finished", "followed by a run"])
def test_the_table_of_a_sink_is_not_read_while_it_goes_back(
    landing: Place, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    topology, url = landing
    with as_of(topology, url) as snapshot, as_of(topology, url, txid=1) as earlier:
        with closing(SqlCoordinatorStore(url)) as store, monkeypatch.context() as patched:
            if ends == "in progress":
                patched.setattr(SqlCoordinatorStore, "finish_rewind", interrupt)
            with suppress(InterruptedError):
                rewind(topology, store, TxId(1), owner="test")
        if ends == "followed by a run":
            run_topology(topology, store=url, config=TopologyConfig(stop_when_drained=True), master="none")
        monkeypatch.setattr(SinkTables, "_read_done", lambda *_: 3)  # as it was when the wait was over
        with pytest.raises(OperatingError, match="transaction 3 of topology 'landing' was taken back, or is being"):
            snapshot["raw"]
        if ends != "in progress":
            assert earlier["raw"].num_rows == 1


def interrupt(*_: object) -> None:
    raise InterruptedError
