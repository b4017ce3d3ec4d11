"""Slots in which a server answers questions side by side; a question that takes too long is given up.

A question may run a function of the user that never ends, and no thread can be ended from outside. A question has a
thread of its own, so that it keeps nobody else waiting. After the time-out its slot is free again, while the thread
runs until it comes to the end of a batch. Threads that never do so add up, hence their number has a limit, at which
the process needs a restart.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final, TypeVar

T = TypeVar("T")

SIDE_BY_SIDE: Final = 16
"""The number of questions that are answered at a time; others wait."""
GIVEN_UP_MAX: Final = 32
"""The number of questions that were given up and still run at which no other one is answered."""

_Work = Callable[[Callable[[], bool]], T]


class SlotsLost(Exception):
    """Raised if too many questions were given up and still run."""


class QuestionSlots:
    """Runs each piece of work in a thread of its own, for at most `timeout_s`. Belongs to one event loop."""

    def __init__(self, timeout_s: float, *, side_by_side: int = SIDE_BY_SIDE, given_up_max: int = GIVEN_UP_MAX) -> None:
        self.timeout_s, self._given_up_max = timeout_s, given_up_max
        self._free = asyncio.Semaphore(side_by_side)
        self._given_up = set[Future[Any]]()

    @property
    def given_up(self) -> int:
        """The number of questions that were given up and still run."""
        return len(self._given_up)

    @property
    def has_given_up_too_many(self) -> bool:
        """Whether so many questions were given up, and still run, that no question is answered any more."""
        return self.given_up >= self._given_up_max

    async def run(self, work: _Work[T]) -> T:
        """Return what `work` returns. Its argument is a function that is true once the work was given up.

        Raises `TimeoutError`, `SlotsLost`, and what `work` raises.
        """
        if self.has_given_up_too_many:
            raise SlotsLost
        async with asyncio.timeout(self.timeout_s), self._free:
            return await self._run_in_thread(work)

    async def _run_in_thread(self, work: _Work[T]) -> T:
        outcome, is_given_up = Future[T](), threading.Event()
        outcome.set_running_or_notify_cancel()
        thread = threading.Thread(target=_run_work, args=(outcome, work, is_given_up), name="question", daemon=True)
        thread.start()
        try:
            return await asyncio.wrap_future(outcome)
        except asyncio.CancelledError:
            is_given_up.set()
            self._given_up.add(outcome)
            outcome.add_done_callback(self._given_up.discard)
            raise


def _run_work(outcome: Future[T], work: _Work[T], is_given_up: threading.Event) -> None:
    try:
        outcome.set_result(work(is_given_up.is_set))
    except BaseException as error:
        outcome.set_exception(error)
