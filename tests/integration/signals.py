"""How bolts in other processes talk to a test: they send it lines, and wait at gates until it lets them go on.

Both are named pipes, so whoever waits is woken by the event itself.
"""

from __future__ import annotations

import contextlib
import os
import select
from pathlib import Path
from types import TracebackType
from typing import Self

PATIENCE_S = 240
"""So long a line or an end is waited for: with ten others at work a start of Spark alone takes a minute. What hangs is
stopped by pytest, before that unless a test has asked for longer."""


def send(pipe: str, line: str) -> None:
    """Send the test a line; a short one is never mixed with another's."""
    with open(pipe, "a", encoding="utf-8") as stream:
        stream.write(f"{line}\n")


def wait_at(gate: str) -> None:
    """Wait until the gate is opened. One that is open stays open."""
    with contextlib.suppress(FileNotFoundError), open(gate, "rb") as stream:
        stream.read()


def is_first(flag: str) -> bool:
    """True for the first process that asks."""
    try:
        os.close(os.open(flag, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def has_ended(pid: int) -> bool:
    """Whether a Python worker is gone. Spark has it killed before it reports the task's end; that takes a moment."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    readable, _, _ = select.select([process], [], [], 2)
    os.close(process)
    return bool(readable)


class Signals:
    """The test's end of a pipe that bolts send lines to."""

    def __init__(self, folder: Path) -> None:
        self.pipe = str(folder / "signals")
        os.mkfifo(self.pipe)
        # For writing too: so there is no end of file when the last bolt has closed it.
        self._descriptor = os.open(self.pipe, os.O_RDWR)
        self._unread = b""

    def receive(self, *, timeout_s: float = PATIENCE_S) -> str:
        """The next line."""
        while b"\n" not in self._unread:
            readable, _, _ = select.select([self._descriptor], [], [], timeout_s)
            assert readable, f"no line in {timeout_s} s"
            self._unread += os.read(self._descriptor, 4096)
        line, _, self._unread = self._unread.partition(b"\n")
        return line.decode()

    def is_silent(self) -> bool:
        """Whether nothing was sent that is not received yet."""
        return not self._unread and not select.select([self._descriptor], [], [], 0)[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._descriptor)


class Gate:
    """The test's side of a gate, closed at first."""

    def __init__(self, folder: Path, name: str = "gate") -> None:
        self.path = str(folder / name)
        os.mkfifo(self.path)

    def open(self) -> None:
        """Let go on whoever waits, and all who will come."""
        # Readers that wait in open() wake up when there is a writer, and read an end of file when it is gone.
        writer = os.open(self.path, os.O_RDWR)
        os.unlink(self.path)
        os.close(writer)
