"""`DaemonPool`: threads that process calls in order, and that never keep the process alive for long.

The threads of the standard library's pool are joined when the interpreter exits: one that hangs in user code would keep
a process from exiting. A daemon thread, in contrast, is stopped when it next takes the interpreter's lock after the
exit. In the middle of a call of delta-rs, such as a compaction, this crashes the process. So the exit waits for running
calls, for a limited time.
"""

from __future__ import annotations

import atexit
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait

ENDING_S = 3.0
"""The time for which the end of a process waits for running calls, in seconds."""

_Call = tuple[Future[None], Callable[[], None]]
_running = set[Future[None]]()


class DaemonPool:
    """A pool of at most `threads` threads, which are started on demand."""

    def __init__(self, threads: int, name: str) -> None:
        self._threads_max, self._name = threads, name
        self._threads: list[threading.Thread] = []
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()

    def submit(self, work: Callable[..., None], *args: object) -> Future[None]:
        """Run `work(*args)` in the next free thread."""
        future: Future[None] = Future()
        self._calls.put((future, lambda: work(*args)))
        if len(self._threads) < self._threads_max:
            thread = threading.Thread(target=self._serve, name=f"{self._name}_{len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()
        return future

    def run_concurrently(self, works: Sequence[Callable[[], None]]) -> None:
        """Run all calls at the same time, the first one in this thread, and return when all have ended.

        If several raise an error, the error of the first one in order is raised, whichever was quicker.
        """
        futures = [self.submit(work) for work in works[1:]]
        try:
            for work in works[:1]:
                work()
        finally:
            wait(futures)
        for future in futures:
            future.result()

    def shutdown(self, *, wait_s: float | None = None, cancel: bool = False) -> None:
        """Accept no more calls, and wait for the accepted ones: forever, or this long. `cancel`: start none of them."""
        if cancel:
            self._cancel()
        for _ in self._threads:
            self._calls.put(None)
        deadline_s = None if wait_s is None else time.monotonic() + wait_s
        for thread in self._threads:
            thread.join(None if deadline_s is None else max(0.0, deadline_s - time.monotonic()))

    def _cancel(self) -> None:
        while True:
            try:
                call = self._calls.get_nowait()
            except queue.Empty:
                return
            if call is not None:
                call[0].cancel()

    def _serve(self) -> None:
        while (call := self._calls.get()) is not None:
            future, work = call
            if not future.set_running_or_notify_cancel():
                continue
            _running.add(future)
            try:
                work()
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(None)
            _running.discard(future)
            del call, future, work  # otherwise what they reference would be kept until the next call


@atexit.register
def await_calls(wait_s: float | None = None) -> bool:
    """Wait until no pool of this process runs a call, for `ENDING_S` by default. Return True if none does."""
    return not wait(list(_running), ENDING_S if wait_s is None else wait_s).not_done
