"""`WorkerPool`: the worker processes, the attempts that run in them, and the attempts that wait for a process.

A process has one request at a time. Requests are numbered, and an answer with another number is refused. A process that
has ended is replaced before the next request; no request is ever sent twice.
"""

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

_EXIT_CHECK_S = 1.0
"""Interval of the check for processes that have exited while a child process keeps their socket open."""


@dataclass(slots=True)
class _Worker:
    """A worker with its current process, which is replaced when it has ended, and the attempt that runs there."""

    number: int
    process: WorkerProcess
    attempt: TransactionAttempt | None = None
    request: int = 0
    """The number of the last request."""
    waiting: deque[TransactionAttempt] = field(default_factory=deque)
    inputs: list[bytes] = field(default_factory=list)
    """Unfinished inputs of the bolts of a watched task, the innermost last."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Pickled `Work` for the worker with this number. `description` names it in messages."""

    worker: int
    work: bytes
    description: str


class WorkerPool:
    """Sends pieces of work to processes, in the order in which attempts have come.

    A process that has ended, or was killed because its attempt was cancelled, is replaced. Attempts that wait for it
    have sent it nothing yet, so they use the new process. Thread-safe.
    """

    def __init__(self, count: int, program: bytes) -> None:
        self._program = program
        # Linux ends a process together with the thread that has started it. This thread lives as long as the pool.
        self._starter = DaemonPool(1, "workers")
        self._changed = threading.Condition()
        self._progress: dict[TransactionAttempt, int] = {}
        self._is_closed = False
        self._cancelled: set[TransactionAttempt] = set()
        self._workers = [_Worker(number, self._start()) for number in range(count)]

    def wait_until_ready(self) -> None:
        """Wait until all processes have loaded the program. Raises `ConfigError` if one can't."""
        for worker in self._workers:
            worker.process.wait_until_ready()

    @property
    def pids(self) -> list[int]:
        """The process ids in the order of the workers' numbers."""
        with self._changed:
            return [worker.process.pid for worker in self._workers]

    def run(self, attempt: TransactionAttempt, pieces: Sequence[Piece]) -> list[list[Any]]:
        """Run all pieces, each in another worker. Returns their answers in the order of the pieces.

        Raises `AttemptLost` if the attempt is cancelled, `WorkerDied` if a process has ended. No process works for the
        attempt then.
        """
        sent_pieces, errors = self._send_pieces(attempt, pieces)
        answers, more_errors = self._collect_answers(attempt, sent_pieces)
        errors += more_errors
        if self._is_cancelled(attempt):
            raise AttemptLost(f"attempt {attempt} was cancelled")
        if errors:
            raise errors[0]
        return [pickle.loads(answers[piece.worker]) for piece in pieces]

    @contextmanager
    def registered(self, attempt: TransactionAttempt) -> Iterator[None]:
        """Register an attempt while it runs, so that it can be cancelled and its progress can be read."""
        with self._changed:
            self._progress[attempt] = 0
        try:
            yield
        finally:
            with self._changed:
                del self._progress[attempt]
                self._cancelled.discard(attempt)

    def cancel(self, attempt: TransactionAttempt) -> None:
        """Kill the processes that work for an attempt, and have it wait for no other one."""
        with self._changed:
            if attempt in self._progress:
                self._cancelled.add(attempt)
                for worker in self._workers:
                    if worker.attempt == attempt:
                        worker.process.kill()
                self._changed.notify_all()

    def count_progress(self, attempt: TransactionAttempt) -> int:
        """Return a count that increases when a task of the attempt, or one that it waits for, has ended."""
        with self._changed:
            return self._progress.get(attempt, 0)

    def close(self) -> None:
        """End all processes. Those that work for an attempt are killed."""
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
        processes: list[WorkerProcess] = []
        self._starter.submit(lambda: processes.append(WorkerProcess(self._program))).result()
        return processes[0]

    def _is_cancelled(self, attempt: TransactionAttempt) -> bool:
        with self._changed:
            return attempt in self._cancelled

    def _send_pieces(
        self, attempt: TransactionAttempt, pieces: Sequence[Piece]
    ) -> tuple[list[Piece], list[AttemptLost]]:
        """Send pieces, up to the first one that can't be sent. Returns the sent ones, and the error if there was
        one."""
        sent_pieces = list[Piece]()
        for piece in pieces:
            try:
                if not self._send_piece(attempt, piece):
                    break
            except AttemptLost as error:
                return sent_pieces, [error]
            sent_pieces.append(piece)
        return sent_pieces, []

    def _send_piece(self, attempt: TransactionAttempt, piece: Piece) -> bool:
        """Wait for the worker, and send it the work. Returns False if the attempt was cancelled before. Raises
        `AttemptLost` if no process can be started."""
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
        except OSError:  # the process has ended since its last answer, so it has not read this request
            try:
                self._replace(worker)
            except OSError as error:
                with self._changed:
                    self._free(worker)
                raise AttemptLost(f"a worker process can't be started for {piece.description}: {error}") from error
            with suppress(OSError):  # the missing answer will show that this process has ended, too
                _send(worker, piece)
        return True

    @staticmethod
    def _is_next(attempt: TransactionAttempt, worker: _Worker) -> bool:
        return worker.attempt is None and worker.waiting[0] == attempt

    def _collect_answers(
        self, attempt: TransactionAttempt, sent_pieces: Sequence[Piece]
    ) -> tuple[dict[int, bytes], list[AttemptLost]]:
        """Wait for all answers. Returns them by the workers' numbers, with the errors of those that will not come."""
        waiting = {self._workers[piece.worker].process.connection: piece for piece in sent_pieces}
        answers, errors = dict[int, bytes](), list[AttemptLost]()
        while waiting:
            for connection in wait(list(waiting), _EXIT_CHECK_S) or self._exited(waiting):
                assert isinstance(connection, Connection)
                worker, piece = self._workers[waiting[connection].worker], waiting[connection]
                kind, number, data = _receive(connection)
                if kind and number not in (worker.request, NO_WORK):
                    worker.process.end()
                    errors.append(
                        AttemptLost(
                            f"worker process {worker.process.pid} has answered request {number} where {worker.request} "
                            f"was sent, in {piece.description}: a process that a bolt has forked may have its socket"
                        )
                    )
                elif kind == ANSWER:
                    answers[worker.number] = data
                elif kind == FAILED:
                    text = f"worker process {worker.process.pid} failed in {piece.description}: {data.decode()}"
                    errors.append(AttemptLost(text))
                elif kind:
                    self._count_progress(worker)
                    if kind == INPUT:
                        worker.inputs = [*worker.inputs, data] if data else worker.inputs[:-1]
                    continue
                else:
                    self._count_progress(worker)
                    errors.append(_death(worker, piece))
                del waiting[connection]
                self._leave(attempt, worker)
        return answers, errors

    def _exited(self, waiting: Mapping[Connection, Piece]) -> list[Connection]:
        return [connection for connection, piece in waiting.items() if self._workers[piece.worker].process.has_exited]

    def _count_progress(self, worker: _Worker) -> None:
        with self._changed:
            for attempt in self._progress:
                if attempt == worker.attempt or attempt in worker.waiting:
                    self._progress[attempt] += 1

    def _leave(self, attempt: TransactionAttempt, worker: _Worker) -> None:
        """Free a worker for the next attempt. Its process is replaced if it has ended, or may be killed."""
        with self._changed:
            if attempt not in self._cancelled and not worker.process.has_exited:
                self._free(worker)
                return
        with suppress(OSError):  # the next attempt tries again to start a process
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
    how, bolt_input = worker.process.end(), worker.inputs[-1] if worker.inputs else None
    return WorkerDied(
        f"worker process {worker.process.pid} {how} in {piece.description}", how=how, bolt_input=bolt_input
    )


def _send(worker: _Worker, piece: Piece) -> None:
    worker.process.connection.send_bytes(worker.request.to_bytes(NUMBER_BYTES))
    worker.process.connection.send_bytes(piece.work)


def _receive(connection: Connection) -> tuple[bytes, int, bytes]:
    """Receive a message: its kind, the number of the request, and its data. The kind is empty if the process has
    ended."""
    try:
        if connection.poll():  # a child of the process may keep the socket open
            head = connection.recv_bytes()
            kind, number = head[:-NUMBER_BYTES], int.from_bytes(head[-NUMBER_BYTES:])
            return kind, number, connection.recv_bytes() if kind in WITH_DATA else b""
    except (EOFError, OSError):
        pass
    return b"", 0, b""
