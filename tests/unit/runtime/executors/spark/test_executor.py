"""The executor on Spark: what is reported of a job that did not succeed, and who stops Spark."""

from __future__ import annotations

from typing import Any

import pytest
from py4j.protocol import Py4JNetworkError

from spouts.memory import MemoryTransactionalSpout
from state.memory import MemoryMapState
from transactional import TransactionalTopologyBuilder
from transactional.errors import AttemptLost, SparkStopped, WorkerDied
from transactional.model.attempt import AttemptId, TransactionAttempt, TxId
from transactional.model.batch import EMPTY_BATCH
from transactional.runtime.executors.spark import executor as executors
from transactional.runtime.executors.spark import shared_session
from transactional.runtime.executors.spark.executor import SparkExecutor, _error_class, _first_lines
from transactional.runtime.executors.spark.shared_session import using_spark
from transactional.topology.topology import Topology

JOB = """\
An error occurred while calling z:org.apache.spark.api.python.PythonRDD.runJob.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 6.0 failed 1 times, most recent \
failure: Lost task 0.0 in stage 6.0 (TID 9) (127.0.0.2 executor 1): java.io.IOException: No space left on device
\tat java.base/sun.nio.ch.FileDispatcherImpl.write0(Native Method)

Driver stacktrace:
"""


def test_its_first_line_is_the_reason_not_the_call_of_the_gateway() -> None:
    first, *rest = _first_lines(Exception(JOB)).splitlines()
    assert first.startswith("org.apache.spark.SparkException: Job aborted")
    assert first.endswith("No space left on device")
    assert rest == ["Driver stacktrace:"]
    assert _first_lines(Exception("one line")) == "one line"


class Spark:
    """A session and its context; once stopped, calls fail as PySpark's do. `failure` is what a call into a JVM raises
    that has ended."""

    def __init__(self) -> None:
        self.failure: Exception | None = None
        self._jsc: Any = self

    @property
    def sparkContext(self) -> Any:  # noqa: N802 - as Spark has it
        return self

    def sc(self) -> Any:
        return self

    def isStopped(self) -> bool:  # noqa: N802 - as Spark has it
        if self.failure is not None:
            raise self.failure
        return False

    def setJobGroup(self, *_: object) -> None:  # noqa: N802 - as Spark has it
        self._jsc.isStopped()

    addJobTag = removeJobTag = cancelJobsWithTag = setLocalProperty = setJobGroup  # noqa: N815 - as Spark has it

    def statusTracker(self) -> Any:  # noqa: N802 - as Spark has it
        return self._jsc.statusTracker()

    def stop(self) -> None:
        self._jsc = None


@pytest.fixture
def running(monkeypatch: pytest.MonkeyPatch) -> list[Spark]:
    """The Spark of the process, if any: the last one that was started, unless it was stopped."""
    started = list[Spark]()
    monkeypatch.setattr(shared_session, "is_running", lambda: bool(started) and started[-1]._jsc is not None)
    return started


def session_of(running: list[Spark], given: Spark | None = None) -> Any:
    def start() -> Any:
        if not running or running[-1]._jsc is None:
            running.append(Spark())
        return running[-1]

    shown: Any = given
    return using_spark(shown, start)


def test_the_last_run_that_uses_a_spark_stops_it(running: list[Spark]) -> None:
    """Whichever of them has started it, and also where a run was given the session of another one."""
    first, second = session_of(running), session_of(running)
    with first as session:
        second.__enter__()
        with session_of(running, given=session) as third:
            assert third is session
    assert session._jsc is not None
    second.__exit__(None, None, None)
    assert session._jsc is None
    with session_of(running) as other:
        assert other is not session
    assert other._jsc is None
    assert not shared_session._users


def test_a_spark_that_somebody_else_has_started_goes_on(running: list[Spark]) -> None:
    running.append(mine := Spark())
    with session_of(running) as session, session_of(running, given=mine) as same:
        assert session is same is mine
    assert mine._jsc is not None


def test_a_spark_that_was_stopped_meanwhile_is_not_the_next_one(running: list[Spark]) -> None:
    with session_of(running) as stopped:
        stopped.stop()
        with session_of(running) as session:
            assert session is not stopped
        assert session._jsc is None
    assert not shared_session._users


@pytest.fixture
def topology() -> Topology:
    builder = TransactionalTopologyBuilder(
        "words", "spout", MemoryTransactionalSpout([[("a",)]], "word string", take=1)
    )
    builder.set_committer_bolt("count", MemoryMapState("word").count()).fields_grouping("spout", "word")
    return builder.build()


@pytest.mark.parametrize(
    "failure", [None, Py4JNetworkError("Answer from Java side is empty"), ConnectionRefusedError()]
)
def test_a_spark_that_is_stopped_under_a_run_ends_it(
    failure: Exception | None, topology: Topology, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was an AttributeError in each attempt, for ever."""
    monkeypatch.setattr(executors, "require_classic", lambda session: session)
    spark: Any = Spark()
    executor = SparkExecutor(topology, spark)
    executor.context = spark
    attempt = TransactionAttempt(TxId(1), AttemptId(7))
    executor._running[attempt] = "tag"
    if failure is None:
        spark.stop()
    spark.failure = failure
    executor.cancel(attempt)
    assert executor.count_progress(attempt) == 0
    with pytest.raises(SparkStopped, match=r"Spark of this process was stopped while topology 'words' ran on it, in"):
        executor.run(attempt, EMPTY_BATCH)


@pytest.mark.parametrize(
    ("reason", "error"),
    [
        ("org.apache.spark.SparkException: Python worker exited unexpectedly (crashed). Consider setting", WorkerDied),
        ("ExecutorLostFailure (executor 1 exited caused by one of the running tasks) Reason: code 137", WorkerDied),
        ("ExecutorLostFailure (executor 1 exited unrelated to the running tasks) Reason: decommissioned", AttemptLost),
        ("java.io.IOException: No space left on device", AttemptLost),
    ],
)
def test_a_process_that_dies_of_its_task_counts_as_an_attempt(reason: str, error: type[AttemptLost]) -> None:
    assert _error_class(Exception(JOB.replace("java.io.IOException: No space left on device", reason))) is error
