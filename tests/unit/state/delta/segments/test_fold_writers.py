"""Who writes a large fold: a thread of the driver, or Spark, and what happens where Spark can't."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from state.delta.segments.fold_writers import SPARK_ROWS, writer_of
from state.delta.segments.folding import Fold
from state.delta.segments.folds_apart import APART_ROWS, FoldTask, WrittenFold
from state.delta.tables.table import DeltaLocation
from state.delta.writing import spark
from state.fence import WriteRefused
from state.rows.columns import StateColumns
from transactional.attempt import TxId
from transactional.schema import Schema

MASTERS = [
    ("local", True, [False, True]),
    ("local[2]", True, [False, True]),
    ("local[*,4]", False, [False, True]),
    ("local-cluster[2,1,1024]", True, [True, True]),
    ("spark://host:7077", True, [True, True]),
    # They may not see the table's folder at all.
    ("spark://host:7077", False, [False, False]),
]


def task_of(rows: int) -> FoldTask:
    """A fold of so many rows."""
    columns = StateColumns(Schema.parse("key long"), Schema.parse("count long"))
    fold = Fold(TxId(0), TxId(3), 3, rows)
    return FoldTask(DeltaLocation("/t", {}), "owner", columns, {"count": "sum"}, fold, None, {})


def on_spark(monkeypatch: pytest.MonkeyPatch, master: str) -> None:
    """As where a session with Delta runs."""
    session = SimpleNamespace(sparkContext=SimpleNamespace(master=master))
    monkeypatch.setattr(spark, "is_running", lambda: True)
    monkeypatch.setattr(spark, "delta_session", lambda: session)


@pytest.mark.parametrize(("master", "executors_write", "jobs"), MASTERS)
def test_the_drivers_memory_is_spared_where_executors_have_their_own(
    monkeypatch: pytest.MonkeyPatch, master: str, *, executors_write: bool, jobs: list[bool]
) -> None:
    on_spark(monkeypatch, master)
    tasks = [task_of(rows) for rows in (APART_ROWS, SPARK_ROWS)]
    assert [writer_of(each, executors_write=executors_write) != each.write for each in tasks] == jobs


def test_what_does_not_succeed_as_a_job_the_driver_writes(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(task: FoldTask) -> WrittenFold:
        raise WriteRefused("no such file", is_conflict=False)

    written = WrittenFold(task_of(1).fold, frozenset(), ())
    on_spark(monkeypatch, "spark://host:7077")
    monkeypatch.setattr("state.delta.segments.spark_folds.write_by_spark", fails)
    monkeypatch.setattr(FoldTask, "write", lambda task: written)
    assert writer_of(task_of(APART_ROWS), executors_write=True)() is written
    assert "as a Spark job, the driver writes it: no such file" in caplog.text
