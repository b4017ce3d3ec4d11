"""Rows of the log layout whose key had expired before them: what they say is not added to what was before.

Only where values are combined otherwise than by the newest, and expire by a value column; each row has the horizon of
its transaction then. A row at which its key begins from nothing is called a restart: the expiry of the rows before it,
together, is at or below its horizon.
"""

from __future__ import annotations

from collections.abc import Mapping

from state.delta.tables.sql import Dialect
from state.rows.columns import StateColumns
from transactional.model.errors import ConfigError

_EXPIRY = ("max", "last")


def has_restarts(columns: StateColumns, combine: Mapping[str, str]) -> bool:
    """Whether what a key has depends on when it had expired in between."""
    return columns.horizon is not None and any(combine.get(name) != "last" for name in columns.values.names)


def check_expiry(columns: StateColumns, combine: Mapping[str, str], table: str) -> None:
    """Raise `ConfigError` for an expiry that only a table with one row per key can have."""
    expires = columns.expires
    if has_restarts(columns, combine) and expires is not None and combine[expires] not in _EXPIRY:
        raise ConfigError(
            f"Delta table {table} has the log layout, where the column {expires!r}, by which rows expire, can be "
            f"updated by Max or Last, not by {combine[expires]}; do that, or use layout='merge'"
        )


def counted_rows(columns: StateColumns, combine: Mapping[str, str], dialect: Dialect, source: str, where: str) -> str:
    """A query for the rows that count: of each key those from its newest restart on. All columns, and some more."""
    name = dialect.name
    assert columns.horizon is not None
    assert columns.expires is not None
    expiry, horizon, txid = name(columns.expires), name(columns.horizon), name(columns.txid)
    by_key = f"PARTITION BY {', '.join(map(name, columns.key.names))} " if columns.key else ""
    by_txid = f"{by_key}ORDER BY {txid}"
    condition = f" WHERE {where}" if where else ""
    newest = f"lag({expiry}) OVER ({by_txid})"
    # After a restart with NULL nothing expires, whatever the greatest one before it was.
    greatest = f"max({expiry}) OVER ({by_txid} ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)"
    newest_expiry = newest if combine[columns.expires] == "last" else greatest
    told = f"SELECT t.*, {newest_expiry} AS expiry_, {newest} AS newest_ FROM {source} t{condition}"
    if combine[columns.expires] == "last":
        found = f"SELECT p.*, COALESCE(p.expiry_ <= p.{horizon}, false) AS restarts_ FROM ({told}) p"
    else:
        may = f"SELECT p.*, COALESCE(p.expiry_ <= p.{horizon}, false) AS may_ FROM ({told}) p"
        both = f"SELECT m.*, COALESCE(lag(m.may_) OVER ({by_txid}), false) AS may_before_ FROM ({may}) m"
        found = f"SELECT b.*, b.may_ AND (NOT b.may_before_ OR b.newest_ IS NOT NULL) AS restarts_ FROM ({both}) b"
    newest_restart = f"max(CASE WHEN f.restarts_ THEN f.{txid} END) OVER ({by_key.strip()})"
    last = f"SELECT f.*, {newest_restart} AS since_ FROM ({found}) f"
    return f"SELECT * FROM ({last}) l WHERE l.since_ IS NULL OR l.{txid} >= l.since_"
