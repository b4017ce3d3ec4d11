"""The checker over a store in PostgreSQL: it reads the same as from SQLite."""

from __future__ import annotations

from pathlib import Path

import pytest

from spouts.memory import MemoryTransactionalSpout
from state.delta.state import DeltaMapState
from tests.integration.postgres import postgres_server, url_of
from transactional.operations.launch.running import run_topology
from transactional.topology.builder import TransactionalTopologyBuilder
from verifier.checker import CheckedTable, verify
from verifier.evidence.findings import CheckImpossible
from verifier.sinks.publications import check_sinks

pytestmark = pytest.mark.postgres


def test_a_history_in_postgresql_is_read_at_one_moment(tmp_path: Path) -> None:
    spout = MemoryTransactionalSpout([[("cat",), ("dog",), ("cat",)]], "word string", take=1)
    builder = TransactionalTopologyBuilder("words", "spout", spout)
    state = DeltaMapState(tmp_path / "count", "word")
    builder.set_committer_bolt("count", state.count()).fields_grouping("spout", "word")
    with postgres_server() as folder:
        url = url_of(folder)
        table = CheckedTable("count", str(tmp_path / "count"), counts="count")
        with pytest.raises(CheckImpossible, match="the store can't be read"):
            verify(url, "words", [table])
        run_topology(builder.build(), store=url, master="none", config={"stop_when_drained": True})
        report = verify(url, "words", [table])
        assert check_sinks(url, "words", []).findings == ()
    assert report.findings == ()
    assert report.checked["transactions"] == 3
