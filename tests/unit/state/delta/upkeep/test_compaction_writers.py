"""Who writes a large compaction: a thread of the driver, or Spark, and what happens where Spark can't."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from state.delta.segments.log_layout import Compaction
from state.delta.tables.table import DeltaLocation
from state.delta.upkeep.background_compaction import BACKGROUND_ROWS, CompactionTask, WrittenCompaction
from state.delta.upkeep.compaction_writers import PAUSE_COMPACTIONS_MAX, SPARK_ROWS, CompactionWriters, is_job
from state.fence import WriteRefused
from state.rows.columns import StateColumns
from transactional.model.attempt import TxId
from transactional.model.schema import Schema
from transactional.runtime.spark import jobs as spark_jobs

MASTERS = [
    ("local", True, [False, True]),
    ("local[2]", True, [False, True]),
    ("local[*,4]", False, [False, True]),
    ("local-cluster[2,1,1024]", True, [True, True]),
    ("spark://host:7077", True, [True, True]),
    # They may not see the table's folder at all.
    ("spark://host:7077", False, [False, False]),
]


def task_of(rows: int) -> CompactionTask:
    """A compaction of so many rows."""
    columns = StateColumns(Schema.parse("key long"), Schema.parse("count long"))
    compaction = Compaction(TxId(0), TxId(3), 3, rows)
    return CompactionTask(DeltaLocation("/t", {}), "owner", columns, {"count": "sum"}, compaction, None, {})


def on_spark(monkeypatch: pytest.MonkeyPatch, master: str) -> None:
    """As where Spark runs."""
    monkeypatch.setattr(spark_jobs, "running_context", lambda: SimpleNamespace(master=master))


@pytest.mark.parametrize(("master", "executors_write", "jobs"), MASTERS)
def test_the_drivers_memory_is_spared_where_executors_have_their_own(
    monkeypatch: pytest.MonkeyPatch, master: str, *, executors_write: bool, jobs: list[bool]
) -> None:
    on_spark(monkeypatch, master)
    tasks = [task_of(rows) for rows in (BACKGROUND_ROWS, SPARK_ROWS)]
    assert [is_job(each, executors_write=executors_write) for each in tasks] == jobs


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether jobs succeed, from the last one on; with executors that are processes of their own."""
    jobs = [False]

    def by_spark(task: CompactionTask) -> WrittenCompaction:
        if not jobs[-1]:
            raise WriteRefused("no such file", is_conflict=False)
        return BY_JOB

    on_spark(monkeypatch, "spark://host:7077")
    monkeypatch.setattr("state.delta.upkeep.spark_compaction.write_by_spark", by_spark)
    monkeypatch.setattr(CompactionTask, "write", lambda task: BY_DRIVER)
    return jobs


BY_JOB, BY_DRIVER = (WrittenCompaction(Compaction(TxId(0), TxId(3), 3, rows), frozenset(), ()) for rows in (1, 2))


def compact(writers: CompactionWriters) -> WrittenCompaction:
    return writers.writer_of(task_of(BACKGROUND_ROWS), executors_write=True)()


def test_what_does_not_succeed_as_a_job_the_driver_writes_and_says_so_each_time(
    jobs: list[bool], caplog: pytest.LogCaptureFixture
) -> None:
    writers = CompactionWriters()
    assert [compact(writers) for _ in range(20)] == [BY_DRIVER] * 20
    warned = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert len(warned) == len(caplog.records) == 5
    assert all("as a Spark job, the driver writes it" in each and each.endswith("no such file") for each in warned)


def test_what_others_have_rewritten_meanwhile_is_no_failure_of_jobs(
    jobs: list[bool], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def conflicting(task: CompactionTask) -> WrittenCompaction:
        raise WriteRefused("somebody has rewritten it", is_conflict=True)

    monkeypatch.setattr("state.delta.upkeep.spark_compaction.write_by_spark", conflicting)
    writers = CompactionWriters()
    assert (compact(writers), caplog.records) == (BY_DRIVER, [])


def test_a_job_that_fails_is_tried_again_less_and_less_often(
    jobs: list[bool], caplog: pytest.LogCaptureFixture
) -> None:
    writers, tried = CompactionWriters(), list[int]()
    for number in range(300):
        writer = writers.writer_of(task_of(BACKGROUND_ROWS), executors_write=True)
        if writer() is BY_DRIVER and getattr(writer, "func", None) == writers._by_spark:
            tried.append(number)
    assert tried == [0, 2, 5, 10, 19, 36, 69, 134, 199, 264]
    assert tried[-1] - tried[-2] == PAUSE_COMPACTIONS_MAX + 1
    jobs.append(True)
    assert BY_JOB in [compact(writers) for _ in range(PAUSE_COMPACTIONS_MAX + 1)]
    assert compact(writers) is BY_JOB
    caplog.clear()
    jobs.append(False)
    assert compact(writers) is BY_DRIVER
    assert compact(writers) is BY_DRIVER
    assert [record.levelname for record in caplog.records] == ["WARNING"]
