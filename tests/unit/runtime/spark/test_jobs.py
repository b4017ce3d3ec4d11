"""Work as a Spark job where Spark is not there, or goes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JNetworkError
from pyspark.errors import PySparkException

from transactional.errors import OperatingError
from transactional.runtime.spark import jobs as spark_jobs
from transactional.runtime.spark.jobs import has_remote_executors, run_job


class Context:
    """Of a JVM whose calls raise."""

    def __init__(self, error: Exception, *, stops: bool = False) -> None:
        self.error, self.stops = error, stops
        self._jsc: Any = SimpleNamespace(sc=lambda: SimpleNamespace(isStopped=lambda: False))
        self.local: dict[str, Any] = {"spark.job.description": "mine"}

    def getLocalProperty(self, name: str) -> Any:  # noqa: N802 - as Spark has it
        return self.local.get(name)

    def setLocalProperty(self, name: str, value: Any) -> None:  # noqa: N802 - as Spark has it
        assert self._jsc is not None, "nothing answers any more"
        self.local[name] = value

    def parallelize(self, *_: object) -> Any:
        if self.stops:
            self._jsc = None
        raise self.error


PAGES = "An error occurred.\n: org.apache.spark.SparkException: Job aborted due to stage failure: x"
RAISED = f"{PAGES}\nTraceback (most recent call last):\n  a\n"


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (Py4JNetworkError("Answer from Java side is empty"), "Answer from Java side is empty"),
        (PySparkException(""), "PySparkException"),
        (PySparkException(PAGES), "Job aborted due to stage failure: x"),
        (
            PySparkException(f"{RAISED}ValueError: why\n at b"),
            "ValueError: why",
        ),
        (
            PySparkException(f"{RAISED}Exception: why\n at b"),
            "Exception: why",
        ),
    ],
)
@pytest.mark.parametrize("stops", [False, True])
def test_what_comes_in_the_way_is_one_line(
    monkeypatch: pytest.MonkeyPatch, error: Exception, reason: str, *, stops: bool
) -> None:
    context = Context(error, stops=stops)
    monkeypatch.setattr(spark_jobs, "running_context", lambda: context)
    with pytest.raises(OperatingError) as raised:
        run_job(abs, 1, "a compaction")
    assert str(raised.value) == f"a compaction has failed as a Spark job: {reason}"
    assert context.local["spark.job.description"] == ("a compaction" if stops else "mine")


def test_spark_is_not_started_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark_jobs, "running_context", lambda: None)
    assert has_remote_executors() is None
    with pytest.raises(OperatingError, match=r"^a compaction: Spark has been stopped$"):
        run_job(abs, 1, "a compaction")


def test_threads_of_the_drivers_jvm_are_not_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    for master, apart in (("local[4]", False), ("local", False), ("local-cluster[2,1,1024]", True), ("yarn", True)):
        monkeypatch.setattr(spark_jobs, "running_context", lambda master=master: SimpleNamespace(master=master))
        assert has_remote_executors() is apart
