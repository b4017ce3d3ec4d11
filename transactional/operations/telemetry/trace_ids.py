"""The ids of traces and spans: derived, so that whoever continues a transaction continues its trace."""

from __future__ import annotations

import hashlib


def trace_id_of(topology_id: str, txid: int) -> int:
    """The trace of a transaction."""
    return _number(16, topology_id, txid)


def span_id_of(topology_id: str, txid: int, attempt_id: int | None = None) -> int:
    """The span of one of its attempts; None: of all of it."""
    return _number(8, topology_id, txid, "transaction" if attempt_id is None else attempt_id)


def _number(size: int, *parts: object) -> int:
    digest = hashlib.sha256("\0".join(map(str, parts)).encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:size]) or 1  # 0 is no id
