"""Renders templates as HTML. Every inserted value is redacted and escaped, unless it is one of our own diagrams."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import jinja2

from transactional.core.store import TopologyStatus
from transactional.core.store.rules import state_of
from transactional.model.drawing import formats
from transactional.model.durations import windows_text
from transactional.operations.console.errors_page import with_links
from transactional.operations.console.slugs import slug_of

STATIC: Final = Path(__file__).with_name("static")


def _finalize(inserted: Any) -> Any:
    """Return the text that a template inserts for a value: a dash for None, and texts without control characters."""
    if inserted is None:
        return formats.DASH
    return (
        formats.redacted_text(inserted) if type(inserted) is str else inserted
    )  # a diagram is Markup, and made of shown texts


def _compact(setting: Any) -> str:
    """Return an option's value, or a state's identity, in one line."""
    if setting is None:
        return "not set"
    if isinstance(setting, Mapping):
        return ", ".join(f"{name}: {_compact(nested)}" for name, nested in setting.items())
    return setting if isinstance(setting, str) else json.dumps(setting, ensure_ascii=False, default=str)


class _Element(str):
    """HTML that a template inserts as it is."""

    __slots__ = ()

    def __html__(self) -> str:
        return self


def _time_element(at_ms: int | None, format_time: Callable[[int | None], str]) -> str:
    """Return a time as an element whose title has the date and says that it is UTC; a script adds the local time."""
    if at_ms is None:
        return formats.DASH
    title = f"{formats.format_date_time(at_ms)} UTC"
    return _Element(f'<time datetime="{formats.format_iso(at_ms)}" title="{title}">{format_time(at_ms)}</time>')


def _has_topics(status: TopologyStatus) -> bool:
    """Whether a spout of the topology reads topics, whose partitions have the beginning of an id in their names."""
    spout = status.fingerprint.get("spout", {})
    return any(name.rpartition(".")[2] == "topics" for name in spout)


def _make_environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).with_name("templates")),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_finalize,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "bytes": formats.format_size,
        "clock": lambda at_ms: _time_element(at_ms, formats.format_time_of_day),
        "codes": lambda text: with_links(formats.redacted_text(text)),
        "compact": _compact,
        "count": formats.format_count,
        "dashed": lambda words: words.replace(" ", "-"),
        "duration": formats.format_duration,
        "first_line": formats.first_line,
        "has_topics": _has_topics,
        "moment": lambda at_ms: _time_element(at_ms, formats.format_date_time),
        "slug": slug_of,
        "state": state_of,
        "windows": lambda value: windows_text(value) if isinstance(value, str) else value,
    }
    return environment


_ENVIRONMENT: Final = _make_environment()


def render(template: str, **values: object) -> str:
    """Render a template. A value that the template uses and `values` lacks is an error."""
    text: str = _ENVIRONMENT.get_template(template).render(**values)
    return text


def load_templates() -> None:
    """Compile all templates now, not with the first page that uses them."""
    for name in _ENVIRONMENT.list_templates(extensions=("html",)):
        _ENVIRONMENT.get_template(name)
