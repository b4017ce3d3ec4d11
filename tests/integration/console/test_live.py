"""The console in a real Chromium while things happen: a run that goes on and ends, a server that goes and comes back, a
store of an older schema, and everything that is refused."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from spouts.memory import MemoryTransactionalSpout
from state.memory import MemoryMapState
from tests.integration.console.test_pages import TOKEN, Visit, a_past, browser, visiting, watch
from tests.unit.operations.console.stores import Past
from transactional import TransactionalTopologyBuilder
from transactional.core.store import StoreReader
from transactional.operations.console.app import Console, application
from transactional.operations.launch.running import console_of_run, run_topology
from transactional.operations.web.guard import Access
from transactional.operations.web.server import Address, bind, serving_in_thread

pytestmark = pytest.mark.browser
__all__ = ["browser"]
GATE = threading.Semaphore(0)


def wait(row: Any) -> tuple[Any, ...]:
    """A bolt that takes as long as the test wants."""
    GATE.acquire()
    return tuple(row)


@contextmanager
def page_of(browser: Browser, url: str) -> Iterator[Visit]:
    """A visit of whoever opens this address; at the end nothing may have gone wrong."""
    context = browser.new_context()
    visit = Visit(context.new_page(), url.partition("/?")[0])
    watch(visit)
    visit.page.goto(url)
    yield visit
    context.close()
    assert visit.wrong == []


def test_a_run_is_followed_from_its_first_transaction_to_its_end(browser: Browser, tmp_path: Path) -> None:
    said = list[str]()
    builder = TransactionalTopologyBuilder(
        "words", "spout", MemoryTransactionalSpout([[("cat",), ("dog",), ("emu",)]], "word string", 1)
    )
    builder.set_bolt("slow", wait, output="word string").shuffle_grouping("spout")
    builder.set_committer_bolt("count", MemoryMapState("word").count()).fields_grouping("slow", "word")
    topology, url = builder.build(), f"sqlite:///{tmp_path}/store.db"
    config = {"stop_when_drained": True, "max_spout_pending": 1}
    with console_of_run(topology, url, "127.0.0.1:0", said.append):
        running = threading.Thread(
            target=lambda: run_topology(topology, store=url, master="none", config=config),
            daemon=True,  # a test that fails leaves it waiting
        )
        running.start()
        with page_of(browser, said[0].rpartition(" ")[2]) as visit:
            page = visit.page
            expect(page.get_by_role("link", name="words").first).to_be_visible(timeout=30_000)
            page.goto(f"{visit.base}/t/words/")
            attempts = page.locator("[data-part=attempts] tbody tr")
            expect(attempts).to_contain_text("processing", timeout=30_000)
            for committed in (1, 2):
                GATE.release()
                expect(page.locator(".tiles b").first).to_have_text(str(committed), timeout=30_000)
                expect(attempts).to_have_count(committed + 1, timeout=30_000)
            GATE.release()
            running.join(60)
            expect(page.locator(".head .pill").first).to_have_text("drained", timeout=30_000)
            expect(attempts).to_have_count(3)


@contextmanager
def served(store: StoreReader, port: int = 0, clock: Any = None) -> Iterator[int]:
    """The console over a store, on a port."""
    with closing(bind(Address(port=port))) as listening:
        more = {} if clock is None else {"clock": clock}
        with serving_in_thread(application(Console(store, Access(TOKEN), look_every_s=0.1, **more)), listening):
            yield listening.getsockname()[1]


def test_a_page_goes_on_when_its_server_comes_back(browser: Browser) -> None:
    past = Past().begin().committed(14)
    context = browser.new_context()
    page = context.new_page()
    with served(past.store, clock=past.clock) as port:
        page.goto(f"http://127.0.0.1:{port}/?token={TOKEN}")
        page.goto(f"http://127.0.0.1:{port}/t/words/")
        expect(page.locator(".live span")).to_have_text("live", timeout=20_000)
    expect(page.locator(".live span")).to_have_text("no answer; trying again", timeout=20_000)
    assert page.locator("svg.staircase").is_visible()
    past.committed(1)
    with served(past.store, port, clock=past.clock):
        expect(page.locator(".tiles b").first).to_have_text("15", timeout=30_000)
        expect(page.locator(".live span")).to_have_text("live", timeout=30_000)
        past.committed(1)
        expect(page.locator(".tiles b").first).to_have_text("16", timeout=30_000)
        context.close()


SEND = """async ([path, fields]) => {
    const answer = await fetch(path, {method: "POST", body: new URLSearchParams(fields)});
    return [answer.status, await answer.text()];
}"""


def test_who_may_only_look_has_no_buttons_and_is_refused(browser: Browser) -> None:
    past = a_past()
    before = past.store.desired("words")
    with visiting(browser, past) as visit:
        page = visit.open("/t/words/")
        assert page.locator("form[method=post]").count() == 0
        for path in ("desired", "repairs"):
            status, told = page.evaluate(SEND, [f"/t/words/{path}", {"state": "killed", "key": "guessed"}])
            assert (status, "without --allow-actions" in told) == (403, True)
        visit.wrong = [each for each in visit.wrong if "403" not in each]
    assert past.store.desired("words") == before


def test_forms_are_refused_that_are_not_of_this_console_or_want_what_can_not_be(browser: Browser) -> None:
    past = Past().begin().committed(3)
    with visiting(browser, past, acts=True) as visit:
        page = visit.open("/t/words/")
        key = page.locator("input[name=key]").first.get_attribute("value")
        for fields, path, wanted, reason in (
            ({"state": "killed", "key": "guessed"}, "desired", 403, "not of this console"),
            ({"state": "killed"}, "desired", 403, "not of this console"),
            ({"state": "exploded", "key": key}, "desired", 400, "no such state"),
            ({"key": key}, "repairs", 409, "--app MODULE:TOPOLOGY"),
        ):
            status, told = page.evaluate(SEND, [f"/t/words/{path}", fields])
            assert (status, reason in told) == (wanted, True), told
        status, _ = page.evaluate(SEND, ["/t/nowhere/desired", {"state": "active", "key": key}])
        assert status == 404
        visit.wrong = [each for each in visit.wrong if "Failed to load resource" not in each]
    assert past.store.desired("words").state.value == "active"


def test_without_its_token_nothing_is_shown(browser: Browser) -> None:
    with visiting(browser, a_past()) as visit:
        context = browser.new_context()
        page = context.new_page()
        for path in ("/", "/t/words/", "/t/words/changes", "/static/console.css", "/?token=guessed"):
            answer = page.goto(visit.base + path)
            assert answer is not None
            assert answer.status == 401, path
            assert "words" not in page.content()
        context.close()
