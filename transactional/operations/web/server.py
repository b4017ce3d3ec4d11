"""An HTTP server that listens at one address, in a thread of its own or alone in its process."""

from __future__ import annotations

import asyncio
import errno
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final

import uvicorn

from transactional.model.errors import ConfigError
from transactional.model.plumbing.garbage import keep_what_is_loaded
from transactional.operations.web.connections import LIMITS, ConnectionLimits, Connections

if TYPE_CHECKING:
    from starlette.types import ASGIApp  # metrics are served without it

PORT: Final = 8787
_PORT_MAX: Final = 65_535
_GRACE_S: Final = 1


@dataclass(frozen=True, slots=True)
class Address:
    """A host and a port to listen at. Port 0 takes any that is free."""

    host: str = "127.0.0.1"
    port: int = PORT

    @property
    def is_loopback(self) -> bool:
        """Whether only processes of this machine can connect."""
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


def parse_address(text: str, *, server: str = "the console") -> Address:
    """Parse `127.0.0.1:8787`, `[::1]:8787`, or `:0` for any free port; `server` is the name of the server in messages.

    Raises `ConfigError`.
    """
    host, colon, port = text.rpartition(":")
    is_port = port.isascii() and port.isdecimal() and int(port) <= _PORT_MAX
    if not colon or not is_port or (":" in host) != host.startswith("["):
        raise ConfigError(
            f"{text!r} is no address for {server}: the form is HOST:PORT, such as 127.0.0.1:{PORT} or [::1]:{PORT}"
        )
    return Address(host.strip("[]") or "127.0.0.1", int(port))


def bind(address: Address, *, server: str = "the console") -> socket.socket:
    """Return a socket that listens at an address. Raises `ConfigError` if the port is in use, or the address is not one
    of this machine's."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((address.host, address.port))
        listening.listen(64)
    except OSError as error:
        listening.close()
        remedy = "choose another address or port"
        if error.errno == errno.EADDRINUSE:
            remedy = "another one may be running there: choose another port, or 0 for any that is free"
        raise ConfigError(
            f"{server} can't listen on {address.host}:{address.port}: {error.strerror or error}; {remedy}"
        ) from error
    return listening


def bind_or_take_any_port(address: Address) -> socket.socket:
    """Return a socket that listens at an address, or on any free port of its host if that port is in use. Raises
    `ConfigError` for everything else that prevents it from listening."""
    try:
        return bind(address)
    except ConfigError as error:
        if not isinstance(error.__cause__, OSError) or error.__cause__.errno != errno.EADDRINUSE:
            raise
        return bind(replace(address, port=0))


def url_of(listening: socket.socket, token: str | None = None) -> str:
    """Return the address of a server; with the token it is what to open in a browser."""
    host, port = listening.getsockname()[:2]
    host_name = "localhost" if host in ("0.0.0.0", "::") else f"[{host}]" if ":" in host else host
    return f"http://{host_name}:{port}/" + (f"?token={token}" if token is not None else "")


@contextmanager
def serving_in_thread(
    app: ASGIApp, listening: socket.socket, *, name: str = "console", limits: ConnectionLimits = LIMITS
) -> Iterator[None]:
    """Serve in a thread of this name while the block runs. Its end does not wait for open pages."""
    server = WebServer(app, limits)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.should_exit = True
        thread.join(2 * _GRACE_S + 1)


def serve_alone(app: ASGIApp, listening: socket.socket) -> None:
    """Serve until interrupted, in a process that does nothing else."""
    keep_what_is_loaded()
    WebServer(app).run(sockets=[listening])


class WebServer(uvicorn.Server):
    """A server with limits that does nothing without a request: uvicorn's own checks ten times a second whether it has
    to end, which costs a run in the same process. It logs no requests, because the first one has the token."""

    def __init__(self, app: ASGIApp, limits: ConnectionLimits = LIMITS) -> None:
        self._is_over = False
        self._wake: Callable[[], object] = lambda: None
        config = uvicorn.Config(
            app,
            http="h11",
            ws="none",  # a web socket would leave the limits on connections, and the guard
            log_config=None,
            log_level="critical",
            access_log=False,
            server_header=False,
            date_header=False,
            lifespan="off",
            timeout_graceful_shutdown=_GRACE_S,
        )
        super().__init__(config)
        self.limits = limits
        self._connections = Connections(config, self.server_state, limits)

    @property
    def should_exit(self) -> bool:
        """Whether the server has to end. May be set from any thread, and by a signal."""
        return self._is_over

    @should_exit.setter
    def should_exit(self, is_over: bool) -> None:
        self._is_over = is_over
        if is_over:
            self._wake()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept connections within the limits, which asyncio's own server does not have."""
        self.servers = []
        for listening in sockets or ():
            self._connections.listen(listening)
        self.started = True

    async def main_loop(self) -> None:
        """Serve until `should_exit` is set."""
        ended, loop = asyncio.Event(), asyncio.get_running_loop()
        self._wake = lambda: loop.call_soon_threadsafe(ended.set)
        while not await self.on_tick(0):
            await ended.wait()
        self._wake = lambda: None

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let running answers end for a moment, then close every connection."""
        self._connections.close()
        await super().shutdown(sockets)
        self._connections.abort()
