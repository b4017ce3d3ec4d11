"""A worker process as the driver sees it: started, connected by a socket, and ended."""

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
"""How long a process may take to close what its libraries have open, once the driver has closed the socket."""
_DIES_WITHIN_S = 0.1
"""How long a process that has closed the socket may take to exit by itself."""
_STDERR = 2


class WorkerProcess:
    """A process that has loaded a program, or is about to.

    It is spawned, never forked: librdkafka, delta-rs and Arrow have threads in the driver. Its hashes are those of
    Spark's workers, it finds the modules that the driver finds, and what its code prints goes to the driver's stderr.
    It stands in a process group of its own: Ctrl-C is for the driver, and what a bolt has started ends with it. Linux
    also kills it when the thread ends that has made it.
    """

    def __init__(self, program: bytes) -> None:
        ours, its = socket.socketpair()
        with its:
            descriptor = its.fileno()
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
        self.connection = Connection(ours.detach())
        self._ended = ""
        with suppress(OSError):  # it has ended already, which is noticed where its answer is waited for
            self.connection.send_bytes(program)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def has_exited(self) -> bool:
        """Whether it has; what it has started may still run until `end`."""
        return bool(self._ended) or _status(self.pid, os.WNOHANG) is not None

    def wait_until_ready(self) -> None:
        """Wait until it has loaded the program. Raises `ConfigError` if it can't."""
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
        """Kill it, and what it has started. Returns at once."""
        if not self._ended:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)

    def end(self, within_s: float = _DIES_WITHIN_S) -> str:
        """Wait until it has exited, or kill it, with what it has started. Returns how it has ended."""
        if not self._ended:
            self.connection.close()
            code = self._exit_code(within_s)
            self.kill()
            killed = self._process.wait()
            self._ended = _told(killed if code is None else code)
        return self._ended

    def _exit_code(self, within_s: float) -> int | None:
        """The code with which it exits by itself. It stays a zombie, so that no other process gets its number."""
        descriptor = os.pidfd_open(self.pid)
        try:
            wait([descriptor], within_s)
        finally:
            os.close(descriptor)
        status = _status(self.pid, os.WNOHANG)
        return None if status is None else status.si_status if status.si_code == os.CLD_EXITED else -status.si_status


def _status(pid: int, flags: int) -> os.waitid_result | None:
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | flags)


def _told(code: int) -> str:
    if code >= 0:
        return f"has exited with code {code}"
    hint = ", as Linux does when memory runs out" if -code == signal.SIGKILL else ""
    return f"was ended by {signal.Signals(-code).name}{hint}"
