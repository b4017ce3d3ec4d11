"""The ids of topologies in URLs: they may contain any character, also a slash."""

from __future__ import annotations

import base64
import binascii
import re
from typing import Final

_PLAIN: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
_ENCODED: Final = "~"


def slug_of(topology_id: str) -> str:
    """Return an id as one segment of a path: unchanged if it is harmless, else `~` and its UTF-8 bytes in base64url."""
    if _PLAIN.fullmatch(topology_id):
        return topology_id
    return _ENCODED + base64.urlsafe_b64encode(topology_id.encode("utf-8", "surrogatepass")).decode().rstrip("=")


def id_of(slug: str) -> str | None:
    """Return the id of a slug, or None if `slug_of` makes this slug of no id."""
    if not slug.startswith(_ENCODED):
        return slug if _PLAIN.fullmatch(slug) else None
    try:
        topology_id = base64.urlsafe_b64decode(slug[1:] + "=" * (-len(slug[1:]) % 4)).decode("utf-8")
    except (ValueError, binascii.Error):
        return None
    return topology_id if topology_id and slug_of(topology_id) == slug else None
