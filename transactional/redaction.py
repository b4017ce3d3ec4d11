"""Texts from libraries, without the secrets that were passed to them, and fit to be shown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

SHOWN_INSTEAD = "***"

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_STEP = re.compile(r"\s*\n\s*(?:↳\s*)?")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_SECRET = re.compile(r"key|secret|token|passw|sas|credential|bearer", re.IGNORECASE)
_USER = re.compile(r"(?<=://)(?:[^/\s]+|[^/\s:@]*:[^\s@]{1,200})(?=@)")
"""What stands before the `@` of a URL; a password may have a slash in it."""
_IN_QUERY = re.compile(r"((?:ssl)?password=)[^&\s]*", re.IGNORECASE)


def without(secrets: Iterable[object], text: str) -> str:
    """The text with each secret replaced, the longest first: one may be the beginning of another."""
    for secret in sorted(filter(None, map(str, secrets)), key=len, reverse=True):
        text = text.replace(secret, SHOWN_INSTEAD)
    return text


def without_login(url: str) -> str:
    """A URL without user and password."""
    return _IN_QUERY.sub(rf"\1{SHOWN_INSTEAD}", _USER.sub(SHOWN_INSTEAD, url))


def reason_of(error: BaseException, options: Mapping[str, str]) -> str:
    """The text of delta-rs' error, safe to display, for a table that was opened with these storage options."""
    text = _STEP.sub(": ", _COLOURS.sub("", str(error)).strip())
    secrets = (value for name, value in options.items() if _SECRET.search(name))
    return _USER.sub(SHOWN_INSTEAD, without(secrets, text))


def without_controls(text: str) -> str:
    """The text with what would control a terminal escaped; lines and tabs remain."""
    return _CONTROL.sub(lambda found: repr(found[0])[1:-1], text)


def is_secret(name: str) -> bool:
    """Whether an option of this name holds a secret."""
    return _SECRET.search(name) is not None
