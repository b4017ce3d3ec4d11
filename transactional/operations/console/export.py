"""The overview of a topology as one file: diagrams and figures, with nothing to load and nothing to run."""

from __future__ import annotations

import re

from transactional.core.store import StoreReader, TopologyStatus
from transactional.model.drawing.formats import format_date_time
from transactional.operations.console import views
from transactional.operations.console.history import History
from transactional.operations.console.rendering import STATIC, render

_LINK = re.compile(r'(<a\b[^>]*?) href="/[^"]*"')


def render_page_file(store: StoreReader, status: TopologyStatus, now_ms: int) -> str:
    """The page. Links to other pages are left out: there is no console where it is read."""
    style = (STATIC / "console.css").read_text(encoding="utf-8")
    page = render(
        "export.html",
        style=style,
        made_at=format_date_time(now_ms),
        statuses=(),
        current=None,
        **{**views.status_values(store, status, now_ms), **views.topology(store, status, now_ms, history=History())},
    )
    return _LINK.sub(r"\1", page)
