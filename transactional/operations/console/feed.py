"""What open pages of the run beside a console are sent: made once for all of them, as often as the run's own work pays
for it.

Whatever changes often is sent as it is shown; for the rest, pages are to be loaded again from time to time.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Mapping
from typing import Final

from starlette.concurrency import run_in_threadpool

from transactional.core.ports import Clock
from transactional.core.store import StoreReader, TopologyStatus
from transactional.core.store.set_aside import RecentLetters, set_aside_of
from transactional.model.attempt import TxId
from transactional.operations.console import views
from transactional.operations.console.data.figures import committed_of
from transactional.operations.console.data.live import Live
from transactional.operations.console.data.recent import caught_up
from transactional.operations.console.pace import Pace
from transactional.operations.console.rendering import render

PARTS_SHARE: Final = 0.008
"""Of the run's processor time, for the parts that change often and for sending them."""
PAGES_SHARE: Final = 0.004
"""Of the run's processor time, for whole pages."""
PARTS_EVERY_S: Final = 4.0
"""A run that uses next to nothing has its figures on the page so often at least."""
PAGES_EVERY_S: Final = 120.0
"""The same for whole pages."""
_APART_S: Final = 2.0
_STALE_S: Final = 5.0

CHANGED: Final = "event: changed\ndata:\n\n"
"""The event for: load the page again."""

Parts = Mapping[str, str]
"""Parts of a page by name, as HTML."""


class Showing:
    """Makes the parts of the run's pages that change often, from what the run reports and from its row in the store,
    which is read only now and then."""

    def __init__(self, store: StoreReader, live: Live, clock: Clock, form_key: str | None) -> None:
        self._store, self._live, self._clock, self._form_key = store, live, clock, form_key
        self._status: TopologyStatus | None = None
        self._set_aside = RecentLetters(TxId(0), (), 0)
        self._read_at_ms = self._reads = 0

    def __call__(self) -> Parts:
        """The parts as of now."""
        recent, now_ms = self._live.recent.newest(self._store), self._clock.wall_ms()
        reads = self._live.recent.reads
        is_fresh = reads == self._reads and 0 <= now_ms - self._read_at_ms < 1_000 * _STALE_S
        if self._status is None or not is_fresh:
            self._status = next(iter(self._store.status(self._live.topology_id)), None)
            self._read_at_ms, self._reads = now_ms, reads
            if self._status is not None:
                self._set_aside = set_aside_of(self._store, self._status)
        if self._status is None:
            return {}
        status = caught_up(self._status, recent)
        values = {
            **views.of_status(self._store, status, now_ms, self._form_key),
            **views.changing(status, recent, self._live, now_ms, self._set_aside.followed(committed_of(recent))),
        }
        return {name: render(f"live/{name}.html", **values) for name in views.CHANGING}


class Feed:
    """Follows a run for whoever has a page open. `make` makes the parts that change often."""

    def __init__(
        self,
        live: Live,
        make: Callable[[], Parts],
        *,
        process_s: Callable[[], float] = time.process_time,
        thread_s: Callable[[], float] = time.thread_time,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.live = live
        self.parts: Parts = {}
        self.pages = 0
        """So many times open pages were to be loaded again."""
        self._make = make
        self._process_s, self._thread_s, self._monotonic_s = process_s, thread_s, monotonic_s
        self._of_parts, self._of_pages = Pace(PARTS_SHARE, PARTS_EVERY_S), Pace(PAGES_SHARE, PAGES_EVERY_S)
        self._made_s = self._told_s = float("-inf")
        self._made_of = self._told_of = -1
        self._loop_s: float | None = None
        self._elsewhere_s = 0.0
        self._counting, self._looking = threading.Lock(), asyncio.Lock()

    def page_made(self, cost_s: float) -> None:
        """A page of the run was made, which took so much processor time. May be called from any thread."""
        with self._counting:
            self._elsewhere_s += cost_s
            self._of_pages.owe(cost_s)
            self._of_pages.note(self._monotonic_s())

    async def look(self) -> None:
        """Make the parts again, or let whole pages be loaded again, if the run has gone on and has paid for it."""
        async with self._looking:
            now_s, version = self._monotonic_s(), self.live.version
            used_s = self._used_by_run_s()
            if self._of_parts.is_due(now_s, used_s) and (version != self._made_of or now_s - self._made_s >= _STALE_S):
                self.parts, cost_s = await run_in_threadpool(self._made)
                self._made_of, self._made_s = version, now_s
                with self._counting:
                    self._elsewhere_s += cost_s
                self._of_parts.owe(cost_s)
                self._of_parts.note(now_s)
            with self._counting:
                is_due = self._of_pages.is_due(now_s, used_s)
            if is_due and version != self._told_of and now_s - self._told_s >= _APART_S:
                self._told_of, self._told_s = version, now_s
                self._of_pages.note(now_s)
                self.pages += 1

    def _made(self) -> tuple[Parts, float]:
        began_s = self._thread_s()
        return self._make(), self._thread_s() - began_s

    def _used_by_run_s(self) -> float:
        """What this process has used without the console. Its own thread, which serves requests, is paid for, too."""
        loop_s = self._thread_s()
        self._of_parts.owe(0.0 if self._loop_s is None else loop_s - self._loop_s)
        self._loop_s = loop_s
        with self._counting:
            return self._process_s() - loop_s - self._elsewhere_s


class Listener:
    """One open page, and what it was sent."""

    def __init__(self, feed: Feed) -> None:
        self._feed, self._pages = feed, feed.pages
        self._sent: Parts = {}

    @property
    def is_led(self) -> bool:
        """Whether the run leads: before and after, the page has to follow the store."""
        return self._feed.live.leads

    async def news(self) -> str:
        """What is new for it, as events; empty: nothing."""
        await self._feed.look()
        parts, pages = self._feed.parts, self._feed.pages
        fresh = "".join(part for name, part in parts.items() if self._sent.get(name) != part)
        events = (_event("parts", fresh) if fresh else "") + (CHANGED if pages != self._pages else "")
        self._sent, self._pages = parts, pages
        return events


def _event(name: str, data: str) -> str:
    return f"event: {name}\n" + "".join(f"data: {line}\n" for line in data.splitlines()) + "\n"
