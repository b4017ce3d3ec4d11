"""The log layout of a state's table: its columns and segments, when they are compacted, and the queries on them.

A row of transaction n holds what the transaction adds to a key: a partial aggregate, or a latest value. The rows with
one txid are a segment. A compaction replaces adjacent segments by one, under the last of their txids: the same content
in fewer rows. The oldest segment is called the base once it is compacted, and has one row per key. Nothing is read or
written here: `stored.py` runs the queries, `compactor.py` the compactions.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from state.delta.segments.restarts import counted_rows, has_restarts
from state.delta.tables.sql import Dialect, build_aggregate_sql, build_combine_sql, build_range_condition
from state.delta.tables.staging import STAGED_BYTES
from state.rows.columns import StateColumns
from transactional.model.attempt import TxId
from transactional.model.errors import ConfigError, ProtocolError
from transactional.model.names import COMBINE_PROPERTY
from transactional.model.schema import Schema

LAYOUTS = ("auto", "merge", "log")
SMALL_SHARE = 0.3
"""If the newer segments have at most this share of the base's rows, all cores join the base with one table of them."""
BASE_SHARE = 1.0
"""Once the newer segments have this share of the base's rows, all are compacted into the base."""
FAN_OUT = 8
"""Number of segments of about one size that are compacted into one."""
COMPACTION_FILES = 500
"""Number of files staged by tasks that makes a compaction due before `compact_after` transactions have come."""
FOLDER_BYTES_MAX = 200
"""Longest name of a txid column. File systems take 255 bytes, and a txid follows the name."""
_PREFIX = "datafusion"
ONE_THREAD = {f"{_PREFIX}.execution.target_partitions": "1"}
"""Settings of DataFusion by which a query takes one core, as a Spark task may."""


@dataclass(frozen=True, slots=True)
class LogLayout:
    """How the log of a table is compacted: `DeltaMapState(…, layout=LogLayout(compact_after=100))`.

    `compact_after` is the number of transactions that are compacted into one segment. A larger number writes less and
    makes readers work more. With None the table is compacted by `DeltaMapState.compact()` alone. A task whose partial
    aggregates have more than `staged_bytes` writes them to a file in the table's folder. None sends all of them through
    the driver, for executors that do not mount the folder.
    """

    compact_after: int | None = 50
    staged_bytes: int | None = STAGED_BYTES

    def __post_init__(self) -> None:
        if self.compact_after is not None and self.compact_after < 1:
            raise ConfigError(f"{self}: compact_after is at least 1 or None")
        if self.staged_bytes is not None and self.staged_bytes < 0:
            raise ConfigError(f"{self}: staged_bytes is at least 0 or None")


def check_folder(txid: str, table: str) -> None:
    """Raise `ConfigError` for a txid column that can't name folders: each segment lies in `<column>=<txid>`."""
    if {":", "/"} & set(txid) or len(txid.encode()) > FOLDER_BYTES_MAX:
        raise ConfigError(
            f"state {table}: in the log layout the txid column names folders, so {txid!r} can't be its name: it must "
            f"have at most {FOLDER_BYTES_MAX} bytes, and neither ':' nor '/'; rename it with columns={{'txid': …}}, or "
            "use layout='merge'"
        )


class SegmentColumns(StateColumns):
    """The columns of a table in the log layout: key, values, deleted and horizon if there are such, txid.

    The values before a transaction are in other rows.
    """

    @cached_property
    def all_columns(self) -> Schema:
        """All columns, in the order of the table."""
        return Schema((*self.written_columns, *Schema.parse(f"`{self.txid}` long")))

    @property
    def addable(self) -> Sequence[tuple[str, ...]]:
        """The columns that a table may gain later: values, and the mark of a deleted row."""
        deleted = [self.deleted] if self.deletes else []
        return [(name,) for name in (*self.values.names, *deleted)]

    @cached_property
    def written_columns(self) -> Schema:
        """The columns in a file of a segment: all but the txid, which is the file's partition."""
        horizon = [] if self.horizon is None else [f"`{self.horizon}` timestamp"]
        return Schema((*self.visible, *Schema.parse(", ".join([*self._deletion, *horizon]))))


@dataclass(frozen=True, slots=True)
class Segment:
    """The rows of one txid. `is_unique` is true if every key has one row, as after a compaction."""

    txid: TxId
    rows: int
    files: frozenset[str] = frozenset()
    is_unique: bool = True


@dataclass(frozen=True, slots=True)
class Compaction:
    """The replacement of all segments with `after` < txid <= `until` by one. `segments` and `rows` are their
    numbers."""

    start: TxId
    end: TxId
    segments: int
    rows: int


def due_compaction(
    segments: Sequence[Segment],
    compacted: TxId,
    newest: TxId,
    layout: LogLayout,
    *,
    files: int = 0,
    whole: bool = False,
) -> Compaction | None:
    """Return the compaction that is due, or None. `segments` are ordered by txid; the last compaction went up to the
    transaction `compacted`.

    The newest transaction is left alone, since it may have to be replaced. A row is written again once for every size
    of segments and once with the base: about log(base rows / rows of a segment) / log(FAN_OUT) + 2 times. `files` is
    the number of staged files that are not compacted. With `whole`, all segments are compacted into the base: where
    rows expire, the row to which another one adds is only known from all of them.
    """
    older = [segment for segment in segments if segment.txid <= compacted]
    fresh = [segment for segment in segments if compacted < segment.txid < newest]
    if not fresh or not is_compaction_due(compacted, newest, layout, files=files):
        return None
    rows, first = sum(segment.rows for segment in fresh), len(older)
    while (similar := _count_similar(older[1:first], rows)) >= FAN_OUT - 1:
        rows += sum(segment.rows for segment in older[first - similar : first])
        first -= similar
    newer_rows, base_rows = sum(segment.rows for segment in [*older[1:], *fresh]), older[0].rows if older else 0
    if whole or newer_rows >= BASE_SHARE * base_rows:
        first = 0
    return _compaction_of([*older[first:], *fresh], older[:first])


def is_compaction_due(compacted: TxId, newest: TxId, layout: LogLayout, *, files: int = 0) -> bool:
    """True if enough transactions, or staged files, have come since the last compaction."""
    if layout.compact_after is None:
        return False
    return newest - 1 - compacted >= layout.compact_after or (files >= COMPACTION_FILES and newest - 1 > compacted)


def full_compaction(segments: Sequence[Segment], newest: TxId) -> Compaction | None:
    """Return the compaction of all but the newest transaction into the base, or None if they are compacted already."""
    compactable = [segment for segment in segments if segment.txid < newest]
    return (
        _compaction_of(compactable, [])
        if len(compactable) > 1 or any(not segment.is_unique for segment in compactable)
        else None
    )


def _compaction_of(segments: Sequence[Segment], older: Sequence[Segment]) -> Compaction:
    """Return the compaction of segments that follow the `older` ones."""
    start_txid = older[-1].txid if older else TxId(0)
    return Compaction(start_txid, segments[-1].txid, len(segments), sum(segment.rows for segment in segments))


def _count_similar(segments: Sequence[Segment], rows: int) -> int:
    """Return how many of the last segments are at most twice as large as `rows`."""
    for number, segment in enumerate(reversed(segments)):
        if segment.rows > 2 * rows:
            return number
    return len(segments)


# --- how the values of a key are combined -------------------------------------------------------------------------


def stored_combine(properties: Mapping[str, str]) -> dict[str, str] | None:
    """Return how the values of a table are combined, by column; None as long as nothing was written."""
    text = properties.get(COMBINE_PROPERTY)
    return None if text is None else json.loads(text)


def check_same_combine(stored: Mapping[str, str], combine: Mapping[str, str], table: object) -> None:
    """Raise `ProtocolError` if a write combines rows otherwise than the table has stored.

    Columns that the table has gained since are not stored, and may be combined in any way.
    """
    if any(combine.get(name) != function for name, function in stored.items()):
        raise ProtocolError(
            f"Delta table {table} has the log layout and was written with {dict(stored)}, but now comes "
            f"{dict(combine)}; write it always by put, or always by the same aggregates, or use layout='merge'"
        )


def join_settings(segments: Sequence[Segment]) -> dict[str, str]:
    """Return settings of DataFusion for a query that combines segments, of which the base is the first."""
    base_rows, newer_rows = segments[0].rows, sum(segment.rows for segment in segments[1:])
    if not segments[0].is_unique:
        base_rows, newer_rows = 0, base_rows + newer_rows
    # The base is joined as it is read. By default, DataFusion would first spread it over the cores.
    is_small = {f"{_PREFIX}.optimizer.hash_join_single_partition_threshold{unit}": str(2**62) for unit in ("", "_rows")}
    return {f"{_PREFIX}.execution.batch_size": "32768", **(is_small if newer_rows <= base_rows * SMALL_SHARE else {})}


# --- queries ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SegmentQuery:
    """Builds queries on a table in the log layout, for one SQL engine. `source` is the table's name in the query."""

    columns: StateColumns
    combine: Mapping[str, str]
    dialect: Dialect
    source: str = "t"

    def view(self, condition: str = "") -> str:
        """Return a query for key and value columns, one row per key. It stays valid while segments are compacted.

        `condition` is one on the txid.
        """
        return self._without_tombstones(self._aggregated(condition, []))

    def view_over_base(self, base: TxId | None, end: TxId | None) -> str:
        """Return a quicker query than `view`, for the rows before transaction `end`.

        `base` is the oldest segment if it has one row per key, so that its rows need not be combined.
        """
        return self._without_tombstones(self._over_base(base, end))

    def _over_base(self, base: TxId | None, end: TxId | None) -> str:
        key, values, quoted = self.columns.key.names, self._values, self.dialect.name
        txid = quoted(self.columns.txid)
        if not key or base is None or self.has_restarts:
            return self._aggregated("" if end is None else f"{txid} < {end}", [])
        newer = f"{txid} > {base}" + ("" if end is None else f" AND {txid} < {end}")
        same = " AND ".join(f"(b.{quoted(name)} {self.dialect.null_safe_equals} d.{quoted(name)})" for name in key)
        columns = [
            *(f"COALESCE(b.{quoted(name)}, d.{quoted(name)}) AS {quoted(name)}" for name in key),
            *(f"{self._combined_value(name)} AS {quoted(name)}" for name in values),
        ]
        stored = ", ".join(map(quoted, [*key, *values]))
        return (
            f"SELECT {', '.join(columns)} FROM (SELECT {stored} FROM {self.source} WHERE {txid} = {base}) b "
            f"FULL OUTER JOIN ({self._aggregated(newer, [f'max({txid}) AS {txid}'], is_part=True)}) d ON {same}"
        )

    def in_range(self, column: str, start: int | None, end: int) -> SegmentQuery:
        """Return the same query over rows with `start < column <= end`, for a key column.

        A condition on the query's result would not reach the files, which are behind a join of base and segments.
        """
        return self.filtered(build_range_condition(self.dialect, column, start, end))

    def filtered(self, condition: str) -> SegmentQuery:
        """Return the same query over rows with a condition, which is true for all rows of a key or for none."""
        return replace(self, source=f"(SELECT * FROM {self.source} WHERE {condition})")

    @property
    def has_restarts(self) -> bool:
        """True if a row may begin its key from nothing."""
        return has_restarts(self.columns, self.combine)

    def compact(self, compaction: Compaction, base: TxId | None, horizon: int | None = None) -> str:
        """Return a query for the rows that a compaction writes: all columns but the txid.

        A base has no tombstones, and no row that had expired by `horizon`, since no row is before the base.
        """
        txid = self.dialect.name(self.columns.txid)
        query = self._aggregated(f"{txid} > {compaction.start} AND {txid} <= {compaction.end}", [])
        if base is not None and compaction.start < base < compaction.end:
            query = self._over_base(base, TxId(compaction.end + 1))
        if not compaction.start:
            query = self._without_tombstones(query, "*")
            if self.columns.expires is not None and horizon is not None:
                is_expired = self.dialect.expired_condition(self.dialect.name(self.columns.expires), horizon)
                query = f"SELECT e.* FROM ({query}) e WHERE NOT COALESCE({is_expired}, false)"
        return f"SELECT n.*{self._no_horizon} FROM ({query}) n" if self._no_horizon else query

    def compaction_order(self, compaction: Compaction) -> str:
        """Return the ORDER BY of a compaction, which is empty unless rows expire by a key column.

        Files of such a table are searched by that column.
        """
        expires = self.columns.expires
        if compaction.start or expires not in self.columns.key.names:
            return ""
        return f" ORDER BY {self.dialect.name(expires)}"

    @property
    def _no_horizon(self) -> str:
        """The horizon column of a row that is no restart, as SQL."""
        horizon = self.columns.horizon
        return "" if horizon is None else f", {self.dialect.no_time} AS {self.dialect.name(horizon)}"

    def rows(self, end: TxId) -> str:
        """Return a query for the stored rows before transaction `end`, with their txid."""
        horizon = [] if self.columns.horizon is None else [self.columns.horizon]
        names = [*self.columns.key.names, *self._values, *horizon, self.columns.txid]
        txid = self.dialect.name(self.columns.txid)
        return f"SELECT {', '.join(map(self.dialect.name, names))} FROM {self.source} WHERE {txid} < {end}"

    def sorted_segment(self, txid: TxId, *, is_unique: bool = True) -> str:
        """Return a query for the rows of one segment with their txid, one per key, sorted by key, NULL last."""
        key = [f"{self.dialect.name(name)} ASC NULLS LAST" for name in self.columns.key.names]
        condition = f"{self.dialect.name(self.columns.txid)} = {txid}"
        txid_column = f"CAST({txid} AS BIGINT) AS {self.dialect.name(self.columns.txid)}"
        grouped = f"SELECT g.*{self._no_horizon}, {txid_column} FROM ({self._aggregated(condition, [])}) g"
        rows = f"{self.rows(TxId(txid + 1))} AND {condition}" if is_unique else grouped
        return rows + (f" ORDER BY {', '.join(key)}" if key else "")

    @property
    def _values(self) -> tuple[str, ...]:
        """The value columns, and the mark of deleted keys, whose latest value counts."""
        deleted = (self.columns.deleted,) if self.columns.deletes else ()
        return (*self.columns.values.names, *deleted)

    def _without_tombstones(self, query: str, names: str = "") -> str:
        """Return a query for the rows of a query without tombstones: key and value columns, or the named ones."""
        if not self.columns.deletes:
            return query
        columns = names or ", ".join(map(self.dialect.name, [*self.columns.key.names, *self.columns.values.names]))
        return f"SELECT {columns} FROM ({query}) a WHERE NOT COALESCE({self.dialect.name(self.columns.deleted)}, false)"

    def _combined_value(self, name: str) -> str:
        column, function = self.dialect.name(name), self.combine.get(name, "last")
        if function == "last":
            return f"CASE WHEN d.{self.dialect.name(self.columns.txid)} IS NULL THEN b.{column} ELSE d.{column} END"
        type_ = self.columns.values[name].type
        return build_combine_sql(function, f"b.{column}", f"d.{column}", type_, self.dialect)

    def _aggregated(self, filter_sql: str, more: Sequence[str], *, is_part: bool = False) -> str:
        """Return a query for key, value and `more` columns of some segments. Sums of a part may exceed their type."""
        quoted, key = self.dialect.name, [self.dialect.name(name) for name in self.columns.key.names]
        values = [f"{self._aggregate(name, is_part=is_part)} AS {quoted(name)}" for name in self._values]
        grouping = f"GROUP BY {', '.join(key)}" if key else "HAVING count(*) > 0"
        source, condition = self.source, f"WHERE {filter_sql} " if filter_sql else ""
        if self.has_restarts:
            source = f"({counted_rows(self.columns, self.combine, self.dialect, source, filter_sql)}) c"
            condition = ""
        return f"SELECT {', '.join([*key, *values, *more])} FROM {source} {condition}{grouping}"

    def _aggregate(self, name: str, *, is_part: bool) -> str:
        column, txid = self.dialect.name(name), self.dialect.name(self.columns.txid)
        function, type_ = self.combine.get(name, "last"), self.columns.all_columns[name].type
        return build_aggregate_sql(function, column, txid, type_, self.dialect, is_part=is_part)
