"""The main program of a worker process: it runs the work that the driver sends, one piece after the other.

The driver and the process talk over a socket of their own, so that the output of user code disturbs nothing. A piece of
work has a number, which precedes all its answers. A process that user code forks loses the socket at once; if it
returns from user code it exits, because it is no worker.
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
"""The kinds of messages to the driver, sent with the number of the work: the program is loaded; a task has ended; an
answer follows; the text of an error follows; the next input of a bolt follows, pickled, or empty once it is
processed."""
WITH_DATA: Final = (ANSWER, FAILED, INPUT)
NUMBER_BYTES: Final = 8
NO_WORK: Final = 0
"""The number of messages that a process sends before it has any work."""
_NO_WORK_BYTES: Final = NO_WORK.to_bytes(NUMBER_BYTES)
_PR_SET_PDEATHSIG = 1


def main(descriptor: int, driver: int) -> None:
    """Load the program, then serve until the driver closes the socket."""
    _die_with_driver(driver)
    os.set_inheritable(descriptor, False)
    connection, worker = Connection(descriptor), os.getpid()
    os.register_at_fork(after_in_child=connection.close)
    try:
        program: TaskProgram = pickle.loads(connection.recv_bytes())
    except Exception as error:
        _send(connection, worker, FAILED + _NO_WORK_BYTES, _text(error))
        return
    _send(connection, worker, READY + _NO_WORK_BYTES)
    while True:
        try:
            number, data = connection.recv_bytes(), connection.recv_bytes()
        except (EOFError, ConnectionError):
            program.close_sinks()
            return
        send = partial(_send, connection, worker)
        kind, answer = _run_work(program, data, _make_line(send, number))
        send(kind + number, answer)
        collect_less_garbage()


def _make_line(send: Callable[..., None], number: bytes) -> Line:
    def report(bolt_input: BoltInput | None) -> None:
        send(INPUT + number, b"" if bolt_input is None else pickle.dumps(bolt_input, pickle.HIGHEST_PROTOCOL))

    return Line(partial(send, BEAT + number), report)


def _run_work(program: TaskProgram, data: bytes, line: Line) -> tuple[bytes, bytes]:
    """Run a piece of work. Returns the kind and the data of the answer.

    Failures of bolts are among the items of the tasks. An exception here means that the work as a whole has failed.
    """
    try:
        work: Work = pickle.loads(data)
        return ANSWER, pickle.dumps(work.run(program, line), pickle.HIGHEST_PROTOCOL)
    except BaseException as error:
        return FAILED, _text(error)


def _send(connection: Connection, worker: int, *parts: bytes) -> None:
    """Send parts of a message. A process that a bolt has forked, and that has returned from the bolt, exits here."""
    if os.getpid() != worker:
        os.write(2, b"a process that a bolt has forked has returned from the bolt, and ends: call os._exit in it\n")
        os._exit(1)
    for part in parts:
        connection.send_bytes(part)


def _text(error: BaseException) -> bytes:
    return "".join(format_exception_only(error)).strip().encode()


def _die_with_driver(driver: int) -> None:
    """Have Linux kill this process when the driver ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != driver:
        raise SystemExit("the driver has ended")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
