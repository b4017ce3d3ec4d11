"""The connections of a server of ours: how many there may be, and how long each may keep us waiting.

Whoever reaches the address can connect, with a token or without, and each connection takes a file descriptor of the
process, which beside a run is the run's. So there is a limit; and as a request without the token is answered at once,
only who has shown the token can hold a connection for long. All others wait for us to end them: once the limit is
reached, the one that has waited longest makes room for a new one.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, cast

from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle
from uvicorn.server import ServerState

_log: Final = logging.getLogger(__name__)

_ALIVE_S: Final = 60
"""After so long without data TCP probes whether the peer still knows the connection."""


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """What a server allows."""

    connections: int = 64
    """At once."""
    request_s: float = 10.0
    """For all headers of a request, from the connection's beginning or from the answer before; and for a peer to take
    some of an answer."""
    retry_s: float = 1.0
    """How long nothing is accepted after the process had no file descriptor for it."""
    log_every_s: float = 60.0
    """At most so often a line is logged."""


LIMITS: Final = ConnectionLimits()


class Connection(H11Protocol):
    """One connection. It waits while no request is being answered."""

    def __init__(
        self, config: Config, state: ServerState, limits: ConnectionLimits, lost: Callable[[], object]
    ) -> None:
        super().__init__(config, state, {})
        self._request_s, self._lost = limits.request_s, lost
        self.waits_since_s = 0.0
        """By the event loop's clock."""
        self._unsent = 0
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """It is accepted."""
        super().connection_made(transport)
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """It is over, and its file descriptor will be free."""
        if self._deadline is not None:
            self._deadline.cancel()
        super().connection_lost(exc)
        self._lost()

    def on_response_complete(self) -> None:
        """An answer is complete, though perhaps not sent."""
        self._wait()
        super().on_response_complete()

    @property
    def is_waiting(self) -> bool:
        """Whether no request of it is being answered."""
        cycle = cast("RequestResponseCycle | None", self.cycle)  # uvicorn says that there always is one
        return cycle is None or cycle.response_complete or self.transport.is_closing()

    def abort(self) -> None:
        """End it now, whatever is unsent."""
        self.transport.abort()

    def _wait(self) -> None:
        self.waits_since_s, self._unsent = self.loop.time(), 0
        self._set_deadline()

    def _set_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = self.loop.call_later(self._request_s, self._end_waiting)

    def _end_waiting(self) -> None:
        """Bytes that arrive prove nothing: only a whole request does, or a peer that takes its answer."""
        if not self.is_waiting:
            return
        unsent = self.transport.get_write_buffer_size()
        if unsent and (not self._unsent or unsent < self._unsent):
            self._unsent = unsent
            self._set_deadline()
        else:
            self.abort()


class Connections:
    """Accepts connections for a server, and ends those that are too many."""

    def __init__(self, config: Config, state: ServerState, limits: ConnectionLimits) -> None:
        self._config, self._state, self._limits = config, state, limits
        self._listening: dict[socket.socket, asyncio.TimerHandle | None] = {}
        self._tasks = set[asyncio.Task[object]]()
        self._open = self._ended = 0
        self._told_s = float("-inf")

    def listen(self, listening: socket.socket) -> None:
        """Accept what connects to this socket, from now on."""
        listening.setblocking(False)
        self._listening[listening] = None
        asyncio.get_running_loop().add_reader(listening, self._accept, listening)

    def close(self) -> None:
        """Accept nothing any more."""
        loop = asyncio.get_running_loop()
        for listening, retry in self._listening.items():
            loop.remove_reader(listening)
            if retry is not None:
                retry.cancel()
        self._listening.clear()

    def abort(self) -> None:
        """End all that are open."""
        for each in self._of_ours():
            each.abort()

    def _of_ours(self) -> list[Connection]:
        return [each for each in self._state.connections if isinstance(each, Connection)]

    def _accept(self, listening: socket.socket) -> None:
        is_full = self._open >= self._limits.connections
        if is_full and self._make_room():
            return  # a descriptor is free the next time round, and the socket still has the new one
        try:
            accepted, _ = listening.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:
            self._rest(listening, error)
            return
        if is_full:
            accepted.close()
            self._tell_of(1, f"it has {self._open} connections, all in use, and accepts no more")
            return
        self._open += 1
        task: asyncio.Task[object] = asyncio.get_running_loop().create_task(self._connect(accepted))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect(self, accepted: socket.socket) -> None:
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if hasattr(socket, "TCP_KEEPIDLE"):  # elsewhere the system's own time counts
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _ALIVE_S)
        await asyncio.get_running_loop().connect_accepted_socket(
            lambda: Connection(self._config, self._state, self._limits, self._leave), accepted
        )

    def _leave(self) -> None:
        self._open -= 1

    def _make_room(self) -> bool:
        """End the connection that has waited longest; False if none waits, or is about to."""
        oldest = min(
            (each for each in self._of_ours() if each.is_waiting), key=lambda each: each.waits_since_s, default=None
        )
        if oldest is None:
            return bool(self._tasks)
        oldest.abort()
        self._tell_of(1, f"it has {self._open} connections, and ends the one that has waited longest for each new one")
        return True

    def _rest(self, listening: socket.socket, error: OSError) -> None:
        """No descriptor is left: give back what can be, and leave new ones to the system for a while."""
        loop = asyncio.get_running_loop()
        loop.remove_reader(listening)
        self._listening[listening] = loop.call_later(self._limits.retry_s, self.listen, listening)
        waiting = [each for each in self._of_ours() if each.is_waiting]
        for each in waiting:
            each.abort()
        text = f"it can't accept connections ({error.strerror or error}), and ends those that wait"
        self._tell_of(len(waiting), text)

    def _tell_of(self, ended: int, what: str) -> None:
        self._ended += ended
        now_s = time.monotonic()
        if now_s - self._told_s >= self._limits.log_every_s:
            self._told_s = now_s
            _log.warning("a server of this process reports: %s; it has ended %d so far", what, self._ended)
