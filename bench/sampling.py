"""A profile by py-spy, where that program is to be had: which functions the driver and the Python workers are in.

py-spy looks at the Python stacks fifty times a second from outside. Time in native code (librdkafka, Arrow, delta-rs)
counts for the Python function that called it. The JVM can't be seen by it: its processor time is read from /proc.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from bench import processes

RATE = 50
TOP = 6
_PROCESS = re.compile(r"process (\d+)")


class Sampler:
    """Profiles this process and those below it for some seconds, beside what they do."""

    def __init__(self, program: str, seconds: int, session: SparkSession) -> None:
        self.program, self.seconds, self.session = program, seconds, session
        self._running: subprocess.Popen[bytes] | None = None
        self._output = Path(tempfile.mkdtemp(prefix="bench-profile-")) / "stacks" if program else Path()
        self._cpu: dict[str, float] = {}
        self._spent: dict[str, float] = {}

    def start(self) -> None:
        """Let py-spy look."""
        self._cpu = processes.cpu_seconds(processes.by_part(self.session))
        options = ["--nonblocking", "--subprocesses", "--format", "raw", "--rate", str(RATE)]
        where = ["--duration", str(self.seconds), "--output", str(self._output), "--pid", str(os.getpid())]
        nowhere = subprocess.DEVNULL
        self._running = subprocess.Popen([self.program, "record", *options, *where], stdout=nowhere, stderr=nowhere)

    def has_ended(self) -> bool:
        """True once the profile is there; the processor time until then is noted."""
        if self._running is None or self._running.poll() is None:
            return False
        self._spent = self._spent or self._spent_by_now()
        return True

    def profile(self) -> dict[str, Any]:
        """Processor seconds by part, and per part which share of the samples was in which function.

        Raises `RuntimeError` when py-spy gave none.
        """
        if self._running is None or self._running.wait(self.seconds + 60) != 0 or not self._output.exists():
            raise RuntimeError(f"{self.program} gave no profile: does it run, and may it look into other processes?")
        spent = self._spent or self._spent_by_now()
        lines = self._output.read_text("utf-8", errors="replace").splitlines()
        shutil.rmtree(self._output.parent, ignore_errors=True)
        return {"seconds": self.seconds, "cpu_seconds": spent, **shares(lines, os.getpid())}

    def _spent_by_now(self) -> dict[str, float]:
        now = processes.cpu_seconds(processes.by_part(self.session))
        return {part: max(seconds - self._cpu.get(part, 0.0), 0.0) for part, seconds in now.items()}


def shares(lines: Iterable[str], driver: int) -> dict[str, Any]:
    """Of collapsed stacks (`process 1:"…";frame;frame 12`): per part samples, and the innermost functions' shares."""
    own: dict[str, Counter[str]] = {processes.DRIVER: Counter(), processes.WORKERS: Counter()}
    for line in lines:
        stack, _, count = line.rpartition(" ")
        frames = stack.split(";")
        found = [int(match[1]) for frame in frames if (match := _PROCESS.match(frame))]
        part = processes.DRIVER if found in ([], [driver]) else processes.WORKERS
        own[part][formatted(frames[-1])] += int(count)
    return {
        part: {
            "samples": counter.total(),
            "top": {name: count / counter.total() for name, count in counter.most_common(TOP)},
        }
        for part, counter in own.items()
    }


def formatted(frame: str) -> str:
    """`run (transactional/driver.py:12)` as `transactional/driver.py: run`, with the last two parts of the path."""
    match = re.match(r"(.*) \((.*?)(?::\d+)?\)$", frame)
    if match is None:
        return frame
    return f"{'/'.join(match[2].split('/')[-2:])}: {match[1]}"
