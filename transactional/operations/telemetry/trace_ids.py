"""The ids of traces and spans, derived so that a process that continues a transaction continues its trace, too."""

from __future__ import annotations

import hashlib


def trace_id_of(topology_id: str, txid: int) -> int:
    """Return the id of a transaction's trace."""
    return _derive_id(16, topology_id, txid)


def span_id_of(topology_id: str, txid: int, attempt_id: int | None = None) -> int:
    """Return the id of the span of an attempt, or of the whole transaction without an attempt."""
    return _derive_id(8, topology_id, txid, "transaction" if attempt_id is None else attempt_id)


def _derive_id(size: int, *parts: object) -> int:
    digest = hashlib.sha256("\0".join(map(str, parts)).encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:size]) or 1  # 0 is no id
