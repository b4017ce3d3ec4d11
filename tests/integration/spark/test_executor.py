"""Processing phases on a real Spark: what is cancelled is dead, all kinds of bolts work together, sessions are kept."""

from __future__ import annotations

import gc
import importlib
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession, functions

from spouts import MemoryTransactionalSpout, OpaqueMemoryTransactionalSpout
from state import DeltaMapState, MemoryMapState
from tests.contract.storages import wait_until
from tests.integration.signals import Gate
from tests.integration.spark.bolts import FailsOnce, HangsOnce, Lengths, Notes, twice
from tests.integration.tables import counts, rows
from transactional import (
    RunSummary,
    Topology,
    TopologyConfig,
    TransactionalTopologyBuilder,
    TransactionAttempt,
    Tuple,
    TxId,
    run_topology,
)
from transactional.bolts import Bolt
from transactional.core.ports import Processed
from transactional.errors import AttemptLost, ConfigError
from transactional.model.attempt import AttemptId
from transactional.model.batch import EMPTY_BATCH
from transactional.model.plumbing.garbage import OBJECTS_BETWEEN_COLLECTIONS
from transactional.runtime.executors.spark.executor import SparkExecutor
from transactional.runtime.executors.spark.results import ResultFile, ResultFiles, unpack
from transactional.runtime.spark.session import require_classic

pytestmark = pytest.mark.spark

WORDS = [
    [("cat",), ("dog",), ("chicken",), ("cat",), ("dog",), ("apple",)],
    [("cat",), ("dog",), ("apple",), ("banana",)],
    [("cat",)] * 5 + [("dog",)] * 4,
]
WORD_COUNTS = {"apple": 2, "banana": 1, "cat": 8, "chicken": 1, "dog": 7}


def builder(*, take: int = 3, parallelism: int = 2) -> TransactionalTopologyBuilder:
    spout = MemoryTransactionalSpout(WORDS, fields="word string", take=take)
    return TransactionalTopologyBuilder("words", "words", spout, parallelism)


def run(topology: Topology, folder: Path, spark: SparkSession) -> RunSummary:
    config = TopologyConfig(max_spout_pending=2, stop_when_drained=True, retry_pause_ms=1, attempts_max=3)
    return run_topology(topology, store=f"sqlite:///{folder}/store.db", config=config, session=spark)


class OneBolt:
    """A Spark executor for a topology of one bolt, which works on a batch of all words; with a thread to run it in."""

    def __init__(self, spark: SparkSession, bolt: Bolt, *, take: int = 9) -> None:
        topology_builder = builder(take=take)
        topology_builder.set_bolt("bolt", bolt, 2).shuffle_grouping("words")
        count = MemoryMapState("word").count()
        topology_builder.set_committer_bolt("count", count).shuffle_grouping("words")
        self.topology = topology_builder.build()
        self.executor = SparkExecutor(self.topology, spark)
        self.executor.open()
        self.threads = ThreadPoolExecutor(2)

    def start(self, attempt: TransactionAttempt) -> Future[Processed]:
        batch = self.topology.spout.plan(EMPTY_BATCH, replay=False)
        assert batch is not None
        return self.threads.submit(self.executor.run, attempt, batch)


FIRST = TransactionAttempt(TxId(1), AttemptId(1))
SECOND = TransactionAttempt(TxId(1), AttemptId(2))


def short_words(words: DataFrame) -> DataFrame:
    """Catalyst only."""
    return words.where(functions.length("word") < 6).groupBy("word").agg(functions.count("*").alias("times"))


def as_tuples(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


def test_dataframe_bolts_and_python_bolts_work_together(spark: SparkSession, tmp_path: Path) -> None:
    topology_builder = builder()
    topology_builder.set_bolt("twice", twice, 3, output="word string, n long").fields_grouping("words", "word")
    topology_builder.set_bolt("short", short_words, 2, output="word string, times long").shuffle_grouping("twice")
    topology_builder.set_bolt("pass", as_tuples, 2, output="word string, times long").shuffle_grouping("short")
    total = DeltaMapState(tmp_path / "total", key="word").sum("times")
    topology_builder.set_committer_bolt("total", total).fields_grouping("pass", "word")
    every = DeltaMapState(tmp_path / "every", key="word").sum("n")
    topology_builder.set_committer_bolt("every", every).shuffle_grouping("twice")

    summary = run(topology_builder.build(), tmp_path, spark)

    both = WORD_COUNTS | {word.upper(): count for word, count in WORD_COUNTS.items()}
    short = {word: count for word, count in both.items() if len(word) < 6}
    assert dict(rows(tmp_path / "total", "word", "sum_times")) == short
    assert dict(rows(tmp_path / "every", "word", "sum_n")) == both
    assert (summary.transactions, summary.failures) == (3, 0)


def test_a_dataframe_bolt_directly_behind_the_spout(spark: SparkSession, tmp_path: Path) -> None:
    topology_builder = builder()
    topology_builder.set_bolt("short", short_words, output="word string, times long").shuffle_grouping("words")
    total = DeltaMapState(tmp_path / "total", key="word").sum("times")
    topology_builder.set_committer_bolt("total", total).shuffle_grouping("short")
    run(topology_builder.build(), tmp_path, spark)
    short = {word: count for word, count in WORD_COUNTS.items() if len(word) < 6}
    assert dict(rows(tmp_path / "total", "word", "sum_times")) == short


def test_what_is_fanned_out_is_computed_once(spark: SparkSession, tmp_path: Path) -> None:
    file = tmp_path / "tasks"
    topology_builder = builder(take=9)
    topology_builder.set_bolt("notes", Notes(str(file)), 2).shuffle_grouping("words")
    topology_builder.set_bolt("short", short_words, 2, output="word string, times long").shuffle_grouping("notes")
    topology_builder.set_bolt("lengths", Lengths(), 3).fields_grouping("notes", "word")
    topology_builder.set_bolt("again", Notes(str(file)), 2).all_grouping("notes")
    for source, key in (("notes", "word"), ("short", "word"), ("lengths", "word"), ("again", "word")):
        count = DeltaMapState(tmp_path / source, key=key).count()
        topology_builder.set_committer_bolt(f"count-{source}", count).shuffle_grouping(source)

    assert run(topology_builder.build(), tmp_path, spark).transactions == 1

    tasks = [line.split() for line in file.read_text("utf-8").splitlines()]
    assert sorted((component, task) for component, _, task in tasks) == [
        ("again", "0"),
        ("again", "1"),
        ("notes", "0"),
        ("notes", "1"),
    ]
    assert counts(tmp_path / "notes", "word") == WORD_COUNTS
    assert counts(tmp_path / "again", "word") == {word: 2 * count for word, count in WORD_COUNTS.items()}
    assert counts(tmp_path / "lengths", "word") == {**WORD_COUNTS, "(rows)": 3}
    assert set(counts(tmp_path / "short", "word").values()) == {1}


def test_arrow_wise_bolts(spark: SparkSession, tmp_path: Path) -> None:
    topology_builder = builder()
    topology_builder.set_bolt("lengths", Lengths(), 2).shuffle_grouping("words")
    total = DeltaMapState(tmp_path / "total", key="word").sum("length")
    topology_builder.set_committer_bolt("total", total).shuffle_grouping("lengths")
    run(topology_builder.build(), tmp_path, spark)
    assert dict(rows(tmp_path / "total", "word", "sum_length")) == {
        **{word: len(word) * count for word, count in WORD_COUNTS.items()},
        "(rows)": 19,
    }


def test_an_attempt_that_hangs_is_given_up_and_tried_again(spark: SparkSession, tmp_path: Path, gate: Gate) -> None:
    topology_builder = builder()
    topology_builder.set_bolt("hangs", HangsOnce(gate.path), 2).shuffle_grouping("words")
    count = DeltaMapState(tmp_path / "count", key="word").count()
    topology_builder.set_committer_bolt("count", count).shuffle_grouping("hangs")
    config = TopologyConfig(stop_when_drained=True, attempt_timeout_ms=3_000)

    store = f"sqlite:///{tmp_path}/store.db"
    summary = run_topology(topology_builder.build(), store=store, config=config, session=spark)

    assert summary.transactions == 3
    assert summary.failures >= 1
    assert counts(tmp_path / "count", "word") == WORD_COUNTS


def worker(row: Tuple) -> tuple[str]:
    return (f"{row['word']} {os.getpid()}",)


def test_python_workers_are_used_again(spark: SparkSession, tmp_path: Path) -> None:
    topology_builder = builder(take=1)
    topology_builder.set_bolt("worker", worker, 2, output="word string").shuffle_grouping("words")
    topology_builder.set_bolt("again", worker, 2, output="word string").fields_grouping("worker", "word")
    count = DeltaMapState(tmp_path / "count", key="word").count()
    topology_builder.set_committer_bolt("count", count).shuffle_grouping("again")
    assert run(topology_builder.build(), tmp_path, spark).transactions == 9
    workers = {word.split()[number] for word in counts(tmp_path / "count", "word") for number in (1, 2)}
    # Two tasks run at once; a worker is free again only some time after its task has ended.
    assert len(workers) <= 6, "each of 36 tasks could have had a worker of its own"


@pytest.mark.parametrize("spout", [MemoryTransactionalSpout, OpaqueMemoryTransactionalSpout])
def test_a_failed_exception_fails_the_attempt_and_the_retry_counts_once(
    spark: SparkSession, tmp_path: Path, spout: type[MemoryTransactionalSpout]
) -> None:
    words = spout(WORDS, fields="word string", take=3)
    topology_builder = TransactionalTopologyBuilder("words", "words", words, 2)
    topology_builder.set_bolt("fails", FailsOnce(str(tmp_path / "flag")), 2).fields_grouping("words", "word")
    count = DeltaMapState(tmp_path / "count", key="word").count()
    topology_builder.set_committer_bolt("count", count).shuffle_grouping("fails")

    summary = run(topology_builder.build(), tmp_path, spark)

    assert (tmp_path / "flag").exists()
    assert (summary.transactions, summary.failures) == (3, 1)
    assert counts(tmp_path / "count", "word") == WORD_COUNTS


def counted(topology_id: str, folder: Path) -> Topology:
    spout = MemoryTransactionalSpout(WORDS, fields="word string", take=9)
    topology_builder = TransactionalTopologyBuilder(topology_id, "words", spout, 2)
    count = DeltaMapState(folder / topology_id, key="word").count()
    topology_builder.set_committer_bolt("count", count).shuffle_grouping("words")
    return topology_builder.build()


def test_a_session_that_is_given_is_used_and_left_running(spark: SparkSession, tmp_path: Path) -> None:
    spark.conf.set("spark.sql.shuffle.partitions", "7")
    run(counted("given", tmp_path), tmp_path, spark)
    assert spark.conf.get("spark.sql.shuffle.partitions") == "7"
    assert spark.range(3).count() == 3
    assert counts(tmp_path / "given", "word") == WORD_COUNTS
    spark.conf.set("spark.sql.shuffle.partitions", "2")


def test_a_session_that_runs_already_is_found_and_left_running(spark: SparkSession, tmp_path: Path) -> None:
    config = TopologyConfig(stop_when_drained=True)
    run_topology(counted("found", tmp_path), store=f"sqlite:///{tmp_path}/store.db", config=config, master="local[2]")
    assert spark.range(3).count() == 3
    assert spark.conf.get("spark.sql.shuffle.partitions") == "2"


def test_spark_connect_is_refused_by_name() -> None:
    class ConnectSession:
        """What a Spark Connect session looks like from here: it has no JVM."""

    with pytest.raises(ConfigError, match=r"Spark Connect session.*SparkSession\.builder\.master"):
        require_classic(ConnectSession())  # type: ignore[arg-type]


def test_the_workers_run_the_drivers_python(spark: SparkSession) -> None:
    import sys

    used = spark.sparkContext.parallelize([0], 1).map(lambda _: __import__("sys").executable).first()
    assert os.path.realpath(used) == os.path.realpath(sys.executable)


def test_workers_seldom_collect_garbage_and_never_what_they_have_loaded(spark: SparkSession, tmp_path: Path) -> None:
    topology_builder = builder()
    topology_builder.set_committer_bolt("count", MemoryMapState("word").count()).shuffle_grouping("words")
    run(topology_builder.build(), tmp_path, spark)
    told = spark.sparkContext.parallelize(range(2), 2).mapPartitions(
        lambda _: [(gc.get_freeze_count(), gc.get_threshold())]
    )
    frozen, thresholds = told.max()
    assert frozen > 10_000
    assert thresholds[0] == OBJECTS_BETWEEN_COLLECTIONS


def quick(row: Tuple) -> tuple[str]:
    return (row["word"],)


def slow(row: Tuple) -> tuple[str]:
    Event().wait(0.03)
    return (row["word"],)


def tasks_of_stage(executor: SparkExecutor, tag: str) -> int:
    """How many tasks the only stage of a job has, which Spark reports a moment later."""
    wait_until(lambda: bool(executor._stages(tag)))
    [stage] = executor._stages(tag)
    return int(stage.numTasks)


@pytest.mark.parametrize(("bolt", "spark_tasks"), [(quick, 1), (slow, 2)])
def test_batches_that_take_no_time_run_in_one_spark_task(
    spark: SparkSession, bolt: Callable[[Tuple], tuple[str]], spark_tasks: int
) -> None:
    spout = MemoryTransactionalSpout(WORDS, fields="word string", take=9)
    topology_builder = TransactionalTopologyBuilder(bolt.__name__, "words", spout, 2)
    topology_builder.set_bolt("bolt", bolt, 2, output="word string").local_or_shuffle_grouping("words")
    topology_builder.set_committer_bolt("count", MemoryMapState("word").count()).local_or_shuffle_grouping("bolt")
    topology = topology_builder.build()
    executor = SparkExecutor(topology, spark)
    executor.open()
    batch = topology.spout.plan(EMPTY_BATCH, replay=False)
    assert batch is not None
    found = []
    for number in range(1, 7):
        assert executor.run(TransactionAttempt(TxId(number), AttemptId(number)), batch).counts["bolt"] == 19
        found.append(tasks_of_stage(executor, f"transactional-{bolt.__name__}-{number}-{number}"))
    assert found[0] == 2
    # The first one may have had to start a worker.
    assert found[-2:] == [spark_tasks] * 2


class Sent:
    """Notes how tasks have sent what they had, and leaves no small results."""

    def __init__(self, patch: pytest.MonkeyPatch, executor: SparkExecutor) -> None:
        assert executor._results.folder is not None
        self.folder, self.ways = executor._results.folder, list[type]()
        executor._results = ResultFiles(self.folder, bytes_min=0)

        def noted(sent: list[bytes | ResultFile]) -> list[Any]:
            self.ways += map(type, sent)
            return unpack(sent)

        patch.setattr("transactional.runtime.executors.spark.executor.unpack", noted)


def test_what_tasks_send_by_files_arrives_and_the_files_go(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = OneBolt(spark, Lengths())
    sent = Sent(monkeypatch, one.executor)
    processed = one.start(FIRST).result(60)
    assert processed.counts["bolt"] == 19
    assert set(sent.ways) == {ResultFile}
    assert not list(sent.folder.iterdir())
    one.executor.close()
    assert not sent.folder.exists()
    assert spark.range(3).count() == 3


def test_nothing_is_left_of_an_attempt_that_is_lost(spark: SparkSession) -> None:
    executor = OneBolt(spark, Lengths()).executor
    folder = executor._results.folder
    results = ResultFiles(folder, bytes_min=0)
    others = results.pack(SECOND, ["of an attempt that goes on"])
    assert folder is not None
    assert isinstance(others, ResultFile)

    def lost() -> None:
        with executor._registered(FIRST, "attempt 1"):
            results.pack(FIRST, ["of a task that had ended before"])
            raise RuntimeError("an executor died")

    with pytest.raises(AttemptLost, match="an executor died"):
        lost()
    assert list(folder.iterdir()) == [others.path]


def test_executors_of_one_session_do_not_share_a_folder(spark: SparkSession) -> None:
    """Their transactions have the same numbers."""
    first, second = (OneBolt(spark, Lengths()).executor._results.folder for _ in range(2))
    assert first != second


def test_what_executors_elsewhere_send_goes_through_spark(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transactional.runtime.executors.spark.executor.has_remote_executors", lambda: True)
    assert OneBolt(spark, Lengths()).executor._results.folder is None


def known_to_the_driver(folder: Path, patch: pytest.MonkeyPatch, name: str, code: str) -> Any:
    """A module that this process can import, and Spark's workers can't."""
    (folder / f"{name}.py").write_text(code)
    with patch.context() as here:
        here.syspath_prepend(folder)
        module = importlib.import_module(name)
    (folder / f"{name}.py").rename(folder / f"{name}.gone.py")
    module.__file__ = str(folder / f"{name}.gone.py")
    return module


def of_one_bolt(bolt: Callable[[Tuple], Any], folder: Path) -> Topology:
    spout = MemoryTransactionalSpout(WORDS, fields="word string", take=3)
    made = TransactionalTopologyBuilder("unknown", "words", spout)
    made.set_bolt("same", bolt, output="word string").shuffle_grouping("words")
    state = DeltaMapState(folder / "counts", key="word")
    made.set_committer_bolt("count", state.count()).fields_grouping("same", "word")
    return made.build()


def test_modules_that_workers_can_not_import_are_sent_along(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known_to_the_driver(tmp_path, monkeypatch, "helpers_of_a_script", "def first(row):\n    return (row['word'],)\n")
    code = "import helpers_of_a_script\n\n\ndef same(row):\n    return helpers_of_a_script.first(row)\n"
    topology = of_one_bolt(known_to_the_driver(tmp_path, monkeypatch, "beside_a_script", code).same, tmp_path)
    assert run(topology, tmp_path, spark).failures == 0
    assert counts(tmp_path / "counts", "word") == WORD_COUNTS


def test_a_bolt_that_workers_can_not_load_is_reported_at_the_start(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else every attempt would fail, for ever."""
    code = "import threading\nLOCK = threading.Lock()\n\n\ndef same(row):\n    with LOCK:\n        return row\n"
    module = known_to_the_driver(tmp_path, monkeypatch, "known_to_the_driver", code)
    executor = SparkExecutor(of_one_bolt(module.same, tmp_path), spark)
    with pytest.raises(ConfigError, match="can't unpickle the topology's bolts: No module named 'known_to_the_driver'"):
        executor.open()
    executor.close()
