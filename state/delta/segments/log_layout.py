"""The log layout of a state's table: what its rows mean, the queries that combine them, what is compacted when.

A row of transaction n holds what the transaction adds: a partial aggregate, or a latest value. The rows with one txid
are a segment. A compaction replaces adjacent segments by one, under the last of their txids: the same content in fewer
rows. The oldest segment, once it is compacted, is the base: one row per key.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from state.delta.segments.restarts import counted_rows, has_restarts
from state.delta.tables.sql import Dialect, aggregated_sql, combined_sql, is_in_range
from state.delta.tables.staging import STAGED_BYTES
from state.rows.columns import StateColumns
from transactional.model.attempt import TxId
from transactional.model.errors import ConfigError, ProtocolError
from transactional.model.names import COMBINE_PROPERTY
from transactional.model.schema import Schema

LAYOUTS = ("auto", "merge", "log")
SMALL_SHARE = 0.3
"""Up to this share of the base's rows, one table of what is beside the base is searched by all cores."""
BASE_SHARE = 1.0
"""Once the rows beside the base have this share of its rows, all are compacted into it."""
FAN_OUT = 8
"""Number of segments of about one size that are compacted into one."""
COMPACTION_FILES = 500
"""So many files of tasks are compacted, even before `compact_after` transactions have come."""
FOLDER_BYTES_MAX = 200
"""File systems take 255; what follows the name is a txid."""
_PREFIX = "datafusion"
ONE_THREAD = {f"{_PREFIX}.execution.target_partitions": "1"}
"""A setting of DataFusion: a query takes one core, as a Spark task may."""


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
    """The columns of a table in the log layout: key, values, deleted and horizon if there are such, txid. What was
    before a transaction is in other rows."""

    @cached_property
    def all(self) -> Schema:
        """Every column, in order."""
        return Schema((*self.written, *Schema.parse(f"`{self.txid}` long")))

    @property
    def addable(self) -> Sequence[tuple[str, ...]]:
        """Columns that a table may gain later: values, and whether a row is deleted."""
        deleted = [self.deleted] if self.deletes else []
        return [(name,) for name in (*self.values.names, *deleted)]

    @cached_property
    def written(self) -> Schema:
        """What a file of a segment holds: every column but the txid, which is its partition's."""
        horizon = [] if self.horizon is None else [f"`{self.horizon}` timestamp"]
        return Schema((*self.shown, *Schema.parse(", ".join([*self._deletion, *horizon]))))


@dataclass(frozen=True, slots=True)
class Segment:
    """The rows of one txid. `is_unique`: no two of them have one key, which is known of what a compaction has
    written."""

    txid: TxId
    rows: int
    files: frozenset[str] = frozenset()
    is_unique: bool = True


@dataclass(frozen=True, slots=True)
class Compaction:
    """Segments to be made one: all with `after` < txid <= `until`. `segments` and `rows` say how many there are."""

    after: TxId
    until: TxId
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
    """What is to be compacted now, None: nothing. `segments` in order of txid; those up to `compacted` were compacted
    before.

    The newest transaction is left alone: it may have to be replaced. Each row is written again once per size of
    segments and once with the base, so a row that came is written about log(base rows / rows of a segment) /
    log(FAN_OUT) + 2 times. `files` is how many files have come that are not compacted. With `whole` all are compacted
    into the base: where rows expire, what a row adds to is only known with all of them.
    """
    older = [segment for segment in segments if segment.txid <= compacted]
    fresh = [segment for segment in segments if compacted < segment.txid < newest]
    if not fresh or not is_time(compacted, newest, layout, files=files):
        return None
    rows, first = sum(segment.rows for segment in fresh), len(older)
    while (similar := _similar(older[1:first], rows)) >= FAN_OUT - 1:
        rows += sum(segment.rows for segment in older[first - similar : first])
        first -= similar
    beside, base = sum(segment.rows for segment in [*older[1:], *fresh]), older[0].rows if older else 0
    if whole or beside >= BASE_SHARE * base:
        first = 0
    return _compaction_of([*older[first:], *fresh], older[:first])


def is_time(compacted: TxId, newest: TxId, layout: LogLayout, *, files: int = 0) -> bool:
    """Whether enough transactions, or files, have come since the last compaction."""
    if layout.compact_after is None:
        return False
    return newest - 1 - compacted >= layout.compact_after or (files >= COMPACTION_FILES and newest - 1 > compacted)


def full_compaction(segments: Sequence[Segment], newest: TxId) -> Compaction | None:
    """Everything but the newest transaction into the base; None: nothing is left to compact."""
    compactable = [segment for segment in segments if segment.txid < newest]
    return (
        _compaction_of(compactable, [])
        if len(compactable) > 1 or any(not each.is_unique for each in compactable)
        else None
    )


def _compaction_of(segments: Sequence[Segment], before: Sequence[Segment]) -> Compaction:
    """The compaction of these segments, which stand behind those before."""
    after = before[-1].txid if before else TxId(0)
    return Compaction(after, segments[-1].txid, len(segments), sum(segment.rows for segment in segments))


def _similar(segments: Sequence[Segment], rows: int) -> int:
    """How many of the last segments are not much larger than `rows`."""
    for number, segment in enumerate(reversed(segments)):
        if segment.rows > 2 * rows:
            return number
    return len(segments)


# --- how the values of a key are combined -------------------------------------------------------------------------


def stored_combine(properties: Mapping[str, str]) -> dict[str, str] | None:
    """Return how the values of a table are combined, by column; None as long as nothing was written."""
    text = properties.get(COMBINE_PROPERTY)
    return None if text is None else json.loads(text)


def check_same_combine(stored: Mapping[str, str], wanted: Mapping[str, str], table: object) -> None:
    """Raise `ProtocolError` when a table would be written in two ways: its rows can only be combined in one.

    Columns that the table has gained since come to those that are stored.
    """
    if any(wanted.get(name) != how for name, how in stored.items()):
        raise ProtocolError(
            f"Delta table {table} has the log layout and was written with {dict(stored)}, now comes {dict(wanted)}; "
            "write it always by put, or always by the same aggregates, or use layout='merge'"
        )


def join_settings(segments: Sequence[Segment]) -> dict[str, str]:
    """Settings of DataFusion for putting segments together, the base first among them."""
    base, rest = segments[0].rows, sum(segment.rows for segment in segments[1:])
    if not segments[0].is_unique:
        base, rest = 0, base + rest
    # The base goes by what is beside it as it is read; by itself, DataFusion would first spread it over the cores.
    is_small = {f"{_PREFIX}.optimizer.hash_join_single_partition_threshold{of}": str(2**62) for of in ("", "_rows")}
    return {f"{_PREFIX}.execution.batch_size": "32768", **(is_small if rest <= base * SMALL_SHARE else {})}


# --- queries ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SegmentQuery:
    """Queries on a table in the log layout, for one engine. `source` is the table as the query names it."""

    columns: StateColumns
    combine: Mapping[str, str]
    dialect: Dialect
    source: str = "t"

    def view(self, where: str = "") -> str:
        """One row per key: key and value columns. Right whatever was compacted; `where` is a condition on the txid."""
        return self._alive(self._aggregated(where, []))

    def view_over_base(self, base: TxId | None, before: TxId | None) -> str:
        """As `view`, quicker: `base` is the oldest segment, if it has one row per key, which need not be combined."""
        return self._alive(self._over_base(base, before))

    def _over_base(self, base: TxId | None, before: TxId | None) -> str:
        key, values, quoted = self.columns.key.names, self._values, self.dialect.name
        txid = quoted(self.columns.txid)
        if not key or base is None or self.has_restarts:
            return self._aggregated("" if before is None else f"{txid} < {before}", [])
        rest = f"{txid} > {base}" + ("" if before is None else f" AND {txid} < {before}")
        same = " AND ".join(f"(b.{quoted(name)} {self.dialect.same} d.{quoted(name)})" for name in key)
        columns = [
            *(f"COALESCE(b.{quoted(name)}, d.{quoted(name)}) AS {quoted(name)}" for name in key),
            *(f"{self._combined_value(name)} AS {quoted(name)}" for name in values),
        ]
        stored = ", ".join(map(quoted, [*key, *values]))
        return (
            f"SELECT {', '.join(columns)} FROM (SELECT {stored} FROM {self.source} WHERE {txid} = {base}) b "
            f"FULL OUTER JOIN ({self._aggregated(rest, [f'max({txid}) AS {txid}'], is_part=True)}) d ON {same}"
        )

    def between(self, column: str, after: int | None, until: int) -> SegmentQuery:
        """The same query, over rows whose key column lies in a range. A condition on its result would come too late:
        behind a join of base and segments it does not reach the files."""
        return self.where(is_in_range(self.dialect, column, after, until))

    def where(self, condition: str) -> SegmentQuery:
        """The same query, over rows with a condition that is true of all rows of a key, or of none."""
        return replace(self, source=f"(SELECT * FROM {self.source} WHERE {condition})")

    @property
    def has_restarts(self) -> bool:
        """Whether rows may begin their key from nothing."""
        return has_restarts(self.columns, self.combine)

    def compact(self, compaction: Compaction, base: TxId | None, horizon: int | None = None) -> str:
        """The rows that a compaction writes: all columns but the txid.

        A base has no tombstones, and nothing that had expired by the horizon: nothing is before it.
        """
        txid = self.dialect.name(self.columns.txid)
        query = self._aggregated(f"{txid} > {compaction.after} AND {txid} <= {compaction.until}", [])
        if base is not None and compaction.after < base < compaction.until:
            query = self._over_base(base, TxId(compaction.until + 1))
        if not compaction.after:
            query = self._alive(query, "*")
            if self.columns.expires is not None and horizon is not None:
                is_gone = self.dialect.has_expired(self.dialect.name(self.columns.expires), horizon)
                query = f"SELECT e.* FROM ({query}) e WHERE NOT COALESCE({is_gone}, false)"
        return f"SELECT n.*{self._no_horizon} FROM ({query}) n" if self._no_horizon else query

    def compaction_order(self, compaction: Compaction) -> str:
        """How a compaction sorts what it writes: where rows go by a column of their key, their files are searched by
        it."""
        expires = self.columns.expires
        if compaction.after or expires not in self.columns.key.names:
            return ""
        return f" ORDER BY {self.dialect.name(expires)}"

    @property
    def _no_horizon(self) -> str:
        """The column with the horizon, of a row that restarts nothing."""
        horizon = self.columns.horizon
        return "" if horizon is None else f", {self.dialect.no_time} AS {self.dialect.name(horizon)}"

    def rows(self, before: TxId) -> str:
        """The rows as they are, with their txid."""
        horizon = [] if self.columns.horizon is None else [self.columns.horizon]
        names = [*self.columns.key.names, *self._values, *horizon, self.columns.txid]
        txid = self.dialect.name(self.columns.txid)
        return f"SELECT {', '.join(map(self.dialect.name, names))} FROM {self.source} WHERE {txid} < {before}"

    def sorted_segment(self, txid: TxId, *, is_unique: bool = True) -> str:
        """The rows of one segment with their txid, one per key, sorted by key, NULL last."""
        key = [f"{self.dialect.name(name)} ASC NULLS LAST" for name in self.columns.key.names]
        own = f"{self.dialect.name(self.columns.txid)} = {txid}"
        one = f"CAST({txid} AS BIGINT) AS {self.dialect.name(self.columns.txid)}"
        grouped = f"SELECT g.*{self._no_horizon}, {one} FROM ({self._aggregated(own, [])}) g"
        rows = f"{self.rows(TxId(txid + 1))} AND {own}" if is_unique else grouped
        return rows + (f" ORDER BY {', '.join(key)}" if key else "")

    @property
    def _values(self) -> tuple[str, ...]:
        """The value columns, and the one that says which keys are deleted: its latest value counts."""
        deleted = (self.columns.deleted,) if self.columns.deletes else ()
        return (*self.columns.values.names, *deleted)

    def _alive(self, query: str, names: str = "") -> str:
        """A query's rows without tombstones: key and value columns, or those of these names."""
        if not self.columns.deletes:
            return query
        columns = names or ", ".join(map(self.dialect.name, [*self.columns.key.names, *self.columns.values.names]))
        return f"SELECT {columns} FROM ({query}) a WHERE NOT COALESCE({self.dialect.name(self.columns.deleted)}, false)"

    def _combined_value(self, name: str) -> str:
        value, how = self.dialect.name(name), self.combine.get(name, "last")
        if how == "last":
            return f"CASE WHEN d.{self.dialect.name(self.columns.txid)} IS NULL THEN b.{value} ELSE d.{value} END"
        type_ = self.columns.values[name].type
        return combined_sql(how, f"b.{value}", f"d.{value}", type_, self.dialect)

    def _aggregated(self, where: str, more: Sequence[str], *, is_part: bool = False) -> str:
        """Key and value columns of some segments; a part's sums may be wider than their columns."""
        quoted, key = self.dialect.name, [self.dialect.name(name) for name in self.columns.key.names]
        values = [f"{self._aggregate(name, is_part=is_part)} AS {quoted(name)}" for name in self._values]
        grouping = f"GROUP BY {', '.join(key)}" if key else "HAVING count(*) > 0"
        source, condition = self.source, f"WHERE {where} " if where else ""
        if self.has_restarts:
            source = f"({counted_rows(self.columns, self.combine, self.dialect, source, where)}) c"
            condition = ""
        return f"SELECT {', '.join([*key, *values, *more])} FROM {source} {condition}{grouping}"

    def _aggregate(self, name: str, *, is_part: bool) -> str:
        value, txid = self.dialect.name(name), self.dialect.name(self.columns.txid)
        how, type_ = self.combine.get(name, "last"), self.columns.all[name].type
        return aggregated_sql(how, value, txid, type_, self.dialect, is_part=is_part)
