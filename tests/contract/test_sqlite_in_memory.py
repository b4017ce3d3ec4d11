"""`sqlite://`: a database in the memory of the process, for all who name it, in whatever thread."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from spouts.memory import MemoryTransactionalSpout
from state.sql.state import SqlMapState
from transactional.core.store.sql.sql_store import SqlCoordinatorStore
from transactional.errors import ConfigError
from transactional.operations.doctor.checked_tables import checked_tables
from transactional.operations.doctor.examine import unexamined
from transactional.operations.launch.running import run_topology
from transactional.operations.loading import open_existing_store
from transactional.topology.builder import TransactionalTopologyBuilder
from transactional.topology.topology import Topology
from verifier.checker import verify
from verifier.evidence.findings import CheckImpossible
from verifier.sql_tables import CheckedSqlTable

DRAINED = {"stop_when_drained": True}


def topology(url: str, words: list[str]) -> Topology:
    spout = MemoryTransactionalSpout([[(word,) for word in words]], "word string", take=1)
    builder = TransactionalTopologyBuilder("words", "spout", spout)
    builder.set_committer_bolt("count", SqlMapState(url, "counts", "word").count()).fields_grouping("spout", "word")
    return builder.build()


def counts(url: str) -> dict[str, int]:
    rows = SqlMapState(url, "counts", "word string", "count long").read().to_pylist()
    return {row["word"]: row["count"] for row in rows}


def test_store_and_state_live_as_long_as_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """As in a notebook: a cell that is run again goes on; nothing is left in the folder."""
    monkeypatch.chdir(tmp_path)
    url = f"sqlite://?name={request.node.name}"
    for words in (["cat", "dog"], ["cat", "dog", "cat"], ["cat", "dog", "cat"]):
        run_topology(topology(url, words), store=url, master="none", config=DRAINED)
    assert counts(url) == {"cat": 2, "dog": 1}
    with closing(SqlCoordinatorStore(url)) as store:
        assert store.status("words")[0].committed_txid == 3
    assert list(tmp_path.iterdir()) == []


def test_another_name_is_another_database(request: pytest.FixtureRequest) -> None:
    one, other = (f"sqlite://?name={request.node.name}-{number}" for number in range(2))
    run_topology(topology(one, ["cat"]), store=one, master="none", config=DRAINED)
    with closing(SqlCoordinatorStore(other)) as store:
        assert store.status() == []


def test_without_a_file_is_without_a_name_too() -> None:
    shown = {str(SqlMapState(url, "a", "word string", "n long")) for url in ("sqlite://", "sqlite:///:memory:")}
    assert shown == {"SqlMapState('a' in sqlite://)"}


def test_many_threads_take_turns(request: pytest.FixtureRequest) -> None:
    url = f"sqlite://?name={request.node.name}"
    run_topology(topology(url, ["cat"]), store=url, master="none", config=DRAINED)
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(lambda _: counts(url), range(100))) == [{"cat": 1}] * 100


def test_other_processes_and_the_checker_say_that_they_cannot_see_it(tmp_path: Path) -> None:
    for url in ("sqlite://", "sqlite:///:memory:", "sqlite://?name=here"):
        with pytest.raises(ConfigError, match="is in the memory of the process that uses it; name the file of a store"):
            open_existing_store(url)
    tables, unknown = checked_tables(topology("sqlite://", []))
    assert (tables, unknown) == ([], {"count": "the table of 'count' can't be read from here: it was not checked"})
    assert unexamined(topology("sqlite://", [])) == ["count"]
    store = f"sqlite:///{tmp_path}/store.db"
    run_topology(topology(f"sqlite://?name={tmp_path}", ["cat"]), store=store, master="none", config=DRAINED)
    with pytest.raises(CheckImpossible, match="a database of 'count' in memory is seen by its own process alone"):
        verify(store, "words", [CheckedSqlTable("count", "sqlite://", "counts")])
