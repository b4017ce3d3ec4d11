"""Worker machines of a Spark standalone cluster that die with everything on them, and come back."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from bench.processes import parents_of_all
from tests.integration.cluster.spark_cluster import start_master, start_worker
from tests.integration.programs import Program


class Machines:
    """The workers by their number. Each has a core and bounded memory."""

    def __init__(self, folder: Path, master: str, stack: ExitStack) -> None:
        self.folder, self.master = folder, master
        self._stack = stack
        self._running: dict[int, Program] = {}

    def start(self, number: int) -> None:
        """Start a worker, and wait until the master knows it."""
        worker = self._stack.enter_context(start_worker(self.folder, self.master))
        worker.await_line("Successfully registered with master")
        self._running[number] = worker

    def kill(self, number: int) -> None:
        """SIGKILL to the worker, its executors and their Python workers."""
        kill_machine(self._running.pop(number))


@contextmanager
def machines(folder: Path, workers: int) -> Iterator[Machines]:
    """A master and so many workers, until the context ends."""
    with ExitStack() as stack:
        master, url = start_master(folder)
        stack.enter_context(master)
        started = Machines(folder, url, stack)
        for number in range(workers):
            started.start(number)
        yield started


def kill_machine(program: Program) -> None:
    """SIGKILL to a program and to everything that it has started."""
    below = _below(program.pid)
    program.kill()
    for pid in below:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _below(pid: int) -> list[int]:
    parents = parents_of_all()
    found = [pid]
    for each in found:
        found += [child for child, parent in parents.items() if parent == each]
    return found[1:]
