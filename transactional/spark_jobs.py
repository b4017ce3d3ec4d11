"""Runs an RDD as a Spark job and returns what it holds, with less around it than `RDD.collect` has.

Profiles of small jobs: `RDD.collect` takes over 4 ms of processor time to check Spark's own functions (its closure
cleaner reads the whole class file of `RDD`), to look its Java class up by name, and to find the caller for the web
interface. What runs there is the same job each time, and has a description already.
"""

from __future__ import annotations

from typing import Any

from pyspark import RDD, SparkContext
from pyspark.util import _load_from_socket


class JobRunner:
    """Collects RDDs of one Spark context. May be called from several threads."""

    def __init__(self, context: SparkContext) -> None:
        assert context._jvm is not None
        self._context = context._jsc.sc()
        # Looked up once: py4j asks the JVM for each part of such a name.
        self._run_job = context._jvm.PythonRDD.runJob
        self._new_list = context._jvm.java.util.ArrayList
        self._partitions: dict[int, Any] = {}

    def collect(self, rdd: RDD[Any]) -> list[Any]:
        """All items, in the order of partitions. Raises a `Py4JJavaError` when the job fails, as `RDD.collect` does."""
        served = self._run_job(self._context, rdd._jrdd, self._all(rdd.getNumPartitions()))
        with _load_from_socket(served, rdd._jrdd_deserializer) as items:
            return list(items)

    def _all(self, number: int) -> Any:
        """The numbers of all partitions, as a list that the JVM keeps."""
        kept = self._partitions.get(number)
        if kept is None:
            kept = self._new_list()
            for partition in range(number):
                kept.append(partition)
            self._partitions[number] = kept
        return kept
