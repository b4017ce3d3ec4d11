"""The main program of a worker process: it does what the driver sends, one piece of work after the other.

The driver and the process talk over a socket that only they know, so that what user code prints disturbs nothing. A
piece of work has a number, which comes before all that is answered to it. A process that user code forks loses the
socket at once; one that returns from user code ends there, for it is no worker.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import signal
import sys
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from traceback import format_exception_only
from typing import Final

from transactional.model.plumbing.garbage import collect_less_garbage
from transactional.runtime.executors.workers.work import Line, Work
from transactional.runtime.tasks.program import TaskProgram
from transactional.runtime.tasks.watching import BoltInput

READY, BEAT, ANSWER, FAILED, INPUT = b"r", b".", b"=", b"!", b">"
"""What the driver receives, with the number of the work: the program is loaded; a task has ended; an answer, or the
text of an error, follows; so does what a bolt gets next, pickled, or nothing once the bolt has worked on it."""
WITH_DATA: Final = (ANSWER, FAILED, INPUT)
NUMBER_BYTES: Final = 8
NO_WORK: Final = 0
"""The number of what a process says of itself, before it has any work."""
_ITSELF: Final = NO_WORK.to_bytes(NUMBER_BYTES)
_PR_SET_PDEATHSIG = 1


def main(descriptor: int, driver: int) -> None:
    """Load the program, then serve until the driver closes the socket."""
    _end_with(driver)
    os.set_inheritable(descriptor, False)
    connection, worker = Connection(descriptor), os.getpid()
    os.register_at_fork(after_in_child=connection.close)
    try:
        program: TaskProgram = pickle.loads(connection.recv_bytes())
    except Exception as error:
        _send(connection, worker, FAILED + _ITSELF, _text(error))
        return
    _send(connection, worker, READY + _ITSELF)
    while True:
        try:
            number, data = connection.recv_bytes(), connection.recv_bytes()
        except (EOFError, ConnectionError):
            return
        send = partial(_send, connection, worker)
        kind, answer = _answer(program, data, _line(send, number))
        send(kind + number, answer)
        collect_less_garbage()


def _line(send: Callable[..., None], number: bytes) -> Line:
    def report(given: BoltInput | None) -> None:
        send(INPUT + number, b"" if given is None else pickle.dumps(given, pickle.HIGHEST_PROTOCOL))

    return Line(partial(send, BEAT + number), report)


def _answer(program: TaskProgram, data: bytes, line: Line) -> tuple[bytes, bytes]:
    """What fails in a bolt is among what the tasks send; what is raised here is of the work as a whole."""
    try:
        work: Work = pickle.loads(data)
        return ANSWER, pickle.dumps(work.run(program, line), pickle.HIGHEST_PROTOCOL)
    except BaseException as error:
        return FAILED, _text(error)


def _send(connection: Connection, worker: int, *parts: bytes) -> None:
    """Send as the `worker`. A process that a bolt has forked, and that has come back from the bolt, ends here."""
    if os.getpid() != worker:
        os.write(2, b"a process that a bolt has forked has returned from the bolt, and ends: call os._exit in it\n")
        os._exit(1)
    for part in parts:
        connection.send_bytes(part)


def _text(error: BaseException) -> bytes:
    return "".join(format_exception_only(error)).strip().encode()


def _end_with(driver: int) -> None:
    """Have Linux kill this process when the driver ends, whatever it is doing then."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != driver:
        raise SystemExit("the driver has ended")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
