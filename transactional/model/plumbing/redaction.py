"""Removes secrets from texts, such as errors of libraries, before they are shown, logged or stored.

`redact_secrets` removes known secrets; `without_login` removes whatever looks like a login in URLs, options and
headers. No text from outside may be shown or stored without one of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

REDACTED = "***"

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_STEP = re.compile(r"\s*\n\s*(?:↳\s*)?")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_SECRET = re.compile(r"key|secret|token|passw|passphrase|pwd|sas|credential|bearer", re.IGNORECASE)
_SIGNATURES = ("sig", "signature", "auth", "code", "pwd")
"""Further parameters of URLs that hold credentials."""
_USER = re.compile(r"(?<=://)(?:[^/\s]+|[^/\s:@]*:[^\s@]{1,200})(?=@)")
"""The user and password before the `@` of a URL; a password may have a slash in it."""
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
_LOGIN_CHARACTERS = frozenset("=@\"':")
"""The characters of which one is in every match of the patterns above, but for authorization headers, which are not
shorter than `_LOGIN_MIN`."""


def redact_secrets(secrets: Iterable[object], text: str) -> str:
    """Return the text with each secret replaced, the longest first: one may be the beginning of another."""
    for secret in sorted(filter(None, map(str, secrets)), key=len, reverse=True):
        text = text.replace(secret, REDACTED)
    return text


def without_login(text: str) -> str:
    """Return a URL, or any text, without credentials.

    User and password of URLs, parameters such as `?token=`, values after `password=` or `Password:`, and the contents
    of authorization headers are replaced.
    """
    if len(text) < _LOGIN_MIN and _LOGIN_CHARACTERS.isdisjoint(text):
        return text  # quickly, since most texts on pages are figures
    text = _PARAMETER.sub(_redact_parameter, _USER.sub(REDACTED, text))
    return _AUTHORIZATION.sub(rf"\1{REDACTED}", _NAMED.sub(rf"\1{REDACTED}", text))


def _redact_parameter(match: re.Match[str]) -> str:
    name, parameter_value = match.groups()
    return f"{name}={REDACTED if is_secret(name) or name.lower() in _SIGNATURES else parameter_value}"


def redacted_reason(error: BaseException, options: Mapping[str, str]) -> str:
    """Return the text of delta-rs' error, safe to display, for a table that was opened with these storage options."""
    text = _STEP.sub(": ", _COLOURS.sub("", str(error)).strip())
    secrets = (option_value for name, option_value in options.items() if _SECRET.search(name))
    return without_login(redact_secrets(secrets, text))


def escape_controls(text: str) -> str:
    """Return the text with characters that control a terminal escaped; line breaks and tabs remain."""
    return _CONTROL.sub(lambda match: repr(match[0])[1:-1], text)


def is_secret(name: str) -> bool:
    """Return True if an option of this name holds a secret."""
    return _SECRET.search(name) is not None
