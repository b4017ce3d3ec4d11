"""What open pages are sent: when to load themselves again."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from starlette.types import ASGIApp, Message

from tests.unit.operations.console.browsing import TOKEN, browser
from tests.unit.operations.console.stores import Past
from transactional.errors import StoreUnavailable
from transactional.operations.console import app as console
from transactional.operations.console.app import LISTENERS_MAX
from transactional.operations.web.connections import LIMITS


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
    events_of(app, [("event: changed", past.committed), ("event: changed", past.end), ("event: changed", dict)])


def test_a_page_of_a_run_at_rest_shows_how_long_ago_its_last_commit_was() -> None:
    past = Past().begin().committed(2)
    rests = partial(past.clock.advance, 10_000)
    events_of(browser(past).app, [("event: changed", rests), ("event: changed", dict)])


def test_a_store_that_is_away_is_reported_and_followed_again_when_it_is_back(monkeypatch: Any) -> None:
    past = Past().begin().committed(2)
    app = browser(past).app

    def away(*_: object, **__: object) -> None:
        raise StoreUnavailable("it is away")

    monkeypatch.setattr(past.store, "times", away)
    events_of(app, [("event: away", monkeypatch.undo), ("event: changed", dict)])


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
