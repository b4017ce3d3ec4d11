"""A real Kafka broker on this machine, for tests, examples and benchmarks: one node, KRaft, loopback only, no Docker.

    with LocalBroker() as broker:
        create_topic(broker.bootstrap, "flights", partitions=4)

It starts in about a second and a half, needs only Java, and never outlives the process that started it.
"""

from __future__ import annotations

import atexit
import base64
import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from spouts import kafka_admin
from spouts.local_broker_jvm import KafkaJvm, end_watched, install_kafka, start_watched
from spouts.local_ports import free_port, is_free, listens
from transactional.model.errors import ConfigError, OperatingError
from transactional.runtime.spark.jars import tail

_POLL_S = 0.02
_FORMAT_TIMEOUT_S = 60
_PORT_ATTEMPTS_MAX = 3

_LOGGING = """\
appender.out.type=Console
appender.out.name=out
appender.out.layout.type=PatternLayout
appender.out.layout.pattern=%d %-5p %c{1}: %m%n
rootLogger.level=info
rootLogger.appenderRef.out.ref=out
"""

_COARSER = {"log.retention.ms": ("log.retention.minutes", "log.retention.hours")}
"""The settings in coarser units by our setting: Kafka ignores them if ours is present, so ours is then left out."""
_SETTINGS = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "PLAINTEXT",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "auto.create.topics.enable": "false",
    "num.partitions": "1",
    # One node can't replicate; and each partition less of an internal topic makes its creation that much faster.
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    # A test would otherwise wait: for a first rebalance, retention, compaction, a transaction's timeout.
    "group.initial.rebalance.delay.ms": "0",
    "log.initial.task.delay.ms": "500",
    "log.retention.check.interval.ms": "500",
    "log.segment.delete.delay.ms": "500",
    "log.cleaner.backoff.ms": "500",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
    # A killed broker is admitted again only when its old session has expired; the default is 9 s.
    "broker.session.timeout.ms": "2000",
    "broker.heartbeat.interval.ms": "200",
    "log.segment.bytes": str(16 * 2**20),
    "log.index.size.max.bytes": str(2**20),
    # Records are accepted and kept, whatever their timestamps: history loaded here would otherwise be deleted at once.
    "log.retention.ms": "-1",
    "log.message.timestamp.after.max.ms": str(2**63 - 1),
    "log.cleaner.dedupe.buffer.size": str(4 * 2**20),
}


class LocalBroker:
    """One Kafka broker as a child process; a context manager that starts it, and stops it on exit.

    `directory` holds its settings, log and data: a broker started again in the same one has the same cluster id,
    topics, records and groups. Without it a temporary one is created, and removed by `close`. `port` 0 takes a free
    one, and keeps it across restarts of this object. Records are kept forever, whatever their timestamps. `overrides`
    are broker settings that override ours. `java` is the executable; by default `JAVA_HOME` and the `PATH` are
    searched. The first start on a machine also downloads Kafka (41 MB).
    """

    def __init__(
        self,
        directory: str | Path | None = None,
        *,
        port: int = 0,
        overrides: Mapping[str, str] | None = None,
        java: str | None = None,
        heap_mb: int = 512,
        start_timeout_ms: int = 60_000,
    ) -> None:
        self._temporary = directory is None
        self._directory = Path(directory or tempfile.mkdtemp(prefix="kafka-")).absolute()
        self._port = port
        self._port_is_fixed = port != 0
        self._overrides = dict(overrides or {})
        self._java = java
        self._heap_mb = heap_mb
        self._start_timeout_ms = start_timeout_ms
        self._process: subprocess.Popen[bytes] | None = None
        # The JVM writes its class archive here on a graceful exit; it is moved to its place once it is complete.
        self._new_archive: tuple[Path, Path] | None = None

    @property
    def bootstrap(self) -> str:
        """The address for clients, "127.0.0.1:port". Raises ConfigError before the first start."""
        if not self._port:
            raise ConfigError("this LocalBroker has no address yet: start it, or give it a port")
        return f"127.0.0.1:{self._port}"

    @property
    def pid(self) -> int:
        """The pid of the broker's JVM. Raises ConfigError while it is not started."""
        if self._process is None:
            raise ConfigError("this LocalBroker is not running: start it first")
        return self._process.pid

    @property
    def directory(self) -> Path:
        """Where its settings, log and data are."""
        return self._directory

    @property
    def log(self) -> Path:
        """The broker's output, across all of its starts."""
        return self._file("broker.log")

    def start(self) -> Self:
        """Start the broker and return once it responds.

        Raises ConfigError if Java is missing or too old; OperatingError if another broker is running in the directory,
        if the port is taken, and, with the end of the log, if Kafka can't be downloaded or does not respond within
        `start_timeout_ms`.
        """
        if self._process is not None:
            raise ConfigError(f"the Kafka broker in {self._directory} is already running: stop it first")
        jvm = install_kafka(self._java)
        self._directory.mkdir(parents=True, exist_ok=True)
        with self._locked_directory():
            self._start(jvm)
        return self

    def _start(self, jvm: KafkaJvm) -> None:
        if self._port_is_fixed and not is_free(self._port):
            raise OperatingError(
                f"port {self._port} of 127.0.0.1 is taken, so no Kafka broker can start there: stop the process that "
                "listens on it, or give LocalBroker another port; without one it picks a free port."
            )
        for attempt in range(1, _PORT_ATTEMPTS_MAX + 1):
            self._prepare(jvm)
            log_start = self.log.stat().st_size
            self._launch(jvm)
            problem = self._await_answer()
            if problem is None:
                break
            self.kill()
            log_tail = tail(self.log, start=log_start)
            # Between our search for a free port and the broker's bind another process may have taken it.
            if "Address already in use" in log_tail and not self._port_is_fixed and attempt < _PORT_ATTEMPTS_MAX:
                self._port = 0
                continue
            raise OperatingError(
                f"The Kafka broker in {self._directory} {problem} (port {self._port}). "
                f"Its log {self.log} ends with:\n{log_tail}"
            )
        self._port_is_fixed = True

    @contextlib.contextmanager
    def _locked_directory(self) -> Iterator[None]:
        """Raise OperatingError if another broker uses the directory, and lock it while ours is starting.

        Kafka locks its data too, but only after it has written to its metadata log, which corrupts both.
        """
        with self._file("starting").open("w") as starting, contextlib.ExitStack() as stack:
            try:
                fcntl.flock(starting, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if (kafkas := self._file("data/.lock")).exists():
                    fcntl.lockf(stack.enter_context(kafkas.open("r+")), fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise OperatingError(
                    f"another Kafka broker is running in {self._directory}: stop it first, or use another directory"
                ) from error
            stack.close()
            yield

    def stop(self, *, timeout_ms: int = 30_000) -> None:
        """Stop the broker gracefully, or kill it if that takes longer than `timeout_ms`. Its data are kept."""
        if self._process is None:
            return
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout_ms / 1000)
        self.kill()

    def kill(self) -> None:
        """Stop the broker with SIGKILL, like a crash; does nothing if it is not running. Its data are kept."""
        process, self._process = self._process, None
        if process is None:
            return
        atexit.unregister(self._leave)
        end_watched(process)
        self._keep_archive(graceful=process.returncode != -signal.SIGKILL)

    def close(self) -> None:
        """Stop the broker, and remove its directory if it is a temporary one."""
        self.stop()
        if self._temporary:
            shutil.rmtree(self._directory, ignore_errors=True)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _prepare(self, jvm: KafkaJvm) -> None:
        self._port = self._port or free_port()
        overridden = {
            name
            for name, coarser in _COARSER.items()
            if any(coarser_name in self._overrides for coarser_name in coarser)
        }
        ours = {name: value for name, value in _SETTINGS.items() if name not in overridden}
        settings = {**ours, **self._addresses(), **self._overrides}
        # A backslash escapes in a properties file.
        lines = [f"{name}={value}\n".replace("\\", "\\\\") for name, value in settings.items()]
        self._file("server.properties").write_text("".join(lines), "utf-8")
        self._file("log4j2.properties").write_text(_LOGGING, "utf-8")
        self.log.touch()
        if not self._file("data/meta.properties").exists():
            self._format(jvm)

    def _addresses(self) -> dict[str, str]:
        controller = f"127.0.0.1:{free_port(besides=self._port)}"
        return {
            "listeners": f"PLAINTEXT://{self.bootstrap},CONTROLLER://{controller}",
            "advertised.listeners": f"PLAINTEXT://{self.bootstrap}",
            "controller.quorum.voters": f"1@{controller}",
            "log.dirs": str(self._file("data")),
        }

    def _format(self, jvm: KafkaJvm) -> None:
        # "=", since an id may start with a hyphen.
        arguments = [f"--cluster-id={_new_id()}", "--ignore-formatted", f"--config={self._file('server.properties')}"]
        command = jvm.command(["kafka.tools.StorageTool", "format", *arguments], self._options())
        with self.log.open("ab") as output:
            completed = subprocess.run(command, stdout=output, stderr=output, timeout=_FORMAT_TIMEOUT_S, check=False)
        if completed.returncode != 0:
            raise OperatingError(f"Kafka could not format a storage in {self._directory}:\n{tail(self.log)}")

    def _launch(self, jvm: KafkaJvm) -> None:
        options = [f"-Xmx{self._heap_mb}m", *self._options()]
        if not jvm.archive.exists():
            part = jvm.archive.with_suffix(f".{uuid.uuid4().hex}.part")
            self._new_archive = (part, jvm.archive)
            options.append(f"-XX:ArchiveClassesAtExit={part}")
        command = jvm.command(["kafka.Kafka", str(self._file("server.properties"))], options)
        self._process = start_watched(command, self.log)
        atexit.register(self._leave, os.getpid())

    def _options(self) -> list[str]:
        return [f"-Dlog4j2.configurationFile={self._file('log4j2.properties')}"]

    def _await_answer(self) -> str | None:
        """Wait until the broker responds. Return None if it does, otherwise a description of the problem."""
        assert self._process is not None
        deadline = time.monotonic() + self._start_timeout_ms / 1000
        expected = self._cluster_id()
        while time.monotonic() < deadline:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return f"exited with {self._process.wait(_POLL_S)} instead of starting"
            # The id distinguishes ours from another broker that holds the port.
            if listens(self._port) and kafka_admin.cluster_id(self.bootstrap, timeout_ms=2_000) == expected:
                return None
        return f"did not respond within {self._start_timeout_ms} ms"

    def _cluster_id(self) -> str:
        lines = self._file("data/meta.properties").read_text("utf-8").splitlines()
        return dict(line.split("=", 1) for line in lines if "=" in line)["cluster.id"]

    def _keep_archive(self, *, graceful: bool) -> None:
        if self._new_archive is None:
            return
        (part, archive), self._new_archive = self._new_archive, None
        if graceful and part.exists():
            part.replace(archive)
        part.unlink(missing_ok=True)

    def _leave(self, owner: int) -> None:
        # A forked child runs our exit handlers too, but the broker is not its own.
        if os.getpid() == owner:
            self.kill()
            self.close()

    def _file(self, name: str) -> Path:
        return self._directory / name


def _new_id() -> str:
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode()[:22]
