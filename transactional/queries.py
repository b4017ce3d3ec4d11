"""Reading a topology's states from outside: questions, and tables as of a transaction. Public names."""

from __future__ import annotations

from transactional.operations.queries.as_of import Snapshot, as_of
from transactional.operations.queries.client import Answer, QueryClient

__all__ = ["Answer", "QueryClient", "Snapshot", "as_of"]
