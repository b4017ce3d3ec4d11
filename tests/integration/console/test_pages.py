"""The console in a real Chromium: every page, both schemes, live, with buttons, and against texts that attack it."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Dialog, Page, Request, expect, sync_playwright

from tests.integration.console.chromium import chromium
from tests.unit.operations.console.stores import HOSTILE, Past
from transactional.core.store import DesiredState
from transactional.operations.console.app import Console, application
from transactional.operations.console.slugs import slug_of
from transactional.operations.web.guard import Access
from transactional.operations.web.server import Address, bind, serving_in_thread

pytestmark = pytest.mark.browser

TOKEN = "a-token-of-the-tests"
AXE = Path(__file__).parents[2] / "vendor" / "axe.min.js"
PAGES = (
    *("", "?charts=hour", "attempts", "attempts?phase=failed", "transactions/7", "partitions", "states"),
    *("letters", "runs", "configuration", "doctor", "doctor?examine=1"),
)


OUTSIDE = """texts => texts.filter(text => {
    const box = text.getBBox(), room = text.ownerSVGElement.viewBox.baseVal;
    return box.x < 0 || box.x + box.width > room.width;
}).map(text => text.textContent)"""
"""The texts of pictures that leave them."""


SHADE = """async picture => {
    const image = await createImageBitmap(await (await fetch("data:image/png;base64," + picture)).blob());
    const canvas = new OffscreenCanvas(image.width, image.height), context = canvas.getContext("2d");
    context.drawImage(image, 0, 0);
    const at = x => context.getImageData(x, 3, 1, 1).data[0];
    return at(image.width - 60) - at(image.width - 2);
}"""
"""How much darker a picture is at its right edge than further in, in its first rows, where no text is."""


def shade_at_the_right(page: Page, picture: bytes) -> bool:
    """Whether it is; measured in a page of its own, as ours may not load pictures."""
    measuring = page.context.new_page()
    darker = measuring.evaluate(SHADE, base64.b64encode(picture).decode())
    measuring.close()
    return bool(darker > 20)


@dataclass
class Visit:
    """A page in the browser, and all that went wrong in it."""

    page: Page
    base: str
    wrong: list[str] = field(default_factory=list)

    def open(self, path: str) -> Page:
        """Load a page."""
        answer = self.page.goto(self.base + path)
        assert answer is not None
        assert answer.status == 200, path
        return self.page


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        yield browser
        browser.close()


@contextmanager
def visiting(
    browser: Browser,
    past: Past,
    *,
    acts: bool = False,
    scheme: str = "light",
    scripts: bool = True,
    zone: str | None = None,
) -> Iterator[Visit]:
    """The console over a store, opened with its token; at the end nothing may have gone wrong."""
    with closing(bind(Address(port=0))) as listening:
        base = f"http://127.0.0.1:{listening.getsockname()[1]}"
        console = Console(
            past.store, Access(TOKEN), past.clock, look_every_s=0.1, writable=past.store if acts else None
        )
        with serving_in_thread(application(console), listening):
            context = browser.new_context(
                color_scheme="dark" if scheme == "dark" else "light",
                java_script_enabled=scripts,
                bypass_csp=False,
                timezone_id=zone,
            )
            visit = Visit(context.new_page(), base)
            watch(visit)
            visit.open(f"/?token={TOKEN}")
            yield visit
            context.close()
    assert visit.wrong == []


def watch(visit: Visit) -> None:
    """Note every error, dialog, and request that leaves the host."""

    def requested(request: Request) -> None:
        if not request.url.startswith((visit.base, "data:")):
            visit.wrong.append(f"a request to {request.url}")

    def noticed(message: ConsoleMessage) -> None:
        if message.type == "error":
            visit.wrong.append(message.text)

    def opened(dialog: Dialog) -> None:
        visit.wrong.append("a dialog")
        dialog.dismiss()

    visit.page.on("request", requested)
    visit.page.on("pageerror", lambda error: visit.wrong.append(f"an error: {error}"))
    visit.page.on("console", noticed)
    visit.page.on("dialog", opened)


def a_past(topology_id: str = "words", name: str = "") -> Past:
    past = Past(topology_id, name=name).begin().committed(6).retried().committed(3).taken_over().committed(4)
    past.fail(past.issue())
    past.issue(past.txid)
    return past


@pytest.mark.sampled(2)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page_is_accessible_in_both_schemes(browser: Browser, scheme: str) -> None:
    with visiting(browser, a_past(), scheme=scheme, acts=True) as visit:
        for path in ("/", "/errors", *(f"/t/words/{each}" for each in PAGES)):
            page = visit.open(path)
            # Our own policy forbids scripts of others: the tester is put in by the browser itself.
            # It measures no contrast on a gradient: it looks at the texts without the shades.
            page.evaluate(
                "document.styleSheets[0].insertRule('.scroll, .tabs { background: none !important }', 0) + ''"
            )
            page.evaluate(AXE.read_text("utf-8") + ";undefined")
            found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
            wrong = [(each["id"], [node["html"][:120] for node in each["nodes"][:3]]) for each in found["violations"]]
            assert wrong == [], path


@pytest.mark.sampled(2)
@pytest.mark.parametrize("width", [1440, 390])
def test_every_page_fits_its_window_and_the_graph_its_card(browser: Browser, width: int) -> None:
    past = Past(components=7).begin().committed(6).retried().committed(3)
    with visiting(browser, past) as visit:
        visit.page.set_viewport_size({"width": width, "height": 900})
        for path in ("/", "/errors", *(f"/t/words/{each}" for each in PAGES)):
            page = visit.open(path)
            assert page.evaluate("document.documentElement.scrollWidth") <= width, path
        page = visit.open("/t/words/")
        graph, card = page.locator("svg.graph:visible").bounding_box(), page.locator("[data-part=graph]").bounding_box()
        assert graph is not None
        assert card is not None
        assert card["x"] < graph["x"]
        assert graph["x"] + graph["width"] < card["x"] + card["width"]
        assert page.locator("svg.graph:visible text").evaluate_all(OUTSIDE) == []


def test_on_a_phone_the_lag_is_in_sight_and_what_is_cut_has_a_shade(browser: Browser) -> None:
    past = Past(partitions=3).begin()
    past.commit(past.issue(), {"lag": 9, "lags": [["words", 1, 5], ["words", 2, 4]]})
    with visiting(browser, past) as visit:
        visit.page.set_viewport_size({"width": 390, "height": 900})
        for path in ("", "partitions"):
            table = visit.open(f"/t/words/{path}").get_by_role("region", name="Partitions")
            lag = table.get_by_role("cell", name="5", exact=True).bounding_box()
            box = table.bounding_box()
            assert lag is not None
            assert box is not None
            assert box["x"] <= lag["x"]
            assert lag["x"] + lag["width"] <= box["x"] + box["width"]
            assert table.evaluate("box => box.scrollWidth > box.clientWidth"), "the others are cut"
            assert shade_at_the_right(visit.page, table.screenshot())
            table.evaluate("box => { box.scrollLeft = box.scrollWidth; }")
            assert not shade_at_the_right(visit.page, table.screenshot())


def test_a_time_is_shown_by_the_clock_of_who_points_at_it(browser: Browser) -> None:
    past = a_past()
    with visiting(browser, past, zone="Asia/Tokyo") as visit:
        for path in ("attempts", "runs"):
            time = visit.open(f"/t/words/{path}").locator("time").first
            utc = time.get_attribute("title") or ""
            assert re.fullmatch(r"2025-11-22 08:2\d:\d\d UTC", utc)
            time.hover()
            expect(time).to_have_attribute("title", re.compile(rf"\D(17|5):2\d:\d\d.*\n{utc}"))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("path", PAGES)
def test_hostile_texts_stay_texts(browser: Browser, path: str) -> None:
    with visiting(browser, a_past(HOSTILE, HOSTILE)) as visit:
        page = visit.open(f"/t/{slug_of(HOSTILE)}/{path}")
        assert page.locator("h1").inner_text() == HOSTILE.strip()
        assert page.locator("img").count() == 0


def test_an_open_page_follows_its_topology_and_pauses(browser: Browser) -> None:
    past = Past().begin().committed(14)
    with visiting(browser, past) as visit:
        page = visit.open("/t/words/")
        committed = page.locator(".tiles b").first
        assert committed.inner_text() == "14"
        past.committed(1)
        expect(committed).to_have_text("15", timeout=20_000)
        page.get_by_role("button", name="Pause").click()
        past.committed(1)
        page.wait_for_timeout(500)
        assert committed.inner_text() == "15"
        page.get_by_role("button", name="Resume").click()
        expect(committed).to_have_text("16", timeout=20_000)


def test_buttons_do_what_they_say(browser: Browser) -> None:
    past = a_past()
    with visiting(browser, past, acts=True) as visit:
        page = visit.open("/t/words/")
        for name, state in (("Deactivate", "inactive"), ("Activate", "active"), ("Drain", "draining")):
            with page.expect_navigation():
                page.get_by_role("button", name=name, exact=True).click()
            assert past.store.desired("words").state is DesiredState(state)
        page.get_by_text("Kill …").click()
        with page.expect_navigation():
            page.get_by_role("button", name="Kill words").click()
        assert past.store.desired("words").state is DesiredState.KILLED
        assert page.locator(".pill.killed").inner_text() == "killed"


def test_without_scripts_everything_is_there_but_following(browser: Browser) -> None:
    with visiting(browser, a_past(), scripts=False) as visit:
        page = visit.open("/t/words/")
        assert page.locator("svg.staircase a").count() == 15
        assert page.locator("svg.chart").count() == 3
        assert not page.locator(".live").is_visible()
        page.locator("svg.staircase a").nth(6).click()
        expect(page.locator("section h2").first).to_contain_text("Transaction 7", timeout=20_000)
        page.get_by_role("link", name="Configuration").click()
        expect(page.get_by_role("rowheader", name="lease_ms")).to_be_visible(timeout=20_000)


def test_a_page_of_another_site_gets_nothing(browser: Browser, tmp_path: Path) -> None:
    with visiting(browser, a_past(), acts=True) as visit:
        (tmp_path / "evil.html").write_text(
            f'<form method="post" action="{visit.base}/t/words/desired"><input name="state" value="killed"></form>'
            f'<iframe src="{visit.base}/t/words/"></iframe><script>document.forms[0].submit()</script>'
        )
        with visit.page.expect_response(lambda answer: answer.url.endswith("/desired")) as answered:
            visit.page.goto((tmp_path / "evil.html").as_uri())
        assert answered.value.status == 403
        visit.page.close()
        visit.wrong.clear()  # the browser has complained about that page, up to its end


def test_a_page_outlives_the_server(browser: Browser) -> None:
    with visiting(browser, a_past()) as visit:
        page = visit.open("/t/words/")
        expect(page.locator(".live span")).to_have_text("live", timeout=20_000)
        page.route("**/changes", lambda route: route.abort())
        page.reload()
        expect(page.locator(".live span")).to_have_text("no answer; trying again", timeout=20_000)
        assert page.locator("svg.staircase").is_visible()
        page.close()
        visit.wrong.clear()  # the browser notes each request that failed


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_charts_have_a_cursor_and_zoom_where_scripts_run(browser: Browser, scheme: str) -> None:
    past = Past().begin().committed(14)
    with visiting(browser, past, scheme=scheme) as visit:
        page = visit.open("/t/words/")
        assert page.locator(".uplot canvas").count() == page.locator("svg.chart").count() == 3
        assert not page.locator("svg.chart").first.is_visible()
        over = page.locator(".uplot .u-over").first
        over.scroll_into_view_if_needed()
        box = over.bounding_box()
        assert box is not None
        y = box["y"] + 40
        page.mouse.move(box["x"] + 2, y)
        for legend in page.locator(".u-legend").all():
            expect(legend).to_contain_text("UTC2025-11-22 08:26")
        expect(page.locator(".u-legend").first).to_contain_text(re.compile(r"rate[1-9]"))
        page.mouse.down()
        page.mouse.move(box["x"] + box["width"] / 2, y)
        page.mouse.up()
        expect(page.locator(".zoomed")).to_have_count(3)
        committed = page.locator(".tiles b").first
        past.committed(1)
        expect(committed).to_have_text("15", timeout=20_000)
        assert page.locator(".zoomed").count() == 3, "what somebody looks at closely is left alone"
        page.mouse.dblclick(box["x"] + box["width"] / 2, y)
        expect(page.locator(".zoomed")).to_have_count(0)
        plots = page.locator("[data-plot]")
        before = plots.first.get_attribute("data-plot")
        past.committed(1)
        expect(committed).to_have_text("16", timeout=20_000)
        expect(plots.first).not_to_have_attribute("data-plot", before or "", timeout=20_000)
        assert page.locator(".uplot canvas").count() == 3
        page.emulate_media(media="print")
        assert page.locator("svg.chart").first.is_visible()
        assert not page.locator(".uplot").first.is_visible()
