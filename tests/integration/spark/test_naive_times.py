"""Times without a time zone in every engine: bolts, DataFrames with `timestamp_ntz`, puts of the commit phase."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from pyspark.sql import DataFrame

from spouts import MemoryTransactionalSpout
from state import DeltaMapState
from tests.integration.tables import rows
from transactional import TopologyConfig, TransactionalTopologyBuilder, Tuple, run_topology
from transactional.bolts import BatchBolt
from transactional.errors import NaiveTime

NAIVE = datetime(2026, 7, 1, 12)  # noqa: DTZ001 - that is what this is about
PLACED = NAIVE.replace(tzinfo=ZoneInfo("Europe/Berlin"))


class Last(BatchBolt):
    """Keeps the last time, and when it was kept, which is no instant either."""

    def prepare(self, context: Any, collector: Any, attempt: Any) -> None:
        self.state, self.last = context.state, None

    def execute(self, tuple: Tuple) -> None:
        self.last = tuple.at

    def finish_batch(self) -> None:
        self.state.put(NAIVE, self.last)


def without_zone(row: Tuple) -> tuple[datetime]:
    return (NAIVE,)


def as_ntz(batch: DataFrame) -> DataFrame:
    return batch.selectExpr("timestamp_ntz '2026-07-01 12:00:00' AS at")


def run(folder: Path, bolt: Any, naive_times: str | None, **where: Any) -> None:
    folder.mkdir()
    spout = MemoryTransactionalSpout([[(PLACED,)]], "at timestamp", take=2)
    builder = TransactionalTopologyBuilder("zones", "spout", spout, naive_times=naive_times)
    builder.set_bolt("it", bolt, output="at timestamp").shuffle_grouping("spout")
    state = DeltaMapState(folder / "last", key="at timestamp", values="seen timestamp")
    builder.set_committer_bolt("last", Last(), state=state).global_grouping("it")
    processing = where.pop("processing", "spark")
    config = TopologyConfig(stop_when_drained=True, attempts_max=1, processing=processing)
    run_topology(builder.build(), store=f"sqlite:///{folder}/store.db", config=config, **where)


@pytest.mark.parametrize(
    ("engine", "bolt"),
    [
        ("workers", without_zone),
        pytest.param("spark", without_zone, marks=pytest.mark.spark),
        pytest.param("spark", as_ntz, marks=pytest.mark.spark),
    ],
)
def test_times_without_a_zone(engine: str, bolt: Any, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    where = {"session": request.getfixturevalue("spark")} if engine == "spark" else {"processing": "workers"}
    with pytest.raises(NaiveTime, match="'it': field 'at'"):
        run(tmp_path / "refused", bolt, None, **where)
    run(tmp_path / "placed", bolt, "Europe/Berlin", **where)
    assert rows(tmp_path / "placed" / "last", "at", "seen") == [(PLACED, PLACED)]
