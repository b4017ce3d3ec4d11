"""Seed 004's picture on Spark and Delta: A, B (committer), C, D (committer), with C fed by both phases."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spouts import OpaqueMemoryTransactionalSpout
from state import DeltaMapState
from tests.integration.tables import counts, rows
from tests.unit.topology.test_phases import Passing, Splitting
from transactional import Topology, TopologyConfig, TransactionalTopologyBuilder, run_topology
from transactional.topology.stages import plan_stages

pytestmark = pytest.mark.spark

WORDS = [[("cat",), ("horse",)] * 6, [("dog",)] * 9]


def topology(folder: Path) -> Topology:
    spout = OpaqueMemoryTransactionalSpout(WORDS, "word string", 3)
    made = TransactionalTopologyBuilder("picture", "spout", spout, 2)
    made.set_bolt("A", Splitting(), 3).shuffle_grouping("spout")
    b_state = DeltaMapState(folder / "B", key=(), values="count long")
    made.set_committer_bolt("B", Passing("B"), 2, state=b_state).shuffle_grouping("A").partial_key_grouping(
        "A", "word", stream="short"
    )
    made.set_bolt("direct", Passing("C"), 3).direct_grouping("A", stream="chosen").all_grouping("B")
    d_state = DeltaMapState(folder / "D", key=(), values="count long")
    made.set_committer_bolt("D", Passing("D"), state=d_state).global_grouping("direct")
    made.set_committer_bolt("words", DeltaMapState(folder / "words", key="word").count()).fields_grouping(
        "direct", "word"
    )
    return made.build()


@pytest.mark.parametrize("master", ["spark", "none"])
def test_committers_in_the_middle(master: str, tmp_path: Path, spark: SparkSession) -> None:
    made = topology(tmp_path)
    plan = plan_stages(made)
    both = "processing + commit"
    assert [plan.phase_text(name) for name in plan.phases] == [
        "processing",
        "processing",
        both,
        both,
        "commit",
        "commit",
    ]
    summary = run_topology(
        made,
        store=f"sqlite:///{tmp_path}/store.db",
        config=TopologyConfig(max_spout_pending=2, stop_when_drained=True, attempts_max=2),
        session=spark if master == "spark" else None,
        master="none",
    )
    assert (summary.transactions, summary.failures) == (4, 0)
    assert rows(tmp_path / "B", "count") == [(21,)]
    assert rows(tmp_path / "D", "count") == [(126,)]
    times = {"cat": 6, "horse": 6, "dog": 9}
    direct = {f"{word} {task}>C": count for word, count in times.items() for task in range(3)}
    assert counts(tmp_path / "words", "word") == direct | {f"{word}>B>C": 3 * n for word, n in times.items()}
