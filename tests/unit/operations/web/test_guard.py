"""Who is refused, and what every answer allows."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.unit.operations.console.browsing import BASE, TOKEN, browser, stranger
from tests.unit.operations.console.stores import Past
from transactional.errors import ConfigError
from transactional.operations.web.guard import HEADERS, Access, Guard, make_access
from transactional.operations.web.server import Address


@pytest.fixture
def past() -> Past:
    return Past().begin().committed()


@pytest.mark.parametrize(
    "path", ["/", "/t/words/", "/t/words/changes", "/static/console.css", "/nothing", "/?token=", "/?token=x"]
)
def test_without_the_token_nothing_is_shown(past: Past, path: str) -> None:
    answer = stranger(past).get(path)
    assert answer.status_code == 401
    assert "with its token" in answer.text
    assert "words" not in answer.text
    assert TOKEN not in answer.text


def test_a_wrong_cookie_is_no_token(past: Past) -> None:
    client = stranger(past)
    client.cookies.set("transactional", TOKEN + "x")
    assert client.get("/").status_code == 401


def test_the_token_becomes_a_cookie_and_leaves_the_address(past: Past) -> None:
    answer = stranger(past, follow_redirects=False).get(f"/t/words/attempts?phase=failed&token={TOKEN}")
    assert (answer.status_code, answer.headers["location"]) == (303, "/t/words/attempts?phase=failed")
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie


def test_an_address_of_another_host_is_never_redirected_to(past: Past) -> None:
    answer = stranger(past, follow_redirects=False).get(f"{BASE}//evil.example/?token={TOKEN}")
    assert answer.headers["location"] == "/evil.example/"


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8787", "127.0.0.1.evil.example", "", "[::2]:8787", "10.0.0.1"]
)
def test_a_name_that_is_not_ours_is_refused_whoever_asks(past: Past, host: str) -> None:
    assert browser(past).get("/", headers={"host": host}).status_code == 421


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:9", "127.0.0.1:1", "[::1]:8787", "[::1]"])
def test_our_names_are_known_on_any_port(past: Past, host: str) -> None:
    assert stranger(past).get("/", headers={"host": host}).status_code == 401


@pytest.mark.parametrize(
    ("added", "host"),
    [
        ("topologies.example:8443", "topologies.example"),
        ("Topologies.Example:8443", "topologies.example:8443"),
        ("topologies.example", "topologies.example:443"),
        ("10.0.0.7:80", "10.0.0.7"),
        ("2001:DB8:0::1", "[2001:db8::1]:8787"),
        ("[2001:db8::1]:8443", "[2001:db8::1]"),
    ],
)
def test_a_further_name_is_known_with_or_without_a_port(past: Past, added: str, host: str) -> None:
    client = stranger(past, access=make_access(Address(), None, [added]))
    assert client.get("/", headers={"host": host}).status_code == 401
    assert client.get("/", headers={"host": "evil.example:8443"}).status_code == 421


@pytest.mark.parametrize("added", ["", ":8443", "https://topologies.example", "me@topologies.example", "two names"])
def test_what_is_no_host_name_is_refused_at_the_start(added: str) -> None:
    with pytest.raises(ConfigError, match="is no host name"):
        make_access(Address(), None, [added])


@pytest.mark.parametrize("site", ["cross-site", "same-site", "none", None])
def test_only_our_own_pages_may_post(past: Past, site: str | None) -> None:
    headers = {} if site is None else {"sec-fetch-site": site}
    assert browser(past).post("/t/words/", headers=headers).status_code == 403
    assert browser(past).post("/t/words/", headers={"sec-fetch-site": "same-origin"}).status_code == 405


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_another_site_or_port_may_link_but_not_embed(past: Past, site: str) -> None:
    foreign = {"sec-fetch-site": site}
    assert browser(past).get("/", headers=foreign | {"sec-fetch-dest": "document"}).status_code == 200
    for kind in ("iframe", "image", "script", "empty"):
        assert browser(past).get("/", headers=foreign | {"sec-fetch-dest": kind}).status_code == 403


@pytest.mark.parametrize("path", ["/", "/t/words/", "/static/console.js", "/static/none", "/nothing"])
def test_every_answer_says_what_it_may_load(past: Past, path: str) -> None:
    for client in (stranger(past), browser(past)):
        headers = client.get(path).headers
        assert {name: headers[name] for name in HEADERS} == dict(HEADERS)
        assert len(headers.get_list("content-security-policy")) == 1
    assert "unsafe" not in HEADERS["content-security-policy"]


def test_the_token_is_not_in_any_text_of_ours() -> None:
    access = Access(TOKEN)
    assert TOKEN not in repr(access)
    assert TOKEN not in access.form_key
    assert access.is_token(TOKEN)
    assert not access.is_token("\udc80")


@pytest.mark.parametrize("kind", ["websocket", "other"])
def test_nothing_but_http_reaches_the_application(kind: str) -> None:
    """A web socket has no token: an application that answers one would answer a stranger."""

    async def answer(*_: object) -> Any:
        raise AssertionError("it was called")

    scope = {"type": kind, "path": "/", "headers": [], "query_string": b""}
    with pytest.raises(RuntimeError, match=f"a scope of the type '{kind}'"):
        asyncio.run(Guard(answer, Access(TOKEN))(scope, answer, answer))
