"""A real PgBouncer in transaction mode for tests, on loopback, in front of a database of its own."""

from __future__ import annotations

import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
from psycopg.sql import SQL, Identifier

from tests.integration.postgres import PORT, server_user, serving, url_of

READY = "process up"
PLACES = "/usr/sbin:/usr/bin:/usr/local/bin:/opt/homebrew/bin"


@contextmanager
def pooled_database(socket_folder: Path, *, sessions: int) -> Iterator[str]:
    """The URL of a new database of the server, through a pooler that has this number of sessions with it."""
    folder = Path(tempfile.mkdtemp(prefix="pgbouncer-"))
    database = Identifier(folder.name)
    with psycopg.connect(url_of(socket_folder), autocommit=True) as connection:
        connection.execute(SQL("CREATE DATABASE {}").format(database))
        try:
            if user := server_user():
                shutil.chown(folder, user)
            port = free_port()
            with serving([pooler(), settings(folder, socket_folder, port, sessions)], folder, ready=READY):
                yield f"postgresql://postgres@127.0.0.1:{port}/{folder.name}"
        finally:
            connection.execute(SQL("DROP DATABASE {} WITH (FORCE)").format(database))
            shutil.rmtree(folder, ignore_errors=True)


def pooler() -> str:
    program = shutil.which("pgbouncer", path=PLACES)
    if program is None:
        raise RuntimeError("these tests need a connection pooler (pgbouncer): install the package pgbouncer")
    return program


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    return port


def settings(folder: Path, socket_folder: Path, port: int, sessions: int) -> str:
    """The path of what it is started with."""
    lines = [
        "[databases]",
        f"* = host={socket_folder} port={PORT} user=postgres",
        "[pgbouncer]",
        "listen_addr = 127.0.0.1",
        f"listen_port = {port}",
        "unix_socket_dir =",
        "auth_type = any",
        "pool_mode = transaction",
        f"default_pool_size = {sessions}",
        "query_wait_timeout = 10",
    ]
    file = folder / "pgbouncer.ini"
    file.write_text("\n".join(lines) + "\n")
    return str(file)
