"""A real PostgreSQL server that fails over to a copy of itself that was behind."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from threading import Event

from tests.integration.postgres import (
    DATA,
    PORT,
    READY,
    empty_cluster,
    find_programs,
    run_program,
    server_command,
    serving,
    url_of,
)

COPY = "copy"
READY_TO_READ = "ready to accept read-only connections"


class FailingOver:
    """A server in `folder`, and a copy of it that stays behind from when it is taken: an asynchronous replica."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._programs, self._running = folder, find_programs(), ExitStack()
        self._is_over = Event()
        self._start(DATA, READY)

    def take_copy(self) -> None:
        """What the server has until now is what the copy has."""
        source = [f"--host={self.folder}", f"--port={PORT}", "--username=postgres"]
        options = ["--checkpoint=fast", "--wal-method=fetch", "--no-sync", "--no-manifest"]
        run_program(
            self._programs / "pg_basebackup", [f"--pgdata={self.folder / COPY}", *source, *options], self.folder
        )
        (self.folder / COPY / "standby.signal").touch()

    def fail_over(self) -> None:
        """The server is gone; who connects finds the copy, which does not write yet."""
        self.close()
        self._start(COPY, READY_TO_READ)
        self._is_over.set()

    def await_refusal(self) -> None:
        """Wait until the copy has refused a write."""
        assert self._is_over.wait(15)
        self._log.await_text("in a read-only transaction")

    def promote(self) -> None:
        """The copy is the server."""
        import psycopg

        with psycopg.connect(url_of(self.folder), autocommit=True) as connection:
            assert connection.execute("SELECT pg_promote()").fetchone() == (True,)

    def fail_back(self) -> None:
        """The server is there again as it was, and the copy is gone."""
        self.close()
        self._start(DATA, READY)

    def close(self) -> None:
        """Stop what runs."""
        self._running.close()

    def _start(self, data: str, ready: str) -> None:
        command = server_command(self._programs, self.folder, data=data)
        self._log = self._running.enter_context(serving(command, self.folder, ready=ready))


@contextmanager
def failing_over() -> Iterator[FailingOver]:
    """A server that can be failed over."""
    with empty_cluster() as folder, closing(FailingOver(folder)) as servers:
        yield servers
