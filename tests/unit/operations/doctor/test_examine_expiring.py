"""The doctor on tables whose rows expire: as they are declared, and otherwise."""

from __future__ import annotations

from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from spouts.memory import MemoryTransactionalSpout
from state import DeltaMapState, SqlMapState
from transactional import Topology, TransactionalTopologyBuilder, run_topology
from transactional.core.ports.examining import Problem
from transactional.errors import SchemaMismatch
from transactional.model.aggregates import Count, Max
from transactional.operations.doctor.examine import examine
from transactional.operations.loading import open_for_reading

ROWS = [("a", datetime(2099, 1, 1, tzinfo=UTC)), ("b", datetime(2020, 1, 1, tzinfo=UTC)), ("a", None)]
LAYOUTS = ("merge", "log", "sqlite")


def topology_of(layout: str, folder: Path, **goes: Any) -> Topology:
    """Counts of words."""
    spout = MemoryTransactionalSpout([ROWS], "word string, at timestamp", take=1)
    builder = TransactionalTopologyBuilder("words", "spout", spout)
    state: DeltaMapState | SqlMapState
    if layout == "sqlite":
        state = SqlMapState(f"sqlite:///{folder}/states.db", "counts", **goes)
    else:
        state = DeltaMapState(folder / "counts", layout=layout, **goes)
    update = state.aggregate(count=Count(), at=Max("at")).group_by("word")
    builder.set_committer_bolt("count", update).fields_grouping("spout", "word")
    return builder.build()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_table_that_is_declared_without_its_expiry_is_what_a_start_says(layout: str, tmp_path: Path) -> None:
    store, goes = f"sqlite:///{tmp_path}/store.db", {"expires": "at", "after": "1 day"}
    right, wrong = topology_of(layout, tmp_path, **goes), topology_of(layout, tmp_path)
    run_topology(right, store=store, config={"stop_when_drained": True}, master="none")
    with closing(open_for_reading(store)) as reader:
        assert examine(right, reader, store) == []
        [found] = examine(wrong, reader, store)
    assert found.problem is Problem.TABLE_FOREIGN
    with pytest.raises(SchemaMismatch) as refused:
        run_topology(wrong, store=store, config={"stop_when_drained": True}, master="none")
    assert "rows that expire by the column 'at'" in found.what
    assert found.what in str(refused.value)
