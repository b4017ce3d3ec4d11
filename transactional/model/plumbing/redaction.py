"""Texts from libraries, without the secrets that were passed to them, and fit to be shown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

SHOWN_INSTEAD = "***"

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_STEP = re.compile(r"\s*\n\s*(?:↳\s*)?")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_SECRET = re.compile(r"key|secret|token|passw|passphrase|pwd|sas|credential|bearer", re.IGNORECASE)
_SIGNATURES = ("sig", "signature", "auth", "code", "pwd")
"""Further parameters of URLs that let somebody in."""
_USER = re.compile(r"(?<=://)(?:[^/\s]+|[^/\s:@]*:[^\s@]{1,200})(?=@)")
"""What stands before the `@` of a URL; a password may have a slash in it."""
_PARAMETER = re.compile(r"(?<=[?&;])([\w.~%-]{1,80})=([^&;#\s\"'<>]+)")
_NAMED = re.compile(
    r"""((?:
    (?:passw(?:or)?d|passphrase|pwd|secret|token|credential|(?:api|access|account|private|storage)[_-]?key)
    (?:[._-][\w.-]{0,80})?(?:\s?=\s?|["']:\s?)  # password=, 'sasl.password':, secret_access_key=, AccountKey=
    |(?:passw(?:or)?d|passphrase|pwd|(?:api|access|account|private|storage)[_-]?key):\s?  # not token:, as parsers say
    ))
    ("[^"\n]*"|'[^'\n]*'|[^&;,\s"'<>)\]}]+)""",
    re.IGNORECASE | re.VERBOSE,
)
_AUTHORIZATION = re.compile(r"\b((?:bearer|basic)\s+)[\w.~+/-]{8,}=*", re.IGNORECASE)

_LOGIN_MIN = len("basic ") + 8
_OF_LOGINS = frozenset("=@\"':")
"""What is shorter than a header of authorization, and has none of these, is none of the patterns above."""


def without(secrets: Iterable[object], text: str) -> str:
    """The text with each secret replaced, the longest first: one may be the beginning of another."""
    for secret in sorted(filter(None, map(str, secrets)), key=len, reverse=True):
        text = text.replace(secret, SHOWN_INSTEAD)
    return text


def without_login(text: str) -> str:
    """A URL, or any text, without what lets somebody in: user and password of URLs, their parameters such as
    `?token=`, what is passed as `password=` or `Password:`, and headers of authorization."""
    if len(text) < _LOGIN_MIN and _OF_LOGINS.isdisjoint(text):
        return text  # most of what pages show is a figure
    text = _PARAMETER.sub(_shown_parameter, _USER.sub(SHOWN_INSTEAD, text))
    return _AUTHORIZATION.sub(rf"\1{SHOWN_INSTEAD}", _NAMED.sub(rf"\1{SHOWN_INSTEAD}", text))


def _shown_parameter(found: re.Match[str]) -> str:
    name, value = found.groups()
    return f"{name}={SHOWN_INSTEAD if is_secret(name) or name.lower() in _SIGNATURES else value}"


def reason_of(error: BaseException, options: Mapping[str, str]) -> str:
    """The text of delta-rs' error, safe to display, for a table that was opened with these storage options."""
    text = _STEP.sub(": ", _COLOURS.sub("", str(error)).strip())
    secrets = (value for name, value in options.items() if _SECRET.search(name))
    return without_login(without(secrets, text))


def without_controls(text: str) -> str:
    """The text with what would control a terminal escaped; lines and tabs remain."""
    return _CONTROL.sub(lambda found: repr(found[0])[1:-1], text)


def is_secret(name: str) -> bool:
    """Whether an option of this name holds a secret."""
    return _SECRET.search(name) is not None
