"""The JVM of a local Kafka broker: Kafka's jars on a recent Java, and a process that never outlives ours.

After a change of `KAFKA_VERSION`, generate a new `local_broker.lock` with `python -m transactional.runtime.spark.jars`
from the broker, `org.apache.kafka:kafka_2.13`, and the logging that it ships with,
`org.apache.logging.log4j:log4j-slf4j-impl`.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from transactional.runtime.spark.jars import JarSet, Java, find_java

KAFKA_VERSION = "4.2.0"
KAFKA_JARS = JarSet(f"kafka-{KAFKA_VERSION}", Path(__file__).with_name("local_broker.lock"))

# A start takes 1.7 s instead of 2.3, and throughput is the same: a local broker lives too briefly for more compilation.
# The log options are for the creation of a class archive, which warns about each class that it omits.
_QUICK_START = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xlog:cds=error", "-Xlog:cds+dynamic=error")

# Becomes the JVM, and leaves a watcher behind that waits on our pipe: a line means a normal end, the pipe's end that we
# are gone, for whatever reason. The JVM takes over the shell's pid, so there is no moment without a watcher.
_WATCHED = 'exec 3<&0; (read -r line <&3 || kill -9 $$) & exec "$@" </dev/null 3<&-'


@dataclass(frozen=True, slots=True)
class KafkaJvm:
    """A Java with Kafka's jars: runs Kafka's main classes."""

    java: Java
    class_path: str

    @property
    def archive(self) -> Path:
        """The location of the class archive (CDS) of this Java and these jars; it halves the start time."""
        digest = hashlib.sha256(f"{self.java.version}\n{self.class_path}".encode()).hexdigest()
        return KAFKA_JARS.folder() / f"classes-{digest[:12]}.jsa"

    def command(self, main: Sequence[str], options: Sequence[str]) -> list[str]:
        """The command for a `main` class with its arguments, and with additional JVM options for a fast start."""
        shared = [f"-XX:SharedArchiveFile={self.archive}"] if self.archive.exists() else []
        return [self.java.path, *_QUICK_START, *shared, *options, "-cp", self.class_path, *main]


def install_kafka(java: str | None = None) -> KafkaJvm:
    """Download Kafka unless it is on this machine, and return its jars with a Java to run them.

    `java` is the executable, by default the environment's. Raises ConfigError if Java is missing or too old,
    OperatingError if Kafka can't be downloaded.
    """
    executable = find_java(java)
    return KafkaJvm(executable, os.pathsep.join(str(file) for file in KAFKA_JARS.files(executable)))


def start_watched(command: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    """Start `command`, which appends to `log`. It is killed when this process ends, for whatever reason.

    The only exception is a fork of this process that survives without an exec: it holds our end of the pipe too.
    """
    with log.open("ab") as output:
        return subprocess.Popen(
            ["/bin/sh", "-c", _WATCHED, "sh", *command],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            # A session of its own: Ctrl-C goes to the user's program, which may still need the broker to end cleanly.
            start_new_session=True,
        )


def end_watched(process: subprocess.Popen[bytes]) -> None:
    """Kill what `start_watched` started, if it is still running, and end its watcher."""
    process.kill()
    pipe = process.stdin
    assert pipe is not None
    # Before the wait: the watcher only knows a pid, which may be reused afterwards.
    with contextlib.suppress(OSError):
        pipe.write(b"\n")
        pipe.close()
    process.wait()
