"""Texts from libraries, without the secrets that were passed to them."""

from __future__ import annotations

from collections.abc import Iterable

SHOWN_INSTEAD = "***"


def without(secrets: Iterable[object], text: str) -> str:
    """The text with each secret replaced, the longest first: one may be the beginning of another."""
    for secret in sorted(filter(None, map(str, secrets)), key=len, reverse=True):
        text = text.replace(secret, SHOWN_INSTEAD)
    return text
