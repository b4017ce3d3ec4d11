"""Programs that tests start, read line by line, signal and kill. None outlives the process that started it."""

from __future__ import annotations

import itertools
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from spouts.local_broker_jvm import end_watched, start_watched
from tests.integration.signals import PATIENCE_S

CLI = (sys.executable, "-m", "transactional.operations.cli.main")
# No web page; and executors exchange over the network, as if each were on a host of its own.
SPARK_DEFAULTS = "spark.ui.enabled false\nspark.shuffle.readHostLocalDisk false\n"
# A JVM that lives for seconds only is quicker with less compiling. One compiler alone has a fifth of the usual room for
# its code: Spark, which makes classes for each query, fills it in minutes; then it is swept and compiled anew for ever.
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC"
_numbers = itertools.count(1)


class Program:
    """A running program whose lines, of stdout and stderr alike, are read as they come.

    It runs in `directory` with the given variables added to the environment, as the leader of its own process group.
    """

    def __init__(self, command: Sequence[str], directory: Path, **variables: str) -> None:
        self.lines: list[str] = []
        self._read_to = 0
        self._has_ended = False
        self._changed = threading.Condition()
        pipe = directory / f"output-{next(_numbers)}"
        os.mkfifo(pipe)
        self._reader = threading.Thread(target=self._read, args=(pipe,))
        self._reader.start()
        settings = [f"{name}={value}" for name, value in {**spark_environment(directory), **variables}.items()]
        in_directory = ["/bin/sh", "-c", 'cd "$1" && shift && exec "$@"', "sh", str(directory)]
        self._process = start_watched([*in_directory, "env", *settings, *command], pipe)
        self._reaper = threading.Thread(target=self._reap)
        self._reaper.start()

    @property
    def pid(self) -> int:
        """The pid of the program, and of its process group."""
        return self._process.pid

    @property
    def text(self) -> str:
        """All that was printed so far."""
        return "\n".join(self.lines)

    def await_line(self, pattern: str, *, timeout_s: float = PATIENCE_S) -> re.Match[str]:
        """The next line in which the pattern is found; lines are looked at once."""
        with self._changed:
            while True:
                while self._read_to < len(self.lines):
                    self._read_to += 1
                    found = re.search(pattern, self.lines[self._read_to - 1])
                    if found is not None:
                        return found
                assert not self._has_ended, f"it ended without a line like {pattern!r}:\n{self.text}"
                assert self._changed.wait(timeout_s), f"no line like {pattern!r} in {timeout_s} s:\n{self.text}"

    def wait(self, *, timeout_s: float = PATIENCE_S) -> int:
        """Wait until it has ended and all it printed is read; its exit code, negative for a signal."""
        code = self._process.wait(timeout_s)
        self._reader.join(timeout_s)
        return code

    def ends_within(self, timeout_s: float) -> bool:
        """Whether it ends by itself in so many seconds."""
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def interrupt(self) -> None:
        """Ctrl-C: SIGINT to every process of the group, as a terminal sends it."""
        os.killpg(self.pid, signal.SIGINT)

    def kill(self) -> None:
        """SIGKILL, to this process alone."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """Kill it, if it still runs."""
        self.kill()
        self._reaper.join()
        self._reader.join(30)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        if error is not None:
            sys.stdout.write(f"{self.text}\n")

    def _reap(self) -> None:
        self._process.wait()
        # Sends the watcher home, which holds the pipe's other end as well.
        end_watched(self._process)

    def _read(self, pipe: Path) -> None:
        with pipe.open(encoding="utf-8", errors="replace") as stream:
            for line in stream:
                with self._changed:
                    self.lines.append(line.rstrip("\n"))
                    self._changed.notify_all()
        with self._changed:
            self._has_ended = True
            self._changed.notify_all()


def spark_environment(directory: Path) -> Mapping[str, str]:
    """Variables that give Spark the tests' defaults, and keep it from leaving files behind elsewhere."""
    settings = directory / "spark-conf"
    settings.mkdir(exist_ok=True)
    (settings / "spark-defaults.conf").write_text(SPARK_DEFAULTS, "utf-8")
    local = directory / "spark-local"
    return {"SPARK_CONF_DIR": str(settings), "SPARK_LOCAL_DIRS": str(local), "JDK_JAVA_OPTIONS": JAVA_OPTIONS}


def finished(command: Sequence[str], directory: Path, *, timeout_s: float = PATIENCE_S, **variables: str) -> Program:
    """Run a program to its end."""
    with Program(command, directory, **variables) as program:
        code = program.wait(timeout_s=timeout_s)
        assert code == 0, f"exit code {code}:\n{program.text}"
    return program
