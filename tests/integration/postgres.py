"""A real PostgreSQL server for tests, and a proxy in front of it that loses connections when told to."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import Self

PROGRAMS = ("initdb", "postgres")
FOLDERS = ("/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin", "/opt/homebrew/opt/postgresql@*/bin")
PORT = 5432
DATA = "data"
READY = "ready to accept connections"
START_SECONDS_MAX = 60
STOP_SECONDS_MAX = 20

# Stops the server, by a fast shutdown, once standard input is closed: by us, or by our end, however that comes.
WATCHER = '"$@" & server=$!; exec >&- 2>&-; read -r _; kill -INT $server; wait $server'


def find_programs() -> Path:
    """The folder of PostgreSQL's server programs, the newest version first."""
    patterns = [Path("/").glob(folder[1:]) for folder in FOLDERS]
    found = [folder for pattern in patterns for folder in pattern]
    found.sort(key=lambda folder: [int(number) for number in re.findall(r"\d+", str(folder))], reverse=True)
    on_path = shutil.which("postgres")
    candidates = [*found, *([Path(on_path).resolve().parent] if on_path else [])]
    for folder in candidates:
        if all(os.access(folder / program, os.X_OK) for program in PROGRAMS):
            return folder
    raise RuntimeError("these tests need a PostgreSQL server (initdb and postgres): install the package postgresql")


def server_user() -> str | None:
    """The user to run the server as: PostgreSQL refuses to be root. None: as we are."""
    if os.geteuid() != 0:
        return None
    known = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in known else "nobody"


def _start(command: list[str], folder: Path) -> subprocess.Popen[str]:
    user = server_user()
    return subprocess.Popen(
        command,
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", "LC_ALL": "C"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        user=user,
        group=pwd.getpwnam(user).pw_gid if user else None,
        extra_groups=[] if user else None,
        start_new_session=True,
    )


def run_program(program: Path, arguments: list[str], folder: Path) -> None:
    """Run one of PostgreSQL's programs to its end. Raises `RuntimeError`, with what it says."""
    with _start([str(program), *arguments], folder) as process:
        output, _ = process.communicate(timeout=START_SECONDS_MAX)
    if process.returncode != 0:
        raise RuntimeError(f"{program.name} failed: {output}")


def _make_cluster(programs: Path, folder: Path) -> None:
    options = ["--username=postgres", "--auth=trust", "--no-locale", "--encoding=UTF8", "--no-sync"]
    run_program(programs / "initdb", [f"--pgdata={folder / DATA}", *options], folder)


class ServerLog:
    """The lines that a server logs, as they come."""

    def __init__(self) -> None:
        self._text, self._has_ended, self._changed = "", False, threading.Condition()

    def read(self, process: subprocess.Popen[str]) -> None:
        """Read until the server ends."""
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                with self._changed:
                    self._text += line
                    self._changed.notify_all()
        with self._changed:
            self._has_ended = True
            self._changed.notify_all()

    def await_text(self, text: str) -> None:
        """Wait until a line with the text has come. Raises `RuntimeError` if none does."""
        with self._changed:
            self._changed.wait_for(lambda: text in self._text or self._has_ended, START_SECONDS_MAX)
            if text not in self._text:
                raise RuntimeError(f"no line has {text!r}: {self._text}")


@contextmanager
def serving(command: list[str], folder: Path, *, ready: str) -> Iterator[ServerLog]:
    """Run a server that refuses to be root, and that logs a line with `ready` once it is. It ends with us, however we
    end."""
    process = _start(["/bin/sh", "-c", WATCHER, "watcher", *command], folder)
    log = ServerLog()
    reader = threading.Thread(target=log.read, args=(process,), daemon=True)
    reader.start()
    try:
        log.await_text(ready)
        yield log
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.wait(STOP_SECONDS_MAX)
        reader.join()


def server_command(programs: Path, folder: Path, *, durable: bool = False, data: str = DATA) -> list[str]:
    """What starts a server of `folder` with the data of one of its folders."""
    synced = f"fsync={'on' if durable else 'off'}"
    settings = ["listen_addresses=", f"unix_socket_directories={folder}", f"port={PORT}", synced]
    options = [option for setting in settings for option in ("-c", setting)]
    return [str(programs / "postgres"), "-D", str(folder / data), *options]


@contextmanager
def postgres_server(*, durable: bool = False) -> Iterator[Path]:
    """Run a server with an empty cluster; the folder of its socket. No password, user postgres, its disk not synced."""
    with (
        empty_cluster() as folder,
        serving(server_command(find_programs(), folder, durable=durable), folder, ready=READY),
    ):
        yield folder


@contextmanager
def empty_cluster() -> Iterator[Path]:
    """A folder with an empty cluster."""
    folder = Path(tempfile.mkdtemp(prefix="postgres-"))
    try:
        if user := server_user():
            shutil.chown(folder, user)
        _make_cluster(find_programs(), folder)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def url_of(socket_folder: Path, schema: str = "public") -> str:
    """The URL of the server's database, with the schema in which tables are looked for and made."""
    return f"postgresql://postgres@/postgres?host={socket_folder}&port={PORT}&options=-csearch_path%3D{schema}"


def new_schema(socket_folder: Path, name: str) -> str:
    """The URL of a new, empty schema."""
    import psycopg
    from psycopg.sql import SQL, Identifier

    with psycopg.connect(url_of(socket_folder), autocommit=True) as connection:
        connection.execute(SQL("CREATE SCHEMA {}").format(Identifier(name)))
    return url_of(socket_folder, name)


class Loss(Enum):
    """What a `LossyProxy` is about to lose."""

    REQUEST = "the next COMMIT"
    ANSWER = "the answer to the next COMMIT"
    THIS_ANSWER = "the answer to the COMMIT that was just sent"


@dataclass
class LossyProxy:
    """Stands between clients and the server. `lose_next_commit` breaks the connection around one COMMIT."""

    socket_folder: Path
    lose: Loss | None = None
    lost: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Self:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._connections: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._close(self._listener, *self._connections)
        for thread in self._threads:
            thread.join()

    def url_of(self, schema: str) -> str:
        """As the function of that name, through the proxy."""
        port = self._listener.getsockname()[1]
        return f"postgresql://postgres@127.0.0.1:{port}/postgres?options=-csearch_path%3D{schema}"

    def lose_next_commit(self, *, server_gets_it: bool) -> None:
        """Break the connection when a client sends COMMIT: before, or after the server has done it."""
        self.lost.clear()
        self.lose = Loss.ANSWER if server_gets_it else Loss.REQUEST

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.socket(socket.AF_UNIX)
            server.connect(f"{self.socket_folder}/.s.PGSQL.{PORT}")
            self._connections += [client, server]
            for pump in (self._pump_requests, self._pump_answers):
                thread = threading.Thread(target=pump, args=(client, server))
                self._threads.append(thread)
                thread.start()

    def _pump_requests(self, client: socket.socket, server: socket.socket) -> None:
        for data in _received(client):
            if b"COMMIT" in data and self.lose is Loss.REQUEST:
                break
            if b"COMMIT" in data and self.lose is Loss.ANSWER:
                self.lose = Loss.THIS_ANSWER
            _send(server, data)
        self._break(client, server, Loss.REQUEST)

    def _pump_answers(self, client: socket.socket, server: socket.socket) -> None:
        for data in _received(server):
            if self.lose is Loss.THIS_ANSWER:
                break
            _send(client, data)
        self._break(client, server, Loss.THIS_ANSWER)

    def _break(self, client: socket.socket, server: socket.socket, reason: Loss) -> None:
        if self.lose is reason:
            self.lose = None
            self.lost.set()
        self._close(client, server)

    def _close(self, *sockets: socket.socket) -> None:
        for each in sockets:
            with suppress(OSError):  # a plain close would not wake a thread that waits in it
                each.shutdown(socket.SHUT_RDWR)
            each.close()


def _send(connection: socket.socket, data: bytes) -> None:
    """Send, unless the other side has gone: that shows when next received."""
    with suppress(OSError):
        connection.sendall(data)


def _received(connection: socket.socket) -> Iterator[bytes]:
    """What arrives until the connection ends, from whichever side."""
    while True:
        try:
            data = connection.recv(65536)
        except OSError:
            return
        if not data:
            return
        yield data
