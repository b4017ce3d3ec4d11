"""A real schema registry on this machine, for tests and examples: Apicurio, loopback only, with Confluent's API.

    with LocalRegistry() as registry:
        schema_id = registry.register("flights-value", '{"type": "object"}', kind="JSON")

It starts in about seven seconds, needs only Java, and never outlives the process that started it.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import shutil
import signal
import subprocess
import tarfile
import tempfile
import time
import urllib.request
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import quote

from spouts.local_broker_jvm import end_watched, start_watched
from spouts.local_ports import free_port
from transactional.model.errors import ConfigError, OperatingError
from transactional.runtime.spark.jars import JarSet, find_java, tail

REGISTRY_VERSION = "3.0.9"
REGISTRY_ARCHIVE = JarSet(f"apicurio-registry-{REGISTRY_VERSION}", Path(__file__).with_name("local_registry.lock"))

_POLL_S = 0.05
_ASK_TIMEOUT_S = 10
_JVM = ("-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")


class LocalRegistry:
    """One Apicurio Registry as a child process; a context manager that starts it, and stops it on exit.

    Its schemas are in files of a temporary folder, so that it has them again when it is started again; `close` removes
    them. It keeps its port. The first start on a machine also downloads it (109 MB).
    """

    def __init__(self, *, java: str | None = None, start_timeout_ms: int = 90_000) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="registry-"))
        self._port, self._java, self._start_timeout_ms = free_port(), java, start_timeout_ms
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """The address for clients of Confluent's API."""
        return f"http://127.0.0.1:{self._port}/apis/ccompat/v7"

    @property
    def pid(self) -> int:
        """The pid of its JVM. Raises ConfigError while it is not started."""
        if self._process is None:
            raise ConfigError("this LocalRegistry is not running: start it first")
        return self._process.pid

    def start(self) -> Self:
        """Start the registry, and return once it responds.

        Raises ConfigError if Java is missing or too old; OperatingError, with the end of its log, if it can't be
        downloaded or does not respond within `start_timeout_ms`.
        """
        if self._process is not None:
            raise ConfigError("this LocalRegistry is already running: stop it first")
        java, log = find_java(self._java), self._directory / "registry.log"
        settings = {
            "quarkus.http.host": "127.0.0.1",
            "quarkus.http.port": self._port,
            # On disk before it is acknowledged: a kill would lose half a second of it otherwise.
            "apicurio.datasource.url": f"jdbc:h2:file:{self._directory / 'schemas'};WRITE_DELAY=0",
        }
        options = [f"-D{name}={value}" for name, value in settings.items()]
        self._process = start_watched([java.path, *_JVM, *options, "-jar", str(_unpacked())], log)
        atexit.register(self._leave, os.getpid())
        problem = self._await_answer()
        if problem is not None:
            self.kill()
            raise OperatingError(f"The schema registry {problem} (port {self._port}). Its log ends with:\n{tail(log)}")
        return self

    def register(
        self, subject: str, text: str, *, kind: str = "AVRO", references: Iterable[tuple[str, str, int]] = ()
    ) -> int:
        """Register a schema, and return its id. `references` are names, subjects and versions."""
        return register(self.url, subject, text, kind=kind, references=references)

    def kill(self) -> None:
        """Stop the registry with SIGKILL, like a crash; does nothing if it is not running. Its schemas are kept."""
        process, self._process = self._process, None
        if process is None:
            return
        atexit.unregister(self._leave)
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGCONT)
        end_watched(process)

    def close(self) -> None:
        """Stop it, and remove its folder."""
        self.kill()
        shutil.rmtree(self._directory, ignore_errors=True)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _await_answer(self) -> str | None:
        """None once it responds, otherwise what went wrong."""
        assert self._process is not None
        deadline = time.monotonic() + self._start_timeout_ms / 1000
        while time.monotonic() < deadline:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return f"exited with {self._process.wait(_POLL_S)} instead of starting"
            with (
                contextlib.suppress(OSError),
                urllib.request.urlopen(f"{self.url}/subjects", timeout=_ASK_TIMEOUT_S) as answer,
            ):
                answer.read()
                return None
        return f"did not respond within {self._start_timeout_ms} ms"

    def _leave(self, owner: int) -> None:
        # A forked child runs our exit handlers too, but the registry is not its own.
        if os.getpid() == owner:
            self.close()


def register(
    url: str, subject: str, text: str, *, kind: str = "AVRO", references: Iterable[tuple[str, str, int]] = ()
) -> int:
    """Register a schema at a registry, and return its id. `references` are names, subjects and versions."""
    names = ("name", "subject", "version")
    reference_list = [dict(zip(names, reference, strict=True)) for reference in references]
    document = {"schema": text, "schemaType": kind, "references": reference_list}
    request = urllib.request.Request(
        f"{url}/subjects/{quote(subject, safe='')}/versions",
        data=json.dumps(document).encode(),
        headers={"Content-Type": "application/vnd.schemaregistry.v1+json"},
    )
    with urllib.request.urlopen(request, timeout=_ASK_TIMEOUT_S) as answer:
        return int(json.load(answer)["id"])


def _unpacked() -> Path:
    """Return the program, unpacked once into the cache by one atomic rename. Raises OperatingError."""
    [archive] = REGISTRY_ARCHIVE.files()
    place = archive.with_name("unpacked")
    if not place.is_dir():
        with tempfile.TemporaryDirectory(prefix="unpack-", dir=archive.parent) as workspace:
            with tarfile.open(archive) as packed:
                packed.extractall(workspace, filter="data")
            with contextlib.suppress(OSError):  # another process was quicker
                Path(workspace).rename(place)
            Path(workspace).mkdir(exist_ok=True)
    return next(place.glob("*-runner.jar"))
