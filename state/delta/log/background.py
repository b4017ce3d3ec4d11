"""Work on a table that is done apart, in a thread, while transactions continue."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent import futures
from concurrent.futures import Future
from typing import Generic, TypeVar

from transactional.model.plumbing.pools import DaemonPool

T = TypeVar("T")
FINISHING_S = 60.0
"""So long the end of a run waits for it at most."""
LOOKING_S = 0.05
"""How often it looks whether it still may."""


class BackgroundWork(Generic[T]):
    """At most one piece of work that is under way, or whose result was not taken yet."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._future: Future[None] | None = None
        self._made: list[T] = []

    @property
    def is_pending(self) -> bool:
        """Whether one is under way, or was not taken yet."""
        return self._future is not None

    @property
    def has_ended(self) -> bool:
        """Whether one has, well or not, and was not taken yet."""
        return self._future is not None and self._future.done()

    def start(self, work: Callable[[], T]) -> None:
        """Begin one in a thread of its own."""
        made = self._made = []
        pool = DaemonPool(1, self._name)
        self._future = pool.submit(lambda: made.append(work()))
        pool.shutdown(wait_s=0)

    def take(self) -> T:
        """The result of the one that has ended. Raises what it has raised; either way it is no longer pending."""
        assert self._future is not None, "one has ended"
        future, self._future = self._future, None
        future.result()
        return self._made.pop()

    def wait(self, may_go_on: Callable[[], bool]) -> None:
        """Wait for the one that is pending, if any, as long as `may_go_on` says so."""
        until_s = time.monotonic() + FINISHING_S
        while self._future is not None and not self.has_ended and may_go_on() and time.monotonic() < until_s:
            futures.wait([self._future], timeout=LOOKING_S)
