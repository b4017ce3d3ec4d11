"""Canaries: what `transactional.runtime.spark.internals` calls behind PySpark's interface, in the JVM, is there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from transactional.runtime.spark.internals import (
    JvmFailed,
    SparkJobs,
    is_classic,
    is_running,
    log_level,
    map_in_arrow,
    temporary_folder,
)

pytestmark = pytest.mark.spark


def test_python_rdd_runs_a_job_and_hands_over_what_it_holds(spark: SparkSession) -> None:
    rdd = spark.sparkContext.parallelize(["a", "b", "c"], 2)
    collect = SparkJobs(spark.sparkContext).job(rdd)
    assert [collect(), collect()] == [["a", "b", "c"]] * 2, "PythonRDD.runJob no longer gives what RDD.collect does"


def test_a_job_that_fails_raises_an_error_that_says_why(spark: SparkSession) -> None:
    rdd = spark.sparkContext.parallelize([0], 1).map(lambda number: 1 // number)
    with pytest.raises((JvmFailed, PySparkException), match="ZeroDivisionError"):
        SparkJobs(spark.sparkContext).job(rdd)()


def test_the_listener_bus_can_be_waited_for(spark: SparkSession) -> None:
    context = spark.sparkContext
    context.setJobGroup("canary", "")
    jobs = SparkJobs(context)
    jobs.job(context.parallelize([1], 1))()
    jobs.wait_for_status()
    [job] = context.statusTracker().getJobIdsForGroup("canary")
    told = context.statusTracker().getJobInfo(job)
    assert told is not None
    assert told.status == "SUCCEEDED", "waitUntilEmpty no longer waits for the status tracker"


def test_pyspark_has_a_folder_of_its_own_for_temporary_files(spark: SparkSession) -> None:
    folder = temporary_folder(spark.sparkContext)
    assert folder.is_dir(), "SparkContext._temp_dir is no longer a folder"
    assert folder.name.startswith("pyspark-"), "SparkContext._temp_dir is no longer PySpark's own"


def test_log4j_shows_its_level(spark: SparkSession) -> None:
    before = log_level(spark.sparkContext)
    spark.sparkContext.setLogLevel("FATAL")
    try:
        assert log_level(spark.sparkContext) == "FATAL", "Spark's root logger is no longer log4j's"
    finally:
        spark.sparkContext.setLogLevel(before)


def test_map_in_arrow_takes_a_function_without_pandas(spark: SparkSession) -> None:
    def doubled(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pa.RecordBatch.from_pydict({"n": [2 * n for n in batch["n"].to_pylist()]})

    rows = map_in_arrow(spark.createDataFrame([(1,), (2,)], "n long"), doubled, "n long").toArrow()
    assert sorted(rows["n"].to_pylist()) == [2, 4], "Dataset.mapInArrow no longer takes these arguments"


def test_the_session_that_runs_is_found(spark: SparkSession) -> None:
    assert is_running()
    assert is_classic(spark)
