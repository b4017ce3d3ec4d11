"""The docs as a site: every link leads somewhere, nothing comes from elsewhere, search and diagrams work."""

from __future__ import annotations

import importlib.util
import re
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.integration.console.test_pages import browser
from tests.tidy.files import ROOT, our_files

__all__ = ["browser"]
ELSEWHERE = re.compile(r"""<(?:script|img|iframe)[^>]*\bsrc=["']?(?:https?:)?//|<link[^>]*\bhref=["']?(?:https?:)?//""")
TERMS = {"dead letter": "howto/dead-letters/", "opaque rule": "explanation/exactly-once/", "lease_ms": "howto/standby/"}
"""What is searched for, and a page that has to be found."""


class Quiet(SimpleHTTPRequestHandler):
    """Logs no request."""

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture(scope="module")
def docs_site() -> ModuleType:
    """tools/docs_site.py, which is no package's."""
    spec = importlib.util.spec_from_file_location("docs_site", ROOT / "tools" / "docs_site.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def site(docs_site: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site; a link that leads nowhere ends it."""
    built: Path = docs_site.build(tmp_path_factory.mktemp("docs"))
    return built


@pytest.fixture
def served(site: Path) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


def test_every_page_has_its_place_in_the_navigation(docs_site: ModuleType) -> None:
    nav = (ROOT / "mkdocs.yml").read_text("utf-8").partition("\nnav:")[2]
    named = set(re.findall(r"[\w/-]+\.md", nav))
    names = {path.relative_to(ROOT) for path in our_files() if path.suffix == ".md"}
    names = {name for name in names if name.parts[0] == "docs" or len(name.parts) == 1} | {*docs_site.REFERENCE}
    pages = {docs_site.in_site(name).as_posix() for name in names}
    decisions = {page for page in pages if page.startswith("adr/")} - {"adr/index.md"}
    assert named == pages - decisions, "give a new page a line below `nav` in mkdocs.yml"


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    found = {
        page.relative_to(site).as_posix(): ELSEWHERE.findall(page.read_text("utf-8")) for page in site.rglob("*.html")
    }
    assert len(found) > 50
    assert {page: links for page, links in found.items() if links} == {}


def visited(page: Page, url: str) -> list[str]:
    """What a page loads that is not below its own address; it is filled while the page is used."""
    elsewhere = list[str]()
    base = "/".join(url.split("/")[:3])
    page.on("request", lambda request: None if request.url.startswith(base) else elsewhere.append(request.url))
    page.goto(url)
    return elsewhere


@pytest.mark.browser
def test_the_home_page_is_the_readme_and_its_diagram_is_drawn(browser: Browser, served: str) -> None:
    page = browser.new_page()
    elsewhere = visited(page, served)
    expect(page.get_by_role("heading", name="A first program")).to_be_visible()
    diagram = page.locator("div.mermaid")
    diagram.scroll_into_view_if_needed()
    expect(diagram).to_be_visible(timeout=30_000)
    assert elsewhere == []


@pytest.mark.browser
@pytest.mark.sampled(3)
@pytest.mark.parametrize(("term", "found"), TERMS.items())
def test_the_search_finds(browser: Browser, served: str, term: str, found: str) -> None:
    page = browser.new_page()
    elsewhere = visited(page, served)
    page.keyboard.press("/")
    page.keyboard.type(term)
    expect(page.locator(f"a[role=option][href*='{found}']").first).to_be_visible(timeout=30_000)
    assert elsewhere == []
