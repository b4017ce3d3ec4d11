"""Bolts that fall, fork, print and count in worker processes, which import nothing else of the tests: half a second
of processor time for each process."""

from __future__ import annotations

import ctypes
import os
import pickle
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pyarrow as pa

from tests.integration.signals import is_first
from transactional.bolts import BasicBolt, OutputCollector, TopologyContext
from transactional.core.ports import PublishedRecords, Sink, SinkOwner
from transactional.model.schema import Schema
from transactional.model.user_code.tuples import Tuple
from transactional.runtime.executors.workers.serving import ANSWER, NUMBER_BYTES

WAYS: dict[str, tuple[Callable[[], Any], str]] = {
    "killed": (
        lambda: os.kill(os.getpid(), signal.SIGKILL),
        "was ended by SIGKILL, as Linux does when memory runs out",
    ),
    "crashed": (lambda: os.kill(os.getpid(), signal.SIGSEGV), "was ended by SIGSEGV"),
    "left": (lambda: os._exit(3), "has exited with code 3"),
}


@dataclass
class Falls(BasicBolt):
    """Does something once, at a place, in whichever task."""

    flag: str
    fall: Callable[[], Any]
    place: str
    output = "word string"

    def prepare(self, context: TopologyContext) -> None:
        self._at("prepare")

    def execute(self, tuple: Tuple, collector: OutputCollector) -> None:
        self._at("execute")
        collector.emit(*tuple.values)

    def _at(self, place: str) -> None:
        if place == self.place and is_first(self.flag):
            self.fall()


def fork() -> None:
    """The child comes back from the bolt, and so does its parent."""
    os.fork()


def fork_unnoticed() -> None:
    """As a library does that is not in Python, which tells Python nothing of it."""
    ctypes.CDLL(None).fork()


def answer_twice() -> None:
    """Send what only the worker may send, as one that has its socket."""
    with Connection(os.dup(int(sys.argv[1]))) as socket:
        for message in (ANSWER + (1).to_bytes(NUMBER_BYTES), pickle.dumps([])):
            socket.send_bytes(message)


class CountsWords(BasicBolt):
    """Counts, and is killed once after it has."""

    output = "word string"

    def __init__(self, flag: str) -> None:
        self.flag = flag

    def prepare(self, context: TopologyContext) -> None:
        self.seen = context.metrics.counter("seen")

    def execute(self, tuple: Tuple, collector: OutputCollector) -> None:
        self.seen.increment()
        if is_first(self.flag):
            os.kill(os.getpid(), signal.SIGKILL)
        collector.emit(*tuple.values)


class Says(BasicBolt):
    """Writes to both streams, and reads what is typed."""

    output = "word string"

    def execute(self, tuple: Tuple, collector: OutputCollector) -> None:
        sys.stdout.write(f"said {tuple.word}\n")
        os.write(1, b"written\n")
        sys.stderr.write(f"told {tuple.word}\n")
        assert not sys.stdin.read()
        collector.emit(*tuple.values)


def hashes(row: Tuple) -> tuple[str, int]:
    return row["word"], hash(row["word"])


class NotesItsEnd(Sink):
    """Sends nothing, and appends the id of each process that closes it to a file."""

    can_send = True

    def __init__(self, path: Path) -> None:
        self._path = path

    def check_input(self, fields: Schema, *, used_by: str) -> None: ...

    def identity(self) -> dict[str, str]:
        return {}

    def encode(self, batch: pa.RecordBatch) -> pa.Table:
        return pa.Table.from_batches([batch])

    def send(self, records: pa.Table) -> dict[int, str]:
        return {}

    def look(self, owner: SinkOwner) -> None: ...

    def open(self, owner: SinkOwner, *, has_published: bool) -> None: ...

    def position(self) -> None: ...

    def publish(self, group: Sequence[PublishedRecords]) -> None: ...

    def close(self) -> None:
        with self._path.open("a") as file:
            file.write(f"{os.getpid()}\n")


class Unloadable:
    """Can't be unpickled."""

    def __call__(self, row: Tuple) -> tuple[str]:
        return (row["word"],)

    def __reduce__(self) -> Any:
        return _fail, ()


def _fail() -> None:
    raise ModuleNotFoundError("No module named 'only_here'")
