"""A Spark standalone cluster on this machine: a master and one-core workers, none of them outliving the tests."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyspark

from tests.integration.programs import Program

_CLASSES = "org.apache.spark.deploy"
DISK_BYTES = 64 << 20
_LOGGING = """\
rootLogger.level = info
rootLogger.appenderRef.out.ref = out
appender.out.type = Console
appender.out.name = out
appender.out.target = SYSTEM_OUT
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n
"""


@dataclass(frozen=True, slots=True)
class Cluster:
    """A running cluster. `master` is its URL."""

    master: str


@contextmanager
def spark_cluster(folder: Path, *, hosts: Sequence[str] = ("127.0.0.1",) * 2) -> Iterator[Cluster]:
    """Start a cluster with a worker on each host, all of them this machine; wait until they are registered, and stop it
    at the end."""
    with ExitStack() as stack:
        master, url = start_master(folder)
        stack.enter_context(master)
        started = [stack.enter_context(start_worker(folder, url, host)) for host in hosts]
        for worker in started:
            worker.await_line("Successfully registered with master")
        yield Cluster(url)


def start_master(folder: Path) -> tuple[Program, str]:
    """A master, and its URL."""
    (folder / "log4j2.properties").write_text(_LOGGING, "utf-8")
    master = _start(folder, "master.Master", ["--port", "0"])
    return master, master.await_line(r"Starting Spark master at (spark://\S+)")[1]


def start_worker(
    folder: Path, master: str, host: str = "127.0.0.1", *, disk: Path | None = None, **variables: str
) -> Program:
    """A worker with one core and 1 GiB for executors, and these variables. It is registered once it says so.

    `disk`: a folder in whose place it and its executors, and nobody else, see a small disk, `DISK_BYTES`. They see it
    in a namespace of their own: anybody may make one where `unshare --map-root-user --mount true` works, else root.
    """
    options = ["--port", "0", "--cores", "1", "--memory", "1g", "--work-dir", str(folder / "workers"), master]
    return _start(folder, "worker.Worker", options, host, _alone_with(disk) if disk else (), **variables)


def _alone_with(disk: Path) -> Sequence[str]:
    mount = f'mount -t tmpfs -o size={DISK_BYTES} tmpfs "$0" && exec "$@"'
    return ("unshare", "--map-root-user", "--mount", "sh", "-c", mount, str(disk))


def _start(
    folder: Path,
    main: str,
    arguments: list[str],
    host: str = "127.0.0.1",
    within: Sequence[str] = (),
    **variables: str,
) -> Program:
    spark_class = Path(pyspark.__file__).with_name("bin") / "spark-class"
    command = [*within, str(spark_class), f"{_CLASSES}.{main}", "--host", host, "--webui-port", "0", *arguments]
    options = f"-Dlog4j2.configurationFile={(folder / 'log4j2.properties').as_uri()}"
    return Program(command, folder, SPARK_DAEMON_JAVA_OPTS=options, SPARK_DAEMON_MEMORY="256m", **variables)


def executor_of(python_pid: int) -> int:
    """The pid of the executor JVM that a Python worker belongs to: its daemon's parent."""
    return _parent(_parent(python_pid))


def kill_executor(python_pid: int) -> None:
    """SIGKILL to the executor JVM that a Python worker belongs to."""
    pid = executor_of(python_pid)
    name = Path(f"/proc/{pid}/cmdline").read_bytes()
    assert b"CoarseGrainedExecutorBackend" in name, name
    os.kill(pid, signal.SIGKILL)


def _parent(pid: int) -> int:
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text("utf-8").splitlines())
    return int(fields["PPid"])
