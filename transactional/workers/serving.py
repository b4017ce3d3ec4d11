"""The main program of a worker process: it does what the driver sends, one piece of work after the other.

The driver and the process talk over a socket that only they know, so that what user code prints disturbs nothing.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import signal
import sys
from multiprocessing.connection import Connection
from traceback import format_exception_only

from transactional.execution.program import TaskProgram
from transactional.plumbing.garbage import collect_less_garbage
from transactional.workers.work import Work

READY, BEAT, ANSWER, FAILED = b"r", b".", b"=", b"!"
"""What the driver receives: the program is loaded; a task has ended; an answer, or the text of an error, follows."""
_PR_SET_PDEATHSIG = 1


def main(descriptor: int, driver: int) -> None:
    """Load the program, then serve until the driver closes the socket."""
    _end_with(driver)
    os.set_inheritable(descriptor, False)
    connection = Connection(descriptor)
    try:
        program: TaskProgram = pickle.loads(connection.recv_bytes())
    except Exception as error:
        _send(connection, FAILED, _text(error))
        return
    connection.send_bytes(READY)
    while True:
        try:
            data = connection.recv_bytes()
        except EOFError:
            return
        _send(connection, *_answer(connection, program, data))
        collect_less_garbage()


def _answer(connection: Connection, program: TaskProgram, data: bytes) -> tuple[bytes, bytes]:
    """What fails in a bolt is among what the tasks send; what is raised here is of the work as a whole."""
    try:
        work: Work = pickle.loads(data)
        return ANSWER, pickle.dumps(work.run(program, lambda: connection.send_bytes(BEAT)), pickle.HIGHEST_PROTOCOL)
    except BaseException as error:
        return FAILED, _text(error)


def _send(connection: Connection, kind: bytes, data: bytes) -> None:
    connection.send_bytes(kind)
    connection.send_bytes(data)


def _text(error: BaseException) -> bytes:
    return "".join(format_exception_only(error)).strip().encode()


def _end_with(driver: int) -> None:
    """Have Linux kill this process when the driver ends, whatever it is doing then."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != driver:
        raise SystemExit("the driver has ended")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
