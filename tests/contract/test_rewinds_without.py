"""A table that was no part of its topology when that went back did not go back, and is not taken for one that did."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from spouts import MemoryTransactionalSpout
from state import SqlMapState
from tests.rewinding import contents, store_url
from transactional.core.ports import StateKind
from transactional.core.store.sql.sql_store import SqlCoordinatorStore
from transactional.errors import StoreMismatch
from transactional.model.attempt import TxId
from transactional.model.config import TopologyConfig
from transactional.runtime.engine.driver import TopologyDriver
from transactional.runtime.engine.rewinding import rewind
from transactional.runtime.executors.local import LocalExecutor
from transactional.topology.builder import TransactionalTopologyBuilder
from transactional.topology.topology import Topology

ROWS = [(word,) for word in "abcabdaceabfabcd"]


def build(folder: Path, rows: int, tables: str, take: int = 1) -> Topology:
    spout = MemoryTransactionalSpout([ROWS[:rows]], fields="word string", take=take)
    builder = TransactionalTopologyBuilder("rewound", "words", spout, parallelism=1)
    for name in tables:
        state = SqlMapState(f"sqlite:///{folder}/states.db", name, "word", kind=StateKind.TRANSACTIONAL)
        builder.set_committer_bolt(name, state.count()).fields_grouping("words", "word")
    return builder.build()


def run(topology: Topology, store: SqlCoordinatorStore) -> None:
    config = TopologyConfig(stop_when_drained=True, attempts_max=1, retry_pause_ms=1, idle_pause_ms=1, tick_ms=1)
    TopologyDriver(topology, store, LocalExecutor(topology), config, owner="runner", accept_changes=True).run()


def test_a_table_that_was_written_by_an_attempt_that_went_back_is_refused(tmp_path: Path) -> None:
    with closing(SqlCoordinatorStore(store_url(tmp_path))) as store:
        run(build(tmp_path, 10, "cd"), store)
        run(build(tmp_path, 10, "c"), store)
        rewind(build(tmp_path, 10, "c"), store, TxId(9), owner="rewinder")
        with pytest.raises(StoreMismatch, match=r"(?s)'d'.* at transaction 10 has written it last, which a rewind"):
            run(build(tmp_path, 16, "cd", take=7), store)
        run(build(tmp_path, 16, "c", take=7), store)
        assert contents(build(tmp_path, 16, "c")) == {"c": {word: ROWS.count((word,)) for word in "abcdef"}}
