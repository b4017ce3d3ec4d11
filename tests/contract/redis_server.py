"""A real Redis server for tests, on loopback; durable, as a state asks for, unless it is told otherwise."""

from __future__ import annotations

import shutil
import socket
import subprocess
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

READY = "Ready to accept connections"
REWRITTEN = "Background AOF rewrite finished successfully"
START_SECONDS_MAX = 20
STOP_SECONDS_MAX = 20
DURABLE = {"appendonly": "yes", "appendfsync": "always", "repl-diskless-sync-delay": "0"}


class RedisServer:
    """A server over one folder, which can be killed and started again. It ends with us, however we end."""

    def __init__(self, folder: Path, *, settings: dict[str, str] = DURABLE) -> None:
        self.folder, self.settings = folder, settings
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self._told = threading.Condition()

    @property
    def url(self) -> str:
        """Of its first database."""
        return f"redis://127.0.0.1:{self.port}/0"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.kill()

    def start(self, *more: str) -> None:
        """Start it over what is in its folder, and wait until it answers."""
        program = shutil.which("redis-server")
        if program is None:
            raise RuntimeError("these tests need a Redis server (redis-server): install the package redis-server")
        options = {"bind": "127.0.0.1", "port": str(self.port), "dir": str(self.folder), "save": "", **self.settings}
        words = [word for name, value in options.items() for word in (f"--{name}", value)]
        self.process = subprocess.Popen(
            [program, *words, *more],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._log, self._has_ended = list[str](), False
        self._reader = threading.Thread(target=self._read_log, daemon=True)
        self._reader.start()
        if not self._await_line(READY, START_SECONDS_MAX):
            self.kill()
            raise RuntimeError(f"redis-server did not start: {''.join(self._log)}")

    def _read_log(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                with self._told:
                    self._log.append(line)
                    self._told.notify_all()
        with self._told:
            self._has_ended = True
            self._told.notify_all()

    def _await_line(self, words: str, seconds_max: float, *, after: int = 0) -> bool:
        """Whether a line with these words is logged within this time, not counting the first `after` lines."""

        def is_there() -> bool:
            return any(words in line for line in self._log[after:])

        with self._told:
            self._told.wait_for(lambda: self._has_ended or is_there(), seconds_max)
            return is_there()

    def kill(self) -> None:
        """kill -9, as all of its ends are: what it has confirmed is on disk. A replica would wait for its primary."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(STOP_SECONDS_MAX)
            self._reader.join()

    # --- replicas ---------------------------------------------------------------------------------------------------

    def follow(self, primary: RedisServer) -> None:
        """Copy another server from now on; each write that is copied is in this one's file, too."""
        so_far = len(self._log)
        client = self.client()
        client.replicaof("127.0.0.1", str(primary.port))
        client.close()
        self.await_copy_of(primary)
        # The first copy is rewritten to a new file apart; until it is whole, a kill leaves the old, empty one.
        if not self._await_line(REWRITTEN, START_SECONDS_MAX, after=so_far):
            raise RuntimeError(f"the replica does not finish its file: {''.join(self._log[so_far:])}")

    def await_copy_of(self, primary: RedisServer) -> None:
        """Wait until this replica has all that its primary has; it says so itself, to WAIT."""
        client = primary.client()
        deadline_s = time.monotonic() + START_SECONDS_MAX
        # A connection whose own last write is older than what the replica has would not wait for it.
        client.set("awaited", "1")
        while not client.wait(1, 1_000):
            if time.monotonic() > deadline_s:
                raise RuntimeError("the replica does not follow")
        client.close()

    def stop_following(self) -> None:
        """Be a primary of one's own."""
        self.client().replicaof("NO", "ONE")

    def client(self) -> Any:
        """A connection, as the administrator."""
        import redis

        return redis.Redis(port=self.port)
