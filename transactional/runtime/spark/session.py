"""Creates a `SparkSession` with settings for small, frequent batches. The settings of a user's session are not
changed."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import SparkSession

from transactional.model.errors import ConfigError
from transactional.runtime.spark.internals import is_classic, is_running, start_jvm
from transactional.runtime.spark.jars import JarSet, find_java

JVM_OPTIONS = (
    # A method is compiled by the optimizing compiler after ten times as many calls as usual, a loop as usual. A small
    # job runs thousands of Spark's methods a few times each; for minutes that compiler used more CPU time than all the
    # code that it compiled.
    "-XX:Tier4InvocationThreshold=50000",
    "-XX:Tier4MinInvocationThreshold=6000",
    "-XX:Tier4CompileThreshold=150000",
    # Spark takes 1 MiB for each task's result. In small regions that is a humongous object, for which G1 stops the JVM.
    "-XX:G1HeapRegionSize=4m",
    # G1 collects old regions from this occupancy on. Left to itself it lets the heap of many small jobs grow instead.
    "-XX:InitiatingHeapOccupancyPercent=20",
    "-XX:-G1UseAdaptiveIHOP",
)
"""Options of the driver's JVM. A JVM without HotSpot, or with another collector, ignores them."""
DELTA_JARS = JarSet("delta-4.4.0", Path(__file__).with_name("delta.lock"))


def spark_session(
    app_name: str = "transactional",
    *,
    master: str = "local[*]",
    parallelism: int = 2,
    conf: Mapping[str, str] | None = None,
    log: Path | None = None,
) -> SparkSession:
    """Return a classic SparkSession: the running one, with its own settings and `conf`, or a new one.

    In a new one `parallelism` sets the number of shuffle partitions, and `conf` overrides any of the defaults below.
    The output of its JVM is appended to `log`, or goes to stderr.

    Raises `ConfigError` for a Spark Connect session, which has no job tags and no RDDs, and if there is no Java.
    """
    # Executors would otherwise start whatever `python3` is on their path, and fail on imports.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder
    settings = dict(conf or {})
    if not is_running():
        find_java()  # PySpark would only report that its gateway has exited
        builder = builder.master(master).appName(app_name)
        settings = defaults(master, parallelism) | settings
        if sys.stderr.isatty():
            sys.stderr.write("starting Spark …\n")
        start_jvm(settings | {"spark.master": master, "spark.app.name": app_name}, log)
    for name, value in settings.items():
        builder = builder.config(name, value)
    return require_classic(builder.getOrCreate())


def require_classic(session: SparkSession) -> SparkSession:
    """Return the session. Raises `ConfigError` if it is a Spark Connect session."""
    if not is_classic(session):
        raise ConfigError(
            "this is a Spark Connect session; transactions need a classic one, for job tags and RDDs: "
            "SparkSession.builder.master(…) instead of .remote(…)"
        )
    return session


def _file(name: str) -> Path:
    return Path(__file__).with_name(name)


def defaults(master: str, parallelism: int) -> dict[str, str]:
    """Return the default settings of a new session."""
    # Paths that may contain a space. Java's options are split at spaces, so that one has to be a URL; Hadoop takes
    # "%20" literally, so the other has to be written as it is.
    logging, pools = _file("log4j2.properties").as_uri(), f"file://{_file('fairscheduler.xml')}"
    settings = {
        # Small fixed plans: replanning them at run time, or with 200 partitions, costs more than running them.
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.shuffle.partitions": str(parallelism),
        "spark.databricks.delta.snapshotPartitions": "2",
        # The commit pool has priority over the processing pool.
        "spark.scheduler.mode": "FAIR",
        "spark.scheduler.allocation.file": pools,
        # A second copy of a task would read the source, and call user code, twice at the same time.
        "spark.speculation": "false",
        # An aborted attempt counts as ended only once its tasks have ended.
        "spark.task.reaper.enabled": "true",
        # TCP with delayed ACKs adds some 40 ms to every Python task.
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.jars": ",".join(str(jar) for jar in DELTA_JARS.files()),
        # Each job broadcasts a few KiB of task code, and takes a whole block for it: with its 4 MiB G1 stopped the JVM
        # four times a second.
        "spark.broadcast.blockSize": "256k",
        "spark.ui.showConsoleProgress": "false",
        # Transactions are many and small: Spark's own notes of its last 1,000 jobs would fill the driver's memory.
        "spark.ui.retainedJobs": "200",
        "spark.ui.retainedStages": "200",
        "spark.ui.retainedTasks": "2000",
        "spark.sql.ui.retainedExecutions": "50",
        "spark.driver.extraJavaOptions": " ".join([*JVM_OPTIONS, f"-Dlog4j2.configurationFile={logging}"]),
    }
    if master.startswith("local") or "//127.0.0.1" in master or "//localhost" in master:
        settings |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    return settings
