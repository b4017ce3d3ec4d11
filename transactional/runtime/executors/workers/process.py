"""`WorkerProcess`: the driver's handle of a worker process, which starts it, talks to it by a socket, and ends it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from multiprocessing.connection import Connection, wait

from transactional.model.errors import ConfigError
from transactional.runtime.executors.workers.serving import FAILED

ENDS_WITHIN_S = 1.0
"""Time for a process to close its libraries' resources after the driver has closed the socket."""
_DIES_WITHIN_S = 0.1
"""Time for a process that has closed the socket to exit by itself."""
_STDERR = 2


class WorkerProcess:
    """A process that has loaded a program, or is about to.

    The process is spawned, never forked, because librdkafka, delta-rs and Arrow have threads in the driver. It has the
    same hash seed as Spark's workers and the driver's module path, and its output goes to the driver's stderr. It has
    its own process group, so that Ctrl-C only reaches the driver, and child processes of bolts are killed together with
    it. Linux also kills it when the thread ends that has started it.
    """

    def __init__(self, program: bytes) -> None:
        own_socket, process_socket = socket.socketpair()
        with process_socket:
            descriptor = process_socket.fileno()
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-P",
                    "-m",
                    "transactional.runtime.executors.workers.serving",
                    str(descriptor),
                    str(os.getpid()),
                ],
                pass_fds=[descriptor],
                stdin=subprocess.DEVNULL,
                stdout=_STDERR,
                env={**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                process_group=0,
            )
        self.connection = Connection(own_socket.detach())
        self._ended = ""
        with suppress(OSError):  # the process has ended already, which shows when its answer is awaited
            self.connection.send_bytes(program)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def has_exited(self) -> bool:
        """Whether the process has exited. Its child processes may still run until `end`."""
        return bool(self._ended) or _status(self.pid, os.WNOHANG) is not None

    def wait_until_ready(self) -> None:
        """Wait until the process has loaded the program. Raises `ConfigError` if it can't."""
        try:
            if not self.connection.recv_bytes().startswith(FAILED):
                return
            reason = self.connection.recv_bytes().decode()
        except (EOFError, OSError):
            reason = f"the process {self.end()}"
        raise ConfigError(
            f"a worker process can't load the topology's bolts: {reason}. Modules that are not installed are sent "
            "along where they can be pickled; install this one, or run the topology on Spark"
        )

    def kill(self) -> None:
        """Kill the process and its children. Returns at once."""
        if not self._ended:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)

    def end(self, within_s: float = _DIES_WITHIN_S) -> str:
        """Wait until the process has exited, or kill it, and kill its children. Returns how it has ended, in words."""
        if not self._ended:
            self.connection.close()
            code = self._exit_code(within_s)
            self.kill()
            kill_code = self._process.wait()
            self._ended = _describe_exit(kill_code if code is None else code)
        return self._ended

    def _exit_code(self, within_s: float) -> int | None:
        """Return the code with which the process exits by itself, or None. It remains a zombie, so that no other
        process gets its id."""
        descriptor = os.pidfd_open(self.pid)
        try:
            wait([descriptor], within_s)
        finally:
            os.close(descriptor)
        status = _status(self.pid, os.WNOHANG)
        return None if status is None else status.si_status if status.si_code == os.CLD_EXITED else -status.si_status


def _status(pid: int, flags: int) -> os.waitid_result | None:
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | flags)


def _describe_exit(code: int) -> str:
    if code >= 0:
        return f"has exited with code {code}"
    hint = ", as Linux does when memory runs out" if -code == signal.SIGKILL else ""
    return f"was ended by {signal.Signals(-code).name}{hint}"
