"""`WorkerPool`: worker processes, the attempts that work in them, and those that wait for their turn."""

from __future__ import annotations

import pickle
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any

from transactional.model.attempt import TransactionAttempt
from transactional.model.errors import AttemptLost, WorkerDied
from transactional.model.plumbing.pools import DaemonPool
from transactional.runtime.executors.workers.process import ENDS_WITHIN_S, WorkerProcess
from transactional.runtime.executors.workers.serving import ANSWER, FAILED, INPUT, NO_WORK, NUMBER_BYTES, WITH_DATA

_LOOKED_AT_EACH_S = 1.0
"""A process that has exited while something that it has started keeps the socket open is noticed after this."""


@dataclass(slots=True)
class _Worker:
    """One process at a time, and who works there. `process` is replaced when it has ended."""

    number: int
    process: WorkerProcess
    attempt: TransactionAttempt | None = None
    request: int = 0
    """The number of the piece of work that was sent last."""
    waiting: deque[TransactionAttempt] = field(default_factory=deque)
    inputs: list[bytes] = field(default_factory=list)
    """What the bolts of a watched task were given and have not finished, the innermost last."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Pickled `Work` for the worker with this number; `what` is what messages call it."""

    worker: int
    work: bytes
    what: str


class WorkerPool:
    """Gives pieces of work to processes. An attempt that comes earlier to one works there first.

    A process that ends, or is killed because an attempt is cancelled that works there, is replaced; attempts that wait
    for it have sent it nothing yet, so they go to the one that replaces it. Nothing is ever sent twice. An answer
    counts only for the request whose number it has.
    """

    def __init__(self, count: int, program: bytes) -> None:
        self._program = program
        # Linux ends a process with the thread that has started it: with this one, which lives as long as the pool.
        self._starter = DaemonPool(1, "workers")
        self._changed = threading.Condition()
        self._progress: dict[TransactionAttempt, int] = {}
        self._is_closed = False
        self._cancelled: set[TransactionAttempt] = set()
        self._workers = [_Worker(number, self._start()) for number in range(count)]

    def wait_until_ready(self) -> None:
        """Wait until all have loaded the program. Raises `ConfigError`."""
        for worker in self._workers:
            worker.process.wait_until_ready()

    @property
    def pids(self) -> list[int]:
        """The processes' ids, in the order of their numbers."""
        with self._changed:
            return [worker.process.pid for worker in self._workers]

    def run(self, attempt: TransactionAttempt, pieces: Sequence[Piece]) -> list[list[Any]]:
        """Do all of it, each piece in another worker, in the order of their numbers. Returns the answers in order.

        Raises `AttemptLost` if the attempt is cancelled, `WorkerDied` if a process has ended; nothing is at work for it
        then.
        """
        begun, lost = self._begun(attempt, pieces)
        answers, more = self._collected(attempt, begun)
        lost += more
        if self._is_cancelled(attempt):
            raise AttemptLost(f"attempt {attempt} was cancelled")
        if lost:
            raise lost[0]
        return [pickle.loads(answers[piece.worker]) for piece in pieces]

    @contextmanager
    def attending(self, attempt: TransactionAttempt) -> Iterator[None]:
        """While an attempt runs it can be cancelled, and makes progress."""
        with self._changed:
            self._progress[attempt] = 0
        try:
            yield
        finally:
            with self._changed:
                del self._progress[attempt]
                self._cancelled.discard(attempt)

    def cancel(self, attempt: TransactionAttempt) -> None:
        """Kill the processes that work for an attempt, and let it wait for no other."""
        with self._changed:
            if attempt in self._progress:
                self._cancelled.add(attempt)
                for worker in self._workers:
                    if worker.attempt == attempt:
                        worker.process.kill()
                self._changed.notify_all()

    def progress(self, attempt: TransactionAttempt) -> int:
        """A number that increases when a task of the attempt has ended, or one that it waits for."""
        with self._changed:
            return self._progress.get(attempt, 0)

    def close(self) -> None:
        """End all processes."""
        self._is_closed = True
        with self._changed:
            processes = [worker.process for worker in self._workers]
            for worker in self._workers:
                if worker.attempt is None:
                    worker.process.connection.close()
                else:
                    worker.process.kill()
        for process in processes:
            process.end(ENDS_WITHIN_S)
        self._starter.shutdown()

    def _start(self) -> WorkerProcess:
        made: list[WorkerProcess] = []
        self._starter.submit(lambda: made.append(WorkerProcess(self._program))).result()
        return made[0]

    def _is_cancelled(self, attempt: TransactionAttempt) -> bool:
        with self._changed:
            return attempt in self._cancelled

    def _begun(self, attempt: TransactionAttempt, pieces: Sequence[Piece]) -> tuple[list[Piece], list[AttemptLost]]:
        """The pieces that were sent, up to the first that could not be; and why not."""
        begun = list[Piece]()
        for piece in pieces:
            try:
                if not self._begin(attempt, piece):
                    break
            except AttemptLost as lost:
                return begun, [lost]
            begun.append(piece)
        return begun, []

    def _begin(self, attempt: TransactionAttempt, piece: Piece) -> bool:
        """Wait for the worker, and send it the work; False if the attempt was cancelled before. Raises `AttemptLost` if
        no process can be started."""
        worker = self._workers[piece.worker]
        with self._changed:
            worker.waiting.append(attempt)
            self._changed.wait_for(lambda: self._is_next(attempt, worker) or attempt in self._cancelled)
            worker.waiting.remove(attempt)
            if attempt in self._cancelled:
                self._changed.notify_all()
                return False
            worker.attempt = attempt
            worker.request += 1
            worker.inputs.clear()
        try:
            _send(worker, piece)
        except OSError:  # it has ended since its last answer, so it has read nothing of this
            try:
                self._replace(worker)
            except OSError as error:
                with self._changed:
                    self._free(worker)
                raise AttemptLost(f"a worker process can't be started for {piece.what}: {error}") from error
            with suppress(OSError):  # then its answer won't come, either
                _send(worker, piece)
        return True

    @staticmethod
    def _is_next(attempt: TransactionAttempt, worker: _Worker) -> bool:
        return worker.attempt is None and worker.waiting[0] == attempt

    def _collected(
        self, attempt: TransactionAttempt, begun: Sequence[Piece]
    ) -> tuple[dict[int, bytes], list[AttemptLost]]:
        """The answers by the workers' numbers, and why others won't come."""
        waiting = {self._workers[piece.worker].process.connection: piece for piece in begun}
        answers, lost = dict[int, bytes](), list[AttemptLost]()
        while waiting:
            for connection in wait(list(waiting), _LOOKED_AT_EACH_S) or self._of_exited(waiting):
                assert isinstance(connection, Connection)
                worker, piece = self._workers[waiting[connection].worker], waiting[connection]
                kind, number, data = _received(connection)
                if kind and number not in (worker.request, NO_WORK):
                    worker.process.end()
                    lost.append(
                        AttemptLost(
                            f"worker process {worker.process.pid} has answered request {number} where {worker.request} "
                            f"was sent, in {piece.what}: a process that a bolt has forked may have its socket"
                        )
                    )
                elif kind == ANSWER:
                    answers[worker.number] = data
                elif kind == FAILED:
                    text = f"worker process {worker.process.pid} failed in {piece.what}: {data.decode()}"
                    lost.append(AttemptLost(text))
                elif kind:
                    self._note_progress(worker)
                    if kind == INPUT:
                        worker.inputs = [*worker.inputs, data] if data else worker.inputs[:-1]
                    continue
                else:
                    self._note_progress(worker)
                    lost.append(_death(worker, piece))
                del waiting[connection]
                self._leave(attempt, worker)
        return answers, lost

    def _of_exited(self, waiting: Mapping[Connection, Piece]) -> list[Connection]:
        return [each for each, piece in waiting.items() if self._workers[piece.worker].process.has_exited]

    def _note_progress(self, worker: _Worker) -> None:
        with self._changed:
            for attempt in self._progress:
                if attempt == worker.attempt or attempt in worker.waiting:
                    self._progress[attempt] += 1

    def _leave(self, attempt: TransactionAttempt, worker: _Worker) -> None:
        """Let the next attempt in: to another process if this one has ended, or was killed after its answer."""
        with self._changed:
            if attempt not in self._cancelled and not worker.process.has_exited:
                self._free(worker)
                return
        with suppress(OSError):  # whoever comes next tries again to start one
            self._replace(worker)
        with self._changed:
            self._free(worker)

    def _free(self, worker: _Worker) -> None:
        worker.attempt = None
        self._changed.notify_all()

    def _replace(self, worker: _Worker) -> None:
        worker.process.end()
        if not self._is_closed:
            worker.process = self._start()


def _death(worker: _Worker, piece: Piece) -> WorkerDied:
    how, given = worker.process.end(), worker.inputs[-1] if worker.inputs else None
    return WorkerDied(f"worker process {worker.process.pid} {how} in {piece.what}", how=how, given=given)


def _send(worker: _Worker, piece: Piece) -> None:
    worker.process.connection.send_bytes(worker.request.to_bytes(NUMBER_BYTES))
    worker.process.connection.send_bytes(piece.work)


def _received(connection: Connection) -> tuple[bytes, int, bytes]:
    """What a process has sent: the kind of it, the number of the request, and the data; no kind if it has ended."""
    try:
        if connection.poll():  # what the process has started may keep the socket open
            head = connection.recv_bytes()
            kind, number = head[:-NUMBER_BYTES], int.from_bytes(head[-NUMBER_BYTES:])
            return kind, number, connection.recv_bytes() if kind in WITH_DATA else b""
    except (EOFError, OSError):
        pass
    return b"", 0, b""
