"""A client that has been admitted to a console, without a browser or a socket."""

from __future__ import annotations

from typing import Any

from starlette.testclient import TestClient

from tests.unit.operations.console.stores import Past
from transactional.operations.console.app import Console, application
from transactional.operations.web.guard import Access

TOKEN = "a-token-of-the-tests"
BASE = "http://127.0.0.1:8787"


def stranger(
    past: Past, *, follow_redirects: bool = True, acts: bool = False, access: Access | None = None, **others: Any
) -> TestClient:
    """A client without the token; `others` are further fields of the console."""
    writable = past.store if acts else None
    console = Console(past.store, access or Access(TOKEN), past.clock, look_every_s=0.01, writable=writable, **others)
    return TestClient(application(console), base_url=BASE, follow_redirects=follow_redirects)


def browser(past: Past, *, acts: bool = False, **others: Any) -> TestClient:
    """A client that has opened the printed address."""
    client = stranger(past, acts=acts, **others)
    assert client.get(f"/?token={TOKEN}").status_code == 200
    return client
