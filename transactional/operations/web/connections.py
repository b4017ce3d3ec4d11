"""Limits the number of open connections of a server, and closes idle ones.

Anyone who reaches the address can connect, with a token or without, and each connection takes a file descriptor of the
process, which may be that of a run. The number of connections is therefore limited. A request without the token is
answered at once and its connection closed, so only clients with the token can hold a connection for long. Once the
limit is reached, the connection that has been idle longest is closed for each new one.
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

_KEEPALIVE_S: Final = 60
"""The seconds without data after which TCP probes whether the peer still has the connection."""


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """The limits of a server's connections."""

    connections: int = 64
    """The greatest number of open connections."""
    request_s: float = 10.0
    """The seconds for all headers of a request, from the connection's beginning or from the previous answer, and for a
    peer to take some of an answer."""
    retry_s: float = 1.0
    """The seconds for which nothing is accepted after the process had no file descriptor left."""
    log_every_s: float = 60.0
    """The least number of seconds between two lines of the log."""


LIMITS: Final = ConnectionLimits()


class Connection(H11Protocol):
    """One connection. It is idle while no request is being answered."""

    def __init__(
        self, config: Config, state: ServerState, limits: ConnectionLimits, on_lost: Callable[[], object]
    ) -> None:
        super().__init__(config, state, {})
        self._request_s, self._on_lost = limits.request_s, on_lost
        self.idle_since_s = 0.0
        """The time since which the connection is idle, by the event loop's clock."""
        self._unsent = 0
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the time limit of the first request of a new connection."""
        super().connection_made(transport)
        self._start_idling()

    def connection_lost(self, exc: Exception | None) -> None:
        """Count the connection as closed; its file descriptor becomes free."""
        if self._deadline is not None:
            self._deadline.cancel()
        super().connection_lost(exc)
        self._on_lost()

    def on_response_complete(self) -> None:
        """Start the time limit of the next request, once an answer is complete, though perhaps not sent."""
        self._start_idling()
        super().on_response_complete()

    @property
    def is_idle(self) -> bool:
        """Whether no request of the connection is being answered."""
        cycle = cast("RequestResponseCycle | None", self.cycle)  # uvicorn says that there always is one
        return cycle is None or cycle.response_complete or self.transport.is_closing()

    def abort(self) -> None:
        """Close the connection now, whatever is unsent."""
        self.transport.abort()

    def _start_idling(self) -> None:
        self.idle_since_s, self._unsent = self.loop.time(), 0
        self._set_deadline()

    def _set_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = self.loop.call_later(self._request_s, self._close_if_stalled)

    def _close_if_stalled(self) -> None:
        """Close the connection unless its peer takes the answer. Only a whole request counts, not the bytes of one."""
        if not self.is_idle:
            return
        unsent = self.transport.get_write_buffer_size()
        if unsent and (not self._unsent or unsent < self._unsent):
            self._unsent = unsent
            self._set_deadline()
        else:
            self.abort()


class Connections:
    """Accepts connections for a server, and closes idle ones when there are too many."""

    def __init__(self, config: Config, state: ServerState, limits: ConnectionLimits) -> None:
        self._config, self._state, self._limits = config, state, limits
        self._listening: dict[socket.socket, asyncio.TimerHandle | None] = {}
        self._tasks = set[asyncio.Task[object]]()
        self._open_count = self._ended = 0
        self._last_logged_s = float("-inf")

    def listen(self, listener: socket.socket) -> None:
        """Accept connections to this socket from now on."""
        listener.setblocking(False)
        self._listening[listener] = None
        asyncio.get_running_loop().add_reader(listener, self._accept, listener)

    def close(self) -> None:
        """Stop accepting connections."""
        loop = asyncio.get_running_loop()
        for listener, retry in self._listening.items():
            loop.remove_reader(listener)
            if retry is not None:
                retry.cancel()
        self._listening.clear()

    def abort(self) -> None:
        """Close all open connections."""
        for connection in self._open_connections():
            connection.abort()

    def _open_connections(self) -> list[Connection]:
        return [connection for connection in self._state.connections if isinstance(connection, Connection)]

    def _accept(self, listener: socket.socket) -> None:
        is_full = self._open_count >= self._limits.connections
        if is_full and self._make_room():
            return  # a descriptor is free the next time round, and the socket still has the new one
        try:
            accepted, _ = listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:
            self._pause_accepting(listener, error)
            return
        if is_full:
            accepted.close()
            self._log_rarely(1, f"it has {self._open_count} connections, all in use, and accepts no more")
            return
        self._open_count += 1
        task: asyncio.Task[object] = asyncio.get_running_loop().create_task(self._connect(accepted))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect(self, accepted: socket.socket) -> None:
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if hasattr(socket, "TCP_KEEPIDLE"):  # elsewhere the system's own time counts
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEPALIVE_S)
        await asyncio.get_running_loop().connect_accepted_socket(
            lambda: Connection(self._config, self._state, self._limits, self._count_closed), accepted
        )

    def _count_closed(self) -> None:
        self._open_count -= 1

    def _make_room(self) -> bool:
        """Close the connection that has been idle longest. Return False if none is idle or about to be."""
        oldest = min(
            (connection for connection in self._open_connections() if connection.is_idle),
            key=lambda connection: connection.idle_since_s,
            default=None,
        )
        if oldest is None:
            return bool(self._tasks)
        oldest.abort()
        self._log_rarely(
            1, f"it has {self._open_count} connections, and ends the one that has waited longest for each new one"
        )
        return True

    def _pause_accepting(self, listener: socket.socket, error: OSError) -> None:
        """Close idle connections when no file descriptor is left, and leave new ones in the queue for a while."""
        loop = asyncio.get_running_loop()
        loop.remove_reader(listener)
        self._listening[listener] = loop.call_later(self._limits.retry_s, self.listen, listener)
        idle = [connection for connection in self._open_connections() if connection.is_idle]
        for connection in idle:
            connection.abort()
        text = f"it can't accept connections ({error.strerror or error}), and ends those that wait"
        self._log_rarely(len(idle), text)

    def _log_rarely(self, ended: int, text: str) -> None:
        self._ended += ended
        now_s = time.monotonic()
        if now_s - self._last_logged_s >= self._limits.log_every_s:
            self._last_logged_s = now_s
            _log.warning("a server of this process reports: %s; it has ended %d so far", text, self._ended)
