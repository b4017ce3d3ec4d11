"""All uses of names of PySpark, and of Spark's JVM, that are not public.

An update of Spark may remove any of them. `tests/unit/runtime/spark/test_internals.py` and, for names of the JVM,
`tests/integration/spark/test_internals.py` say which one is missing. No other module of the project may use such a
name.
"""

from __future__ import annotations

import functools
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import IO, TYPE_CHECKING, Any

from py4j.protocol import Py4JError
from pyspark import RDD, SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.udf import UserDefinedFunction
from pyspark.util import PythonEvalType, _load_from_socket

from transactional.model.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa

JvmFailed = Py4JError
"""The error of a call into the JVM, also if the JVM has died."""
DAEMON = "pyspark.daemon"
"""The module that runs as `__main__` in a Python worker."""

_WARNING = "WARNING: Using incubator modules"
# A process of its own, so that the JVM's last output is still shown. It ends with the JVM. `-I -S`: it starts in 20 ms.
_PASS_ON = f"""
import sys
for line in sys.stdin.buffer:
    if not line.startswith({_WARNING.encode()!r}):
        sys.stderr.buffer.write(line)
        sys.stderr.buffer.flush()
"""


_launch: Callable[[SparkConf, dict[str, IO[bytes]]], Any] = launch_gateway  # it has no types of its own

# --- sessions ---------------------------------------------------------------------------------------------------


def start_jvm(settings: Mapping[str, str], log: Path | None = None) -> None:
    """Start the JVM of this process with Spark's settings, unless there is one. Its output goes to stderr, or is
    appended to `log`.

    It is started as PySpark does, but Java's warning about a module that Spark requires is filtered: it is printed
    before any option or logger could suppress it.
    """
    if SparkContext._gateway is not None:
        return
    conf = SparkConf()
    for name, value in settings.items():
        conf.set(name, value)
    if log is not None:
        with _open_log(log) as output:
            gateway = _launch(conf, {"stdout": output, "stderr": output})
        SparkContext._ensure_initialized(gateway=gateway)
        return
    # In a session of its own, so that Ctrl-C in a terminal does not end it, as it does not end the JVM.
    command = [sys.executable, "-I", "-S", "-c", _PASS_ON]
    filter_process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
    assert filter_process.stdin is not None
    with filter_process.stdin as jvm_output:  # afterwards the JVM alone holds that end
        gateway = _launch(conf, {"stderr": jvm_output})
    gateway.filter_process = filter_process  # it ends with the JVM
    SparkContext._ensure_initialized(gateway=gateway)


def _open_log(path: Path) -> IO[bytes]:
    try:
        return path.open("ab")
    except OSError as error:
        raise ConfigError(f"Spark's log {path} can't be written: {error.strerror}") from error


def is_running() -> bool:
    """Return whether this process has a Spark session."""
    return running_context() is not None


def running_context() -> SparkContext | None:
    """Return the Spark context of this process, or None if Spark is not running."""
    return SparkContext._active_spark_context


def is_stopped(context: SparkContext) -> bool:
    """Return whether a context was stopped or its JVM has ended, so that it does not answer any more."""
    try:
        return context._jsc is None or bool(context._jsc.sc().isStopped())
    except (JvmFailed, OSError):  # a new connection raises the system's error
        return True


def is_classic(session: SparkSession) -> bool:
    """Return whether a session is a classic one, not one of Spark Connect."""
    return hasattr(session, "_jsparkSession")


def log_level(context: SparkContext) -> str:
    """Return the level of Spark's logger, which PySpark can only set."""
    return str(_jvm(context).org.apache.logging.log4j.LogManager.getRootLogger().getLevel().toString())


def temporary_folder(context: SparkContext) -> Path:
    """Return PySpark's folder of temporary files, below `spark.local.dir`. The JVM deletes it when it ends, even if
    this process was killed."""
    return Path(context._temp_dir)


def _jvm(context: SparkContext) -> Any:
    assert context._jvm is not None
    return context._jvm


# --- jobs -------------------------------------------------------------------------------------------------------


class SparkJobs:
    """The jobs of one Spark context, with less around them than `RDD.collect` has. May be used from several threads.

    `RDD.collect` takes 2 to 3 ms of processor time more, by profiles of small jobs: to check Spark's own functions (its
    closure cleaner reads the whole class file of `RDD`), to look its Java class up by name, and to find the line that
    the web interface shows for a job. What runs here is the same job each time, and has a description already.
    """

    def __init__(self, context: SparkContext) -> None:
        self._context, jvm = context._jsc.sc(), _jvm(context)
        # Looked up once: py4j queries the JVM for each part of such a name.
        self._run_job, self._new_list = jvm.PythonRDD.runJob, jvm.java.util.ArrayList

    def job(self, rdd: RDD[Any]) -> Callable[[], list[Any]]:
        """Return a function that collects all elements of an RDD, in the order of partitions. It may be called
        repeatedly.

        If the job fails, a call raises a `PySparkException` or `JvmFailed`, as `RDD.collect` does.
        """
        java_rdd, serializer, partitions = rdd._jrdd, rdd._jrdd_deserializer, self._new_list()
        for number in range(rdd.getNumPartitions()):
            partitions.append(number)

        def run() -> list[Any]:
            with _load_from_socket(self._run_job(self._context, java_rdd, partitions), serializer) as items:
                return list(items)

        return run

    def wait_for_status(self) -> None:
        """Wait until the status tracker has processed all events."""
        self._context.listenerBus().waitUntilEmpty()


def map_in_arrow(
    frame: DataFrame, function: Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]], output: str
) -> DataFrame:
    """Return `frame.mapInArrow(function, output)`, which in PySpark 4.2 requires pandas without using it."""
    columns = [frame[column] for column in frame.columns]
    udf = UserDefinedFunction(
        function, returnType=output, name="map_in_arrow", evalType=PythonEvalType.SQL_MAP_ARROW_ITER_UDF
    )
    return DataFrame(frame._jdf.mapInArrow(udf(*columns)._jc, False, None), frame.sparkSession)


# --- workers ----------------------------------------------------------------------------------------------------


def silence_closed_pipes(daemon: ModuleType) -> None:
    """Have PySpark's daemon print tracebacks of everything but of a socket that the other side has closed."""

    def print_exc() -> None:
        if not isinstance(sys.exception(), BrokenPipeError | ConnectionResetError):
            traceback.print_exc()

    daemon.__dict__["traceback"] = SimpleNamespace(print_exc=print_exc, format_exc=traceback.format_exc)


@functools.cache
def end_quietly() -> None:
    """Once per process, at the start of its first task: makes it exit silently when Spark closes it.

    A worker that waits for its next task reports its exit to Spark, into a socket that Spark has already closed. With
    Unix domain sockets that fails at once, and PySpark's daemon printed a traceback for each worker that had been idle
    for a minute, and for some at the end of a run. Here and not in a custom daemon, so that it also works in a user's
    session, and workers need no package of ours before their first task.
    """
    daemon = sys.modules["__main__"]
    if getattr(daemon.__spec__, "name", None) == DAEMON:
        silence_closed_pipes(daemon)
