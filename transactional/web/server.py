"""An HTTP server of ours: which address it listens on, under which names, and with which token."""

from __future__ import annotations

import asyncio
import secrets
import socket
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Final

import uvicorn
from starlette.types import ASGIApp

from transactional.errors import ConfigError
from transactional.plumbing.garbage import keep_what_is_loaded
from transactional.web.guard import LOOPBACK, Access, name_of

PORT: Final = 8787
_PORT_MAX: Final = 65_535
_TOKEN_MIN: Final = 16
_GRACE_S: Final = 1


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen. Port 0: any that is free."""

    host: str = "127.0.0.1"
    port: int = PORT

    @property
    def is_loopback(self) -> bool:
        """Whether only processes of this machine can connect."""
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


def address_of(text: str) -> Address:
    """`127.0.0.1:8787`, `[::1]:8787`, or `:0` for any free port. Raises `ConfigError`."""
    host, colon, port = text.rpartition(":")
    if not colon or not (port.isascii() and port.isdecimal()) or int(port) > _PORT_MAX:
        raise ConfigError(f"{text!r} is no address for the console: the form is HOST:PORT, such as 127.0.0.1:{PORT}")
    return Address(host.strip("[]") or "127.0.0.1", int(port))


def access_of(
    address: Address, token_file: Path | None, host_names: Collection[str], *, what: str = "the console"
) -> Access:
    """The token and the names to accept; `what` is served is for messages.

    Raises `ConfigError` for an address that others can reach without a token of the operator's own.
    """
    if not address.is_loopback and token_file is None:
        raise ConfigError(
            f"{what} would be reachable by others at {address.host}: pass --token-file FILE with a token of at "
            f"least {_TOKEN_MIN} characters that they are given, or leave out --host"
        )
    token = secrets.token_urlsafe(24) if token_file is None else _read_token(token_file)
    for name in host_names:
        if not name_of(name) or set(name) & set("/@ "):
            raise ConfigError(
                f"{name!r} is no host name: pass it as it stands in an address, such as topologies.example"
            )
    return Access(token, {*LOOPBACK, address.host, *host_names})


def _read_token(file: Path) -> str:
    try:
        token = file.read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        raise ConfigError(f"the token file {file} can't be read: {error}") from error
    if len(token) < _TOKEN_MIN or not all(" " < letter < "\x7f" for letter in token):
        raise ConfigError(f"the token file {file} must contain one line of at least {_TOKEN_MIN} printable characters")
    return token


def bind(address: Address, *, what: str = "the console") -> socket.socket:
    """A socket that listens there. Raises `ConfigError` if the port is taken, or the address is not ours."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((address.host, address.port))
        listening.listen(64)
    except OSError as error:
        listening.close()
        raise ConfigError(
            f"{what} can't listen on {address.host}:{address.port}: {error.strerror or error}. Another one "
            "may be running there: choose another port with --port, or 0 for any that is free"
        ) from error
    return listening


def url_of(listening: socket.socket, access: Access | None = None) -> str:
    """The address, and with the token what to open in a browser."""
    host, port = listening.getsockname()[:2]
    shown = "localhost" if host in ("0.0.0.0", "::") else f"[{host}]" if ":" in host else host
    return f"http://{shown}:{port}/" + (f"?token={access.token}" if access is not None else "")


@contextmanager
def beside(app: ASGIApp, listening: socket.socket) -> Iterator[None]:
    """Serve in a thread while something else runs; its end waits for no page that is open."""
    server = server_of(app)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, name="console", daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.should_exit = True
        thread.join(2 * _GRACE_S + 1)


def serve_alone(app: ASGIApp, listening: socket.socket) -> None:
    """Serve until interrupted, in a process that does nothing else."""
    keep_what_is_loaded()
    server_of(app).run(sockets=[listening])


class WebServer(uvicorn.Server):
    """A server that does nothing without a request: uvicorn's looks ten times a second whether it has to
    end, and the run beside it pays for that."""

    def __init__(self, config: uvicorn.Config) -> None:
        self._is_over = False
        self._wake: Callable[[], object] = lambda: None
        super().__init__(config)

    @property
    def should_exit(self) -> bool:
        """Whether it has to end. May be set from any thread, and by a signal."""
        return self._is_over

    @should_exit.setter
    def should_exit(self, is_over: bool) -> None:
        self._is_over = is_over
        if is_over:
            self._wake()

    async def main_loop(self) -> None:
        """Serve until it has to end."""
        over, loop = asyncio.Event(), asyncio.get_running_loop()
        self._wake = lambda: loop.call_soon_threadsafe(over.set)
        while not await self.on_tick(0):
            await over.wait()
        self._wake = lambda: None


def server_of(app: ASGIApp) -> WebServer:
    """A server for the application; it writes no log, for the first request's line has the token."""
    return WebServer(
        uvicorn.Config(
            app,
            log_config=None,
            log_level="critical",
            access_log=False,
            server_header=False,
            date_header=False,
            lifespan="off",
            timeout_graceful_shutdown=_GRACE_S,
        )
    )
