"""What delta-rs' own MERGE leaves of a table: the rule of the merge layout once more, in SQL, by another engine.

Until release 1 the product wrote large tables by it, so there are tables that it has made.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable

from state.delta.tables.sql import DATA_FUSION, Dialect, build_combine_sql
from state.rows.columns import StateColumns
from state.rows.expiring import NO_HORIZONS, ExpiryHorizons
from transactional.model.attempt import TxId


def merge_into(
    table: DeltaTable,
    source: pa.Table,
    columns: StateColumns,
    txid: TxId,
    combine: Mapping[str, str],
    horizons: ExpiryHorizons = NO_HORIZONS,
    *,
    removes: bool = False,
    **options: Any,
) -> None:
    """Let delta-rs merge rows of a transaction, one per key, into a table."""
    clauses = merge_clauses(columns, txid, combine, DATA_FUSION, horizons, removes=removes)
    merger = table.merge(source, clauses.condition, source_alias="s", target_alias="t", **options)
    comes = None
    if clauses.is_deleted is not None:
        merger = merger.when_matched_delete(clauses.is_deleted)
        comes = f"NOT s.{DATA_FUSION.name(columns.deleted)}"
    merger = merger.when_matched_update(clauses.matched).when_not_matched_insert(clauses.not_matched, comes)
    merger = merger.when_not_matched_by_source_update(clauses.rolled_back, clauses.is_rolled_back)
    merger.when_not_matched_by_source_delete(clauses.is_forgotten).execute()


@dataclass(frozen=True, slots=True)
class MergeClauses:
    """The parts of one MERGE that applies a transaction, however often it is tried.

    Target `t`, source `s`. Every row of a dead attempt of the same transaction starts again from its previous values,
    also the rows that the source does not name (row T60).
    """

    condition: str
    matched: dict[str, str]
    not_matched: dict[str, str]
    rolled_back: dict[str, str]
    is_rolled_back: str
    is_forgotten: str
    is_deleted: str | None = None
    """Of a row that is in both, or came alone: no row is left of its key. None: keys are never deleted."""


def merge_clauses(
    columns: StateColumns,
    txid: TxId,
    combine: Mapping[str, str],
    dialect: Dialect,
    horizons: ExpiryHorizons = NO_HORIZONS,
    *,
    removes: bool = False,
) -> MergeClauses:
    """The clauses for transaction `txid`; column names are keys in the dialect's quotes. With `removes` the rows go
    that had expired for the transaction before; files that have such a row are written again."""
    quoted = dialect.name
    own = f"t.{quoted(columns.txid)} = {txid}"
    prev_txid = f"t.{quoted(columns.prev_txid)}"
    before = {
        v: f"CASE WHEN {own} THEN t.{quoted(columns.prev[v])} ELSE t.{quoted(v)} END" for v in columns.values.names
    }

    def combined(value: str) -> str:
        partial, type_ = f"s.{quoted(value)}", columns.values[value].type
        return build_combine_sql(combine[value], _unless(begins_anew, before[value]), partial, type_, dialect)

    expiry = before.get(columns.expires or "", f"t.{quoted(columns.expires or '')}")
    begins_anew, is_past = (
        dialect.expired_condition(expiry, horizon) for horizon in (horizons.current, horizons.previous)
    )
    before_txid = f"CASE WHEN {own} THEN {prev_txid} ELSE t.{quoted(columns.txid)} END"
    is_forgotten, is_deleted = f"{own} AND {prev_txid} IS NULL", None
    came, alive = dict[str, str](), dict[str, str]()
    if columns.deletes:
        deleted = quoted(columns.deleted)
        # A tombstone of an earlier transaction is as no row.
        before_txid = f"CASE WHEN t.{deleted} AND NOT ({own}) THEN NULL ELSE {before_txid} END"
        is_forgotten = f"({is_forgotten}) OR (t.{deleted} AND NOT ({own}))"
        is_deleted = f"s.{deleted} AND ({before_txid}) IS NULL"
        came, alive = {deleted: f"s.{deleted}"}, {deleted: "false"}
    if horizons.previous is not None:
        # What had expired for the transaction before is as no row, too.
        before_txid = _unless(is_past, before_txid)
        if is_deleted is not None:
            is_deleted = f"s.{quoted(columns.deleted)} AND ({before_txid}) IS NULL"
        if removes:
            is_forgotten = f"({is_forgotten}) OR ({is_past})"
    same = (f"(t.{quoted(k)} {dialect.null_safe_equals} s.{quoted(k)})" for k in columns.key.names)
    return MergeClauses(
        condition=" AND ".join(same) or "true",
        matched={
            **{quoted(v): combined(v) for v in before},
            **{quoted(columns.prev[v]): _unless(is_past, old) for v, old in before.items()},
            quoted(columns.prev_txid): before_txid,
            quoted(columns.txid): str(txid),
            **came,
        },
        not_matched={
            **{quoted(c): f"s.{quoted(c)}" for c in (*columns.key.names, *columns.values.names)},
            quoted(columns.txid): str(txid),
            **came,
        },
        rolled_back={
            **{quoted(v): f"t.{quoted(columns.prev[v])}" for v in columns.values.names},
            quoted(columns.txid): prev_txid,
            **alive,
        },
        is_rolled_back=f"{own} AND {prev_txid} IS NOT NULL",
        is_forgotten=is_forgotten,
        is_deleted=is_deleted,
    )


def _unless(is_gone: str, value: str) -> str:
    return value if is_gone == "false" else f"CASE WHEN {is_gone} THEN NULL ELSE {value} END"
