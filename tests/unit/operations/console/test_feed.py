"""What open pages of the run beside a console are told: the page's own parts, and when to load the rest again."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest
from starlette.types import ASGIApp, Message

from tests.unit.operations.console.browsing import TOKEN, browser
from tests.unit.operations.console.stores import START_MS, Past
from transactional.core.store import DesiredState
from transactional.core.store.history import EndedHow, RunEnd
from transactional.errors import StoreUnavailable
from transactional.operations.console import app as console
from transactional.operations.console.app import LISTENERS_MAX, Console, application
from transactional.operations.console.data.live import Live
from transactional.operations.console.feed import (
    PAGES_EVERY_S,
    PAGES_SHARE,
    PARTS_EVERY_S,
    PARTS_SHARE,
    Feed,
    Listener,
    Showing,
)
from transactional.operations.console.views import CHANGING
from transactional.operations.web.connections import LIMITS
from transactional.operations.web.guard import Access
from transactional.runtime.engine.history.observing import Ended, Leading


def led(past: Past) -> Live:
    """The run that has made this past goes on."""
    live = Live(past.topology_id)
    live.notice(START_MS, Leading(past.held, None))
    return live


class Clocks:
    """A run that uses half of a processor, and parts that cost `part_s`."""

    def __init__(self, live: Live, part_s: float = 0.006) -> None:
        self.now_s, self.part_s, self.made = 0.0, part_s, 0
        self.used_s = defaultdict[int, float](float)
        """By the console's threads."""
        self.feed = Feed(
            live,
            self.make,
            process_s=lambda: 0.5 * self.now_s + sum(self.used_s.values()),
            thread_s=lambda: self.used_s[threading.get_ident()],
            monotonic_s=lambda: self.now_s,
        )

    def use(self, cost_s: float) -> None:
        self.used_s[threading.get_ident()] += cost_s

    def make(self) -> dict[str, str]:
        self.made += 1
        self.use(self.part_s)
        return {"tiles": f"made {self.made}\ntimes", "now": "the same"}


def test_the_parts_are_those_of_the_page() -> None:
    past = Past().begin().committed(14).retried()
    past.fail(past.issue())
    live = led(past)
    for acts in (False, True):
        client = browser(past, live=live, acts=acts)
        page = client.get("/t/words/").text
        parts = Showing(past.store, live, past.clock, Access(TOKEN).form_key if acts else None)()
        assert tuple(parts) == CHANGING
        for name, part in parts.items():
            assert f'data-part="{name}"' in part
            assert part in page


def test_a_part_tells_what_an_operator_wants_and_what_fails_once_that_is_read() -> None:
    past = Past().begin().committed(2)
    live = led(past)
    show = Showing(past.store, live, past.clock, None)
    assert "inactive" not in show()["head"]
    past.store.desire("words", DesiredState.INACTIVE)
    past.fail(past.issue())
    assert "inactive" not in show()["head"], "its row was read a moment ago"
    live.recent.doubt()
    assert "inactive" in show()["head"]
    assert "transaction 3" in show()["trouble"]
    past.store.desire("words", DesiredState.ACTIVE)
    past.clock.advance(5_001)
    assert "inactive" not in show()["head"]


def test_parts_are_made_when_something_is_new_and_paid_for_by_the_run() -> None:
    live = led(Past().begin())
    clocks = Clocks(live)
    feed = clocks.feed

    async def look() -> None:
        for _ in range(600):
            clocks.now_s += 0.1
            live.version += 1
            await feed.look()

    asyncio.run(look())
    assert clocks.made * clocks.part_s <= 1.1 * 30 * PARTS_SHARE
    assert clocks.made > 0.5 * 30 * PARTS_SHARE / clocks.part_s
    clocks.now_s += 4
    asyncio.run(feed.look())
    before = clocks.made
    clocks.now_s += 4
    asyncio.run(feed.look())
    assert clocks.made == before, "nothing is new"
    clocks.now_s += 2
    asyncio.run(feed.look())
    assert clocks.made == before + 1, "ages are shown, too"


def test_whole_pages_are_paid_for_by_the_run_too() -> None:
    live = led(Past().begin())
    clocks, told = Clocks(live, part_s=0.0), list[float]()

    async def look(seconds: int) -> None:
        for _ in range(10 * seconds):
            clocks.now_s += 0.1
            live.version += 1
            before = clocks.feed.pages
            await clocks.feed.look()
            if clocks.feed.pages != before:
                told.append(clocks.now_s)
                await asyncio.to_thread(clocks.use, 0.03)
                clocks.feed.page_made(0.03)

    asyncio.run(look(300))
    assert 0.7 * 150 * PAGES_SHARE <= len(told) * 0.03 <= 1.1 * 150 * PAGES_SHARE
    assert PARTS_EVERY_S < 10 < PAGES_EVERY_S
    assert PARTS_SHARE + PAGES_SHARE < 0.02


def test_all_who_have_a_page_open_are_told_the_same_once() -> None:
    live = led(Past().begin())
    clocks = Clocks(live)
    one, other = Listener(clocks.feed), Listener(clocks.feed)

    async def heard() -> list[str]:
        found = [await one.news(), await other.news(), await one.news()]
        clocks.now_s, live.version = 30.0, live.version + 1
        return [*found, await one.news(), await other.news()]

    first = "event: parts\ndata: made 1\ndata: timesthe same\n\n"
    told = asyncio.run(heard())
    assert told[0].startswith(first)
    assert told[1].startswith(first)
    assert told[2] == ""
    again = "event: parts\ndata: made 2\ndata: times\n\n"
    assert told[3].startswith(again)
    assert told[4].startswith(again)
    assert clocks.made == 2


def events_of(app: ASGIApp, then: list[tuple[str, Callable[[], Any]]]) -> str:
    """What a page of `words` is told until each text was heard; what is to happen then, happens one after another."""
    heard, over = bytearray(), asyncio.Event()
    headers = [(b"host", b"127.0.0.1"), (b"cookie", f"transactional={TOKEN}".encode())]
    scope = {
        "type": "http",
        "method": "GET",
        "path": "/t/words/changes",
        "raw_path": b"/t/words/changes",
        "root_path": "",
        "scheme": "http",
        "query_string": b"",
        "headers": headers,
        "server": ("127.0.0.1", 8787),
        "client": ("127.0.0.1", 1),
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
    }
    waiting = list(then)

    async def receive() -> Message:
        await over.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        heard.extend(message.get("body", b""))
        if waiting and waiting[0][0] in heard.decode():
            heard.clear()
            waiting.pop(0)[1]()
        if not waiting:
            over.set()

    asyncio.run(asyncio.wait_for(app(scope, receive, send), 20))
    return heard.decode()


def test_a_page_over_a_store_is_told_that_something_has_changed() -> None:
    """At first in any case: what has happened between the page and its listening would never be shown."""
    past = Past().begin().committed(2)
    app = browser(past).app
    told = events_of(app, [("event: changed", past.committed), ("event: changed", past.end), ("event: changed", dict)])
    assert "event: parts" not in told


def test_a_page_of_a_run_is_sent_its_parts_and_loaded_again_when_the_run_has_ended() -> None:
    past = Past().begin().committed(2)
    live = led(past)

    def end() -> None:
        past.end()
        live.notice(START_MS, Ended(RunEnd(EndedHow.DRAINED), None))

    events_of(browser(past, live=live).app, [("<b>2</b>", end), ("event: changed", dict)])


def test_a_page_of_another_topology_than_the_runs_follows_the_store() -> None:
    past = Past().begin().committed(2)
    other = led(Past("others", store=past.store, clock=past.clock).begin())
    app = browser(past, live=other).app
    assert "parts" not in events_of(app, [("event: changed", past.committed), ("event: changed", dict)])


def test_a_store_that_is_away_is_told_and_parts_follow_when_it_is_back(monkeypatch: Any) -> None:
    past = Past().begin().committed(2)
    live = led(past)

    def away(*_: object, **__: object) -> None:
        raise StoreUnavailable("it is away")

    monkeypatch.setattr(past.store, "times", away)
    app = application(Console(past.store, Access(TOKEN), past.clock, look_every_s=0.01, live=live))
    events_of(app, [("event: away", monkeypatch.undo), ("<b>2</b>", dict)])


def test_only_so_many_pages_are_live_and_the_next_one_asks_again_later(monkeypatch: pytest.MonkeyPatch) -> None:
    past = Past().begin().committed(2)
    app, others = browser(past).app, list[str]()
    monkeypatch.setattr(console, "LISTENERS_MAX", 1)

    def another() -> None:
        thread = threading.Thread(target=lambda: others.append(events_of(app, [("event: full", dict)])))
        thread.start()
        thread.join(20)

    for _ in range(2):  # a page that was closed makes room for one
        events_of(app, [("event: changed", another)])
    assert len(others) == 2
    assert 0 < LISTENERS_MAX < LIMITS.connections, "pages are loaded over what live ones leave"
