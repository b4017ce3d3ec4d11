"""The JVM of a local Kafka broker: Kafka's jars on a Java that is new enough, and a process that never outlives ours.

After a change of `KAFKA_VERSION`, make a new `local_broker.lock` with `python -m transactional.jars` from the broker,
`org.apache.kafka:kafka_2.13`, and the logging that it is shipped with, `org.apache.logging.log4j:log4j-slf4j-impl`.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from transactional.jars import JarSet, Java, find_java

KAFKA_VERSION = "4.2.0"
KAFKA_JARS = JarSet(f"kafka-{KAFKA_VERSION}", Path(__file__).with_name("local_broker.lock"))

# A start takes 1.7 s instead of 2.3, and records go in and out as fast: a local broker lives too briefly for more
# compiling. The log options are for the making of a class archive, which warns of each class that it leaves out.
_QUICK_START = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xlog:cds=error", "-Xlog:cds+dynamic=error")

# Becomes the JVM, and leaves a watcher behind that waits on our pipe: a line means that all is well, the pipe's end
# that we are gone, however that came. The JVM takes the shell's pid over, so there is no moment without a watcher.
_WATCHED = 'exec 3<&0; (read -r line <&3 || kill -9 $$) & exec "$@" </dev/null 3<&-'


@dataclass(frozen=True, slots=True)
class KafkaJvm:
    """A Java with Kafka's jars: what runs the main classes of Kafka."""

    java: Java
    class_path: str

    @property
    def archive(self) -> Path:
        """Where the class archive (CDS) of this Java and these jars belongs; it halves the time of a start."""
        digest = hashlib.sha256(f"{self.java.version}\n{self.class_path}".encode()).hexdigest()
        return KAFKA_JARS.folder() / f"classes-{digest[:12]}.jsa"

    def command(self, main: Sequence[str], options: Sequence[str]) -> list[str]:
        """The command for a `main` class with its arguments, and with JVM options besides those for a quick start."""
        shared = [f"-XX:SharedArchiveFile={self.archive}"] if self.archive.exists() else []
        return [self.java.path, *_QUICK_START, *shared, *options, "-cp", self.class_path, *main]


def kafka_jvm(java: str | None = None) -> KafkaJvm:
    """What runs Kafka on this machine; `java` is the executable, if it is not the one of the environment.

    The first call on a machine fetches Kafka. Raises ConfigError when Java is missing or too old, OperatingError when
    Kafka can't be fetched.
    """
    found = find_java(java)
    return KafkaJvm(found, os.pathsep.join(str(file) for file in KAFKA_JARS.files(found)))


def start_watched(command: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    """Start `command`, which writes on into `log`. It is killed when this process ends, whatever ends it.

    The one way around is a fork of this process that lives on without an exec: it holds our end of the pipe too.
    """
    with log.open("ab") as output:
        return subprocess.Popen(
            ["/bin/sh", "-c", _WATCHED, "sh", *command],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            # A session of its own: Ctrl-C reaches the user's program, which may still need the broker to end well.
            start_new_session=True,
        )


def end_watched(process: subprocess.Popen[bytes]) -> None:
    """Kill what `start_watched` started, if it still runs, and send its watcher home."""
    process.kill()
    pipe = process.stdin
    assert pipe is not None
    # Before the wait: the watcher knows only a pid, which is free for others after it.
    with contextlib.suppress(OSError):
        pipe.write(b"\n")
        pipe.close()
    process.wait()
