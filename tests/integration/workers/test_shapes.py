"""Topologies of every shape, processed here, in workers, on Spark, and by turns: rows, digests and letters are the
same, byte for byte."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tests.proof.effects import Effects
from tests.proof.shapes import SHAPES, TAKE, Setting, build
from transactional import TopologyConfig
from transactional.core.ports import JobExecutor
from transactional.runtime.engine.clock import SystemClock
from transactional.runtime.engine.driver import TopologyDriver
from transactional.runtime.executors.auto.choice import ExecutorChoice, ExecutorChooser
from transactional.runtime.executors.auto.executor import GearedExecutor
from transactional.runtime.executors.local import LocalExecutor
from transactional.runtime.executors.workers.executor import WorkerExecutor
from transactional.testing import MemoryCoordinatorStore
from transactional.topology.topology import Topology

Make = Callable[[Topology], JobExecutor]


class Noon(SystemClock):
    """The time of day stands still, so that two runs have the same facts."""

    def wall_ms(self) -> int:
        return 1_588_334_400_000


class Drawn(ExecutorChooser):
    """Draws a place for each attempt."""

    draw = random.Random(5)

    def choose(self, records: int) -> ExecutorChoice:
        return ExecutorChoice(self.draw.random() < 0.5, "drawn")


def in_workers(topology: Topology) -> WorkerExecutor:
    return WorkerExecutor(topology, processes=2)


def made(setting: Setting, folder: Path, make: Make) -> dict[str, Any]:
    """All rows of its tables after a run, and the digests and exclusions of its batches."""
    folder.mkdir()
    topology, store = build(setting, folder, Effects(), take=TAKE), MemoryCoordinatorStore()
    config = TopologyConfig(
        stop_when_drained=True, max_spout_pending=setting.pending, attempts_max=3, retry_pause_ms=1, commit_steps="jobs"
    )
    TopologyDriver(topology, store, make(topology), config, clock=Noon()).run()
    records = store.attempts(topology.id, limit=1_000)
    batches = [record.batch for record in records if record.committed_at_ms is not None]
    found: dict[str, Any] = {
        "digests": [sorted(map(repr, batch.digests.items())) for batch in batches],
        "excluded": [sorted(each.key for each in batch.excluded) for batch in batches],
    }
    for committer in build(setting, folder, Effects(), take=TAKE).committers:
        state: Any = committer.state
        found[committer.id] = sorted(map(repr, state.read().to_pylist()))
    if (letters := folder / "letters").exists():
        rows = pa.table(DeltaTable(str(letters)).to_pyarrow_table()).select(LETTER)
        found["letters"] = sorted(map(repr, rows.to_pylist()))
    return found


LETTER = ["transaction", "number", "component", "source", "stream", "tuple", "tried_again_in"]
"""Which tuples were set aside; their errors have the paths of a process."""
SETTINGS = [
    Setting(shape, bool(number % 2), 3, "staged" if number % 4 < 2 else "merge") for number, shape in enumerate(SHAPES)
]


@pytest.mark.spark
@pytest.mark.sampled(4)
@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_wherever_it_is_processed_the_same_is_made(tmp_path: Path, setting: Setting, spark: Any) -> None:
    from transactional.runtime.executors.spark.executor import SparkExecutor

    def by_turns(topology: Topology) -> JobExecutor:
        return GearedExecutor(in_workers(topology), SparkExecutor(topology, spark), Drawn(2))

    ways: dict[str, Make] = {
        "here": LocalExecutor,
        "workers": in_workers,
        "Spark": lambda topology: SparkExecutor(topology, spark),
        "turns": by_turns,
    }
    found = {name: made(setting, tmp_path / name, make) for name, make in ways.items()}
    assert found["workers"] == found["here"]
    assert found["Spark"] == found["here"]
    assert found["turns"] == found["here"]
    assert any(found["here"][name] for name in found["here"] if name not in ("digests", "excluded"))
