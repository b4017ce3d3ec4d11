"""Work on a table in a thread of its own, while transactions continue."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent import futures
from concurrent.futures import Future
from typing import Generic, TypeVar

from transactional.model.plumbing.pools import DaemonPool

T = TypeVar("T")
FINISH_TIMEOUT_S = 60.0
"""Longest time that the end of a run waits for the work, in seconds."""
POLL_INTERVAL_S = 0.05
"""Seconds between two checks whether the run may still wait."""


class BackgroundWork(Generic[T]):
    """One piece of work at most that is in progress, or whose result was not taken yet."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._future: Future[None] | None = None
        self._results: list[T] = []

    @property
    def is_pending(self) -> bool:
        """True if work is in progress, or its result was not taken yet."""
        return self._future is not None

    @property
    def has_ended(self) -> bool:
        """True if the work has succeeded or failed, and its result was not taken yet."""
        return self._future is not None and self._future.done()

    def start(self, work: Callable[[], T]) -> None:
        """Begin the work in a thread of its own."""
        results = self._results = []
        pool = DaemonPool(1, self._name)
        self._future = pool.submit(lambda: results.append(work()))
        pool.shutdown(wait_s=0)

    def take(self) -> T:
        """Return the result of the work that has ended, or raise its error. It is no longer pending then."""
        assert self._future is not None, "the work has ended"
        future, self._future = self._future, None
        future.result()
        return self._results.pop()

    def wait(self, may_go_on: Callable[[], bool]) -> None:
        """Wait for pending work, if there is any, as long as `may_go_on()` is true."""
        until_s = time.monotonic() + FINISH_TIMEOUT_S
        while self._future is not None and not self.has_ended and may_go_on() and time.monotonic() < until_s:
            futures.wait([self._future], timeout=POLL_INTERVAL_S)
