"""`TopologyRun`: a run in a thread of this process, as `start_topology` returns it.

The thread is not a daemon: one would be cut off in the middle of a write when the program ends. So a program that ends
would wait for its runs forever; another thread, which waits for the main thread, stops them then.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from contextlib import AbstractContextManager, ExitStack
from functools import cache
from types import TracebackType
from typing import Protocol, Self

from transactional.model.errors import ConfigError, brief_errors
from transactional.operations.launch.progress import RunProgress, RunStatus
from transactional.runtime.engine.history.run_history import RunSummary

_log = logging.getLogger(__name__)
_lock = threading.Lock()
_active = dict[tuple[str, str], "TopologyRun"]()
"""The runs of this process, by topology and store."""


class Runnable(Protocol):
    """The part of the driver that a `TopologyRun` uses. `stop` and `drain` may be called from any thread."""

    def run(self) -> RunSummary:
        """Run the topology until it ends, and return its summary."""

    def stop(self) -> None:
        """End the run once the running commit phase has finished."""

    def drain(self) -> None:
        """End the run once the transactions in flight are committed."""


class TopologyRun:
    """A topology that runs in this process, in a thread of its own. All methods may be called from any thread.

    `with start_topology(…) as run:` stops it when the block is left. The error that ends a run is raised by `wait`,
    `stop` and `drain`, and when the block is left. A program that ends stops its runs first.
    """

    def __init__(self, topology_id: str, store: str) -> None:
        self.topology_id, self._key = topology_id, (topology_id, store)
        self.progress = RunProgress(topology_id)
        self._driver: Runnable | None = None
        self._resources, self._ended = ExitStack(), threading.Event()
        self._summary: RunSummary | None = None
        self._error: BaseException | None = None
        self._trace: TracebackType | None = None
        self._has_begun = True
        self._thread = threading.Thread(target=self._run, name=f"run of {topology_id}", daemon=False)

    def begin(self, prepared: AbstractContextManager[Runnable]) -> None:
        """Start the prepared driver in its thread. Returns once the run leads or stands by, and raises the error that
        prevents this."""
        self._claim()
        try:
            self._driver = self._resources.enter_context(prepared)
            _watch_main_thread()
            self._thread.start()
        except BaseException:
            self._forget()
            raise
        if not threading.main_thread().is_alive():
            self._request_stop()  # the program has ended meanwhile
        try:
            self.progress.has_begun.wait()
        except BaseException:  # Ctrl-C: nobody has the handle yet
            self._request_stop()
            raise
        if not self._has_begun:
            self._wait_for_end()

    def _claim(self) -> None:
        with _lock:
            if self._key in _active:
                raise ConfigError(
                    f"topology {self.topology_id!r} is already run by this process: stop() that run first, or let "
                    f"another process do so: transactional kill {self.topology_id}"
                )
            _active[self._key] = self

    def _forget(self) -> None:
        with _lock:
            _active.pop(self._key, None)

    def _request_stop(self) -> None:
        if self._driver is not None and self.is_running:
            self._driver.stop()

    def _run(self) -> None:
        assert self._driver is not None
        try:
            with self._resources:
                self._summary = self._driver.run()
        except BaseException as error:
            self._error, self._trace = error, error.__traceback__
        finally:
            self._forget()
            self._ended.set()
            self._has_begun = self.progress.has_begun.is_set()
            self.progress.has_begun.set()

    @property
    def is_running(self) -> bool:
        """Whether the run has not ended yet."""
        return not self._ended.is_set()

    @property
    def error(self) -> BaseException | None:
        """The error that has ended the run, or None if it still runs or has ended without one."""
        return self._error

    def status(self) -> RunStatus:
        """Return the state of the run as this process knows it, without reading the store."""
        return self.progress.status

    def wait(self, timeout_s: float | None = None) -> RunSummary:
        """Wait for the end, and return a summary. Raises the error that has ended the run, or `TimeoutError`.

        Ctrl-C interrupts the waiting; the topology keeps running.
        """
        with brief_errors():
            try:
                return self._wait_for_end(timeout_s)
            except KeyboardInterrupt:
                if self.is_running:
                    sys.stderr.write(f"topology {self.topology_id!r} keeps running: stop() ends it\n")
                raise

    def stop(self) -> RunSummary:
        """Stop the run, as Ctrl-C stops `transactional run`, and return as `wait` does. Nothing new starts, the running
        commit phase finishes, and the next run repeats the aborted attempts."""
        with brief_errors():
            self._request_stop()
            return self._wait_for_end()

    def drain(self) -> RunSummary:
        """Issue no new transactions, commit those in flight, end the run, and return as `wait` does."""
        with brief_errors():
            if self._driver is not None and self.is_running:
                self._driver.drain()
            return self._wait_for_end()

    def _wait_for_end(self, timeout_s: float | None = None) -> RunSummary:
        if threading.current_thread() is self._thread:
            raise RuntimeError(f"an observer of topology {self.topology_id!r} can't wait for the run that calls it")
        if not self._ended.wait(timeout_s):
            raise TimeoutError(f"topology {self.topology_id!r} still runs after {timeout_s:g} s")
        if self._error is not None:
            raise self._error.with_traceback(self._trace)
        assert self._summary is not None
        return self._summary

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.stop()
            return
        self._request_stop()
        self._ended.wait()
        if self._error is not None and self._error is not error:
            error.add_note(f"topology {self.topology_id!r} had ended with {type(self._error).__name__}: {self._error}")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.status()}>"


@cache
def _watch_main_thread() -> None:
    threading.Thread(target=_stop_with_program, name="end of the program", daemon=True).start()


def _stop_with_program() -> None:
    threading.main_thread().join()
    for run in list(_active.values()):
        _log.warning("topology %r is stopped, because the program has ended: wait() keeps it", run.topology_id)
        run._request_stop()


def _forget_all() -> None:
    """Forget the runs in a forked process, which has none of their threads."""
    _active.clear()
    _watch_main_thread.cache_clear()


os.register_at_fork(after_in_child=_forget_all)
