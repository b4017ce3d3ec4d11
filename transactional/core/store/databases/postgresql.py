"""PostgreSQL's connections, also through a pooler: what is set is set for one database transaction.

A pooler in transaction mode gives each transaction another session, whose settings others would find changed; and it
knows no statement that was prepared in the one before.
"""

from __future__ import annotations

import re

from sqlalchemy import URL

_SEARCH_PATH = re.compile(r"\s*(?:-c\s*|--)search_path=((?:\\.|[^\s\\])+)\s*")


def without_search_path(url: URL) -> tuple[URL, str]:
    """A URL whose options name only the schemas to search, without them, and these schemas; any other as it is."""
    options = url.query.get("options", "")
    match = _SEARCH_PATH.fullmatch(options) if isinstance(options, str) else None
    if match is None:
        return url, ""
    return url.difference_update_query(["options"]), re.sub(r"\\(.)", r"\1", match[1])


def connect_arguments(url: URL, timeout_ms: int) -> dict[str, int | bool | None]:
    """psycopg's arguments: for detecting a host that has disappeared, unless the URL sets them, and that it neither
    begins a transaction by itself nor prepares statements."""
    seconds = max(2, -(-timeout_ms // 1000))
    defaults = {
        "connect_timeout": seconds,
        "tcp_user_timeout": timeout_ms,
        "keepalives_idle": seconds,
        "keepalives_interval": 1,
        "keepalives_count": 3,
    }
    given = {name: default for name, default in defaults.items() if name not in url.query}
    return {**given, "autocommit": True, "prepare_threshold": None}


def beginning(timeout_ms: int, search_path: str, *, only_reads: bool, is_snapshot: bool) -> str:
    """Return the statements that begin a transaction with all of its settings, in one message.

    They are for psycopg, with empty parameters.

    The server ends one that is idle for half of the time that a statement or a lock may take.
    """
    level = " ISOLATION LEVEL REPEATABLE READ" if is_snapshot else ""
    settings = {
        "statement_timeout": timeout_ms,
        "lock_timeout": timeout_ms,
        "idle_in_transaction_session_timeout": max(1, timeout_ms // 2),
    }
    statements = [f"BEGIN{level}{' READ ONLY' if only_reads else ''}"]
    statements += [f"SET LOCAL {name} = {setting}" for name, setting in settings.items()]
    if search_path:
        quoted = search_path.replace("'", "''").replace("%", "%%")
        statements.append(f"SELECT set_config('search_path', '{quoted}', true)")
    return "; ".join(statements)
