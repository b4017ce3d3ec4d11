"""Staged files on Spark: its tasks write them, its readers read them, its VACUUM leaves them alone; and the check that
executors see the folder of the table."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark import TaskContext
from pyspark.sql import SparkSession

from spouts import MemoryTransactionalSpout
from state.delta.segments.log_layout import LogLayout, full_compaction
from state.delta.state import DeltaMapState
from state.delta.tables.staging import STAGED_FOLDER, FileStager
from state.delta.upkeep.background_compaction import CompactionTask, WrittenCompaction, compaction_task
from state.delta.upkeep.segment_upkeep import SegmentUpkeep
from state.delta.upkeep.spark_compaction import write_by_spark
from state.fence import WriteRefused
from state.rows.python_rows import rows_of
from tests.contract.states import OWNER, Place, content
from transactional.core.ports import Partials
from transactional.errors import ConfigError, OperatingError
from transactional.model.attempt import TxId
from transactional.model.config import TopologyConfig
from transactional.model.schema import Schema
from transactional.runtime.engine.driver import TopologyDriver
from transactional.runtime.executors.spark.cluster_check import check_folders
from transactional.runtime.executors.spark.executor import SparkExecutor
from transactional.runtime.spark.jobs import run_job
from transactional.testing import MemoryCoordinatorStore
from transactional.topology.builder import TransactionalTopologyBuilder

pytestmark = pytest.mark.spark
LINES = ["the cat saw the dog", "a cat a dog a"]
EXPECTED = Counter(" ".join(LINES).split(" "))


def counted(folder: Path, session: SparkSession) -> DeltaMapState:
    """Run a topology to its end; its state."""
    rows = [[(word,) for word in line.split(" ")] for line in LINES]
    builder = TransactionalTopologyBuilder("words", "lines", MemoryTransactionalSpout(rows, "word string", take=2), 2)
    layout = LogLayout(compact_after=None, staged_bytes=0)
    state = DeltaMapState(folder / "t", "word string", "count long", layout=layout)
    builder.set_committer_bolt("count", state.count()).fields_grouping("lines", "word")
    topology = builder.build()
    config = TopologyConfig(stop_when_drained=True, attempts_max=1)
    TopologyDriver(topology, MemoryCoordinatorStore(), SparkExecutor(topology, session), config).run()
    return state


def test_spark_writes_reads_and_vacuums(tmp_path: Path, spark: SparkSession) -> None:
    state = counted(tmp_path, spark)
    live = set(pa.table(DeltaTable(state.location.uri).get_add_actions())["path"].to_pylist())
    there = {f"{STAGED_FOLDER}/{name}" for name in os.listdir(tmp_path / "t" / STAGED_FOLDER)}
    assert live == there, "each Spark task has written a file, and the marks of the check are gone"
    assert len(live) >= 4
    assert content(state) == EXPECTED
    table = f"delta.`{state.location.uri}`"
    others = spark.newSession()
    others.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
    # It lists a folder in so many tasks.
    others.conf.set("spark.sql.sources.parallelPartitionDiscovery.parallelism", "2")
    others.sql(f"VACUUM {table} RETAIN 0 HOURS").toArrow()
    assert {f"{STAGED_FOLDER}/{name}" for name in os.listdir(tmp_path / "t" / STAGED_FOLDER)} == there
    [raw] = rows_of(spark.sql(f"SELECT sum(`count`), count(*), max(`count`) FROM {table}").toArrow())
    rows = DeltaTable(state.location.uri).to_pyarrow_dataset().to_table()
    assert raw == (EXPECTED.total(), rows.num_rows, max(rows["count"].to_pylist()))
    assert dict(rows_of(spark.sql(state.view(table)).toArrow())) == EXPECTED


class Elsewhere(FileStager):
    """Executors have another folder in the place of the driver's."""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return FileStager, (self.folder.with_name("of executors"), self.owner, self.columns)


def test_executors_that_do_not_see_the_folder_are_one_clear_line(tmp_path: Path, spark: SparkSession) -> None:
    columns = Schema.parse("word string, count long")
    check_folders(spark.sparkContext, {"count": FileStager(tmp_path / "t", "words/count", columns)})
    (tmp_path / "of executors" / STAGED_FOLDER).mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"an executor on .* does not see mark-.*every executor mou"):
        check_folders(spark.sparkContext, {"count": Elsewhere(tmp_path / "t", "words/count", columns)})
    assert os.listdir(tmp_path / "t" / STAGED_FOLDER) == os.listdir(tmp_path / "of executors" / STAGED_FOLDER) == []


def test_spark_compactions_and_the_driver_commits(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("state.delta.upkeep.background_compaction.BACKGROUND_ROWS", 0)
    monkeypatch.setattr("state.delta.upkeep.compaction_writers.SPARK_ROWS", 0)
    monkeypatch.setattr("state.delta.segments.shares.SHARE_ROWS", 4)
    jobs = list[CompactionTask]()

    def job(task: CompactionTask) -> WrittenCompaction:
        jobs.append(task)
        return write_by_spark(task)

    monkeypatch.setattr("state.delta.upkeep.spark_compaction.write_by_spark", job)
    assert spark.version, "it is running, so compactions go there"
    place = Place("delta-rs/log", tmp_path)
    layout = LogLayout(compact_after=2, staged_bytes=0)
    combine = {"count": "sum", "most": "max", "least": "min", "total": "sum"}
    state = DeltaMapState(tmp_path / "t", "word string", VALUES, layout=layout)
    state.open(OWNER, place.txids.__getitem__)
    upkeep = state.open_table.upkeep
    assert isinstance(upkeep, SegmentUpkeep)
    for txid in range(1, 6):
        attempt = place.attempt(txid, txid)
        parts = [batch_of(txid, task) for task in range(2)]
        stager = state.parts.staging.stager(OWNER)
        assert stager is not None
        staged = [stager.stage(attempt, part) for part in parts]
        state.merge(attempt, Partials(combine, parts[0].slice(0, 0), staged))
        before = state.read().sort_by("word")
        state.parts.maintenance.maintain(TxId(txid), lambda: True)
        if upkeep.compactor.background._future is not None:
            assert upkeep.compactor.background._future.exception(timeout=240) is None
            state.parts.maintenance.maintain(TxId(txid), lambda: True)
        assert state.read().sort_by("word").equals(before)
    assert (upkeep.reader.compacted_txid, len(jobs)) == (4, 2)
    compacted = pa.table(DeltaTable(state.location.uri).get_add_actions()).to_pylist()
    made = [file for file in compacted if file["partition"]["txid"] == 4]
    assert len(made) > 1, "several of the seven shares have keys"
    assert all(file["path"].startswith(STAGED_FOLDER) and file["num_records"] for file in made)


def test_what_comes_in_the_way_of_a_share_is_one_line(tmp_path: Path, spark: SparkSession) -> None:
    state = counted(tmp_path, spark)
    state.open("words/count", lambda attempt_id: TxId(99))
    upkeep = state.open_table.upkeep
    assert isinstance(upkeep, SegmentUpkeep)
    stored = upkeep.compactor._stored
    compaction = full_compaction(stored.segments(), TxId(99))
    assert compaction is not None
    task = compaction_task(stored.loaded, {"count": "sum"}, compaction, stored.segments(), None)
    (Path(state.location.uri) / next(iter(stored.segments()[0].files))).unlink()
    with pytest.raises(WriteRefused, match=r"^[^\n]*No such file[^\n]*$"):
        write_by_spark(task)


def test_a_job_says_what_it_is_and_changes_nothing_for_its_thread(spark: SparkSession) -> None:
    context, properties = spark.sparkContext, ("spark.job.description", "spark.scheduler.pool")
    for name in properties:
        context.setLocalProperty(name, None)  # type: ignore[arg-type]  # others have worked in this thread
    context.setLocalProperty("spark.job.description", "mine")

    def describe(number: int) -> tuple[int, str | None]:
        task = TaskContext.get()
        assert task is not None
        return number, task.getLocalProperty("spark.job.description")

    assert run_job(describe, 3, "told") == [(0, "told"), (1, "told"), (2, "told")]
    assert [context.getLocalProperty(each) for each in properties] == ["mine", None]
    context.setLocalProperty("spark.job.description", None)  # type: ignore[arg-type]
    with pytest.raises(OperatingError, match=r"^a thing has failed as a Spark job: ZeroDivisionError: [\w ]*$"):
        run_job(lambda number: 1 // number, 1, "a thing")
    assert context.getLocalProperty("spark.job.description") is None


VALUES = "count long, most int, least string, total decimal(20,2)"


def batch_of(txid: int, task: int) -> pa.Table:
    """Three keys, one of them NULL, with values at which engines might differ."""
    return pa.table(
        {
            "word": ["cat", None, f"word {txid % 3}"],
            "count": pa.array([txid, task, 1], pa.int64()),
            "most": pa.array([-txid, None, task], pa.int32()),
            "least": ["ä", f"z{txid}", None],
            "total": pa.array([Decimal("1.25") * txid, None, Decimal(-1)], pa.decimal128(20, 2)),
        }
    )
