"""Rows of the log layout whose key had expired before them, and which are not added to the rows before.

This is needed only where values are combined otherwise than by the newest one, and expire by a value column. Every row
then has the expiry horizon of its transaction. A row at which its key begins from nothing is called a restart: the
combined expiry of the key's earlier rows is at or before the horizon of that row.
"""

from __future__ import annotations

from collections.abc import Mapping

from state.delta.tables.sql import Dialect
from state.rows.columns import StateColumns
from transactional.model.errors import ConfigError

_EXPIRY = ("max", "last")


def has_restarts(columns: StateColumns, combine: Mapping[str, str]) -> bool:
    """True if the values of a key depend on when the key had expired in between."""
    return columns.horizon is not None and any(combine.get(name) != "last" for name in columns.values.names)


def check_expiry(columns: StateColumns, combine: Mapping[str, str], table: str) -> None:
    """Raise `ConfigError` for an expiry that only a table with one row per key can have."""
    expires = columns.expires
    if has_restarts(columns, combine) and expires is not None and combine[expires] not in _EXPIRY:
        raise ConfigError(
            f"Delta table {table} has the log layout, where the column {expires!r}, by which rows expire, can be "
            f"updated by Max or Last, not by {combine[expires]}; do that, or use layout='merge'"
        )


def counted_rows(
    columns: StateColumns, combine: Mapping[str, str], dialect: Dialect, source: str, filter_sql: str
) -> str:
    """Return a query for the rows of every key from its newest restart on, with all columns and some helper columns."""
    name = dialect.name
    assert columns.horizon is not None
    assert columns.expires is not None
    expiry, horizon, txid = name(columns.expires), name(columns.horizon), name(columns.txid)
    by_key = f"PARTITION BY {', '.join(map(name, columns.key.names))} " if columns.key else ""
    by_txid = f"{by_key}ORDER BY {txid}"
    condition = f" WHERE {filter_sql}" if filter_sql else ""
    newest = f"lag({expiry}) OVER ({by_txid})"
    # After a restart with NULL nothing expires, whatever the greatest one before it was.
    greatest = f"max({expiry}) OVER ({by_txid} ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)"
    newest_expiry = newest if combine[columns.expires] == "last" else greatest
    with_expiry = f"SELECT t.*, {newest_expiry} AS expiry_, {newest} AS newest_ FROM {source} t{condition}"
    if combine[columns.expires] == "last":
        marked = f"SELECT p.*, COALESCE(p.expiry_ <= p.{horizon}, false) AS restarts_ FROM ({with_expiry}) p"
    else:
        candidates = f"SELECT p.*, COALESCE(p.expiry_ <= p.{horizon}, false) AS may_ FROM ({with_expiry}) p"
        compared = f"SELECT m.*, COALESCE(lag(m.may_) OVER ({by_txid}), false) AS may_before_ FROM ({candidates}) m"
        marked = f"SELECT b.*, b.may_ AND (NOT b.may_before_ OR b.newest_ IS NOT NULL) AS restarts_ FROM ({compared}) b"
    newest_restart = f"max(CASE WHEN f.restarts_ THEN f.{txid} END) OVER ({by_key.strip()})"
    last = f"SELECT f.*, {newest_restart} AS since_ FROM ({marked}) f"
    return f"SELECT * FROM ({last}) l WHERE l.since_ IS NULL OR l.{txid} >= l.since_"
