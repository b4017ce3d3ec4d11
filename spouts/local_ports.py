"""Ports of this machine's loopback address, for servers that are started for tests, examples and benchmarks."""

from __future__ import annotations

import contextlib
import socket


def free_port(*, besides: int = 0) -> int:
    """Return a port on which nothing listens; another process may take it before it is used."""
    port = besides
    while port == besides:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
    return port


def is_free(port: int) -> bool:
    """Return True if a server could listen on it."""
    with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
        return True
    return False


def listens(port: int) -> bool:
    """Return True if a server listens on it."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False
